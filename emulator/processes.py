"""Processes of a fabric: what to start and where, what became of it, and how every one of them is found again by its mark."""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

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


_PR_SET_CHILD_SUBREAPER: Final = 36
_NURSERY: Final = str(Path(__file__).with_name("nursery.py"))


@dataclass(frozen=True)
class Process:
    """A program to start: `where` is `outer`, a server (`s0`) or an OCS (`ocs0`). `env` is added to the caller's environment.

    With `warm`, the argv of a nursery (emulator.nursery) that is shared by all that have the same, it is forked from that, and `argv`
    is what it is told.
    """

    name: str
    where: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    role: Role = Role.OTHER
    warm: tuple[str, ...] = ()


def entering(namespaces: str | int, argv: Sequence[str]) -> list[str]:
    """The argv that runs `argv` in the network namespace at a path, or in network and mount namespace of a process."""
    if isinstance(namespaces, str):
        return ["nsenter", f"--net={namespaces}", "--", *argv]
    return ["nsenter", "-t", str(namespaces), "-n", "-m", f"--wdns={Path.cwd()}", "--", *argv]


def nursery(module: str, *, bare: bool = False) -> tuple[str, ...]:
    """The argv of what loads a module once and forks its `main`; `bare` for one that needs nothing but Python and the sources here."""
    return (sys.executable, *(["-S", "-E"] if bare else []), _NURSERY, module)


def mark(fabric: str) -> dict[str, str]:
    """The environment that makes a process known as the fabric's."""
    return {MARK: fabric, _RUN_DIR: str(root())}


def adopt_orphans() -> None:
    """Have processes whose parent ends become children of the caller (prctl(2)), so that it learns how they end."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass(frozen=True)
class Living:
    """A process of the fabric that is, or will be, a child of the caller; and its log."""

    name: str
    pid: int
    pidfd: int
    log: Path

    @property
    def ended(self) -> int | None:
        """Its exit status, once it has ended; that of a signal is negative."""
        try:
            seen = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # its nursery hasn't ended yet
            return None
        if seen is None:
            return None
        return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; no fault if it has ended."""
        _signal(self.pidfd, number)

    @property
    def epitaph(self) -> str:
        """How it ended, and the last thing it said."""
        return f"{self.name} exited {self.ended}, saying: {_last_words(self.log)}"

    def bury(self) -> None:
        """Forget one that has ended."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        os.close(self.pidfd)


@dataclass(frozen=True)
class Running(Living):
    """A process that was started by its program's name."""

    popen: subprocess.Popen[bytes]

    @property
    def ended(self) -> int | None:
        """Its exit status, once it has ended; that of a signal is negative."""
        return self.popen.poll()

    def bury(self) -> None:
        """Forget one that has ended."""
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        os.close(self.pidfd)


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return last[:_TOLD_LETTERS]


class Starter(Protocol):
    """What starts a program for a fabric: `Crew.start`."""

    def __call__(self, name: str, argv: Sequence[str], *, talking: bool = False) -> Running: ...


class Crew:
    """All processes that the calling process started for the fabric."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._nurseries: dict[tuple[str, ...], Running] = {}
        self._births: dict[tuple[str, ...], list[tuple[Process, str | int]]] = {}
        self.running: dict[str, Living] = {}

    def start(
        self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None, *, talking: bool = False
    ) -> Running:
        """Start a program; what it says goes to its log. FabricError if there is no such program.

        With `talking` its standard input and output are pipes to the caller, and its log has only what it says on standard error.
        """
        self.running[name] = started = self._start(name, argv, env or {}, talking=talking)
        return started

    def _start(self, name: str, argv: Sequence[str], env: Mapping[str, str], *, talking: bool) -> Running:
        log = self._run_dir.log(name)
        with log.open("ab") as out:
            try:
                popen = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE if talking else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if talking else out,
                    stderr=out,
                    env={**os.environ, **env, **mark(self._run_dir.name)},
                    start_new_session=True,
                )
            except OSError as absent:
                raise FabricError(f"{name}: can't run {argv[0]}: {absent.strerror}") from absent
        return Running(name, popen.pid, os.pidfd_open(popen.pid), log, popen)

    def warm(self, processes: Iterable[Process]) -> None:
        """Begin to load the programs that these processes will be forked from."""
        adopt_orphans()
        for argv in {process.warm for process in processes if process.warm} - self._nurseries.keys():
            self._nurseries[argv] = self._start(f"nursery-{argv[-1]}", argv, {}, talking=True)

    def start_all(self, processes: Iterable[tuple[Process, str | int]]) -> None:
        """Start processes, each in the network namespace at a path, or in network and mount namespace of a process.

        Those of a nursery are forked while the caller goes on; `gather` waits for them. FabricError names one that can't be.
        """
        for process, place in processes:
            if process.warm:
                self._births.setdefault(process.warm, []).append((process, place))
            else:
                self.start(process.name, entering(place, process.argv), process.env)
        self.warm(process for births in self._births.values() for process, _ in births)
        for argv, births in self._births.items():
            pipe = self._nurseries[argv].popen.stdin
            if pipe is not None:
                with suppress(BrokenPipeError), pipe:  # one that has died is heard of in `gather`
                    pipe.write(b"".join(map(self._birth, births)))
                self._nurseries[argv].popen.stdin = None

    def _birth(self, born: tuple[Process, str | int]) -> bytes:
        process, place = born
        told = {"name": process.name, "words": process.argv, "env": dict(process.env), "place": place}
        return json.dumps(told | {"log": str(self._run_dir.log(process.name))}).encode() + b"\n"

    def gather(self, deadline: Deadline) -> None:
        """Wait until all nurseries have forked and ended, after which what they forked are the caller's children."""
        while self._births:
            argv, births = self._births.popitem()
            nursery = self._nurseries[argv]
            try:
                said, _ = nursery.popen.communicate(timeout=deadline.left_s)
            except subprocess.TimeoutExpired:
                raise FabricError(f"{nursery.name} had not forked {births[0][0].name} in time") from None
            for (process, _), pid in zip(births, map(int, said.split()), strict=False):
                log = self._run_dir.log(process.name)
                self.running[process.name] = Living(process.name, pid, os.pidfd_open(pid), log)
            if nursery.popen.returncode:
                raise FabricError(nursery.epitaph)
            self._nurseries.pop(argv).bury()

    def check(self) -> bool:
        """True. FabricError with the epitaph of the first process that has ended."""
        for one in self.running.values():
            if one.ended is not None:
                raise FabricError(one.epitaph)
        return True

    def stop(self, grace_s: float) -> None:
        """Ask every process to end, and end those that haven't within the time."""
        left = [*self.running.values(), *self._nurseries.values()]
        _end([one.pidfd for one in left], grace_s)
        for one in left:
            one.bury()
        self.running.clear()
        self._nurseries.clear()
        self._births.clear()


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


def bury_orphans(deadline: Deadline) -> None:
    """Return when all children of the caller have ended for good: one that is ending has no mark any more, but still its addresses."""
    deadline.until(_no_children, "the end of all processes")


def _no_children() -> bool:
    try:
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
            pass
    except ChildProcessError:
        return True
    return False
