"""Splits that are computed for assumed demands and carry the true one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Share, Split, flows
from moefabric.core.topology import Fabric
from moefabric.planner.mixnet import SPILL
from moefabric.planner.robust_split import assumed_split
from moefabric.simulator.fluid import predict
from tests.support.fabrics import MESH, fabric, lit_fabrics

SIZES = st.one_of(st.just(0.0), st.floats(1e3, 1e9))


@st.composite
def cases(draw: st.DrawFn, demands: int = 2) -> tuple[Fabric, CircuitSet, list[DemandMatrix]]:
    """Draw a region whose servers forward, its circuits and demands with empty pairs."""
    wired, circuits = draw(lit_fabrics())
    servers = wired.regions[0].servers
    own = CircuitSet(frozenset(c for c in circuits if c.a.server in servers))
    shape = len(servers), len(servers)
    drawn = [draw(arrays.arrays(np.float64, shape, elements=SIZES)) for _ in range(demands)]
    return replace(wired, forwarding=True), own, [DemandMatrix(servers, array) for array in drawn]


def seconds(wired: Fabric, circuits: CircuitSet, split: Split) -> float:
    return predict(wired, circuits, flows(wired, circuits, split)).seconds


def by_pair(split: Split) -> dict[tuple[str, str], Share]:
    return {(share.src, share.dst): share for share in split}


@given(cases())
def test_known_demand_has_the_policys_own_split(
    case: tuple[Fabric, CircuitSet, list[DemandMatrix]],
) -> None:
    wired, circuits, (demand, _) = case
    own = SPILL.split(wired, demand, circuits)
    for assumed in ((), (demand,), (demand, demand)):
        assert assumed_split(wired, SPILL.split, demand, circuits, assumed) == own


@given(cases(4), st.integers(1, 3))
def test_every_byte_of_every_pair_is_sent(
    case: tuple[Fabric, CircuitSet, list[DemandMatrix]], count: int
) -> None:
    wired, circuits, (demand, *others) = case
    split = assumed_split(wired, SPILL.split, demand, circuits, others[:count])
    assert {(share.src, share.dst): share.bytes for share in split} == pytest.approx(
        {(src, dst): size for src, dst, size in demand.pairs()}
    )
    parts = [p for s in split for p in (s.light_bytes, s.eps_bytes, *(b for _, b in s.forwarded))]
    assert min(parts, default=0.0) >= 0.0
    assert sum(flow.bytes for flow in flows(wired, circuits, split)) == pytest.approx(
        demand.total_bytes
    )


@given(cases(), st.floats(0.01, 100.0))
def test_proportions_do_not_depend_on_the_true_demand(
    case: tuple[Fabric, CircuitSet, list[DemandMatrix]], factor: float
) -> None:
    wired, circuits, (demand, assumed) = case
    larger = DemandMatrix(demand.servers, demand.array * factor)
    few = by_pair(assumed_split(wired, SPILL.split, demand, circuits, [assumed]))
    many = by_pair(assumed_split(wired, SPILL.split, larger, circuits, [assumed]))
    assert many.keys() == few.keys()
    for pair, share in few.items():
        assert many[pair].light_bytes == pytest.approx(factor * share.light_bytes)
        assert many[pair].eps_bytes == pytest.approx(factor * share.eps_bytes)


@given(cases())
def test_wrong_demand_never_ends_sooner_than_the_right_one(
    case: tuple[Fabric, CircuitSet, list[DemandMatrix]],
) -> None:
    wired, circuits, (demand, assumed) = case
    right = seconds(wired, circuits, SPILL.split(wired, demand, circuits))
    wrong = assumed_split(wired, SPILL.split, demand, circuits, [assumed])
    assert seconds(wired, circuits, wrong) >= right * (1 - 1e-9)


@pytest.mark.parametrize("assumed_bytes", [1e9, 0.5])
def test_pair_without_assumed_bytes_is_split_as_if_all_pairs_owed_alike(
    assumed_bytes: float,
) -> None:
    wired, mesh = fabric(), CircuitSet.of(MESH)
    servers = wired.servers
    owed, assumed = np.zeros((4, 4)), np.zeros((4, 4))
    owed[0, 1], owed[2, 3], assumed[2, 3] = 6e9, 4e9, assumed_bytes
    demand, other = DemandMatrix(servers, owed), DemandMatrix(servers, assumed)
    split = by_pair(assumed_split(wired, SPILL.split, demand, mesh, [other]))
    alike = by_pair(SPILL.split(wired, DemandMatrix(servers, np.ones((4, 4))), mesh))["s0", "s1"]
    assert split["s0", "s1"].light_bytes == pytest.approx(6e9 * alike.light_bytes)
    assert split["s2", "s3"].light_bytes == pytest.approx(2e9), "half by each of two equal networks"


def test_each_part_of_a_share_is_scaled() -> None:
    wired, servers = fabric(), ("s0", "s1", "s2", "s3")
    owed, assumed = np.zeros((4, 4)), np.zeros((4, 4))
    owed[0, 1], assumed[0, 1] = 20.0, 10.0
    share = Share("s0", "s1", 1.0, 2.0, (("s2", 3.0), ("s3", 4.0)), ((1.0, 2.0), (4.0,)))
    demand, other = DemandMatrix(servers, owed), DemandMatrix(servers, assumed)
    split = assumed_split(
        wired, lambda _fabric, _demand, _circuits: Split((share,)), demand, CircuitSet(), [other]
    )
    doubled = Share("s0", "s1", 2.0, 4.0, (("s2", 6.0), ("s3", 8.0)), ((2.0, 4.0), (8.0,)))
    assert split == Split((doubled,))
