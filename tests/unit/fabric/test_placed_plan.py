"""Parts of a plan, and the tunnels between them."""

from dataclasses import replace
from typing import Any

import pytest

from moefabric.core.eps import Eps
from moefabric.core.errors import FabricError
from moefabric.core.machines import Machine, MachinePlacement
from moefabric.core.topology import Fabric
from moefabric.core.units import Scale
from moefabric.emulator.fabric.other_machines import merged_description, merged_lateness
from moefabric.emulator.fabric.placed_plan import plans_of, processes_on
from moefabric.emulator.fabric.plan import FABRIC, FabricPlan
from moefabric.emulator.linux.processes import OUTER, ProcessSpec
from moefabric.runtime.run_directory import FabricWiring, ManagementNetwork
from tests.support.fabrics import fabric

MACHINES = Machine("head", "192.0.2.1"), Machine("m1", "192.0.2.2"), Machine("m2", "192.0.2.3")
REGIONS = {"r0": "head", "r1": "m1", "r2": "m2"}
THREE = replace(
    fabric(regions=(2, 2, 2), eps=Eps(servers_per_leaf=2), scale=Scale(bytes=1000)), mtu=1450
)


def wiring(of: Fabric = THREE, identity: str = "1234567890") -> FabricWiring:
    placement = MachinePlacement.of(of, MACHINES, REGIONS)
    management = ManagementNetwork("198.18.0.0/24")
    return FabricWiring(of, management, placement=placement, identity=identity)


def parts(of: FabricWiring) -> dict[str, FabricPlan]:
    return {machine.name: plans_of(of, machine.name)[1] for machine in MACHINES}


def test_each_server_switch_and_optical_switch_is_in_one_part() -> None:
    whole, split = plans_of(wiring(), "head")[0], parts(wiring()).values()
    assert sorted(name for part in split for name in part.servers) == sorted(whole.servers)
    names = [switch.name for part in split for switch in part.switches]
    assert sorted(names) == sorted(switch.name for switch in whole.switches)
    assert [[ocs.name for ocs in part.ocses] for part in split] == [["ocs0"], ["ocs1"], ["ocs2"]]


def test_each_link_has_both_of_its_ends_once() -> None:
    whole = plans_of(wiring(), "head")[0]
    ends = [end for part in parts(wiring()).values() for link in part.links for end in link.ends]
    planned = [end for link in whole.links for end in (link.a, link.b)]
    assert sorted(ends, key=repr) == sorted(planned, key=repr)


def test_ends_of_a_tunnel_agree_and_no_two_tunnels_have_one_identifier() -> None:
    ends: dict[int, list[tuple[str, str]]] = {}
    for part in parts(wiring()).values():
        for link in part.links:
            if tunnel := link.tunnel:
                ends.setdefault(tunnel.vni, []).append((tunnel.local, tunnel.remote))
    assert all(len(pair) == 2 and pair[0] == pair[1][::-1] for pair in ends.values())
    tunnels = [link for part in parts(wiring()).values() for link in part.links if link.tunnel]
    assert len(tunnels) == 2 * len(ends)
    assert all(0 < vni < 1 << 24 for vni in ends)


def test_electrical_nics_of_other_machines_are_tunnels_and_optical_ones_never() -> None:
    part = parts(wiring())["m1"]
    crossing = {link.name for link in part.links if link.tunnel}
    assert crossing == {"s2/e0", "s3/e0", "management of m1", "servers of m1"}


def test_fabrics_have_identifiers_of_their_own() -> None:
    def vnis(identity: str) -> set[int]:
        links = plans_of(wiring(identity=identity), "m1")[1].links
        return {link.tunnel.vni for link in links if link.tunnel}

    assert not vnis("0000001abc") & vnis("0000002abc")


def test_bridges_have_addresses_of_their_own_and_join_those_of_the_head() -> None:
    split = parts(wiring())
    assert [split[name].bridge_address for name in split] == [
        "198.18.0.254/24",
        "198.18.0.253/24",
        "198.18.0.252/24",
    ]
    bridged = [link for link in split["head"].links if link.tunnel and link.a.bridge]
    assert sorted(link.a.bridge for link in bridged) == ["management"] * 2 + ["servers"] * 2


def test_management_fits_the_tunnels() -> None:
    links = plans_of(wiring(), "head")[0].links
    assert {link.mtu for link in links if link.rate_bps is None} == {1450}


def test_servers_send_alike_in_all_parts() -> None:
    wholes = [plans_of(wiring(), machine)[0] for machine in parts(wiring())]
    assert wholes == wholes[:1] * len(wholes)
    links = {link.name for link in wholes[0].links}
    assert all({link.name for link in part.links} < links for part in parts(wiring()).values())


def test_too_many_links_between_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moefabric.emulator.fabric.placed_plan._BLOCK", 4)
    with pytest.raises(FabricError, match="more than 4 links between machines"):
        plans_of(wiring(), "head")


def test_processes_are_those_of_the_nodes_of_a_machine() -> None:
    specs = [ProcessSpec(node, node, ("true",)) for node in (OUTER, "s0", "s2", "ocs1")]
    assert [spec.name for spec in processes_on(specs, wiring(), "head")] == [OUTER, "s0"]
    assert [spec.name for spec in processes_on(specs, wiring(), "m1")] == ["s2", "ocs1"]
    with pytest.raises(FabricError, match="s9: processes run on"):
        processes_on([ProcessSpec("s9", "s9", ("true",))], wiring(), "m1")


def test_fabric_on_one_machine_has_no_tunnels() -> None:
    alone = FabricWiring(THREE, ManagementNetwork("198.18.0.0/24"))
    whole, part = plans_of(alone, "")
    assert whole == part
    assert not any(link.tunnel for link in part.links)
    assert {end.node for link in part.links for end in link.ends} > {FABRIC}


def test_descriptions_of_parts_are_merged() -> None:
    kinds = ("ocs", "switches", "links", "remarks", "processes")
    own: dict[str, Any] = {kind: [] for kind in kinds}
    own |= {"servers": [{"name": "s0"}], "fabric": "f"}
    part = {"servers": [{"name": "s1"}], "processes": [{"name": "agent-s1", "pid": 7}]}
    whole = merged_description(own, {"m1": part}, ["s1", "s0"])
    assert [server["name"] for server in whole["servers"]] == ["s1", "s0"]
    assert whole["processes"] == [{"name": "agent-s1", "pid": 7, "machine": "m1"}]


def test_lateness_of_all_machines_is_the_worst() -> None:
    reports = [{"frames": 3, "p99_ns": 10}, {}, {"frames": 4, "p99_ns": 7}]
    assert merged_lateness(reports) == {"frames": 7, "p99_ns": 10}
