"""Small fabric with real packets, in a network namespace that stands for the machine.

It has two servers with an optical and an electrical NIC each.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from moefabric.core.eps import Eps
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric import lifecycle, node_commands
from moefabric.emulator.fabric.plan import bridge_name
from moefabric.emulator.fabric.run_directories import run_directories
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.processes import ProcessRole, ProcessSpec
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.runtime.waiting import Deadline

T = TypeVar("T")
RATE_BPS = 50e6
GOODPUT = 1448 / 1514
SIZE = 8_000_000
RECEIVER = """
import socket, sys, time
with socket.create_server((sys.argv[1], 5201)) as server:
    print("listening", flush=True)
    flow, _ = server.accept()
    received = 0
    while part := flow.recv(1 << 20):
        received += len(part)
    print(received, time.monotonic())
"""
SENDER = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5201), 5) as flow:
    flow.settimeout(15)
    flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    flow.setsockopt(socket.SOL_SOCKET, 47, int(sys.argv[2]))  # SO_MAX_PACING_RATE, bytes a second
    print(time.monotonic())
    flow.sendall(bytes(int(sys.argv[3])))
"""


def small_fabric(
    name: str, rate_bps: float = RATE_BPS, servers: tuple[str, ...] = ("s0", "s1")
) -> Fabric:
    ocs = Ocs("ocs0", ports=len(servers))
    return Fabric(
        name, (Region("r0", 0, servers, ocs),), 2, 1, 1, rate_bps, Eps(servers_per_leaf=4)
    )


def no_processes(_wiring: FabricWiring, _run_dir: RunDirectory) -> list[ProcessSpec]:
    return []


def sleeper(node: str, name: str = "sleeper", role: ProcessRole = ProcessRole.OTHER) -> ProcessSpec:
    return ProcessSpec(name, node, ("sleep", "600"), role=role)


def ocs_process(_wiring: FabricWiring, run_dir: RunDirectory) -> list[ProcessSpec]:
    handoff = str(run_dir.path / "ocs0.handoff")
    return [
        ProcessSpec(
            "ocs0",
            "outer",
            (sys.executable, "-m", "moefabric.emulator.ocs", "--socket", handoff),
            role=ProcessRole.OCS,
        )
    ]


class Machine:
    """Network namespace in the place of the machine, and a folder in that of /run/moefabric.

    `outer` is a process in the namespace.
    """

    def __init__(self, outer: int, folder: Path) -> None:
        self.outer, self.folder = outer, folder

    def is_isolated(self) -> bool:
        return (
            Path(namespaces.path_of(self.outer)).readlink() != Path("/proc/self/ns/net").readlink()
        )

    def run(self, function: Callable[[], T]) -> T:
        return namespaces.run_in(namespaces.path_of(self.outer), function, timeout_s=60)

    def up(
        self,
        fabric: Fabric,
        processes: Callable[[FabricWiring, RunDirectory], list[ProcessSpec]] = no_processes,
    ) -> FabricWiring:
        return self.run(partial(lifecycle.up, fabric, processes))

    def down(self, name: str) -> bool:
        return self.run(partial(lifecycle.down, name))

    def run_on(
        self, name: str, server: str, *command: str, timeout_s: float = 20
    ) -> subprocess.CompletedProcess[str]:
        argv = node_commands.exec_argv(name, server, command)
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)

    def links(self) -> set[str]:
        shown = self.run(
            lambda: (
                subprocess.run(
                    ["ip", "-j", "link"], capture_output=True, text=True, check=True
                ).stdout
            )
        )
        return {link["ifname"] for link in json.loads(shown)}

    def set_rules(self, fabric: Fabric, switch: str, *rules: str) -> None:
        """Replace the rules of a switch."""
        socket = (
            RunDirectory.of_fabric(fabric.name).switches / f"{bridge_name(switch, fabric)}.mgmt"
        )
        words = (
            ["replace-flows", f"unix:{socket}", "-"] if rules else ["del-flows", f"unix:{socket}"]
        )
        subprocess.run(
            ["ovs-ofctl", "-O", "OpenFlow13", *words],
            input="\n".join(rules),
            text=True,
            check=True,
            timeout=10,
        )

    def route_by(self, fabric: Fabric, path: str) -> None:
        """Set rules that send all traffic between the two servers by one path."""
        fields = (("ip", "nw_dst"), ("arp", "arp_tpa"))
        for server in fabric.servers:
            ports = fabric.openflow.ports(server)
            prefix, out = fabric.addressing.prefix(server), ports[f"{server}/{path}"]
            inbound = [
                f"priority=2,{protocol},{field}={prefix},actions=output:{ports['host']}"
                for protocol, field in fields
            ]
            self.set_rules(fabric, server, *inbound, f"priority=1,actions=output:{out}")
        leaf = fabric.openflow.ports("leaf0")
        leaf_rules = [
            f"{protocol},{field}={fabric.addressing.prefix(server)},actions=output:{leaf[f'{server}/e0']}"
            for server in fabric.servers
            for protocol, field in fields
        ]
        self.set_rules(fabric, "leaf0", *leaf_rules)

    def goodput_bps(self, fabric: Fabric) -> float:
        """Return the goodput of one TCP flow from s0 to s1, from the first byte to the last.

        The sender reads the clock before its first byte and the receiver after the last one, so
        that no delay of either makes the flow look faster than its link.
        """
        address = fabric.addressing.addresses("s1")[0]
        receive = node_commands.exec_argv(
            fabric.name, "s1", [sys.executable, "-c", RECEIVER, address]
        )
        with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver:
            try:
                assert receiver.stdout is not None
                assert receiver.stdout.readline() == "listening\n"
                sender = self.run_on(
                    fabric.name,
                    "s0",
                    sys.executable,
                    "-c",
                    SENDER,
                    address,
                    str(int(RATE_BPS / 8 * 1.03)),
                    str(SIZE),
                )
                assert sender.returncode == 0, sender.stderr
                received, end_s = receiver.stdout.readline().split()
                assert int(received) == SIZE
                return 8 * SIZE / (float(end_s) - float(sender.stdout))
            finally:
                receiver.kill()


@contextmanager
def isolated_machine(lifetime_s: int = 600) -> Iterator[Machine]:
    """Yield a machine that lasts so long at most; afterwards remove every fabric on it."""
    folder = Path(tempfile.mkdtemp(prefix="mf", dir="/tmp"))  # paths of Unix sockets are short
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        subprocess.Popen(["unshare", "-n", "sleep", str(lifetime_s)]) as outer,
    ):
        monkeypatch.setenv("MOEFABRIC_RUN_DIR", str(folder))
        machine = Machine(outer.pid, folder)
        Deadline.after(30).wait_for(machine.is_isolated, "namespace")
        try:
            yield machine
        finally:
            for left in run_directories():
                machine.run(partial(lifecycle.down, left.name, force=True))
            outer.kill()
            shutil.rmtree(folder)


def ping(machine: Machine, fabric: Fabric, within_s: int = 8) -> bool:
    """Return whether a ping from s0 to s1 is answered."""
    words = [
        "ping",
        "-c",
        "1",
        "-i",
        "0.2",
        "-w",
        str(within_s),
        fabric.addressing.addresses("s1")[1],
    ]
    return machine.run_on(fabric.name, "s0", *words).returncode == 0
