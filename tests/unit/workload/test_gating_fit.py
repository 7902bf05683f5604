"""Generated gating has the statistics of recorded gating: shipped data, and the reference's tables.

A band is what replicas of the generator scatter by: the statistic of the record lies between the
smallest and the largest of them. A right generator fails one of the tests of a preset with the
probability 2 / (replicas + 1) per statistic; seeds are fixed.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from moefabric.traces.gating_files import read_gating
from moefabric.workload.gating import statistics
from moefabric.workload.gating.fit import fit
from moefabric.workload.gating.generator import GatingParameters, generate
from moefabric.workload.gating.presets import PRESETS, preset
from moefabric.workload.gating.traces import GatingTrace, server_skew
from tests.support.paths import EXAMPLES

REPLICAS = 99
FITTED = (
    "skew",
    "skew_variation",
    "concentration",
    "persistence",
    "layer_correlation",
    "group_share",
)
DATA = EXAMPLES / "data"
C4 = 2


@cache
def recorded(preset_name: str) -> tuple[GatingTrace, dict[str, object]]:
    """Return the part of the shipped record that a preset is fitted to, and the options of fits."""
    tokens = read_gating(DATA / PRESETS[preset_name].file).tokens
    known = preset(preset_name)
    options: dict[str, object] = {"top_k": known.top_k, "groups": known.groups}
    if preset_name.endswith("-web"):
        tokens = tokens[:, :, C4 : C4 + 1]
    if preset_name == "toy-training-aux":
        tokens = tokens[600:]
    if preset_name == "mixnet-matrix":
        options |= {"alike": True, "popularity": "recorded"}
    return GatingTrace(tokens), options


@pytest.mark.parametrize("name", [name for name, known in PRESETS.items() if known.file])
def test_presets_are_the_fit_of_the_shipped_record(name: str) -> None:
    trace, options = recorded(name)
    fitted, known = fit(trace, **options), preset(name)  # type: ignore[arg-type]
    for field in FITTED:
        assert getattr(known, field) == pytest.approx(getattr(fitted, field), rel=0.01), field
    assert known.loads == fitted.loads
    if trace.tokens.shape[0] > 1 or name == "mixnet-matrix":
        assert known.overdispersion == pytest.approx(fitted.overdispersion, rel=0.01)
        assert known.drift_time == pytest.approx(fitted.drift_time, rel=0.01)


def replicas(
    parameters: GatingParameters, ranks: int, layers: int, iterations: int
) -> list[statistics.GatingStatistics]:
    return [
        statistics.gating_statistics(
            generate(parameters, ranks=ranks, layers=layers, iterations=iterations, seed=seed)
        )
        for seed in range(REPLICAS)
    ]


SKEW = ("max_over_mean", "variation", "entropy")
ROWS = ("row_distance", "pair_max_over_mean", "rank1_energy")


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("mixtral-web", (*SKEW, "layer_correlation")),
        ("mixtral-domains", (*SKEW, *ROWS, "layer_correlation")),
        ("olmoe-web", (*SKEW, "layer_correlation")),
        # Domains of OLMoE differ more in a few experts than a Dirichlet distribution says, see
        # docs/guides/gating.md. Their distance of rows has a test of its own.
        ("olmoe-domains", (*SKEW, "layer_correlation")),
        pytest.param("deepseek-prefill", (*SKEW, "layer_correlation"), marks=pytest.mark.nightly),
        ("mixnet-matrix", (*SKEW, *ROWS)),
    ],
)
def test_a_record_could_be_a_replica_of_its_preset(name: str, fields: tuple[str, ...]) -> None:
    trace, _ = recorded(name)
    iterations, layers, ranks, _ = trace.tokens.shape
    # Presets assume the scatter of small batches; the record's batches are large.
    parameters = preset(name)
    tokens = int(trace.tokens.sum(axis=-1).mean()) // parameters.top_k
    scatter = parameters.overdispersion if name == "mixnet-matrix" else 1.0
    parameters = replace(parameters, tokens=tokens, overdispersion=scatter)
    measured = statistics.gating_statistics(trace)
    drawn = replicas(parameters, ranks, layers, iterations)
    for field in fields:
        values = [getattr(replica, field) for replica in drawn]
        assert min(values) <= getattr(measured, field) <= max(values), field


@pytest.mark.parametrize("name", ["mixtral-domains", "olmoe-domains"])
def test_rows_of_domains_are_as_far_apart_as_recorded(name: str) -> None:
    trace, _ = recorded(name)
    _, layers, ranks, _ = trace.tokens.shape
    parameters = replace(preset(name), tokens=200_000, overdispersion=1.0)
    distances = [
        mean_row_distance(generate(parameters, ranks=ranks, layers=layers, iterations=1, seed=seed))
        for seed in range(REPLICAS)
    ]
    assert min(distances) <= mean_row_distance(trace) <= max(distances)


def mean_row_distance(trace: GatingTrace) -> float:
    rows = trace.tokens / trace.tokens.sum(axis=-1, keepdims=True)
    return float(statistics.row_distance(rows).mean())


def test_servers_of_deepseek_are_as_uneven_as_recorded() -> None:
    trace, _ = recorded("deepseek-prefill")
    parameters = preset("deepseek-prefill", tokens=1_000_000)
    drawn = [
        generate(parameters, ranks=1, layers=58, iterations=1, seed=seed).tokens
        for seed in range(39)
    ]
    for servers in (8, 32, 64, 128):
        skews = [server_skew(tokens, servers) for tokens in drawn]
        assert min(skews) <= server_skew(trace.tokens, servers) <= max(skews), servers


@pytest.mark.nightly
def test_training_steps_vary_as_recorded() -> None:
    tokens = recorded("toy-training-aux")[0].tokens
    window = 50
    fields = (*SKEW, "row_distance", "step_distance", "lag1_correlation", "lag10_correlation")
    drawn = [
        statistics.gating_statistics(
            generate(preset("toy-training-aux"), ranks=8, layers=4, iterations=window, seed=seed)
        )
        for seed in range(39)
    ]
    measured = [
        statistics.gating_statistics(GatingTrace(tokens[start : start + window]))
        for start in range(0, len(tokens), window)
    ]
    for field in fields:
        values = [getattr(replica, field) for replica in drawn]
        mean = np.mean([getattr(part, field) for part in measured])
        assert min(values) <= mean <= max(values), field


@pytest.mark.parametrize(
    ("name", "ranks", "ranges"),
    [
        pytest.param(
            "qwen",
            6,
            {
                "max_over_mean": (7.0, 8.9),
                "variation": (1.4, 1.65),
                "step_distance": (0.057, 0.077),
                "rank1_energy": (0.9, 0.998),
                "layer_correlation": (-0.02, 0.02),
            },
            id="qwen",
        ),
        pytest.param(
            "switch",
            8,
            {
                "max_over_mean": (6.0, 60.0),
                "row_distance": (0.03, 0.07),
                "step_distance": (0.014, 0.027),
                "rank1_energy": (0.95, 1.0),
                "lag1_correlation": (0.98, 1.0),
            },
            id="switch",
        ),
    ],
)
def test_presets_have_the_statistics_that_they_were_derived_from(
    name: str, ranks: int, ranges: dict[str, tuple[float, float]]
) -> None:
    generated = generate(preset(name), ranks=ranks, layers=24, iterations=8)
    found = statistics.gating_statistics(generated)
    for field, (least, most) in ranges.items():
        assert least <= getattr(found, field) <= most, field


def test_independent_choices_move_by_the_multinomial_floor() -> None:
    generated = generate(preset("uniform", top_k=1), ranks=4, layers=8, iterations=40)
    found = statistics.gating_statistics(generated)
    assert found.step_floor == pytest.approx((64 / np.pi / (4 * 4096)) ** 0.5, rel=0.01)
    # The median of 39 x 8 distances, each of which scatters by about 10 %.
    assert found.step_distance == pytest.approx(found.step_floor, rel=0.02)
    assert abs(found.layer_correlation) < 4 / np.sqrt(64 * 28)


def test_rows_of_per_source_zipf_are_permutations_of_one_row() -> None:
    tokens = generate(preset("per-source-zipf"), ranks=8, layers=1, iterations=1).tokens[0, 0]
    forks = np.array([17959, 5925, 3097, 1954, 1368, 1022, 798, 645])
    assert len({row.argmax() for row in tokens}) > 3
    assert (np.abs(np.sort(tokens, axis=1)[:, ::-1] - forks) < 5 * np.sqrt(forks)).all()


def test_hot_columns_leave_nothing_beyond_rank_one() -> None:
    found = statistics.gating_statistics(
        generate(preset("rank1-hot-columns"), ranks=8, layers=4, iterations=1)
    )
    assert found.rank1_energy > 0.998


TRUE = GatingParameters(
    32, 4, 4096, skew=0.8, concentration=4.0, overdispersion=6.0, persistence=0.5, drift_time=10.0
)


@pytest.mark.nightly
def test_fit_recovers_the_parameters_of_generated_traces() -> None:
    fits = [
        fit(generate(TRUE, ranks=8, layers=24, iterations=60, seed=seed), 4) for seed in range(3)
    ]
    for field, tolerance in (
        ("skew", 0.1), ("concentration", 0.25), ("overdispersion", 0.1), ("persistence", 0.25),
        ("drift_time", 0.5),
    ):  # fmt: skip
        mean = np.mean([getattr(found, field) for found in fits])
        assert mean == pytest.approx(getattr(TRUE, field), rel=tolerance), field
    assert {found.tokens for found in fits} == {4096}
    assert max(found.layer_correlation for found in fits) < 0.1


def test_fit_recovers_groups() -> None:
    grouped = GatingParameters(64, 4, 4096, skew=0.9, groups=8, group_share=0.4)
    found = fit(generate(grouped, ranks=1, layers=200, iterations=1), 4, groups=8)
    assert found.group_share == pytest.approx(0.4, abs=0.05)
    assert found.skew == pytest.approx(0.9, rel=0.05)


def test_one_iteration_of_like_ranks_tells_the_overdispersion() -> None:
    trace = generate(replace(TRUE, concentration=np.inf), ranks=8, layers=24, iterations=1)
    assert fit(trace, 4, alike=True).overdispersion == pytest.approx(6.0, rel=0.15)
    assert fit(trace, 4).overdispersion == 1.0, "what distinguishes ranks counts as theirs"


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        (np.ones((1, 1, 2, 4)), {"top_k": 5}, "4 experts: at least 5 are needed"),
        (np.ones((1, 1, 2, 4)), {"groups": 3}, "groups: 4 experts don't form 3 groups"),
        (np.ones((1, 1, 2, 4)), {"popularity": "zipf"}, "popularity: zipf can't be fitted"),
        (np.eye(2)[np.newaxis, np.newaxis] * [[1], [0]], {}, r"\[0\]\[0\]\[1\] .*: no tokens"),
    ],
)
def test_traces_that_cannot_be_fitted_are_refused(
    tokens: np.ndarray, options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fit(GatingTrace(tokens.astype(np.int64)), **options)  # type: ignore[arg-type]
