"""Splits in fixed proportions that suit several demands."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Share, Split, flows
from moefabric.core.topology import Fabric
from moefabric.planner.robust_split import assumed_split, robust_split
from moefabric.planner.waterfill import optimal_split
from moefabric.simulator.fluid import bound_s, predict
from moefabric.traces.gating_files import read_gating
from tests.support import planner_cases
from tests.support.fabrics import MESH, fabric
from tests.support.paths import EXAMPLES
from tests.support.planner_cases import demand_matrix
from tests.support.policies import POLICIES

SERVERS = ("s0", "s1", "s2", "s3")
CIRCUITS = CircuitSet.of(MESH)


def seconds(wired: Fabric, split: Split, circuits: CircuitSet = CIRCUITS) -> float:
    return predict(wired, circuits, flows(wired, circuits, split)).seconds


def demand(seed: int, shape: str) -> DemandMatrix:
    return DemandMatrix(SERVERS, demand_matrix(4, seed, shape))


DEMANDS = st.builds(
    demand, st.integers(0, 10_000), st.sampled_from(["skewed", "pareto", "sparse"])
).filter(lambda drawn: drawn.total_bytes > 0)


@given(DEMANDS, st.integers(1, 4), st.integers(0, 6))
def test_one_demand_without_forwarding_ends_with_spill(
    owed: DemandMatrix, electrical: int, lit: int
) -> None:
    wired = fabric(3, electrical)
    circuits = CircuitSet.of(MESH[:lit])
    best_s = seconds(wired, optimal_split(wired, owed, circuits), circuits)
    robust = robust_split(wired, [owed], circuits)
    assert seconds(wired, robust, circuits) == pytest.approx(best_s, rel=1e-5)
    assert robust.forwarded_bytes == 0


@given(DEMANDS)
def test_forwarding_never_ends_later_nor_before_the_bound(owed: DemandMatrix) -> None:
    wired = fabric()
    forwarding = replace(wired, forwarding=True)
    end_s = seconds(forwarding, robust_split(forwarding, [owed], CIRCUITS))
    assert end_s <= seconds(wired, robust_split(wired, [owed], CIRCUITS)) * (1 + 1e-5)
    assert end_s >= bound_s(wired, owed) * (1 - 1e-5)


@given(st.lists(DEMANDS, min_size=2, max_size=4))
def test_worst_demand_ends_sooner_than_with_any_single_demands_split(
    demands: list[DemandMatrix],
) -> None:
    wired = replace(fabric(), forwarding=True)

    def worst(assumed: list[DemandMatrix]) -> float:
        def split(_fabric: Fabric, one: DemandMatrix, circuits: CircuitSet) -> Split:
            return robust_split(wired, [one], circuits)

        carried = [assumed_split(wired, split, owed, CIRCUITS, assumed) for owed in demands]
        return max(
            seconds(wired, each) / bound_s(wired, owed)
            for each, owed in zip(carried, demands, strict=True)
        )

    together = worst([*demands, demands[0]])
    assert together <= min(worst([owed]) for owed in demands) * (1 + 1e-4)


def test_bytes_that_circuits_cannot_carry_are_forwarded() -> None:
    wired = replace(fabric(), forwarding=True)
    owed = np.zeros((4, 4))
    owed[0, 1] = 8e9
    [share] = robust_split(wired, [DemandMatrix(SERVERS, owed)], CIRCUITS)
    expected = Share("s0", "s1", 2e9, 2e9, forwarded=(("s2", 2e9), ("s3", 2e9)))
    assert share.light_bytes == pytest.approx(expected.light_bytes)
    assert share.eps_bytes == pytest.approx(expected.eps_bytes)
    assert dict(share.forwarded) == pytest.approx(dict(expected.forwarded))


def test_neighbours_of_the_destination_forward_if_circuits_join_them_to_the_source() -> None:
    wired = replace(fabric(), forwarding=True)
    owed = np.zeros((4, 4))
    owed[0, 3] = 4e9
    chain = CircuitSet.of(("s0/o0~s1/o0", "s1/o1~s2/o0", "s2/o1~s3/o0"))
    [share] = robust_split(wired, [DemandMatrix(SERVERS, owed)], chain)
    assert share.light_bytes == 0
    assert share.eps_bytes == pytest.approx(2e9)
    assert dict(share.forwarded) == pytest.approx({"s2": 2e9})
    apart = CircuitSet.of(("s0/o0~s1/o0", "s2/o1~s3/o0"))
    assert robust_split(wired, [DemandMatrix(SERVERS, owed)], apart) == Split(
        (Share("s0", "s3", 0.0, 4e9),)
    )


def test_pair_without_a_path_has_no_share() -> None:
    wired = replace(fabric(1, 0), patch_panel=True)
    owed = np.zeros((4, 4))
    owed[0, 1], owed[0, 3] = 1e9, 1e9
    split = robust_split(wired, [DemandMatrix(SERVERS, owed)], CircuitSet.of(["s0/o0~s1/o0"]))
    assert split == Split((Share("s0", "s1", 1e9, 0.0),))


def test_nothing_is_forwarded_that_need_not_be() -> None:
    wired = replace(fabric(), forwarding=True)
    owed = np.zeros((4, 4))
    owed[0], owed[2, 3] = 1e9, 1e8
    split = robust_split(wired, [DemandMatrix(SERVERS, owed)], CIRCUITS)
    assert seconds(wired, split) == pytest.approx(8 * 0.75e9 / 100e9 * 1514 / 1448, rel=1e-5)
    assert split.forwarded_bytes == 0


def test_what_a_server_forwards_is_limited_by_its_rate() -> None:
    wired = replace(fabric(), forwarding=True, forwarding_rate_bps=50e9)
    owed = np.zeros((4, 4))
    owed[0, 1] = 6e9
    [share] = robust_split(wired, [DemandMatrix(SERVERS, owed)], CIRCUITS)
    assert dict(share.forwarded) == pytest.approx({"s2": 1e9, "s3": 1e9})


@pytest.mark.parametrize("servers", [4, 8])
def test_no_proportions_suit_every_permutation(servers: int) -> None:
    """In a mesh, the best are even over relays: 2 n / (n + 2) times the time that NICs allow."""
    wired = replace(planner_cases.fabric(1, servers, servers - 1, 1), forwarding=True)
    mesh = POLICIES["uniform"].circuits(
        wired, wired.regions[0], DemandMatrix(wired.servers, np.eye(servers)), CircuitSet()
    )
    shifts = [np.roll(np.eye(servers) * 1e9, shift, axis=1) for shift in range(1, servers)]
    demands = [DemandMatrix(wired.servers, shift) for shift in shifts]
    split = robust_split(wired, demands, mesh)
    worst = max(
        seconds(wired, assumed_split(wired, lambda *_: split, owed, mesh, demands), mesh)
        / bound_s(wired, owed)
        for owed in demands
    )
    assert worst == pytest.approx(2 * servers / (servers + 2), rel=1e-5)


def test_patch_panel_alone_needs_no_eps() -> None:
    wired = replace(fabric(3, 0), patch_panel=True, forwarding=True)
    ring = CircuitSet.of(("s0/o0~s1/o0", "s1/o1~s2/o0", "s2/o1~s3/o0", "s3/o1~s0/o1"))
    owed = np.zeros((4, 4))
    owed[0, 2] = 4e9
    split = robust_split(wired, [DemandMatrix(SERVERS, owed)], ring)
    assert sum(share.bytes for share in split) == pytest.approx(4e9)
    assert seconds(wired, split, ring) == pytest.approx(8 * 2e9 / 100e9 * 1514 / 1448, rel=1e-5)


def test_empty_demands_have_an_empty_split() -> None:
    nothing = DemandMatrix(SERVERS, np.zeros((4, 4)))
    assert robust_split(fabric(), [nothing, nothing], CIRCUITS) == Split(())


def test_recorded_layers_are_better_foretold_by_eight_iterations_than_by_one() -> None:
    """Steps of a real training run, 4 servers in a mesh; times relative to the busiest server's."""
    wired = replace(fabric(), forwarding=True)
    tokens = read_gating(EXAMPLES / "data/training-1200-steps.npz").tokens
    rows = tokens.reshape(len(tokens), 4, 4, 2, 4, 4).sum(axis=(3, 5)).astype(float)

    def after(history: int, step: int, layer: int) -> float:
        before = [DemandMatrix(SERVERS, rows[step - n, layer]) for n in range(1, history + 1)]
        owed = DemandMatrix(SERVERS, rows[step, layer])
        split = robust_split(wired, before, CIRCUITS)
        carried = assumed_split(wired, lambda *_: split, owed, CIRCUITS, before)
        return seconds(wired, carried) / bound_s(wired, owed)

    places = [(step, layer) for step in range(50, 1200, 115) for layer in range(4)]
    one, eight = (np.mean([after(history, *place) for place in places]) for history in (1, 8))
    assert 1.0 < eight < one - 0.05
