"""Start of a fabric process by `up`."""

import json
import os
import pickle
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from moefabric.core.errors import FabricError
from moefabric.emulator.fabric.daemon_protocol import KEEP, UpRequest
from moefabric.emulator.linux.marked_processes import mark_environment
from moefabric.emulator.linux.processes import last_line, module_environment
from moefabric.runtime.run_directory import RunDirectory
from moefabric.runtime.waiting import Deadline

_REPORT_S: Final = 10.0
"""Time that a fabric process has, after its limit to be ready, to report a failure."""
_READ_BYTES: Final = 64 * 1024


def wait_ready(
    run_dir: RunDirectory,
    daemon: "subprocess.Popen[bytes]",
    request: UpRequest,
    on_stage: Callable[[str], None],
) -> dict[str, Any]:
    """Send the request and return the report of the fabric process when the fabric is ready.

    Raises:
        FabricError: if the fabric process fails, ends, or doesn't report in time.
    """
    assert daemon.stdin is not None
    with suppress(BrokenPipeError):
        pickle.dump(request, daemon.stdin)
        daemon.stdin.flush()
    for line in _lines(run_dir, daemon, Deadline.after(request.timeout_s + _REPORT_S)):
        message: dict[str, Any] = json.loads(line)
        if "failed" in message:
            raise FabricError(message["failed"])
        if "stage" in message:
            on_stage(message["stage"])
        if "ready" in message:
            daemon.stdin.write(KEEP)
            daemon.stdin.flush()
            return message
    raise FabricError(
        f"{run_dir.name}: the fabric process died at its start, "
        f"saying: {last_line(run_dir.log_file('fabric'))}"
    )


def _lines(
    run_dir: RunDirectory, daemon: "subprocess.Popen[bytes]", deadline: Deadline
) -> Iterator[bytes]:
    """Yield the lines of the output to its end; raise FabricError at the deadline."""
    assert daemon.stdout is not None
    buffered, poll = b"", select.poll()
    poll.register(daemon.stdout, select.POLLIN)
    while poll.poll(deadline.remaining_s * 1000):
        part = os.read(daemon.stdout.fileno(), _READ_BYTES)
        if not part:
            return
        *lines, buffered = (buffered + part).split(b"\n")
        yield from lines
    raise FabricError(f"{run_dir.name}: the fabric process did not report in time")


@contextmanager
def started_daemon(
    run_dir: RunDirectory, withheld: frozenset[str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the fabric process, which loads its modules and waits for its request.

    It runs on after the `with` if it was told to (`wait_ready`).

    Args:
        run_dir: the fabric's run directory.
        withheld: names of environment variables that the process doesn't get.
    """
    environment = module_environment() | mark_environment(run_dir.name)
    with run_dir.log_file("fabric").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moefabric.emulator.fabric.daemon", str(run_dir.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={name: value for name, value in environment.items() if name not in withheld},
            start_new_session=True,
        )
    with process:
        try:
            yield process
        except BaseException:
            process.kill()  # the fork that makes the fabric ends with its input
            raise
