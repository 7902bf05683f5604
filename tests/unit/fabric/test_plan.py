"""Plan of a fabric: links, names, ports, rates and addresses."""

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.eps import Eps
from moefabric.core.errors import FabricError
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import QueueLimit, Scale
from moefabric.emulator.fabric.links import frame_bytes, frame_segments_of, tcp_sysctls
from moefabric.emulator.fabric.plan import (
    BRIDGE,
    FABRIC,
    SERVER_BRIDGE,
    FabricPlan,
    Gateway,
    Interface,
    Link,
    plan_fabric,
)
from moefabric.runtime.run_directory import ManagementNetwork, ServerInterfaces
from tests.support.fabrics import fabric as prototype

MANAGEMENT = ManagementNetwork("198.18.7.0/24")


def fabric(
    servers: int = 2, optical: int = 1, electrical: int = 1, leaf: int = 4, regions: int = 1
) -> Fabric:
    per_region = servers // regions
    region_specs = tuple(
        Region(
            f"r{r}",
            r,
            tuple(f"s{r * per_region + s}" for s in range(per_region)),
            Ocs(f"ocs{r}", per_region * max(1, optical)),
        )
        for r in range(regions)
    )
    return Fabric("f", region_specs, 2, optical, electrical, 100e9, Eps(leaf), Scale(bytes=2000))


def link_named(plan: FabricPlan, name: str) -> Link:
    return next(link for link in plan.links if link.name == name)


def test_host_link_is_unshaped_and_leads_to_all_gpu_addresses() -> None:
    assert link_named(plan_fabric(fabric(), MANAGEMENT), "s1/host") == Link(
        "s1/host",
        Interface(
            "s1",
            "eth0",
            mac="02:00:0a:00:01:01",
            addresses=("10.0.1.1/8",),
            further_addresses=("10.0.1.2",),
            neighbours=(("10.0.0.1", "02:00:0a:00:00:01"), ("10.0.0.2", "02:00:0a:00:00:01")),
        ),
        Interface(FABRIC, "s1-host", 1),
        1500,
        None,
    )


def test_host_has_its_region_as_neighbours_and_others_behind_a_gateway() -> None:
    host = link_named(plan_fabric(fabric(servers=4, regions=2), MANAGEMENT), "s2/host").a
    assert host.addresses == ("10.1.0.1/16",)
    assert host.neighbours == (("10.1.1.1", "02:00:0a:01:01:01"), ("10.1.1.2", "02:00:0a:01:01:01"))
    assert host.gateway == Gateway("10.0.0.0/8", "10.1.255.254", "02:00:0a:ff:ff:fe")


def test_switch_ports_are_its_interfaces_in_order() -> None:
    plan = plan_fabric(fabric(servers=12, electrical=2, leaf=6), MANAGEMENT)
    ports = {switch.name: [end.name for end in switch.ports] for switch in plan.switches}
    assert ports["s1"] == ["s1-host", "s1-o0", "s1-e0", "s1-e1"]
    assert ports["leaf1"] == [f"leaf1-p{number}" for number in range(1, 15)]
    assert ports["spine0"] == ["spine0-p1", "spine0-p2"]


def test_optical_nic_ends_on_ocs_port_at_emulated_rate() -> None:
    assert link_named(plan_fabric(fabric(optical=3), MANAGEMENT), "s1/o2") == Link(
        "s1/o2", Interface(FABRIC, "s1-o2", 4), Interface("ocs0", "ocs0-p6", 6), 1500, 50e6
    )


def test_light_of_equal_nics_is_shaped_where_it_enters_the_ocs_alone() -> None:
    equal = fabric(servers=4, regions=2)
    assert shaped_interfaces(equal) == {
        *(f"s{server}-{nic}" for server in range(4) for nic in ("o0", "e0")),
        *(f"leaf0-p{port}" for port in range(1, 5)),
    }
    slow = replace(equal, own_rates_bps=(("s1", 50e9),))
    assert shaped_interfaces(slow) == shaped_interfaces(equal) | {"ocs0-p1", "ocs0-p2"}


def shaped_interfaces(fabric: Fabric) -> set[str]:
    return {end.name for _, end, _ in plan_fabric(fabric, MANAGEMENT).shaped_ends}


def test_electrical_nic_ends_on_leaf() -> None:
    assert link_named(plan_fabric(fabric(servers=4, leaf=2), MANAGEMENT), "s3/e0") == Link(
        "s3/e0", Interface(FABRIC, "s3-e0", 3), Interface(FABRIC, "leaf1-p2", 2), 1500, 50e6
    )


def test_uplink_rate_matches_nics_of_leaf() -> None:
    plan = plan_fabric(fabric(servers=4, electrical=2, leaf=2), MANAGEMENT)
    assert link_named(plan, "leaf1~spine0") == Link(
        "leaf1~spine0",
        Interface(FABRIC, "leaf1-p5", 5),
        Interface(FABRIC, "spine0-p2", 2),
        1500,
        100e6,
    )


def test_servers_and_ocses_have_management_addresses() -> None:
    plan = plan_fabric(fabric(), MANAGEMENT)
    addresses = {
        link.a.node: link.a.addresses for link in plan.links if link.name.endswith("/management")
    }
    assert addresses == {
        "s0": ("198.18.7.64/24",),
        "s1": ("198.18.7.65/24",),
        "ocs0": ("198.18.7.2/24",),
    }
    assert plan.bridge_address == "198.18.7.254/24"


def test_no_server_shares_a_bridge_with_the_control_plane() -> None:
    plan = plan_fabric(fabric(servers=4, regions=2), MANAGEMENT)
    joined = {link.a.node: link.b.bridge for link in plan.links if link.b.bridge}
    servers = {joined.pop(server) for server in plan.servers}
    assert servers == {SERVER_BRIDGE}
    assert set(joined.values()) == {BRIDGE}


def test_bridges_have_fewer_servers_than_linux_allows() -> None:
    management = ManagementNetwork("198.18.0.0/20")
    plan = plan_fabric(fabric(servers=2400, regions=12, leaf=200), management)
    sizes = Counter(link.b.bridge for link in plan.links if link.a.node in plan.servers)
    del sizes[""]
    assert sizes == {SERVER_BRIDGE: 1000, "servers1": 1000, "servers2": 400}
    assert plan.further_bridges == ("servers1", "servers2")


def test_switch_plan_has_numbered_ports() -> None:
    plan = plan_fabric(fabric(servers=4, regions=2, leaf=2), MANAGEMENT)
    switches = {
        s.name: (s.bridge, s.datapath_id, [(p.port, p.name) for p in s.ports])
        for s in plan.switches
    }
    assert switches["s3"] == ("sw-s3", 4, [(1, "s3-host"), (2, "s3-o0"), (3, "s3-e0")])
    assert switches["leaf1"] == (
        "leaf1",
        0x10001,
        [(1, "leaf1-p1"), (2, "leaf1-p2"), (3, "leaf1-p3")],
    )


def test_ocs_plan_maps_ports_to_interfaces() -> None:
    (ocs,) = plan_fabric(fabric(optical=2), MANAGEMENT).ocses
    assert (ocs.name, ocs.spec.ports, ocs.address) == ("ocs0", 4, "198.18.7.2")
    assert ocs.plugged == ((1, "ocs0-p1"), (2, "ocs0-p2"), (3, "ocs0-p3"), (4, "ocs0-p4"))


def test_fabric_without_optical_nics_has_no_ocs() -> None:
    plan = plan_fabric(fabric(optical=0, electrical=4), MANAGEMENT)
    assert (plan.ocses, plan.nodes) == ((), ("s0", "s1"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"nic_rate_bps": 100e6},
            r"s0/o0: 50000 b/s is too slow to shape \(100 kb/s at least\)",
            id="too-slow",
        ),
        pytest.param(
            {"nic_rate_bps": 1e15},
            r"s0/o0: 500 Gb/s is more than this machine can shape",
            id="too-fast",
        ),
        pytest.param({"optical": 2}, "s1/o0: there is no OCS port 3 for it", id="ocs-too-small"),
        pytest.param({"eps": None}, "s0/e0: there is no EPS for it", id="no-eps"),
    ],
)
def test_impossible_fabric_is_refused_with_place(changes: dict[str, object], message: str) -> None:
    with pytest.raises(FabricError, match=message):
        plan_fabric(replace(fabric(), **changes), MANAGEMENT)  # type: ignore[arg-type]


def test_all_unshapeable_links_are_named_at_once() -> None:
    with pytest.raises(FabricError) as error:
        plan_fabric(replace(fabric(), nic_rate_bps=1e3), MANAGEMENT)
    assert [line.split(":")[0] for line in str(error.value).splitlines()] == [
        "s0/o0",
        "s0/e0",
        "s1/o0",
        "s1/e0",
    ]


def test_interface_name_longer_than_linux_allows_is_refused() -> None:
    region = Region("r0", 0, ("s0", "a-very-long-name"), Ocs("ocs0", 2))
    with pytest.raises(
        FabricError, match="sw-a-very-long-name: Linux has interface names of 15 letters at most"
    ):
        plan_fabric(replace(fabric(), regions=(region,)), MANAGEMENT)


sizes = st.builds(
    lambda regions, per_region, optical, electrical, leaf: fabric(
        regions * per_region, optical, electrical, leaf, regions
    ),
    *(
        st.integers(1, 3),
        st.integers(2, 6),
        st.integers(0, 4),
        st.integers(1, 4),
        st.integers(1, 8),
    ),
)


@given(sizes)
def test_interface_names_are_unique_and_short(any_fabric: Fabric) -> None:
    plan = plan_fabric(any_fabric, MANAGEMENT)
    names = Counter((end.node, end.name) for link in plan.links for end in link.ends)
    assert set(names.values()) == {1}
    assert all(re.fullmatch(r"[a-z0-9-]{1,15}", name) for _, name in names)


@given(sizes)
def test_switch_port_numbers_match_topology(any_fabric: Fabric) -> None:
    switches = plan_fabric(any_fabric, MANAGEMENT).switches
    assert {switch.name: [port.port for port in switch.ports] for switch in switches} == {
        name: sorted(any_fabric.openflow.ports(name).values()) for name in any_fabric.switches
    }


@pytest.mark.parametrize(
    ("rate_bps", "segments"),
    [
        pytest.param(3e6, 8, id="3 Mb/s: eight segments last 32 ms"),
        pytest.param(20e6, 16, id="20 Mb/s: 10 ms"),
        pytest.param(1e9, 44, id="1 Gb/s: the kernel's limit"),
    ],
)
def test_frame_lasts_ten_milliseconds_within_limits(rate_bps: float, segments: int) -> None:
    fabric = Fabric(
        "f", (Region("r0", 0, ("s0", "s1"), Ocs("ocs0", 2)),), 2, 1, 1, rate_bps, Eps(4)
    )
    assert frame_segments_of(plan_fabric(fabric, ManagementNetwork("198.18.0.0/24"))) == segments


def test_connections_wait_for_slow_frames_before_they_send_again() -> None:
    management = ManagementNetwork("198.18.0.0/24")
    prompt, slow = (
        tcp_sysctls(plan_fabric(prototype(scale=Scale(1000, 10, frame_s)), management))
        for frame_s in (0.01, 0.078)
    )
    assert not prompt.keys() & {"net.ipv4.tcp_rto_min_us", "net.ipv4.tcp_early_retrans"}
    assert slow["net.ipv4.tcp_rto_min_us"] == "3900000"
    assert slow["net.ipv4.tcp_early_retrans"] == "0"
    limited = replace(prototype(scale=Scale(1000, 10, 0.078)), queue=QueueLimit(100))
    assert "net.ipv4.tcp_rto_min_us" not in tcp_sysctls(plan_fabric(limited, management))


def test_interfaces_of_one_node_take_other_names() -> None:
    plan = plan_fabric(fabric(), MANAGEMENT)
    renamed = plan.with_interfaces({"s1": ServerInterfaces("eth1", "mgmt1")})
    names = {link.name: link.a.name for link in renamed.links}
    assert (names["s1/host"], names["s1/management"]) == ("eth1", "mgmt1")
    assert (names["s0/host"], names["s0/management"]) == ("eth0", "mgmt0")
    pairs = zip(renamed.links, plan.links, strict=True)
    assert [a.name for a, b in pairs if a != b] == ["s1/host", "s1/management"]
    assert plan.with_interfaces({}) == plan


@pytest.mark.parametrize("mtu", [1500, 1420])
def test_limit_in_bytes_holds_exactly_the_segments_of_a_frame(mtu: int) -> None:
    """TCP leaves 321 bytes of the limit for headers; packets have 40 bytes, or 52 with stamps."""
    for segments in range(2, 45):
        room = frame_bytes(segments, mtu) - 321
        assert {room // (mtu - headers) for headers in (40, 52)} == {segments}
        assert frame_bytes(segments, mtu) <= 65536
