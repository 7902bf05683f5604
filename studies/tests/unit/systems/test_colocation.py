"""Times of MoE layers on shared GPUs, and the experts that share one."""

from itertools import permutations

import numpy as np
import pytest
from moefabric_studies.systems.aurora.colocation import (
    ExpertLayer,
    colocated_s,
    gpus_by_load,
    paired_experts,
    popular_with_unpopular,
    port_s,
)

EVEN = np.ones(4)
UNEVEN = np.array([0.4, 1.0, 0.5, 0.8])


def layer(seed: int, experts: int = 4) -> ExpertLayer:
    return ExpertLayer(np.random.default_rng(seed).lognormal(0.0, 1.0, (experts, experts)))


def busiest(one: ExpertLayer, other: ExpertLayer) -> float:
    """Return the most tokens that a port carries if expert i of both models is on GPU i."""
    moving = [m.tokens - np.diag(np.diag(m.tokens)) for m in (one, other)]
    return float(max(sum(m.sum(axis=n) for m in moving).max() for n in range(2)))


@pytest.mark.parametrize("seed", range(6))
def test_pairs_leave_the_busiest_port_the_fewest_tokens(seed: int) -> None:
    one, other = layer(seed), layer(seed + 100)
    best = min(busiest(one, other.ordered(order)) for order in permutations(range(4)))
    assert busiest(one, other.ordered(paired_experts(one, other))) == pytest.approx(best)


def test_busy_experts_are_paired_with_idle_ones_if_both_directions_are_equal() -> None:
    sizes = np.array([[1.0], [4.0], [2.0], [3.0]])
    even = ExpertLayer(sizes @ sizes.T)
    partners = paired_experts(even, even)
    assert busiest(even, even.ordered(partners)) <= busiest(even, even)
    assert partners[1] == 0


@pytest.mark.parametrize("seed", range(4))
def test_experts_of_most_tokens_get_the_fastest_gpus(seed: int) -> None:
    one = layer(seed)
    order = gpus_by_load([one], UNEVEN)
    assert sorted(order) == [0, 1, 2, 3]
    best = min(one.ordered(other).expert_s(UNEVEN) for other in permutations(range(4)))
    assert one.ordered(order).expert_s(UNEVEN) == pytest.approx(best)


@pytest.mark.parametrize("rates", [EVEN, UNEVEN])
def test_colocated_models_take_longer_than_each_and_less_than_one_after_the_other(
    rates: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> None:
    one, other = layer(1), layer(2)
    alone = one.seconds(rates), other.seconds(rates)
    assert max(alone) <= colocated_s(one, other, rates) <= sum(alone)


def test_all_to_all_takes_the_time_of_its_busiest_port() -> None:
    tokens = np.array([[9.0, 2.0], [1.0, 9.0]])
    assert port_s(tokens, np.array([1.0, 1.0])) == 2.0
    assert port_s(tokens, np.array([1.0, 0.5])) == 4.0


def test_experts_of_one_gpu_need_no_network_between_them() -> None:
    one = layer(3, 8)
    pairs = popular_with_unpopular(one)
    assert sorted(expert for pair in pairs for expert in pair) == list(range(8))
    joined = one.joined(pairs)
    assert joined.tokens.sum() == pytest.approx(one.tokens.sum())
    assert np.trace(joined.tokens) > np.trace(one.tokens)
    load = one.tokens.sum(axis=0)
    assert pairs[0] == (int(load.argmax()), int(load.argmin()))
