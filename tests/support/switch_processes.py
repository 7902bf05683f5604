"""Switches as processes that end with a test, in the test's own network namespace."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from moefabric.emulator.fabric.datapath import DatapathKind
from moefabric.emulator.fabric.ovs import OvsSwitches
from moefabric.emulator.fabric.plan import FABRIC, Interface, SwitchPlan
from moefabric.emulator.linux import namespaces
from moefabric.runtime.control_tls import ControlTls
from moefabric.runtime.waiting import Deadline
from tests.support.namespaces import must, own_network


@contextmanager
def switch_network() -> Iterator[None]:
    """Moves the calling thread to a new network namespace without IPv6."""
    with own_network():
        namespaces.set_sysctls({"net.ipv6.conf.default.disable_ipv6": "1"})
        yield


def wire(a: str, b: str) -> None:
    """Creates a veth pair."""
    must("ip", "link", "add", a, "up", "type", "veth", "peer", "name", b)
    must("ip", "link", "set", b, "up")


def start(argv: Sequence[str], undo: ExitStack, **options: Any) -> "subprocess.Popen[bytes]":
    """Starts a process that ends with `undo`."""
    process = subprocess.Popen(argv, **{"stdin": subprocess.DEVNULL, **options})
    undo.callback(end, process)
    return process


def end(process: "subprocess.Popen[bytes]") -> int:
    """Ends a process of a test; returns its exit status."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    status = process.wait(10)
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()
    return status


def listens(address: tuple[str, int]) -> bool:
    """Whether a process listens at an address."""
    with socket.socket() as trial:
        return trial.connect_ex(address) == 0


class SwitchProcess:
    """A process of switches in the kernel, controlled by lines of JSON."""

    def __init__(
        self,
        switches: Sequence[Mapping[str, Any]],
        management: Path | None,
        undo: ExitStack,
        token: str = "",
        tls: ControlTls | None = None,
    ) -> None:
        """Creates switches; see `moefabric.emulator.openflow_switch.agent.control_commands`."""
        argv = [sys.executable, "-m", "moefabric.emulator.openflow_switch"]
        self.process = start(argv, undo, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        folder = str(management) if management else None
        files = vars(tls) if tls else None
        self._execute({"make": switches, "management": folder, "token": token, "tls": files})

    def connect(self, controllers: Mapping[str, tuple[str, int]]) -> None:
        self._execute({"connect": controllers})

    def _execute(self, command: object) -> None:
        """Raises AssertionError with the error of the reply."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline() or b'{"error": "it has ended"}')
        assert "error" not in reply, reply["error"]


def planned_switch(name: str, datapath_id: int, *ports: tuple[str, int]) -> SwitchPlan:
    """A switch by its ports: interface and OpenFlow port number of each."""
    ends = tuple(Interface(FABRIC, interface, number) for interface, number in ports)
    return SwitchPlan(name, name, datapath_id, ends)


def open_vswitch(switches: Sequence[SwitchPlan], folder: Path, undo: ExitStack) -> OvsSwitches:
    """Starts Open vSwitch in user space as the emulator does."""
    ovs, deadline = OvsSwitches(folder, DatapathKind.USER), Deadline.after(20)
    for argv in (ovs.create_database, lambda: ovs.configure_daemon(deadline)):
        start(argv(), undo, env={**os.environ, **ovs.environment})
    ovs.make(switches, deadline)
    return ovs
