"""Names that resolve on the servers of a fabric."""

from pathlib import Path

from moefabric.core.eps import Eps
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric.host_names import hosts_text
from moefabric.runtime.run_directory import ManagementNetwork

FABRIC = Fabric(
    "f",
    (Region("r0", 0, ("s0",), Ocs("ocs0", 2)), Region("r1", 1, ("s1",), Ocs("ocs1", 2))),
    2,
    1,
    1,
    100e9,
    Eps(4),
)
MANAGEMENT = ManagementNetwork("198.18.7.0/24")


def test_servers_gpus_and_management_have_names(tmp_path: Path) -> None:
    machine = tmp_path / "hosts"
    machine.write_text("127.0.0.1 localhost\n")
    assert hosts_text(FABRIC, MANAGEMENT, machine).splitlines() == [
        "10.0.0.1 s0 s0.r0 s0-gpu0",
        "10.0.0.2 s0-gpu1",
        "198.18.7.64 s0-management",
        "10.1.0.1 s1 s1.r1 s1-gpu0",
        "10.1.0.2 s1-gpu1",
        "198.18.7.65 s1-management",
        "198.18.7.2 ocs0",
        "198.18.7.3 ocs1",
        "198.18.7.1 management",
        "::ffff:10.0.0.1 s0",
        "::ffff:10.0.0.2 s0-gpu1",
        "::ffff:198.18.7.64 s0-management",
        "::ffff:10.1.0.1 s1",
        "::ffff:10.1.0.2 s1-gpu1",
        "::ffff:198.18.7.65 s1-management",
        "::ffff:198.18.7.2 ocs0",
        "::ffff:198.18.7.3 ocs1",
        "::ffff:198.18.7.1 management",
        "127.0.0.1 localhost",
    ]


def test_machine_without_hosts_still_has_localhost(tmp_path: Path) -> None:
    assert hosts_text(FABRIC, MANAGEMENT, tmp_path / "none").endswith("127.0.0.1 localhost\n")
