"""Faults of a running fabric, by kind: what each does, and how those that pass are lifted."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from moefabric.emulator.fabric.daemon_protocol import NODES, process_id
from moefabric.emulator.linux.marked_processes import marked_pids
from moefabric.runtime.run_directory import RunDirectory, run_root
from tests.kernel.fabric_lab import Machine

STREAM: Final = ("s2", "s3")
"""Servers between which datagrams flow that faults don't touch."""
SERVERS: Final = ("s0", "s1", *STREAM)
DESCRIPTORS: Final = 16
_CUT_S: Final = 45.0
_IDLE: Final = os.sched_param(0)
_PAGE: Final = resource.getpagesize()


@dataclass(frozen=True)
class Target:
    """A running fabric, and what chooses where a fault falls."""

    name: str
    machine: Machine
    random: Random

    def process(self) -> int:
        """Return a process of the fabric; 0 if there is none."""
        pids = marked_pids(self.name)
        return self.random.choice(pids) if pids else 0

    def nodes(self) -> dict[str, int]:
        """Return the number of a thread in each node's namespaces; nothing if it has ended."""
        with suppress(OSError):
            nodes: dict[str, int] = json.loads(
                (RunDirectory.of_fabric(self.name).path / NODES).read_text()
            )
            return nodes
        return {}


Lift = Callable[[], object]
Fault = Callable[[Target], Lift | None]
"""Function that makes a fault; it returns what lifts the fault, if that passes."""


def _signal(number: signal.Signals, target: Target) -> None:
    if pid := target.process():
        send(pid, number)


def _limit(kind: int, limit: Callable[[int], int], target: Target) -> None:
    """Give a process a limit that it has reached, or is near to."""
    with suppress(ProcessLookupError, FileNotFoundError):  # it has ended
        if pid := target.process():
            resource.prlimit(pid, kind, (limit(pid),) * 2)


def _memory_bytes(pid: int) -> int:
    return _PAGE * int(Path(f"/proc/{pid}/statm").read_text().split()[0])


def _cut(interfaces: Callable[[str], bool], target: Target) -> None:
    """Take an interface of a node down."""
    places = [
        (pid, name)
        for node, pid in target.nodes().items()
        for name in _interfaces(pid)
        if interfaces(f"{node}/{name}")
    ]
    if places:
        pid, name = target.random.choice(places)
        _run_in(pid, "ip", "link", "set", name, "down")


def _is_apart(interface: str) -> bool:
    """Whether an interface is one of the management network, or of a server without the stream."""
    node, _, name = interface.partition("/")
    return name == "mgmt0" or (name != "lo" and node not in STREAM)


def _interfaces(pid: int) -> list[str]:
    return _run_in(pid, "ls", "/sys/class/net").split()


def _run_in(pid: int, *argv: str) -> str:
    """Return what a program prints in the namespaces of a node, which may have ended."""
    argv = ("nsenter", "-t", str(pid), "-n", "-m", *argv)
    return subprocess.run(argv, capture_output=True, text=True, timeout=_CUT_S, check=False).stdout


def _reset(target: Target) -> Lift:
    """Reset all TCP connections of the controllers: to switches, OCS and each other."""
    argv = ("ss", "--kill", "--tcp", "state", "established")
    kill = partial(subprocess.run, argv, capture_output=True, timeout=_CUT_S, check=True)
    target.machine.run(kill)
    return lambda: None


def _fill(_target: Target) -> Lift:
    """Fill the file system of the run directories, which has 64 MB."""
    path = run_root().parent / "full"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    return path.unlink


def _starve(target: Target) -> Lift:
    """Leave a fabric 3 thousandths of a processor, where a process of usual weight is busy."""
    cpus = os.sched_getaffinity(0)
    cpu = target.random.choice(sorted(cpus))
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(busy.pid, {cpu})
    _schedule(target, os.SCHED_IDLE, {cpu})

    def lift() -> None:
        with busy:
            busy.kill()
        _schedule(target, os.SCHED_OTHER, cpus)

    return lift


def _schedule(target: Target, policy: int, cpus: set[int]) -> None:
    for thread in _threads(target):
        with suppress(ProcessLookupError):
            os.sched_setscheduler(thread, policy, _IDLE)
            os.sched_setaffinity(thread, cpus)


def _threads(target: Target) -> Iterator[int]:
    for pid in marked_pids(target.name):
        with suppress(OSError):
            yield from (int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())


def _end_late(target: Target) -> Lift:
    """Kill the fabric process when the fault is lifted."""
    pid = process_id(RunDirectory.of_fabric(target.name))
    assert pid is not None
    return partial(send, pid, signal.SIGKILL)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


KINDS: Final[dict[str, Fault]] = {
    "SIGKILL to a process": partial(_signal, signal.SIGKILL),
    "SIGSTOP to a process": partial(_signal, signal.SIGSTOP),
    "SIGTERM to a process": partial(_signal, signal.SIGTERM),
    "limit of descriptors": partial(_limit, resource.RLIMIT_NOFILE, lambda _pid: DESCRIPTORS),
    "limit of memory": partial(_limit, resource.RLIMIT_AS, _memory_bytes),
    "partition": partial(_cut, _is_apart),
    "reset connections": _reset,
    "full run directory": _fill,
    "no processor": _starve,
}
PLANTED: Final[dict[str, Fault]] = {
    "planted loss": partial(_cut, f"{STREAM[1]}/eth0".__eq__),
    "planted end": _end_late,
}
"""Faults of which the judges must complain."""
