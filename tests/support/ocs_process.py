"""Process of an optical switch for tests, and the handoff server that gives it a crossbar."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from moefabric.emulator.crossbar.carrier import Carrier
from moefabric.emulator.ocs.fd_handoff import HandoffServer
from moefabric.runtime.event_loop import Timers
from moefabric.runtime.waiting import Deadline
from tests.support.paths import REPOSITORY

START_TIMEOUT_S = 20
SCPI_ALONE = {"scpi": "moefabric.emulator.ocs.scpi.dialect:SCPI"}
"""Listening sockets of a handoff: one, for SCPI."""


def wait_served(handoff: HandoffServer) -> None:
    """Wait until a process serves the switch."""
    Deadline.after(START_TIMEOUT_S).wait_for(lambda: handoff.is_served, "the switch's process")


def start_ocs(socket_path: Path, *prefix: str) -> subprocess.Popen[bytes]:
    """Start a process that serves the switch of a handoff socket, or those of a directory.

    Args:
        socket_path: the socket or directory.
        prefix: a command that runs the process, such as `setpriv`.
    """
    command = [
        *prefix,
        sys.executable,
        "-m",
        "moefabric.emulator.ocs",
        "--socket",
        str(socket_path),
    ]
    return subprocess.Popen(command, cwd=REPOSITORY)


@contextmanager
def ocs_process(
    folder: Path,
    facts: Mapping[str, object],
    fds: Sequence[int],
    carrier: Callable[[Timers], Carrier] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Serve a switch by a process, until the block ends.

    Args:
        folder: where the handoff socket is made.
        facts: description of the switch (`HandoffServer`); it speaks SCPI if no dialect is named.
        fds: descriptors of the crossbar and of the listening sockets.
        carrier: sets links down and up (`HandoffServer`).
    """
    described = {"listening": SCPI_ALONE, **facts}
    handoff = HandoffServer(folder / "ocs0.handoff", described, fds, carrier)
    process = start_ocs(handoff.path)
    try:
        wait_served(handoff)
        yield process
    finally:
        handoff.close()
        process.wait(timeout=10)
