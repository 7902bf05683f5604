"""Processes: watch, end and start them again; by pidfds, which no other process gets."""

import ctypes
import logging
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from moefabric.core.errors import FabricError
from moefabric.runtime.waiting import Deadline

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
"""Signals by which a process is asked to end."""
_KILL_S: Final = 5.0
_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_STEADY_S: Final = 60.0
_FIRST_DELAY_S: Final = 0.2
_MAX_DELAY_S: Final = 30.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")

log = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)


@contextmanager
def stop_signals() -> Iterator[socket.socket]:
    """Yield a socket that receives the number of each signal; SIGTERM and SIGINT do no more."""
    receiver, sender = socket.socketpair()
    with receiver, sender:
        sender.setblocking(False)
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: None)  # makes the wake-up descriptor readable
        try:
            yield receiver
        finally:
            signal.set_wakeup_fd(-1)


def end_text(status: int) -> str:
    """Return an exit status, negative for a signal, as text: `signal 9` or `exit status 1`."""
    return f"signal {-status}" if status < 0 else f"exit status {status}"


@dataclass(frozen=True)
class Process:
    """Process that is a child of the caller, at once or later."""

    name: str
    pid: int
    pidfd: int

    @property
    def exit_status(self) -> int | None:
        """Exit status, negative for a signal; None while the process runs."""
        try:
            result = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # the process is still a child of its prefork server
            return None
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        signal_process(self.pidfd, number)

    def reap(self) -> None:
        """Release a process that has ended."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        os.close(self.pidfd)


P = TypeVar("P", bound=Process)


def signal_process(pidfd: int, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def end_processes(pidfds: Iterable[int], grace_s: float) -> set[int]:
    """Send SIGTERM to processes, and SIGKILL to those that run on after `grace_s`.

    Returns:
        The processes that got SIGKILL.

    Raises:
        FabricError: if one of them survives SIGKILL for 5 s.
    """
    killed = set(pidfds)
    if grace_s:
        for pidfd in killed:
            signal_process(pidfd, signal.SIGTERM)
            signal_process(pidfd, signal.SIGCONT)  # a stopped process handles no other signal
        killed = wait_ended(killed, Deadline.after(grace_s))
    for pidfd in killed:
        signal_process(pidfd, signal.SIGKILL)
    if alive := wait_ended(killed, Deadline.after(_KILL_S)):
        raise FabricError(f"{len(alive)} processes did not end within 5 s of SIGKILL")
    return killed


def wait_ended(pidfds: Iterable[int], deadline: Deadline) -> set[int]:
    """Wait for the end of processes and return those that still run at the deadline."""
    poll, alive = select.poll(), set(pidfds)
    for pidfd in alive:
        poll.register(pidfd, select.POLLIN)
    while alive and deadline.remaining_s:
        for pidfd, _ in poll.poll(deadline.remaining_s * 1000):
            poll.unregister(pidfd)
            alive.discard(pidfd)
    return alive


def wait_or_kill(process: subprocess.Popen[Any], grace_s: float) -> None:
    """Wait for the end of a process that has been asked to end; kill it after `grace_s`."""
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process (state T of proc(5))."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[0] in (b"T", b"t")


def thread_group(thread: int) -> int:
    """Return the process of a thread."""
    status = Path(f"/proc/{thread}/status").read_text()
    return int(status.partition("\nTgid:")[2].split()[0])


def adopt_orphans() -> None:
    """Make the caller the subreaper of its descendants (prctl(2)), so that it can wait for them."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(deadline: Deadline) -> None:
    """Wait until no child of the caller is left.

    An exiting process no longer shows its mark, but still holds its addresses.
    """
    deadline.wait_for(_has_no_children, "the end of all processes")


def _has_no_children() -> bool:
    try:
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
            pass
    except ChildProcessError:
        return True
    return False


@dataclass
class Restarts:
    """Ends of a process, and when it may start again, on a monotonic clock.

    Attributes:
        started_s: Instant of the last start.
        ends: Number of ends in a row, each less than a minute after a start.
        not_before_s: Earliest instant of the next start.
    """

    started_s: float = 0.0
    ends: int = 0
    not_before_s: float = 0.0

    def note_end(self, now_s: float) -> float:
        """Note that the process has ended, and return the delay before the next start in s.

        The first restart is immediate, since traffic relies on the process. Later delays double.
        """
        self.ends = 1 if now_s - self.started_s >= _STEADY_S else self.ends + 1
        delay_s = 0.0
        if self.ends > 1:
            delay_s = min(_FIRST_DELAY_S * 2 ** min(self.ends - 2, 16), _MAX_DELAY_S)
        self.not_before_s = now_s + delay_s
        return delay_s


class Supervisor(Generic[K, P]):
    """Processes that are started again after they have ended.

    Attributes:
        running: The processes by key.
        restarts: The ends of processes by key.
    """

    def __init__(self) -> None:
        """Supervise no process yet."""
        self.running: dict[K, P] = {}
        self.restarts: dict[K, Restarts] = {}

    def adopt(self, key: K, process: P) -> None:
        """Supervise a process that has just been started."""
        self.restarts.setdefault(key, Restarts()).started_s = time.monotonic()
        self.running[key] = process

    def start_due(self, key: K, name: str, start: Callable[[], P]) -> P | None:
        """Start a process, unless it runs or has to wait.

        Args:
            key: the process.
            name: the process's name in the log.
            start: starts it; may raise FabricError or OSError, then it is called again later.

        Returns:
            The process if it was started.
        """
        restarts, now_s = self.restarts.setdefault(key, Restarts()), time.monotonic()
        if key in self.running or now_s < restarts.not_before_s:
            return None
        try:
            process = start()
        except (FabricError, OSError) as error:
            restarts.started_s = now_s
            delay_s = restarts.note_end(now_s)
            log.warning("%s can't start, next in %g s: %s", name, delay_s, error)
            return None
        self.adopt(key, process)
        return process

    def note_end(self, key: K) -> float:
        """Stop to regard a process as running, and return the delay before its next start in s."""
        del self.running[key]
        return self.restarts[key].note_end(time.monotonic())

    @property
    def wait_s(self) -> float | None:
        """Time until the next start; None if all processes run."""
        ended = self.restarts.keys() - self.running.keys()
        earliest_s = min((self.restarts[key].not_before_s for key in ended), default=None)
        return None if earliest_s is None else max(0.0, earliest_s - time.monotonic())


@dataclass(frozen=True)
class ProcessUsage:
    """CPU time, memory and descriptors of a process.

    Attributes:
        resident_bytes: Resident memory.
        descriptors: Open file descriptors.
        cpu_s: CPU time so far.
    """

    resident_bytes: int
    descriptors: int
    cpu_s: float


def process_usage(pid: int) -> ProcessUsage | None:
    """Return the resources of a process (proc(5)); None if it has ended or is another user's."""
    folder = Path(f"/proc/{pid}")
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        descriptors = len(os.listdir(folder / "fd"))  # noqa: PTH208 - the names suffice
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])  # utime and stime, fields 14 and 15
    return ProcessUsage(int(fields[21]) * _PAGE_BYTES, descriptors, ticks / _TICKS_PER_S)


def usage_of(pids: Mapping[str, int]) -> dict[str, ProcessUsage]:
    """Return the resources of processes by name, without those that have ended."""
    usage = {name: process_usage(pid) for name, pid in pids.items()}
    return {name: used for name, used in usage.items() if used is not None}
