"""Processes of a fabric: what to start and where, what became of it, and how every one of them is found again by its mark."""

import os
import select
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from emulator.waiting import Deadline
from moefabric.errors import FabricError
from moefabric.management import MARK, RunDir, root

OUTER: Final = "outer"
"""Where a process is that stays in the namespace where `up` was called."""
_RUN_DIR: Final = "MOEFABRIC_RUN_DIR"
_TOLD_LETTERS: Final = 300


class Role(StrEnum):
    """What a process is to the fabric, and so what `up` waits for: its connections, its light, its socket, or nothing."""

    CONTROLLER = "controller"
    OCS = "ocs"
    AGENT = "agent"
    OTHER = "other"


@dataclass(frozen=True)
class Process:
    """A program to start: `where` is `outer`, a server (`s0`) or an OCS (`ocs0`). `env` is added to the caller's environment."""

    name: str
    where: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    role: Role = Role.OTHER


def entering(namespaces: str | int, argv: Sequence[str]) -> list[str]:
    """The argv that runs `argv` in the network namespace at a path, or in network and mount namespace of a process."""
    if isinstance(namespaces, str):
        return ["nsenter", f"--net={namespaces}", "--", *argv]
    return ["nsenter", "-t", str(namespaces), "-n", "-m", f"--wdns={Path.cwd()}", "--", *argv]


def mark(fabric: str) -> dict[str, str]:
    """The environment that makes a process known as the fabric's."""
    return {MARK: fabric, _RUN_DIR: str(root())}


@dataclass(frozen=True)
class Running:
    """A process that was started, and its log."""

    name: str
    popen: subprocess.Popen[bytes]
    pidfd: int
    log: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    @property
    def ended(self) -> int | None:
        """Its exit status, once it has ended."""
        return self.popen.poll()

    @property
    def epitaph(self) -> str:
        """How it ended, and the last thing it said."""
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        return f"{self.name} exited {self.ended}, saying: {last[:_TOLD_LETTERS]}"


class Crew:
    """All processes that the calling process started for the fabric."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self.running: dict[str, Running] = {}

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Running:
        """Start a program; what it says goes to its log. FabricError if there is no such program."""
        log = self._run_dir.log(name)
        with log.open("ab") as out:
            try:
                popen = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env={**os.environ, **(env or {}), **mark(self._run_dir.name)},
                    start_new_session=True,
                )
            except OSError as absent:
                raise FabricError(f"{name}: can't run {argv[0]}: {absent.strerror}") from absent
        self.running[name] = Running(name, popen, os.pidfd_open(popen.pid), log)
        return self.running[name]

    def check(self) -> bool:
        """True. FabricError with the epitaph of the first process that has ended."""
        for one in self.running.values():
            if one.ended is not None:
                raise FabricError(one.epitaph)
        return True

    def stop(self, grace_s: float) -> None:
        """Ask every process to end, and end those that haven't within the time."""
        _end([one.pidfd for one in self.running.values()], grace_s)
        for one in self.running.values():
            one.popen.wait()
            os.close(one.pidfd)
        self.running.clear()


def _signal(pidfd: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def _end(pidfds: Iterable[int], grace_s: float) -> None:
    waited = set(pidfds)
    if grace_s:
        for pidfd in waited:
            _signal(pidfd, signal.SIGTERM)
        waited = _alive(waited, Deadline.after(grace_s))
    for pidfd in waited:
        _signal(pidfd, signal.SIGKILL)
    if left := _alive(waited, Deadline.after(5)):
        raise FabricError(f"{len(left)} processes did not end within 5 s of SIGKILL")


def _alive(pidfds: set[int], deadline: Deadline) -> set[int]:
    """Those of the processes that still live at the deadline."""
    poll, left = select.poll(), set(pidfds)
    for pidfd in left:
        poll.register(pidfd, select.POLLIN)
    while left and deadline.left_s:
        for pidfd, _ in poll.poll(deadline.left_s * 1000):
            poll.unregister(pidfd)
            left.discard(pidfd)
    return left


def marked(fabric: str) -> list[int]:
    """The pids of all processes on this machine that carry the fabric's mark and share its run directory; but not the caller."""
    found = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return sorted(pid for pid in found if pid != os.getpid() and _is_marked(pid, fabric))


def _is_marked(pid: int, fabric: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (OSError, ProcessLookupError):
        return False  # it ended, or isn't ours to look at
    if f"{MARK}={fabric}".encode() not in words:
        return False
    told = [word for word in words if word.startswith(f"{_RUN_DIR}=".encode())]
    return not told or told[0] == f"{_RUN_DIR}={root()}".encode()


def end_marked(fabric: str, grace_s: float = 0.0) -> int:
    """End every process that carries the fabric's mark; how many there were."""
    held: list[int] = []
    try:
        for pid in marked(fabric):
            with suppress(ProcessLookupError):
                held.append(os.pidfd_open(pid))
                if not _is_marked(pid, fabric):  # the pid went to another process meanwhile
                    os.close(held.pop())
        _end(held, grace_s)
        return len(held)
    finally:
        for pidfd in held:
            os.close(pidfd)
