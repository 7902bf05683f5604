"""Run directory and management network of a running fabric."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.eps import Eps
from moefabric.core.machines import Machine, MachinePlacement
from moefabric.core.topology import Fabric
from moefabric.core.units import Scale
from moefabric.runtime.run_directory import (
    ControlPlane,
    FabricWiring,
    ManagementNetwork,
    RunDirectory,
    shared_name,
)
from tests.support.fabrics import fabric, fabrics

NETWORK = ManagementNetwork("198.18.7.0/24")


@given(
    fabrics(), st.integers(0, 255), st.floats(1, 1e6), st.sampled_from(["ovs-netdev", "ovs-kernel"])
)
def test_wiring_survives_json(spec: Fabric, subnet: int, scale: float, switch: str) -> None:
    wiring = FabricWiring(spec, ManagementNetwork(f"198.18.{subnet}.0/24"), switch)
    assert FabricWiring.from_json(wiring.to_json()) == wiring


def test_wiring_without_eps_and_with_scale_survives_json() -> None:
    for spec in (fabric(3, 0, scale=Scale(500, 2)), fabric(0, 4, eps=Eps(2, 3, 2.0))):
        wiring = FabricWiring(spec, NETWORK)
        assert FabricWiring.from_json(wiring.to_json().encode()) == wiring


@pytest.mark.parametrize(
    ("processes", "groups"),
    [
        (0, ["r0", "r1", "r2", "r3", "r4"]),
        (2, ["r0 r1 r2", "r3 r4"]),
        (3, ["r0 r1", "r2 r3", "r4"]),
        (9, ["r0", "r1", "r2", "r3", "r4"]),
    ],
)
def test_regions_share_processes(processes: int, groups: list[str]) -> None:
    wiring = FabricWiring(fabric(regions=(2,) * 5), NETWORK, region_processes=processes)
    shared = [[region.name for region in group] for group in wiring.region_groups]
    assert [" ".join(names) for names in shared] == groups
    assert shared_name(shared[0]) == {"r0": "r0", "r0 r1 r2": "r0-r2", "r0 r1": "r0-r1"}[groups[0]]


def test_regions_of_different_machines_share_no_process() -> None:
    spec = fabric(regions=(2,) * 4)
    machines = Machine("a", "192.0.2.1"), Machine("b", "192.0.2.2")
    placement = MachinePlacement.of(spec, machines, {"r0": "a", "r1": "b", "r2": "a", "r3": "b"})
    wiring = FabricWiring(spec, NETWORK, placement=placement, region_processes=2)
    names = [[region.name for region in group] for group in wiring.region_groups]
    assert names == [["r0", "r2"], ["r1", "r3"]]


@pytest.mark.parametrize(
    ("controller", "controlled", "ports"),
    [
        (ControlPlane.OWN, ["r0", "r1", "eps"], [6654, 6655, 6653]),
        (ControlPlane.EXTERNAL_EPS, ["r0", "r1"], [6654, 6655, 6653]),
        (ControlPlane.EXTERNAL, [], [6653, 6653, 6653]),
    ],
)
def test_switches_follow_controllers_of_others_at_the_port_of_the_eps(
    controller: ControlPlane, controlled: list[str], ports: list[int]
) -> None:
    wiring = FabricWiring(fabric(regions=(2, 2)), NETWORK, controller=controller)
    assert [region.name if region else "eps" for region in wiring.controlled] == controlled
    addresses = [wiring.switch_controller(switch) for switch in ("s0", "s2", "leaf0")]
    assert addresses == [("198.18.7.1", port) for port in ports]


def test_fabric_without_eps_has_no_controller_of_it() -> None:
    assert None not in FabricWiring(fabric(electrical=0), NETWORK).controlled


def test_machine_of_a_switch_is_empty_on_the_head() -> None:
    spec = fabric(regions=(2, 2))
    machines = Machine("a", "192.0.2.1"), Machine("b", "192.0.2.2")
    placement = MachinePlacement.of(spec, machines, {"r0": "a", "r1": "b"})
    wiring = FabricWiring(spec, NETWORK, placement=placement)
    assert [wiring.machine_of(name) for name in ("s0", "s2", "ocs1")] == ["", "b", "b"]
    assert FabricWiring(spec, NETWORK).machine_of("s2") == ""


def test_addresses_of_prototype() -> None:
    spec = fabric()
    [region] = spec.regions
    assert NETWORK.host_address == "198.18.7.1"
    assert NETWORK.ocs_address(region) == "198.18.7.2"
    assert [NETWORK.server_address(spec, server) for server in spec.servers] == [
        f"198.18.7.{n}" for n in (64, 65, 66, 67)
    ]
    assert (NETWORK.openflow_endpoint(None), NETWORK.openflow_endpoint(region)) == (
        ("198.18.7.1", 6653),
        ("198.18.7.1", 6654),
    )
    assert (NETWORK.northbound_endpoint(None), NETWORK.northbound_endpoint(region)) == (
        ("198.18.7.1", 8080),
        ("198.18.7.1", 8081),
    )


@pytest.mark.parametrize(
    ("regions", "prefix", "first_server"),
    [
        pytest.param((4,), 24, "198.18.8.64", id="prototype"),
        pytest.param((2,) * 61 + (39,), 24, "198.18.8.64", id="largest-in-a-24"),
        pytest.param((2,) * 61 + (40,), 23, "198.18.8.64", id="smallest-in-a-23"),
        pytest.param((2,) * 63, 23, "198.18.8.128", id="more-regions-than-64-numbers"),
        pytest.param((8,) * 64, 22, "198.18.8.128", id="512-servers"),
        pytest.param((4,) * 255, 21, "198.18.10.0", id="1020-servers"),
    ],
)
def test_management_network_is_as_large_as_its_fabric_needs(
    regions: tuple[int, ...], prefix: int, first_server: str
) -> None:
    spec = fabric(1, 1, regions=regions)
    assert ManagementNetwork.prefix_for(spec) == prefix
    network = ManagementNetwork(f"198.18.8.0/{prefix}")
    ocs = [network.ocs_address(region) for region in spec.regions]
    servers = [network.server_address(spec, server) for server in spec.servers]
    addresses = [network.host_address, *ocs, *servers, network.switches_address]
    assert (ocs[0], servers[0]) == ("198.18.8.2", first_server)
    assert len(set(addresses)) == len(addresses)
    assert set(addresses) <= {str(host) for host in network.network.hosts()}
    assert network.interface_address(ocs[0]) == f"198.18.8.2/{prefix}"


def test_run_directory_names_files_and_sockets() -> None:
    spec, run_dir = fabric(), RunDirectory(Path("/run/moefabric/lab"))
    assert run_dir.name == "lab"
    assert str(run_dir.wiring_file) == "/run/moefabric/lab/fabric.json"
    assert str(run_dir.control_socket) == "/run/moefabric/lab/control.sock"
    assert str(run_dir.ocs_socket(spec.regions[0])) == "/run/moefabric/lab/ocs0.handoff"
    assert str(run_dir.agent_socket("s0")) == "/run/moefabric/lab/agents/s0.sock"
    assert str(run_dir.log_file("controller-r0")) == "/run/moefabric/lab/log/controller-r0.log"
