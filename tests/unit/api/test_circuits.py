"""Circuits by the names of NICs or of servers."""

import pytest

from moefabric.api.lab import named_circuits, region_of_circuits
from moefabric.core.eps import Eps
from moefabric.core.errors import SpecError
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region

REGIONS = tuple(
    Region(f"r{n}", n, tuple(f"s{3 * n + i}" for i in range(3)), Ocs(f"ocs{n}", ports=6))
    for n in range(2)
)
FABRIC = Fabric("lab", REGIONS, 8, 2, 1, 100e9, Eps(servers_per_leaf=6))


def names(*circuits: str, lit: tuple[str, ...] = ()) -> list[str]:
    return named_circuits(FABRIC, REGIONS[0], circuits, lit)


def test_circuits_of_nics_stay_as_they_are() -> None:
    assert names("s0/o1~s1/o0", "s0/o0~s2/o0") == ["s0/o1~s1/o0", "s0/o0~s2/o0"]


def test_pairs_of_servers_take_free_nics() -> None:
    assert names("s0~s1", "s2~s1") == ["s0/o0~s1/o0", "s1/o1~s2/o0"]
    assert names("s0~s1", "s1~s0") == ["s0/o0~s1/o0", "s0/o1~s1/o1"]


def test_pairs_of_servers_keep_lit_circuits() -> None:
    assert names("s0~s1", lit=("s0/o1~s1/o0", "s0/o0~s2/o0")) == ["s0/o1~s1/o0"]


@pytest.mark.parametrize(
    ("circuits", "message"),
    [
        pytest.param(("s0~s1", "s0/o1~s2/o0"), "s0~s1: name the NICs of all circuits", id="mixed"),
        pytest.param(("s0~s0",), "two different servers of r0 are needed", id="one-server"),
        pytest.param(("s0~s1",) * 3, "fewer optical NICs than the circuits need", id="ports"),
    ],
)
def test_impossible_pairs_are_errors(circuits: tuple[str, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        names(*circuits)


def test_region_is_that_of_the_servers() -> None:
    assert region_of_circuits(FABRIC, ["s3/o0~s4/o0", "s5~s4"]) is REGIONS[1]
    with pytest.raises(SpecError, match="in the regions r0, r1: no circuit leaves a region"):
        region_of_circuits(FABRIC, ["s0~s3"])
    with pytest.raises(SpecError, match=r"'s9' is not one of the servers s0, s1"):
        region_of_circuits(FABRIC, ["s0~s9"])
    with pytest.raises(SpecError, match="s0: is no circuit such as s0~s1"):
        region_of_circuits(FABRIC, ["s0", "s1"])
