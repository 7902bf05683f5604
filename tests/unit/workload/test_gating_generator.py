"""Random gating: exact sums, distinct experts, independent streams, and the variance it claims."""

import math
from dataclasses import replace

import numpy as np
import pytest

from moefabric.workload.gating.generator import (
    GatingGenerator,
    GatingParameters,
    draw_tokens,
    generate,
    inclusion_probabilities,
    popularity,
    systematic_counts,
)
from moefabric.workload.gating.presets import PRESETS, preset

PLAIN = GatingParameters(16, 4, 500, skew=1.0)
RICH = replace(
    PLAIN,
    skew_variation=0.3,
    concentration=3.0,
    overdispersion=6.0,
    persistence=0.5,
    drift_time=4.0,
    layer_correlation=0.3,
)


@pytest.mark.parametrize("name", PRESETS)
def test_each_row_has_all_choices_and_no_expert_twice_for_a_token(name: str) -> None:
    parameters = preset(name)
    tokens = generate(parameters, ranks=3, layers=2, iterations=2).tokens
    assert tokens.shape == (2, 2, 3, parameters.experts)
    assert tokens.dtype == np.int64
    assert (tokens.sum(axis=-1) == parameters.tokens * parameters.top_k).all()
    assert tokens.max() <= parameters.tokens


def test_sums_are_exact_if_a_few_experts_take_nearly_everything() -> None:
    steep = replace(PLAIN, skew=30.0, overdispersion=1000.0)
    tokens = generate(steep, ranks=4, layers=3, iterations=3).tokens
    assert (tokens.sum(axis=-1) == 2000).all()
    assert tokens.max() == 500, "the most popular expert has every token, and no more"


def test_more_ranks_layers_and_iterations_leave_the_others_as_they_are() -> None:
    few = generate(RICH, ranks=2, layers=2, iterations=2, seed=5).tokens
    many = generate(RICH, ranks=2, layers=4, iterations=6, seed=5).tokens
    np.testing.assert_array_equal(many[:2, :2], few)
    generator = GatingGenerator(RICH, 2, seed=5)
    np.testing.assert_array_equal(generator.tokens(5, 3), many[5, 3])
    np.testing.assert_array_equal(generator.tokens(1, 1), many[1, 1])
    wide = GatingGenerator(RICH, 4, seed=5)
    np.testing.assert_allclose(wide.shares(3, 1)[:2], generator.shares(3, 1))


def test_seeds_iterations_layers_regions_and_micro_batches_differ() -> None:
    generator = GatingGenerator(RICH, 2, seed=5)
    places = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    draws = [generator.tokens(*place).tobytes() for place in places]
    draws.append(GatingGenerator(RICH, 2, seed=6).tokens(0, 0).tobytes())
    assert len(set(draws)) == len(draws)


def test_regions_share_popularity_and_have_sources_of_their_own() -> None:
    alike = GatingGenerator(PLAIN, 2)
    np.testing.assert_array_equal(alike.shares(0, 0, 0), alike.shares(0, 0, 1))
    apart = GatingGenerator(replace(PLAIN, concentration=3.0), 2)
    assert np.abs(apart.shares(0, 0, 0) - apart.shares(0, 0, 1)).max() > 0.01
    two = GatingGenerator(replace(PLAIN, concentration=3.0, sources=2), 4)
    np.testing.assert_array_equal(two.shares(0, 0)[:2], two.shares(0, 0)[2:])


def test_inclusion_is_in_proportion_to_shares_up_to_one() -> None:
    shares = np.array([[0.7, 0.15, 0.1, 0.05], [0.25, 0.25, 0.25, 0.25]])
    expected = [[1.0, 0.5, 1 / 3, 1 / 6], [0.5, 0.5, 0.5, 0.5]]
    np.testing.assert_allclose(inclusion_probabilities(shares, 2), expected)
    np.testing.assert_allclose(inclusion_probabilities(shares, 4), 1.0)
    np.testing.assert_allclose(
        inclusion_probabilities(np.array([[1.0, 0.0, 0.0]]), 2), [[1.0, 0.5, 0.5]]
    )


def test_systematic_counts_have_the_moments_of_distinct_choices() -> None:
    inclusion = inclusion_probabilities(np.array([[0.4, 0.25, 0.2, 0.1, 0.05]]), 2)
    draws, tokens = 4000, 100
    counts = systematic_counts(
        np.repeat(inclusion, draws, axis=0), tokens, 2, np.random.default_rng(1)
    )
    variance = tokens * inclusion[0] * (1 - inclusion[0])
    error = 5 * np.sqrt(variance / draws)
    assert (np.abs(counts.mean(axis=0) - tokens * inclusion[0]) <= error).all()
    # The variance of a sample of n normal numbers varies by sqrt(2 / n).
    np.testing.assert_allclose(counts.var(axis=0), variance, rtol=5 * math.sqrt(2 / draws))


def test_any_two_experts_are_chosen_together_alike() -> None:
    inclusion, draws = np.full((4000, 6), 1 / 3), 4000
    counts = systematic_counts(inclusion, 10, 2, np.random.default_rng(3))
    matrix = np.asarray(np.corrcoef(counts.T))
    correlations = matrix[np.triu_indices(6, 1)]
    # Six counts of a constant sum; choices of a draw share an order, which widens the scatter.
    assert np.abs(correlations + 1 / 5).max() < 8 / math.sqrt(draws)


@pytest.mark.parametrize("overdispersion", [1.5, 8.0, 40.0])
def test_counts_vary_more_than_independent_choices_by_the_overdispersion(
    overdispersion: float,
) -> None:
    parameters = GatingParameters(32, 1, 4000, overdispersion=overdispersion)
    share, draws = np.full((4000, 32), 1 / 32), 4000
    counts = draw_tokens(share, parameters, np.random.default_rng(2))
    relative = counts.var(axis=0).mean() / (4000 / 32 * (1 - 1 / 32))
    # 31 of 32 variances are independent; heavier tails than normal ones get a factor of two.
    assert relative == pytest.approx(overdispersion, rel=10 * math.sqrt(2 / (31 * draws)))


def test_concentration_is_the_deviation_of_a_source_from_its_layer() -> None:
    parameters = GatingParameters(64, 1, 1, concentration=4.0)
    shares = np.concatenate([GatingGenerator(parameters, 200).shares(0, n) for n in range(5)])
    expected = math.sqrt((1 - 1 / 64) / (4.0 + 1 / 64))
    assert (shares * 64).std() == pytest.approx(expected, rel=0.03)


def test_scores_forget_at_the_drift_time_what_does_not_persist() -> None:
    parameters = GatingParameters(2000, 1, 1, skew=1.0, persistence=0.4, drift_time=5.0)
    generator = GatingGenerator(parameters, 1)
    logs = [np.log(generator.shares(iteration, 0)[0]) for iteration in range(41)]
    for lag in (1, 5, 40):
        expected = 0.4 + 0.6 * math.exp(-lag / 5)
        # The error of a correlation of n pairs is (1 - correlation^2) / sqrt(n).
        error = 4 * (1 - expected**2) / math.sqrt(2000)
        assert np.corrcoef(logs[0], logs[lag])[0, 1] == pytest.approx(expected, abs=error)


def test_popularity_has_its_distribution_in_the_order_of_scores() -> None:
    scores = np.array([0.3, -1.0, 2.0, 0.0])
    zipf = popularity(scores, GatingParameters(4, 1, 1, "zipf", skew=1.0), 1.0)
    np.testing.assert_allclose(zipf * (25 / 12), [1 / 2, 1 / 4, 1.0, 1 / 3])
    recorded = GatingParameters(4, 1, 1, "recorded", skew=1.0, loads=(1.0, 4.0, 3.0, 2.0))
    np.testing.assert_allclose(popularity(scores, recorded, 1.0) * 10, [3, 1, 4, 2])
    np.testing.assert_allclose(popularity(scores, recorded, 0.0), 0.25)
    log_normal = popularity(scores, GatingParameters(4, 1, 1, skew=0.5), 0.5)
    np.testing.assert_allclose(np.diff(np.log(log_normal)), 0.5 * np.diff(scores))


def test_recorded_loads_keep_their_quantiles_with_more_experts() -> None:
    recorded = GatingParameters(64, 1, 1, "recorded", skew=1.0, loads=(4.0, 2.0, 1.0, 1.0))
    shares = np.sort(popularity(np.arange(64.0), recorded, 1.0))[::-1]
    assert shares[0] / shares[-1] == pytest.approx(4.0)
    assert math.sqrt(shares[23] * shares[24]) / shares[-1] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experts": 0}, "experts: 0 is not in 1"),
        ({"top_k": 17}, "top_k: a token has no 17 of 16 experts"),
        ({"skew": -1.0}, "skew: -1 is not in 0"),
        ({"skew": math.nan}, "skew: nan is not in 0"),
        ({"overdispersion": 0.5}, "overdispersion: 0.5 is not in 1"),
        ({"persistence": 1.5}, "persistence: 1.5 is not in 0 to 1"),
        ({"concentration": 0.0}, "concentration: 0 is not above 0"),
        ({"drift_time": math.nan}, "drift_time: nan is not above 0"),
        ({"popularity": "flat"}, "popularity: 'flat' is not one of log-normal, zipf, recorded"),
        ({"popularity": "recorded"}, "loads: recorded popularity needs loads"),
        ({"popularity": "recorded", "loads": (0.0, 0.0)}, "loads: finite loads of at least 0"),
        ({"loads": (1.0,)}, "loads: recorded popularity needs loads, and only that has them"),
    ],
)
def test_wrong_parameters_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PLAIN, **change)  # type: ignore[arg-type]


def test_an_unknown_preset_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'mixtral' is not one of mixtral-web, "):
        preset("mixtral")
    assert preset("uniform", experts=8, top_k=2, skew=None).experts == 8
