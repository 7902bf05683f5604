"""Which NICs end the circuits: least change first, then the lowest free ones."""

import pytest

from controller.planner.nics import circuits
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
            "s0/o0~s1/o2 s0/o1~s1/o0",
            id="a-second-circuit-leaves-the-first-alone",
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
