"""The plan of a fabric: every link, name, port, rate and address, before anything is made."""

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.links import segments
from emulator.plan import FABRIC, Interface, Link, Plan, plan
from moefabric.errors import FabricError
from moefabric.management import Management
from moefabric.topology import Eps, Fabric, Ocs, Region, Scale

MANAGEMENT = Management("198.18.7.0/24")


def fabric(
    servers: int = 2, optical: int = 1, electrical: int = 1, leaf: int = 4, regions: int = 1
) -> Fabric:
    per = servers // regions
    made = tuple(
        Region(
            f"r{r}", r, tuple(f"s{r * per + s}" for s in range(per)), Ocs(f"ocs{r}", per * max(1, optical))
        )
        for r in range(regions)
    )
    return Fabric("f", made, 2, optical, electrical, 100e9, Eps(leaf), Scale(bytes=2000))


def link(planned: Plan, name: str) -> Link:
    return next(link for link in planned.links if link.name == name)


def test_a_host_has_all_addresses_of_its_gpus_on_one_unshaped_interface() -> None:
    assert link(plan(fabric(), MANAGEMENT), "s1/host") == Link(
        "s1/host",
        Interface(
            "s1",
            "eth0",
            mac="02:00:0a:00:01:01",
            addresses=("10.0.1.1/8", "10.0.1.2/8"),
            neighbours=(("10.0.0.1", "02:00:0a:00:00:01"), ("10.0.0.2", "02:00:0a:00:00:01")),
        ),
        Interface(FABRIC, "s1-host", 1),
        1500,
        None,
    )


def test_a_host_knows_the_servers_of_its_region_and_has_to_ask_for_others() -> None:
    known = link(plan(fabric(servers=4, regions=2), MANAGEMENT), "s2/host").a.neighbours
    assert known == (("10.1.1.1", "02:00:0a:01:01:01"), ("10.1.1.2", "02:00:0a:01:01:01"))


def test_a_switch_has_the_ports_that_are_named_after_it_in_order() -> None:
    planned = plan(fabric(servers=12, electrical=2, leaf=6), MANAGEMENT)
    ports = {switch.name: [end.name for end in switch.ports] for switch in planned.switches}
    assert ports["s1"] == ["s1-host", "s1-o0", "s1-e0", "s1-e1"]
    assert ports["leaf1"] == [f"leaf1-p{number}" for number in range(1, 15)]
    assert ports["spine0"] == ["spine0-p1", "spine0-p2"]


def test_an_optical_nic_ends_on_its_port_of_the_ocs_at_the_emulated_rate() -> None:
    assert link(plan(fabric(optical=3), MANAGEMENT), "s1/o2") == Link(
        "s1/o2", Interface(FABRIC, "s1-o2", 4), Interface("ocs0", "ocs0-p6", 6), 1500, 50e6
    )


def test_an_electrical_nic_ends_on_its_leaf() -> None:
    assert link(plan(fabric(servers=4, leaf=2), MANAGEMENT), "s3/e0") == Link(
        "s3/e0", Interface(FABRIC, "s3-e0", 3), Interface(FABRIC, "leaf1-p2", 2), 1500, 50e6
    )


def test_uplinks_carry_what_their_leaf_s_nics_do() -> None:
    planned = plan(fabric(servers=4, electrical=2, leaf=2), MANAGEMENT)
    assert link(planned, "leaf1~spine0") == Link(
        "leaf1~spine0", Interface(FABRIC, "leaf1-p5", 5), Interface(FABRIC, "spine0-p2", 2), 1500, 100e6
    )


def test_everything_that_is_managed_has_an_address_on_the_management_network() -> None:
    planned = plan(fabric(), MANAGEMENT)
    managed = {one.a.node: one.a.addresses for one in planned.links if one.name.endswith("/management")}
    assert managed == {"s0": ("198.18.7.64/24",), "s1": ("198.18.7.65/24",), "ocs0": ("198.18.7.2/24",)}
    assert planned.bridge_address == "198.18.7.254/24"


def test_a_switch_knows_its_controller_and_its_ports_by_number() -> None:
    planned = plan(fabric(servers=4, regions=2, leaf=2), MANAGEMENT)
    told = {
        s.name: (s.bridge, s.datapath_id, s.controller[1], [(p.port, p.name) for p in s.ports])
        for s in planned.switches
    }
    assert told["s3"] == ("sw-s3", 4, 6655, [(1, "s3-host"), (2, "s3-o0"), (3, "s3-e0")])
    assert told["leaf1"] == ("leaf1", 0x10001, 6653, [(1, "leaf1-p1"), (2, "leaf1-p2"), (3, "leaf1-p3")])


def test_an_ocs_says_which_interface_each_fibre_ends_on() -> None:
    (ocs,) = plan(fabric(optical=2), MANAGEMENT).ocses
    assert (ocs.name, ocs.ports, ocs.address) == ("ocs0", 4, "198.18.7.2")
    assert ocs.plugged == ((1, "ocs0-p1"), (2, "ocs0-p2"), (3, "ocs0-p3"), (4, "ocs0-p4"))


def test_a_fabric_without_optical_nics_has_no_ocs() -> None:
    planned = plan(fabric(optical=0, electrical=4), MANAGEMENT)
    assert (planned.ocses, planned.nodes) == ((), ("s0", "s1"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param(
            {"nic_rate_bps": 100e6},
            r"s0/o0: 50000 b/s is too slow to shape \(100 kb/s at least\)",
            id="too-slow",
        ),
        pytest.param(
            {"nic_rate_bps": 1e15}, r"s0/o0: 500 Gb/s is more than this machine can shape", id="too-fast"
        ),
        pytest.param({"optical": 2}, "s1/o0: there is no OCS port 3 for it", id="ocs-too-small"),
        pytest.param({"eps": None}, "s0/e0: there is no EPS for it", id="no-eps"),
    ],
)
def test_what_cannot_be_is_said_with_its_place(changed: dict[str, object], said: str) -> None:
    with pytest.raises(FabricError, match=said):
        plan(replace(fabric(), **changed), MANAGEMENT)  # type: ignore[arg-type]


def test_all_links_that_cannot_be_shaped_are_named_at_once() -> None:
    with pytest.raises(FabricError) as refused:
        plan(replace(fabric(), nic_rate_bps=1e3), MANAGEMENT)
    assert [line.split(":")[0] for line in str(refused.value).splitlines()] == [
        "s0/o0",
        "s0/e0",
        "s1/o0",
        "s1/e0",
    ]


def test_a_name_that_linux_cannot_hold_is_said() -> None:
    region = Region("r0", 0, ("s0", "a-very-long-name"), Ocs("ocs0", 2))
    with pytest.raises(
        FabricError, match="sw-a-very-long-name: Linux has interface names of 15 letters at most"
    ):
        plan(replace(fabric(), regions=(region,)), MANAGEMENT)


sizes = st.builds(
    lambda regions, per, optical, electrical, leaf: fabric(regions * per, optical, electrical, leaf, regions),
    *(st.integers(1, 3), st.integers(2, 6), st.integers(0, 4), st.integers(1, 4), st.integers(1, 8)),
)


@given(sizes)
def test_no_two_interfaces_of_a_namespace_share_a_name_and_none_is_too_long(wired: Fabric) -> None:
    planned = plan(wired, MANAGEMENT)
    names = Counter((end.node, end.name) for one in planned.links for end in one.ends)
    assert set(names.values()) == {1}
    assert all(re.fullmatch(r"[a-z0-9-]{1,15}", name) for _, name in names)


@given(sizes)
def test_the_ports_of_a_switch_are_those_of_the_vocabulary(wired: Fabric) -> None:
    for switch in plan(wired, MANAGEMENT).switches:
        assert [port.port for port in switch.ports] == sorted(wired.ports(switch.name).values())


@pytest.mark.parametrize(
    ("rate_bps", "fewest"),
    [
        pytest.param(3e6, 8, id="3 Mb/s: a frame of eight lasts 32 ms already"),
        pytest.param(20e6, 16, id="20 Mb/s: 10 ms"),
        pytest.param(1e9, 44, id="1 Gb/s: the largest there can be"),
    ],
)
def test_a_frame_lasts_ten_milliseconds_if_it_can(rate_bps: float, fewest: int) -> None:
    fabric = Fabric("f", (Region("r0", 0, ("s0", "s1"), Ocs("ocs0", 2)),), 2, 1, 1, rate_bps, Eps(4))
    assert segments(plan(fabric, Management("198.18.0.0/24"))) == fewest
