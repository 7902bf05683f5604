"""A controller's surroundings for tests: real Open vSwitch and an SCPI device, in a network namespace that ends with the test."""

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import IPv4Address
from pathlib import Path

from controller.client import ControllerClient
from controller.southbound.openflow.entries import Entry, entry
from emulator.datapath import USER
from emulator.light import MemoryCrossbar, Ports
from emulator.ocs.build import Build
from emulator.ocs.matching import Busy
from emulator.ocs.scpi import Scpi
from emulator.ocs.server import Server
from emulator.ovs import Bridge, OpenVSwitch
from emulator.waiting import Deadline
from moefabric.management import SCPI_PORT, Management, RunDir, Wiring
from moefabric.ocs_control import OcsControl, Verification
from moefabric.ocs_profile import Profile, Settle
from moefabric.rules import Rule
from moefabric.topology import Eps, Fabric, Ocs, Region
from tests.namespaces import must

CLONE_NEWNET = 0x40000000
MANAGEMENT = Management("198.18.77.0/24")


def fabric(
    servers: int = 4, optical: int = 3, electrical: int = 1, settle_ns: int = 0, per_leaf: int = 4
) -> Fabric:
    """A fabric of one region. Its switches have no wires, so that no light would be found in any circuit: what the OCS shows is believed."""
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
def scpi_device(
    wired: Fabric, address: tuple[str, int], busy: Busy = Busy.REFUSE
) -> Iterator[tuple[str, int]]:
    """The fabric's OCS as the emulator serves it over TCP, with mirrors in memory; where it really listens."""
    ocs = wired.regions[0].ocs
    assert ocs is not None
    listener = socket.create_server(address)
    profile = Profile(settle=Settle(fixed_ns=ocs.settle_ns), busy="refuse" if busy is Busy.REFUSE else "move")
    server = Server(MemoryCrossbar(Ports(ocs.ports, ocs.ports)), Build(profile))
    server.open(listener, Scpi)
    hear, say = socket.socketpair()
    serving = threading.Thread(target=server.serve, args=(hear,))
    where: tuple[str, int] = listener.getsockname()[:2]
    serving.start()
    try:
        yield where
    finally:
        say.close()
        serving.join(10)
        hear.close()


@contextmanager
def own_network() -> Iterator[None]:
    """The calling thread, and what it starts, in a network namespace of its own, where the whole management subnet is this machine's."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        must("ip", "link", "set", "lo", "up")
        must("ip", "address", "add", f"{MANAGEMENT.outer}/24", "dev", "lo")
        yield
    finally:
        assert libc.setns(before, CLONE_NEWNET) == 0
        os.close(before)


class Lab:
    """Switches, an OCS and the controllers of one fabric, each a process or a thread of its own."""

    def __init__(self, wired: Fabric, folder: Path, undo: ExitStack) -> None:
        self.fabric, self.folder, self.undo = wired, folder, undo
        self.run = RunDir(folder / "lab")
        self.run.path.mkdir()
        self.ovs = OpenVSwitch(folder / "ovs", USER)

    def start_ovs(self, bridges: list[Bridge] | None = None) -> None:
        """Make a switch without ports for each of the fabric's, or those given."""
        soon = Deadline.after(20)
        for argv in (self.ovs.database, lambda: self.ovs.daemon(soon)):
            self._process(argv(), self.ovs.environment)
        made = bridges or [Bridge(name, self.fabric.dpid(name), ()) for name in self.fabric.switches]
        self.ovs.make(made, soon)

    def wire(self) -> None:
        """Put the wiring where the controllers look for it."""
        written = self.run.path / "fabric.json.new"
        written.write_text(Wiring(self.fabric, MANAGEMENT).to_json())
        written.rename(self.run.wiring)

    def start_controllers(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start them, as `python -m controller --run-dir` unless other words are given."""
        command = [sys.executable, "-m", "controller", *(words or ("--run-dir", str(self.run.path)))]
        return self._process(command, {})

    def connect(self, *switches: str) -> None:
        """Tell the switches where their controllers are."""
        region_of = self.fabric.region_of
        named = switches or self.fabric.switches
        self.ovs.connect(
            {name: MANAGEMENT.openflow(region_of.get(name)) for name in named}, Deadline.after(10)
        )

    def start_ocs(self) -> None:
        """Serve the region's OCS on its management address."""
        self.undo.enter_context(scpi_device(self.fabric, (MANAGEMENT.ocs(self.fabric.regions[0]), SCPI_PORT)))

    def start_all(self) -> "subprocess.Popen[bytes]":
        """Everything, ready; the controllers' process."""
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
        """Return when every controller takes switches: Open vSwitch waits a second after a refusal."""
        soon = Deadline.after(15)
        places = [MANAGEMENT.openflow(region) for region in (*self.fabric.regions, None)]
        soon.until(lambda: all(map(listens, places)), f"a controller at one of {places}")

    def client(self, region: Region | None) -> ControllerClient:
        """A client of a region's controller; None is the EPS's."""
        return self.undo.enter_context(ControllerClient(MANAGEMENT.northbound(region)))

    def entries(self, switch: str) -> list[str]:
        """The flow entries that a switch really has, as `ovs-ofctl dump-flows` prints them."""
        manager = f"unix:{self.ovs.folder / switch}.mgmt"
        said = must("ovs-ofctl", "-O", "OpenFlow13", "--no-stats", "--no-names", "dump-flows", manager)
        return [line.strip() for line in said.splitlines() if "priority=" in line]

    def ofctl(self, command: str, switch: str, *words: str) -> str:
        """Do something to a switch behind its controller's back."""
        return must("ovs-ofctl", "-O", "OpenFlow13", command, f"unix:{self.ovs.folder / switch}.mgmt", *words)

    def _process(self, argv: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        started = subprocess.Popen(argv, env={**os.environ, **environment}, stdin=subprocess.DEVNULL)
        self.undo.callback(end, started)
        return started


_SAID = re.compile(r"priority=(\d+),ip,nw_dst=([\d.]+)/(\d+)(?:,nw_tos=(\d+))? actions=output:(\d+)$")


def entries_as_said(lines: Iterable[str]) -> set[Entry]:
    """The entries of `dump-flows`, but for those that bring ARP and probes of light to the controller. AssertionError for any of another shape."""
    made = set[Entry]()
    for line in lines:
        if line.endswith(
            (
                "priority=65535,arp,in_port=1 actions=CONTROLLER:65535",
                "dl_type=0x88b5 actions=CONTROLLER:65535",
            )
        ):
            continue
        found = _SAID.search(line)
        assert found, f"no entry of a controller's: {line}"
        priority, address, length, tos, port = found.groups()
        made.add(
            Entry(
                int(priority),
                int(IPv4Address(address)),
                int(length),
                int(tos) >> 2 if tos else None,
                int(port),
            )
        )
    return made


def entry_set(wired: Fabric, switch: str, rules: Iterable[Rule]) -> set[Entry]:
    """The entries that a switch should have of these rules."""
    return {entry(wired, rule) for rule in rules if rule.switch == switch}


def listens(address: tuple[str, int]) -> bool:
    """Whether somebody takes connections there."""
    with socket.socket() as trial, suppress(OSError):
        trial.connect(address)
        return True
    return False


def end(process: "subprocess.Popen[bytes]") -> int:
    """End a process that the test started; its exit status."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    return process.wait(10)


@contextmanager
def lab(wired: Fabric, folder: Path) -> Iterator[Lab]:
    """A lab that ends with the block."""
    with own_network(), ExitStack() as undo:
        yield Lab(wired, folder, undo)


def needs() -> str:
    """What this machine lacks for a lab; empty if nothing."""
    lacking = [name for name in ("ovs-vswitchd", "ovsdb-server", "ovs-ofctl", "ip") if not shutil.which(name)]
    return ", ".join(lacking + ["root"] * (os.geteuid() != 0))
