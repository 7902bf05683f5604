"""Placements of experts on ranks, applied to the gating of a workload layer by layer."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.config.model import preset
from moefabric.core.demand import Placement
from moefabric.workload.gating.job_gating import JobGating
from moefabric.workload.models.model import Training
from moefabric.workload.placement.placements import (
    Balanced,
    ByRate,
    Contiguous,
    ExpertPlacement,
    Random,
    Tokens,
    expert_order,
)
from moefabric.workload.workload import Workload

MODEL = preset("mixtral-8x7b")
TRAINING = Training(4, 4, 4096, 8, 312e12, 0.4)


def gating(seed: int, ranks: int = 4, experts: int = 16) -> Tokens:
    return (np.random.default_rng(seed).pareto(1.0, (ranks, experts)) * 1000).astype(np.int64)


@given(st.integers(0, 50))
def test_balanced_ranks_differ_by_no_more_than_their_largest_expert(seed: int) -> None:
    load = gating(seed).sum(axis=0)
    order = expert_order(Balanced(), gating(seed), 1)
    ranks = load[list(order)].reshape(4, 4).sum(axis=1)
    assert ranks.max() - ranks.min() <= load.max()


def test_balanced_gives_each_rank_its_share_of_a_known_load() -> None:
    tokens = np.array([[8, 7, 2, 1], [0, 0, 0, 0]])
    assert expert_order(Balanced(), tokens, 1) == (0, 3, 1, 2)


def test_contiguous_keeps_the_order_of_numbers() -> None:
    assert expert_order(Contiguous(), gating(1), 1) == tuple(range(16))


def test_random_depends_on_the_seed() -> None:
    first, again, other = (expert_order(Random(), gating(1), seed) for seed in (1, 1, 2))
    assert first == again != other


def test_placement_that_loses_an_expert_is_refused() -> None:
    class Losing(Contiguous):
        def experts_in_order(self, tokens: Tokens, seed: int) -> Sequence[int]:
            return [0] * tokens.shape[1]

    with pytest.raises(ValueError, match="contiguous doesn't return each of 16 experts once"):
        expert_order(Losing(), gating(1), 1)


def test_random_draws_differ_and_may_keep_the_experts_of_a_rank_together() -> None:
    tokens = gating(1)
    draws = [expert_order(Random(draw=n, together=True), tokens, 7) for n in range(4)]
    assert len({*draws, expert_order(Random(), tokens, 7)}) == 5
    for order in draws:
        groups = np.array(order).reshape(4, 4)
        assert (np.diff(groups, axis=1) == 1).all()
        assert (groups[:, 0] % 4 == 0).all()


@given(st.integers(0, 50))
def test_faster_ranks_have_more_tokens(seed: int) -> None:
    tokens, rates = gating(seed), [2.0, 1.0, 4.0, 0.5]
    order = expert_order(ByRate(), tokens, 1, rates=rates)
    load = tokens.sum(axis=0)[list(order)].reshape(4, 4).sum(axis=1)
    assert sorted(rates, reverse=True) == [rates[rank] for rank in np.argsort(-load)]
    even = expert_order(ByRate(), tokens, 1)
    assert sorted(load, reverse=True) == list(
        tokens.sum(axis=0)[list(even)].reshape(4, 4).sum(axis=1)
    )


def test_experts_of_most_tokens_move_to_the_fastest_server() -> None:
    still = workload(Contiguous())
    rates = {"s0": 25e9, "s1": 100e9, "s2": 400e9, "s3": 100e9}
    moved = replace(still, nic_rates_bps=rates).with_placement(ByRate())
    owed = moved.layer_of(0, 0, 0).demand.array
    assert owed[:, 2].sum() > 10 * owed[:, 0].sum()


def workload(placement: ExpertPlacement, history: Tokens | None = None) -> Workload:
    """A job of two layers, whose first expert has most tokens, in the first layer only."""
    tokens = np.ones((1, 2, 4, 8), dtype=np.int64)
    tokens[0, 0, :, 0] = 100
    servers = ("s0", "s1", "s2", "s3")
    placements = (Placement(servers, 4, 8),)
    made = Workload(MODEL, TRAINING, placements, JobGating(tokens, "test", history=history), 2)
    return made.with_placement(placement)


def test_experts_move_layer_by_layer() -> None:
    class LastFirst(Contiguous):
        def experts_in_order(self, tokens: Tokens, seed: int) -> Sequence[int]:
            return np.argsort(tokens.sum(axis=0), kind="stable").tolist()  # type: ignore[no-any-return]

    moved, still = workload(LastFirst()), workload(Contiguous())
    owed = still.layer_of(0, 0, 0).demand.array
    assert owed[:, 0].sum() > 10 * owed[:, 3].sum(), "the first expert is on the first server"
    late = moved.layer_of(0, 0, 0).demand.array
    assert late[:, 3].sum() > 10 * late[:, 0].sum(), "now it is on the last one"
    assert moved.layer_of(0, 1, 0) == still.layer_of(0, 1, 0), "the second layer has no such expert"


def test_history_decides_before_the_first_iteration_does() -> None:
    history = np.ones((1, 2, 4, 8), dtype=np.int64)
    history[0, 0, :, 5] = 100
    assert workload(Balanced(), history).expert_orders[0][0] == 5
    assert workload(Balanced()).expert_orders[0][0] == 0
