"""Open vSwitch, an SCPI device and controllers for tests, in a network namespace of their own."""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address
from pathlib import Path

from moefabric.controller.client import ControllerClient
from moefabric.controller.southbound.openflow.flow_entries import FlowEntry, flow_entry
from moefabric.core.eps import Eps
from moefabric.core.ocs import DeviceProfile, Ocs, OcsControl, SettleTime, Verification
from moefabric.core.rules import Rule
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric.datapath import DatapathKind
from moefabric.emulator.fabric.ovs import OvsSwitches
from moefabric.emulator.fabric.plan import SwitchPlan
from moefabric.emulator.ocs.scpi.dialect import SCPI
from moefabric.runtime.control_tls import ControlTls
from moefabric.runtime.run_directory import FabricWiring, ManagementNetwork, RunDirectory
from moefabric.runtime.waiting import Deadline
from tests.support.namespaces import must, own_network
from tests.support.ocs_device import ocs_device
from tests.support.switch_processes import listens, open_vswitch, planned_switch, start

MANAGEMENT = ManagementNetwork("198.18.77.0/24")


def fabric(
    servers: int = 4, optical: int = 3, electrical: int = 1, settle_ns: int = 0, per_leaf: int = 4
) -> Fabric:
    """Return a fabric of one region. Its switches have no links, so circuits are not probed."""
    names = tuple(f"s{i}" for i in range(servers))
    control = OcsControl(verify=Verification.READ_BACK)
    ocs = Ocs("ocs0", servers * optical, settle_ns, control=control) if optical else None
    return Fabric(
        "lab",
        (Region("r0", 0, names, ocs),),
        8,
        optical,
        electrical,
        100e9,
        Eps(per_leaf) if electrical else None,
    )


@contextmanager
def scpi_device(wired: Fabric, address: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """Serve the fabric's OCS over TCP with mirrors in memory; yield its address."""
    ocs = wired.regions[0].ocs
    assert ocs is not None
    profile = DeviceProfile(settle=SettleTime(fixed_ns=ocs.settle_ns), busy="refuse")
    with ocs_device("scpi", ocs.ports, profile, address=address) as device:
        yield device.address


@contextmanager
def management_network() -> Iterator[None]:
    """Run the thread and its children in a namespace that owns the whole management subnet."""
    with own_network():
        must("ip", "address", "add", f"{MANAGEMENT.host_address}/24", "dev", "lo")
        yield


class Lab:
    """Switches, an OCS and the controllers of one fabric."""

    datapath = DatapathKind.USER.value
    tls: ControlTls | None = None

    def __init__(self, wired: Fabric, folder: Path, undo: ExitStack) -> None:
        self.fabric, self.folder, self.undo = wired, folder, undo
        self.run = RunDirectory(folder / "lab")
        self.run.path.mkdir()
        self.run.make_token()
        self.ovs = OvsSwitches(folder / "ovs", DatapathKind.USER)

    @property
    def wiring(self) -> FabricWiring:
        """The wiring of the lab's fabric."""
        return FabricWiring(self.fabric, MANAGEMENT, self.datapath, control_tls=self.tls)

    def start_ovs(self, switches: Sequence[SwitchPlan] = ()) -> None:
        """Make these switches, or one without ports for each switch of the fabric."""
        dpid = self.fabric.openflow.dpid
        planned = [planned_switch(name, dpid(name)) for name in self.fabric.switches]
        self.ovs = open_vswitch(switches or planned, self.ovs.folder, self.undo)

    def wire(self) -> None:
        """Write the wiring into the run directory."""
        written = self.run.path / "fabric.json.new"
        written.write_text(self.wiring.to_json())
        written.rename(self.run.wiring_file)

    def start_controllers(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start the controllers of a run directory, or with other arguments."""
        arguments = words or ("--run-dir", str(self.run.path))
        return start([sys.executable, "-m", "moefabric.controller", *arguments], self.undo)

    def connect(self, *switches: str) -> None:
        """Set the switches' controllers."""
        region_of = self.fabric.region_of
        named = switches or self.fabric.switches
        self.ovs.tls = self.tls
        self.ovs.connect(
            {name: MANAGEMENT.openflow_endpoint(region_of.get(name)) for name in named},
            Deadline.after(10),
        )

    def start_ocs(self) -> None:
        """Serve the region's OCS on its management address."""
        self.undo.enter_context(
            scpi_device(self.fabric, (MANAGEMENT.ocs_address(self.fabric.regions[0]), SCPI.port))
        )

    def start_all(self) -> "subprocess.Popen[bytes]":
        """Start everything, wait until it is ready, and return the controllers' process."""
        self.start_ovs()
        if self.fabric.regions[0].ocs:
            self.start_ocs()
        self.wire()
        started = self.start_controllers()
        self.wait_listening()
        self.connect()
        for region in (*self.fabric.regions, None):
            self.client(region).wait_ready(15)
        return started

    def wait_listening(self) -> None:
        """Wait until every controller listens: Open vSwitch waits a second after a refusal."""
        soon = Deadline.after(15)
        places = [MANAGEMENT.openflow_endpoint(region) for region in (*self.fabric.regions, None)]
        soon.wait_for(lambda: all(map(listens, places)), f"a controller at one of {places}")

    def client(self, region: Region | None) -> ControllerClient:
        """Return a client of a region's controller, or the EPS's for None."""
        return self.undo.enter_context(
            ControllerClient.of_region(self.wiring, region, run_dir=self.run)
        )

    def entries(self, switch: str) -> list[str]:
        """Return the flow entries of a switch by `ovs-ofctl dump-flows`."""
        manager = f"unix:{self.ovs.folder / switch}.mgmt"
        output = must(
            "ovs-ofctl", "-O", "OpenFlow13", "--no-stats", "--no-names", "dump-flows", manager
        )
        return [line.strip() for line in output.splitlines() if "priority=" in line]

    def ofctl(self, command: str, switch: str, *words: str) -> str:
        """Run `ovs-ofctl` on a switch."""
        return must(
            "ovs-ofctl",
            "-O",
            "OpenFlow13",
            command,
            f"unix:{self.ovs.folder / switch}.mgmt",
            *words,
        )


_SAID = re.compile(
    r"priority=(\d+),ip,nw_dst=([\d.]+)/(\d+)(?:,nw_tos=(\d+))? actions=output:(\d+)$"
)


def entries_as_said(lines: Iterable[str]) -> set[FlowEntry]:
    """Parse `dump-flows`, without the entries for ARP and probes of light."""
    entries = set[FlowEntry]()
    for line in lines:
        if line.endswith(
            (
                "priority=65535,arp,in_port=1 actions=CONTROLLER:65535",
                "dl_type=0x88b5 actions=CONTROLLER:65535",
            )
        ):
            continue
        match = _SAID.search(line)
        assert match, f"no entry of a controller's: {line}"
        priority, address, length, tos, port = match.groups()
        entries.add(
            FlowEntry(
                int(priority),
                int(IPv4Address(address)),
                int(length),
                int(tos) >> 2 if tos else None,
                int(port),
            )
        )
    return entries


def entry_set(wired: Fabric, switch: str, rules: Iterable[Rule]) -> set[FlowEntry]:
    """Return the entries that a switch should have for rules."""
    return {flow_entry(wired, rule) for rule in rules if rule.switch == switch}


@contextmanager
def lab(wired: Fabric, folder: Path) -> Iterator[Lab]:
    """Yield a lab that ends with the block."""
    with management_network(), ExitStack() as undo:
        yield Lab(wired, folder, undo)
