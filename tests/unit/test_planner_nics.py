"""Which NICs end the circuits: least change first, then the lowest free ones."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.planner import mixnet
from controller.planner.nics import circuits, numa_node
from controller.planner.policy import Counts, counts
from moefabric.circuits import CircuitSet
from moefabric.topology import Fabric, Ocs, Region

NAMES = ("s0", "s1", "s2")
FABRIC = Fabric("f", (Region("r0", 0, NAMES, Ocs("ocs0", 9)),), 8, 3, 1, 1e9, None)
REGION = FABRIC.regions[0]


def wanted(*pairs: tuple[int, int]) -> Counts:
    return counts(len(NAMES), list(pairs))


@pytest.mark.parametrize(
    ("pairs", "now", "lit"),
    [
        pytest.param([(0, 1), (0, 2)], [], "s0/o0~s1/o0 s0/o1~s2/o0", id="lowest-free-nics-in-pair-order"),
        pytest.param([(0, 1)], ["s0/o2~s1/o1"], "s0/o2~s1/o1", id="a-pair-keeps-its-nics"),
        pytest.param(
            [(0, 1), (0, 1)],
            ["s0/o0~s1/o2"],
            "s0/o0~s1/o2 s0/o2~s1/o0",
            id="a-second-circuit-leaves-the-first-alone-and-takes-the-other-numa-node",
        ),
        pytest.param([(0, 1)], ["s0/o0~s1/o2", "s0/o1~s1/o0"], "s0/o0~s1/o2", id="of-two-the-first-stays"),
        pytest.param([(1, 2)], ["s0/o0~s1/o0"], "s1/o0~s2/o0", id="nics-of-light-that-goes-are-free"),
        pytest.param(
            [(0, 1), (0, 2)],
            ["s0/o0~s2/o0"],
            "s0/o0~s2/o0 s0/o1~s1/o0",
            id="a-new-circuit-evades-one-that-stays",
        ),
        pytest.param([], ["s0/o0~s1/o0"], "no light", id="nothing-wanted-keeps-nothing"),
    ],
)
def test_the_circuits_are(pairs: list[tuple[int, int]], now: list[str], lit: str) -> None:
    assert str(circuits(FABRIC, REGION, wanted(*pairs), CircuitSet.of(now))) == lit


def test_more_circuits_than_nics_are_refused() -> None:
    with pytest.raises(ValueError, match="s0 has fewer optical NICs than circuits are wanted of it"):
        circuits(FABRIC, REGION, wanted((0, 1), (0, 1), (0, 2), (0, 2)), CircuitSet())


@st.composite
def demands(draw: st.DrawFn) -> tuple[Fabric, Counts]:
    """A fabric of an even optical degree, and circuits that Algorithm 1 wants of it."""
    servers, degree = draw(st.integers(2, 6)), draw(st.sampled_from([2, 4, 6]))
    names = tuple(f"s{i}" for i in range(servers))
    made = Fabric("f", (Region("r0", 0, names, Ocs("ocs0", servers * degree)),), 8, degree, 2, 1e9, None)
    flat = draw(st.lists(st.integers(0, 9), min_size=servers**2, max_size=servers**2))
    owed = np.array(flat, dtype=np.float64).reshape(servers, servers)
    owed = np.triu(owed, 1) + np.triu(owed, 1).T
    return made, counts(servers, mixnet.order(owed, [degree] * servers))


@given(demands())
def test_two_circuits_of_a_pair_are_on_two_numa_nodes(situation: tuple[Fabric, Counts]) -> None:
    made, asked = situation
    lit = circuits(made, made.regions[0], asked, CircuitSet())
    assert Counter(c.pair for c in lit) == {
        (a, b): asked[i][j]
        for i, a in enumerate(made.servers)
        for j, b in enumerate(made.servers)
        if i < j and asked[i][j]
    }
    for a, b in {c.pair for c in lit}:
        both = lit.between(a, b)
        if len(both) == 2:
            assert {numa_node(made, c.a.index) for c in both} == {0, 1}
            assert {numa_node(made, c.b.index) for c in both} == {0, 1}


@given(demands(), demands())
def test_no_circuit_that_is_wanted_and_lit_moves(
    before: tuple[Fabric, Counts], after: tuple[Fabric, Counts]
) -> None:
    made, asked = after
    if len(before[0].servers) != len(made.servers) or before[0].optical != made.optical:
        return
    lit = circuits(made, made.regions[0], before[1], CircuitSet())
    kept = lit.towards(circuits(made, made.regions[0], asked, lit)).kept
    stay = np.minimum(before[1], asked)
    assert len(kept) == stay.sum() // 2
