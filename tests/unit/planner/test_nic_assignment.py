"""NIC assignment: lit circuits keep their NICs, new ones take the lowest free NICs."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.planner.arrays import Ints, circuit_counts
from moefabric.planner.mixnet import algorithm1_order
from moefabric.planner.nic_assignment import assign_nics, numa_node
from moefabric.planner.pair_order import Pair

NAMES = ("s0", "s1", "s2")
FABRIC = Fabric("f", (Region("r0", 0, NAMES, Ocs("ocs0", 9)),), 8, 3, 1, 1e9, None)
REGION = FABRIC.regions[0]


@pytest.mark.parametrize(
    ("pairs", "current", "circuits"),
    [
        pytest.param(
            [(0, 1), (0, 2)], [], "s0/o0~s1/o0 s0/o1~s2/o0", id="lowest-free-nics-in-pair-order"
        ),
        pytest.param([(0, 1)], ["s0/o2~s1/o1"], "s0/o2~s1/o1", id="a-pair-keeps-its-nics"),
        pytest.param(
            [(0, 1), (0, 1)],
            ["s0/o0~s1/o2"],
            "s0/o0~s1/o2 s0/o2~s1/o0",
            id="a-second-circuit-leaves-the-first-alone-and-takes-the-other-numa-node",
        ),
        pytest.param(
            [(0, 1)], ["s0/o0~s1/o2", "s0/o1~s1/o0"], "s0/o0~s1/o2", id="of-two-the-first-stays"
        ),
        pytest.param(
            [(1, 2)], ["s0/o0~s1/o0"], "s1/o0~s2/o0", id="nics-of-removed-circuits-are-free"
        ),
        pytest.param(
            [(0, 1), (0, 2)],
            ["s0/o0~s2/o0"],
            "s0/o0~s2/o0 s0/o1~s1/o0",
            id="a-new-circuit-avoids-one-that-stays",
        ),
        pytest.param([], ["s0/o0~s1/o0"], "no light", id="no-counts-keep-no-circuits"),
    ],
)
def test_assign_nics_changes_as_little_as_possible(
    pairs: list[Pair], current: list[str], circuits: str
) -> None:
    counts = circuit_counts(len(NAMES), pairs)
    assert str(assign_nics(FABRIC, REGION, counts, CircuitSet.of(current))) == circuits


def test_assign_nics_refuses_more_circuits_than_nics() -> None:
    counts = circuit_counts(len(NAMES), [(0, 1), (0, 1), (0, 2), (0, 2)])
    message = "s0 has fewer optical NICs than the circuits need"
    with pytest.raises(ValueError, match=message):
        assign_nics(FABRIC, REGION, counts, CircuitSet())


@st.composite
def problems(draw: st.DrawFn) -> tuple[Fabric, Ints]:
    """A fabric of an even optical degree, and the circuits that Algorithm 1 gives its servers."""
    servers, degree = draw(st.integers(2, 6)), draw(st.sampled_from([2, 4, 6]))
    names = tuple(f"s{i}" for i in range(servers))
    region = Region("r0", 0, names, Ocs("ocs0", servers * degree))
    wired = Fabric("f", (region,), 8, degree, 2, 1e9, None)
    flat = draw(st.lists(st.integers(0, 9), min_size=servers**2, max_size=servers**2))
    owed = np.array(flat, dtype=np.float64).reshape(servers, servers)
    owed = np.triu(owed, 1) + np.triu(owed, 1).T
    return wired, circuit_counts(servers, algorithm1_order(owed, [degree] * servers))


@given(problems())
def test_two_circuits_of_a_pair_are_on_two_numa_nodes(problem: tuple[Fabric, Ints]) -> None:
    wired, counts = problem
    lit = assign_nics(wired, wired.regions[0], counts, CircuitSet())
    assert Counter(circuit.pair for circuit in lit) == {
        (a, b): counts[i, j]
        for i, a in enumerate(wired.servers)
        for j, b in enumerate(wired.servers)
        if i < j and counts[i, j]
    }
    for a, b in {circuit.pair for circuit in lit}:
        both = lit.between(a, b)
        if len(both) == 2:
            assert {numa_node(wired, circuit.a.index) for circuit in both} == {0, 1}
            assert {numa_node(wired, circuit.b.index) for circuit in both} == {0, 1}


@given(problems(), problems())
def test_no_circuit_that_is_lit_and_wanted_moves(
    before: tuple[Fabric, Ints], after: tuple[Fabric, Ints]
) -> None:
    wired, counts = after
    if len(before[0].servers) != len(wired.servers) or before[0].optical != wired.optical:
        return
    lit = assign_nics(wired, wired.regions[0], before[1], CircuitSet())
    change = lit.transition_to(assign_nics(wired, wired.regions[0], counts, lit))
    assert len(change.kept) == np.minimum(before[1], counts).sum() // 2
