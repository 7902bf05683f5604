"""Where the control planes of a running fabric find each other."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from moefabric.management import Management, RunDir, Wiring
from moefabric.topology import Eps, Fabric, Scale
from tests.fabrics import fabric, fabrics

NET = Management("198.18.7.0/24")


@given(fabrics(), st.integers(0, 255), st.floats(1, 1e6), st.sampled_from(["ovs-netdev", "ovs-kernel"]))
def test_a_wiring_is_read_as_it_is_written(made: Fabric, subnet: int, scale: float, switch: str) -> None:
    wiring = Wiring(made, Management(f"198.18.{subnet}.0/24"), switch)
    assert Wiring.from_json(wiring.to_json()) == wiring


def test_a_wiring_without_eps_and_with_a_scale_is_read_as_it_is_written() -> None:
    for made in (fabric(3, 0, scale=Scale(500, 2)), fabric(0, 4, eps=Eps(2, 3, 2.0))):
        wiring = Wiring(made, NET, crossbar="tc-mirred")
        assert Wiring.from_json(wiring.to_json().encode()) == wiring


def test_the_addresses_of_the_prototype() -> None:
    made = fabric()
    [region] = made.regions
    assert NET.outer == "198.18.7.1"
    assert NET.ocs(region) == "198.18.7.2"
    assert [NET.server(made, server) for server in made.servers] == [
        f"198.18.7.{n}" for n in (64, 65, 66, 67)
    ]
    assert (NET.openflow(None), NET.openflow(region)) == (("198.18.7.1", 6653), ("198.18.7.1", 6654))
    assert (NET.northbound(None), NET.northbound(region)) == (("198.18.7.1", 8080), ("198.18.7.1", 8081))


def test_no_address_is_given_twice_in_the_largest_fabric() -> None:
    made = fabric(1, 1, regions=(2,) * 60 + (40,))
    ocs = [NET.ocs(region) for region in made.regions]
    servers = [NET.server(made, server) for server in made.servers]
    addresses = [NET.outer, *ocs, *servers]
    assert len(made.servers) == 160
    assert len(set(addresses)) == len(addresses)
    assert all(0 < int(address.split(".")[3]) < 255 for address in addresses)


def test_a_run_directory_holds_what_its_fabric_needs() -> None:
    made, run_dir = fabric(), RunDir(Path("/run/moefabric/lab"))
    assert run_dir.name == "lab"
    assert str(run_dir.wiring) == "/run/moefabric/lab/fabric.json"
    assert str(run_dir.control) == "/run/moefabric/lab/control.sock"
    assert str(run_dir.plant(made.regions[0])) == "/run/moefabric/lab/ocs0.plant"
    assert str(run_dir.agent("s0")) == "/run/moefabric/lab/agents/s0.sock"
    assert str(run_dir.log("controller-r0")) == "/run/moefabric/lab/log/controller-r0.log"
