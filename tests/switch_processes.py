"""Switches of either kind as processes that end with the test, in a network of the test's own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from emulator import namespaces
from emulator.datapath import USER
from emulator.ovs import Bridge, OpenVSwitch
from emulator.waiting import Deadline
from tests.namespaces import must


@contextmanager
def own_network() -> Iterator[None]:
    """The calling thread, and what it starts, in a network namespace of its own, in which nobody speaks IPv6."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        namespaces.leave()
        namespaces.set_sysctls({"net.ipv6.conf.default.disable_ipv6": "1"})
        must("ip", "link", "set", "lo", "up")
        yield
    finally:
        namespaces.enter(f"/proc/self/fd/{before}")
        os.close(before)


def wire(a: str, b: str) -> None:
    """Join two interfaces, made for it."""
    must("ip", "link", "add", a, "up", "type", "veth", "peer", "name", b)
    must("ip", "link", "set", b, "up")


def started(argv: Sequence[str], undo: ExitStack, **words: Any) -> "subprocess.Popen[bytes]":
    """A process that ends with `undo`."""
    process = subprocess.Popen(argv, **{"stdin": subprocess.DEVNULL, **words})
    undo.callback(end, process)
    return process


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process that a test started."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    process.wait(10)
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()


class Door:
    """Switches of ours in the kernel, told by lines of JSON."""

    def __init__(
        self, switches: Sequence[Mapping[str, Any]], management: Path | None, undo: ExitStack
    ) -> None:
        """`switches` have `name`, `datapath_id` and `ports` (interface by number); see `emulator.switch.openflow_door`."""
        argv = [sys.executable, "-m", "emulator.switch"]
        self.process = started(argv, undo, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._say({"make": switches, "management": str(management) if management else None})

    def connect(self, controllers: Mapping[str, tuple[str, int]]) -> None:
        self._say({"connect": controllers})

    def _say(self, told: object) -> None:
        """AssertionError with the process's words where it wouldn't."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(told).encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline() or b'{"error": "it has ended"}')
        assert "error" not in answer, answer["error"]


def open_vswitch(bridges: Sequence[Bridge], folder: Path, undo: ExitStack) -> OpenVSwitch:
    """Open vSwitch in user space with these switches, started as the emulator starts it."""
    ovs, soon = OpenVSwitch(folder, USER), Deadline.after(20)
    for argv in (ovs.database, lambda: ovs.daemon(soon)):
        started(argv(), undo, env={**os.environ, **ovs.environment})
    ovs.make(bridges, soon)
    return ovs
