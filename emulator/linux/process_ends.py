"""Signals to processes, and their ends: by pidfds, so that a reused pid is never signalled."""

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from moefabric.core.errors import FabricError
from moefabric.emulator.linux.waiting import Deadline

_KILL_S: Final = 5.0


def signal_process(pidfd: int, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def end_processes(pidfds: Iterable[int], grace_s: float) -> None:
    """Send SIGTERM to processes, and SIGKILL to those that run on after `grace_s`.

    Raises:
        FabricError: if one of them survives SIGKILL for 5 s.
    """
    alive = set(pidfds)
    if grace_s:
        for pidfd in alive:
            signal_process(pidfd, signal.SIGTERM)
        alive = wait_ended(alive, Deadline.after(grace_s))
    for pidfd in alive:
        signal_process(pidfd, signal.SIGKILL)
    if alive := wait_ended(alive, Deadline.after(_KILL_S)):
        raise FabricError(f"{len(alive)} processes did not end within 5 s of SIGKILL")


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


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process (state T of proc(5))."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[0] in (b"T", b"t")


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
