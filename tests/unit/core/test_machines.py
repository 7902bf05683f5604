"""Which machine has each part of a fabric."""

import pytest

from moefabric.core.eps import Eps
from moefabric.core.errors import SpecError
from moefabric.core.machines import Machine, MachinePlacement
from tests.support.fabrics import fabric

HEAD, OTHER = Machine("head", "192.0.2.1"), Machine("m1", "192.0.2.2", 7000, "a secret")
TWO_REGIONS = fabric(regions=(2, 2), eps=Eps(servers_per_leaf=2))


def test_region_is_on_one_machine_with_its_ocs_and_eps_is_on_the_head() -> None:
    placement = MachinePlacement.of(TWO_REGIONS, [HEAD, OTHER], {"r0": "head", "r1": "m1"})
    machines = placement.components(TWO_REGIONS)
    assert [machines[name] for name in ("s0", "s1", "ocs0", "leaf0")] == ["head"] * 4
    assert [machines[name] for name in ("s2", "s3", "ocs1")] == ["m1"] * 3
    assert placement.head == HEAD
    assert placement.others == (OTHER,)


def test_eps_may_be_on_another_machine() -> None:
    placement = MachinePlacement.of(TWO_REGIONS, [HEAD, OTHER], {"r0": "head", "r1": "m1"}, "m1")
    assert placement.components(TWO_REGIONS)["leaf1"] == "m1"


def test_all_faults_of_a_placement_are_named() -> None:
    with pytest.raises(SpecError) as refused:
        MachinePlacement.of(TWO_REGIONS, [HEAD], {"r0": "elsewhere", "r7": "head"})
    assert str(refused.value).splitlines() == [
        "regions.r1: has no machine; the machines are head",
        "regions.r0: elsewhere is not one of head",
        "regions.r7: is not one of r0, r1",
    ]


def test_secret_of_a_machine_is_not_shown() -> None:
    placement = MachinePlacement.of(TWO_REGIONS, [HEAD, OTHER], {"r0": "head", "r1": "m1"})
    assert "a secret" not in repr(placement)
    assert placement.without_secrets().machine("m1").secret == ""
