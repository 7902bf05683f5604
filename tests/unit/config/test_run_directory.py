"""Run directory and management network of a running fabric."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from moefabric.config.run_directory import FabricWiring, ManagementNetwork, RunDirectory
from moefabric.core.topology import Eps, Fabric
from moefabric.core.units import Scale
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
        wiring = FabricWiring(spec, NETWORK, crossbar="tc-mirred")
        assert FabricWiring.from_json(wiring.to_json().encode()) == wiring


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


def test_addresses_of_largest_fabric_are_distinct() -> None:
    spec = fabric(1, 1, regions=(2,) * 60 + (40,))
    ocs = [NETWORK.ocs_address(region) for region in spec.regions]
    servers = [NETWORK.server_address(spec, server) for server in spec.servers]
    addresses = [NETWORK.host_address, *ocs, *servers]
    assert len(spec.servers) == 160
    assert len(set(addresses)) == len(addresses)
    assert all(0 < int(address.split(".")[3]) < 255 for address in addresses)


def test_run_directory_names_files_and_sockets() -> None:
    spec, run_dir = fabric(), RunDirectory(Path("/run/moefabric/lab"))
    assert run_dir.name == "lab"
    assert str(run_dir.wiring_file) == "/run/moefabric/lab/fabric.json"
    assert str(run_dir.control_socket) == "/run/moefabric/lab/control.sock"
    assert str(run_dir.ocs_socket(spec.regions[0])) == "/run/moefabric/lab/ocs0.handoff"
    assert str(run_dir.agent_socket("s0")) == "/run/moefabric/lab/agents/s0.sock"
    assert str(run_dir.log_file("controller-r0")) == "/run/moefabric/lab/log/controller-r0.log"
