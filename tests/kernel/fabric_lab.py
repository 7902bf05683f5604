"""A small fabric with real packets, two servers with an optical and an electrical NIC each, and a machine of its own to have it on."""

import json
import os
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

from emulator import lifecycle, namespaces
from emulator.plan import bridge
from emulator.processes import Process, Role
from emulator.waiting import Deadline
from moefabric.management import RunDir, Wiring, root
from moefabric.topology import Eps, Fabric, Ocs, Region

NEEDS = [
    pytest.mark.kernel,
    pytest.mark.ovs,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
    pytest.mark.skipif(
        shutil.which("ovs-vswitchd") is None, reason="needs Open vSwitch: apt install openvswitch-switch"
    ),
]
T = TypeVar("T")
RATE_BPS = 50e6
GOODPUT = 1448 / 1514
RECEIVER = """
import socket, sys, time
with socket.create_server((sys.argv[1], 5201)) as server:
    print("listening", flush=True)
    flow, _ = server.accept()
    got, began = len(flow.recv(1 << 20)), time.monotonic()
    while part := flow.recv(1 << 20):
        got += len(part)
    print(got * 8 / (time.monotonic() - began))
"""
SENDER = """
import socket, sys
with socket.create_connection((sys.argv[1], 5201), 5) as flow:
    flow.settimeout(15)
    flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    flow.setsockopt(socket.SOL_SOCKET, 47, int(sys.argv[2]))  # SO_MAX_PACING_RATE, bytes a second
    flow.sendall(bytes(8_000_000))
"""


def wired(name: str, rate_bps: float = RATE_BPS, servers: tuple[str, ...] = ("s0", "s1")) -> Fabric:
    ocs = Ocs("ocs0", ports=len(servers))
    return Fabric(name, (Region("r0", 0, servers, ocs),), 2, 1, 1, rate_bps, Eps(servers_per_leaf=4))


def nothing_else(_wiring: Wiring, _run_dir: RunDir) -> list[Process]:
    return []


def sleeper(where: str, name: str = "sleeper", role: Role = Role.OTHER) -> Process:
    return Process(name, where, ("sleep", "600"), role=role)


def ocs_process(_wiring: Wiring, run_dir: RunDir) -> list[Process]:
    plant = str(run_dir.path / "ocs0.plant")
    return [Process("ocs0", "outer", (sys.executable, "-m", "emulator.ocs", "--plant", plant), role=Role.OCS)]


class Machine:
    """A network namespace that stands for the machine, and a folder that stands for /run/moefabric."""

    def __init__(self, outer: int, folder: Path) -> None:
        self.outer, self.folder = outer, folder

    def elsewhere(self) -> bool:
        return Path(namespaces.of(self.outer)).readlink() != Path("/proc/self/ns/net").readlink()

    def here(self, do: Callable[[], T]) -> T:
        return namespaces.within(namespaces.of(self.outer), do, timeout_s=60)

    def up(
        self, fabric: Fabric, processes: Callable[[Wiring, RunDir], list[Process]] = nothing_else
    ) -> Wiring:
        return self.here(partial(lifecycle.up, fabric, processes))

    def down(self, name: str) -> bool:
        return self.here(partial(lifecycle.down, name))

    def on(
        self, name: str, server: str, *cmd: str, timeout_s: float = 20
    ) -> subprocess.CompletedProcess[str]:
        argv = lifecycle.argv_on(name, server, cmd)
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)

    def links(self) -> set[str]:
        shown = self.here(
            lambda: subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout
        )
        return {link["ifname"] for link in json.loads(shown)}

    def rules(self, fabric: Fabric, switch: str, *rules: str) -> None:
        """Have a switch follow exactly these rules."""
        socket = RunDir.named(fabric.name).switches / f"{bridge(switch, fabric)}.mgmt"
        words = ["replace-flows", f"unix:{socket}", "-"] if rules else ["del-flows", f"unix:{socket}"]
        given = "\n".join(rules)
        subprocess.run(
            ["ovs-ofctl", "-O", "OpenFlow13", *words], input=given, text=True, check=True, timeout=10
        )

    def by(self, fabric: Fabric, path: str) -> None:
        """Rules that send everything between the two servers by one path."""
        fields = (("ip", "nw_dst"), ("arp", "arp_tpa"))
        for here in fabric.servers:
            ports = fabric.ports(here)
            own, out = fabric.prefix(here), ports[f"{here}/{path}"]
            home = [
                f"priority=2,{protocol},{field}={own},actions=output:{ports['host']}"
                for protocol, field in fields
            ]
            self.rules(fabric, here, *home, f"priority=1,actions=output:{out}")
        leaf = fabric.ports("leaf0")
        towards = [
            f"{protocol},{field}={fabric.prefix(server)},actions=output:{leaf[f'{server}/e0']}"
            for server in fabric.servers
            for protocol, field in fields
        ]
        self.rules(fabric, "leaf0", *towards)

    def goodput_bps(self, fabric: Fabric) -> float:
        """What one TCP flow from s0 to s1 gets, from the first byte that arrives to the last."""
        to = fabric.addresses("s1")[0]
        receive = lifecycle.argv_on(fabric.name, "s1", [sys.executable, "-c", RECEIVER, to])
        with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver:
            try:
                assert receiver.stdout is not None
                assert receiver.stdout.readline() == "listening\n"
                sent = self.on(
                    fabric.name, "s0", sys.executable, "-c", SENDER, to, str(int(RATE_BPS / 8 * 1.03))
                )
                assert sent.returncode == 0, sent.stderr
                return float(receiver.stdout.readline())
            finally:
                receiver.kill()


@contextmanager
def own_machine() -> Iterator[Machine]:
    """A machine, and at its end no fabric on it."""
    folder = Path(tempfile.mkdtemp(prefix="mf", dir="/tmp"))  # unix sockets want short paths
    with (
        pytest.MonkeyPatch.context() as changed,
        subprocess.Popen(["unshare", "-n", "sleep", "600"]) as outer,
    ):
        changed.setenv("MOEFABRIC_RUN_DIR", str(folder))
        machine = Machine(outer.pid, folder)
        Deadline.after(5).until(machine.elsewhere, "namespace")
        try:
            yield machine
        finally:
            for left in list(root().iterdir()):
                machine.down(left.name)
            outer.kill()
            shutil.rmtree(folder)


def ping(machine: Machine, fabric: Fabric, within_s: int = 8) -> bool:
    words = ["ping", "-c", "1", "-i", "0.2", "-w", str(within_s), fabric.addresses("s1")[1]]
    return machine.on(fabric.name, "s0", *words).returncode == 0
