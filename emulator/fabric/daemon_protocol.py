"""Messages between a fabric process, the `up` that starts it, and other processes."""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from moefabric.core.errors import FabricError
from moefabric.emulator.linux.line_requests import peer, read_reply
from moefabric.emulator.linux.processes import ProcessRole, ProcessSpec
from moefabric.runtime.processes import is_stopped, wait_ended
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.runtime.waiting import Deadline

KEEP: Final = b"keep\n"
"""Line that `up` sends when the fabric is ready; before this line the fabric ends with `up`."""
NODES: Final = "nodes.json"
"""File of the run directory with the pid, by node, of a process in the node's namespaces."""
REPLY_S: Final = 5.0
_CHECK_S: Final = 0.25


class SilentFabricError(FabricError):
    """A fabric process that runs, or that a signal has stopped, doesn't answer."""

    def __init__(self, run_dir: RunDirectory, pid: int | None) -> None:
        if pid is not None and is_stopped(pid):
            state = f"its process {pid} is stopped: `kill -CONT {pid}`"
        else:
            state = f"its process{f' {pid}' if pid else ''} doesn't answer: wait"
        super().__init__(f"{run_dir.name}: {state}, or `moefabric down --force {run_dir.name}`")


@dataclass(frozen=True)
class UpRequest:
    """Request of `up` to a new fabric process; pickled, because the JSON library loads slowly.

    Attributes:
        timeout_s: limit until the fabric is ready.
        owner: process with whose end the fabric ends; None if it stays.
        machine: the machine whose part to make, of a fabric on several; empty for all of a fabric.
        external: roles of the processes that the fabric process doesn't start.
        outer: name of the outer end of the management uplink.
        processes: all processes of the fabric.
        dialects: reference and TCP port of each dialect of the emulated OCS, by name.
    """

    wiring: FabricWiring
    timeout_s: float
    owner: int | None = None
    machine: str = ""
    external: frozenset[str] = frozenset()
    outer: str = ""
    processes: tuple[ProcessSpec, ...] = ()
    dialects: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def with_role(self, role: ProcessRole) -> tuple[ProcessSpec, ...]:
        """Return the processes of a role, also external ones."""
        return tuple(process for process in self.processes if process.role is role)


@dataclass(frozen=True)
class DaemonConnection:
    """Connection to a fabric process.

    Attributes:
        run_dir: the fabric's run directory.
        link: the connected socket.
        pid: the fabric process.
        pidfd: its descriptor.
    """

    run_dir: RunDirectory
    link: socket.socket
    pid: int
    pidfd: int

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message without waiting for a reply."""
        self.link.sendall(json.dumps(message).encode() + b"\n")

    def request(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and return the reply.

        Raises:
            SilentFabricError: if there is no reply in time, or the process is stopped.
            ValueError: if the reply isn't a JSON object.
        """
        self.send(message)
        self.wait_reply()
        try:
            return read_reply(self.link)
        except TimeoutError:
            raise SilentFabricError(self.run_dir, self.pid) from None

    def wait_reply(self) -> None:
        """Wait until a reply begins, or the fabric process has ended.

        Raises:
            SilentFabricError: if it is stopped, or silent for the timeout of the link.
        """
        self._wait(self.link.fileno(), self.link.gettimeout() or 0)

    def wait_end(self, timeout_s: float) -> None:
        """Wait until the fabric process has ended.

        Raises:
            SilentFabricError: if it is stopped, or still runs after `timeout_s`.
        """
        self._wait(self.pidfd, timeout_s)

    def _wait(self, descriptor: int, timeout_s: float) -> None:
        deadline = Deadline.after(timeout_s)
        while wait_ended([descriptor], Deadline.after(min(_CHECK_S, deadline.remaining_s))):
            if is_stopped(self.pid) or not deadline.remaining_s:  # no event announces a stop
                raise SilentFabricError(self.run_dir, self.pid)


@contextmanager
def connected(run_dir: RunDirectory, reply_s: float = REPLY_S) -> Iterator[DaemonConnection]:
    """Connect to a fabric process.

    Args:
        reply_s: how long to wait for each reply.

    Raises:
        FabricError: if no fabric runs there, or its process ends meanwhile.
        SilentFabricError: if its process doesn't answer.
        UnsupportedError: if the fabric belongs to another user.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(reply_s)
            link.connect(str(run_dir.control_socket))
            pid, _ = peer(link)
            pidfd = os.pidfd_open(pid)
            try:
                yield DaemonConnection(run_dir, link, pid, pidfd)
            finally:
                os.close(pidfd)
    except TimeoutError:
        raise SilentFabricError(run_dir, None) from None
    except PermissionError as error:
        raise run_dir.of_another_user() from error
    except (OSError, ValueError) as error:
        raise _not_running_error(run_dir) from error


def request(run_dir: RunDirectory, message: Mapping[str, Any]) -> dict[str, Any]:
    """Send a JSON message (module `daemon`) to a fabric process and return its reply.

    Raises:
        FabricError: as `connected`, or if the process refuses the request.
    """
    with connected(run_dir) as connection:
        reply = connection.request(message)
    if "error" in reply:
        raise FabricError(str(reply["error"]))
    return reply


def process_id(run_dir: RunDirectory) -> int:
    """Return the pid of a fabric process, which is in the fabric's own namespace.

    Raises:
        FabricError: if no fabric runs there.
    """
    with connected(run_dir) as connection:
        return connection.pid


def read_wiring(run_dir: RunDirectory) -> FabricWiring:
    """Return the wiring of a fabric.

    Raises:
        FabricError: if no fabric runs there.
    """
    try:
        return FabricWiring.from_json(run_dir.wiring_file.read_bytes())
    except (OSError, ValueError) as error:
        raise _not_running_error(run_dir) from error


def _not_running_error(run_dir: RunDirectory) -> FabricError:
    """Return the error for a fabric that doesn't run."""
    return FabricError(f"{run_dir.name}: no fabric of this name runs; see `moefabric up`")
