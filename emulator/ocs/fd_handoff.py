"""Descriptor passing: the fabric hands the crossbar and listening sockets to a switch's process.

The fabric listens on a unix socket, `ocs0.handoff`. A process that connects gets the
facts (one line of JSON that describes the switch) together with open descriptors (SCM_RIGHTS,
unix(7)): the crossbar's memory and listening TCP sockets. The process therefore needs no privilege
and may run in another container. It sends `ready` once it serves the switch, and serves until the
fabric closes its end. A process that replaces a dead one gets the same descriptors, so the light
stays on meanwhile.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from moefabric.core.errors import FabricError, UnsupportedError
from moefabric.emulator.crossbar.carrier import Carrier
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.line_connection import LineConnection
from moefabric.emulator.linux.line_requests import peer
from moefabric.emulator.ocs.event_publisher import EventPublisher
from moefabric.runtime.event_loop import IN, EventLoop, Timers
from moefabric.runtime.listener import Listener
from moefabric.runtime.run_directory import give_to_user

log = logging.getLogger(__name__)

MAX_FACTS_BYTES = 1 << 23
MAX_DESCRIPTORS = 1024
_MESSAGE_BYTES = 1 << 16
_MESSAGE_DESCRIPTORS = 253  # SCM_MAX_FD, unix(7)
TIMEOUT_S = 5
_BACKLOG = 512
"""Connections that may wait to be accepted: a flood of them must not fill the queue at once."""

Facts = dict[str, Any]


def control_path(ocs_socket: Path) -> Path:
    """Return the control socket that belongs to a handoff socket: `ocs0.control`."""
    return ocs_socket.with_suffix(".control")


def send_handoff(sock: socket.socket, facts: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Send facts and descriptors; the caller's descriptors stay open."""
    line = json.dumps(dict(facts)).encode() + b"\n"
    if len(line) > MAX_FACTS_BYTES or len(fds) > MAX_DESCRIPTORS:
        amount = f"{len(line)} bytes and {len(fds)} descriptors"
        raise FabricError(f"OCS handoff: {amount} are too much to hand over")
    sent = 0
    for first in range(0, len(fds), _MESSAGE_DESCRIPTORS):  # a byte at least carries each part
        part = list(fds[first : first + _MESSAGE_DESCRIPTORS])
        sent += socket.send_fds(sock, [line[sent : sent + 1]], part)
    sock.sendall(line[sent:])


def receive_handoff(sock: socket.socket, name: str = "OCS handoff") -> tuple[Facts, list[int]]:
    """Receive facts and descriptors, within the timeout of the socket; errors call it `name`.

    Raises:
        FabricError: if the message is invalid, or none arrives.
    """
    fds: list[int] = []
    try:
        facts = _parse_facts(_receive_line(sock, fds))
    except (OSError, ValueError, FabricError) as error:
        for fd in fds:
            os.close(fd)
        reason = f": {error}"
        if isinstance(error, TimeoutError):
            cause = "the machine is too slow, or busy: try again when less runs on it"
            reason = f" in {sock.gettimeout():g} s: {cause}"
        raise FabricError(f"{name}: nothing received{reason}") from error
    return facts, fds


def _receive_line(sock: socket.socket, fds: list[int]) -> bytes:
    """Receive a line, and append the descriptors that come with it to `fds`."""
    line = b""
    while not line.endswith(b"\n"):
        part, received, flags, _ = socket.recv_fds(sock, _MESSAGE_BYTES, _MESSAGE_DESCRIPTORS)
        for fd in received:
            os.set_inheritable(fd, False)
        fds += received
        line += part
        if not part:
            raise FabricError(f"the fabric's end closed after {len(line)} bytes")
        too_much = len(line) > MAX_FACTS_BYTES or len(fds) > MAX_DESCRIPTORS
        if flags & socket.MSG_CTRUNC or too_much:
            raise FabricError(f"too much after {len(line)} bytes")
    return line


def _parse_facts(line: bytes) -> Facts:
    facts = json.loads(line)
    if not isinstance(facts, dict):
        raise FabricError(f"facts are a JSON object, not {line[:80]!r}")
    if "error" in facts:
        raise FabricError(str(facts["error"]))
    return facts


def listen_in_namespace(netns: str | None, address: str, port: int) -> socket.socket:
    """Return a listening TCP socket.

    Args:
        netns: path of a network namespace; None: the caller's.

    Raises:
        FabricError: if the address can't be bound.
    """
    listen = partial(socket.create_server, (address, port), backlog=_BACKLOG)
    try:
        return namespaces.run_in(netns, listen) if netns else listen()
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # the rest repeats the address
        raise FabricError(f"OCS handoff: can't listen on {address}:{port}: {reason}") from error


class HandoffServer:
    """The fabric's side of one switch: serves its handoff socket and its control socket.

    One process at a time serves the switch, so that two processes never move the same mirrors. The
    next process waits until the current one has ended. Peers must run as root or as the fabric's
    user (SO_PEERCRED); others are disconnected. On the control socket, other processes send
    requests to the switch's process (lines of JSON) and follow its events.
    """

    def __init__(
        self,
        path: Path,
        facts: Mapping[str, Any],
        fds: Sequence[int],
        carrier: Callable[[Timers], Carrier] | None = None,
    ) -> None:
        """Listen on two unix sockets.

        Args:
            facts: description of the switch as JSON.
            fds: descriptors for the process: the crossbar's memory, then the listening sockets. The
                caller keeps them open until `close`.
            carrier: makes the carrier of the optical NICs, whose links follow the light, with the
                server's timers; None if links stay up.

        Raises:
            FabricError: if a path is in use.
        """
        self.path, self.facts, self.fds = path, dict(facts), tuple(fds)
        self._is_ready = False
        self._loop = EventLoop()
        self._publisher = EventPublisher(self._loop, self._forward)
        self._process: LineConnection | None = None
        self._resources = ExitStack()
        self._resources.callback(self._loop.close)
        self._carrier = carrier(self._loop) if carrier else None
        if self._carrier is not None:
            self._resources.callback(self._carrier.close)
        stop, self._stop = map(self._resources.enter_context, socket.socketpair())
        try:
            processes, control = self._listen(path), self._listen(control_path(path))
        except OSError as error:
            self._resources.close()
            raise FabricError(f"OCS handoff: can't listen on {path}: {error.strerror}") from error
        self._loop.watch(stop.fileno(), IN, lambda _events: self._loop.stop())
        self._listener = Listener(self._loop, processes, self._serve_process)
        self._listener.most = 1
        Listener(self._loop, control, self._serve_caller)
        name = f"handoff {path.name}"
        self._thread = threading.Thread(target=self._loop.run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """True while a thread answers at both sockets."""
        return self._thread.is_alive()

    @property
    def is_served(self) -> bool:
        """True if a process serves the switch now."""
        return self._is_ready and self.is_alive

    def close(self) -> None:
        """Close the fabric's end, which ends the switch's process. Idempotent."""
        self._stop.close()
        self._thread.join(timeout=5)
        if self._process is not None:
            self._process.close()
        self._publisher.close()
        self._resources.close()

    def _listen(self, path: Path) -> socket.socket:
        """Listen on a unix socket until the resources are closed."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._resources.enter_context(listener)
        listener.bind(os.fspath(path))
        self._resources.callback(path.unlink, missing_ok=True)
        path.chmod(0o600)
        give_to_user(path)
        listener.listen(8)
        listener.setblocking(False)
        return listener

    def _serve_process(self, sock: socket.socket) -> None:
        """Hand the switch to a process, and accept no other until that process has ended."""
        if not self._is_trusted(sock):
            return
        self._listener.pause()
        self._process = LineConnection(sock, self._loop, self._on_line, self._on_process_gone)
        try:
            sock.settimeout(TIMEOUT_S)
            send_handoff(sock, self.facts, self.fds)
        except (OSError, FabricError) as error:  # the process died; the next one gets the switch
            log.warning("handoff failed: %s", error)
            self._process.close()
            return
        self._process.start()

    def _is_trusted(self, sock: socket.socket) -> bool:
        """Return whether a peer may connect; disconnect it if it may not."""
        _, is_trusted = peer(sock)
        if not is_trusted:
            log.warning("peer of another user disconnected", extra={"socket": str(self.path)})
            sock.close()
        return is_trusted

    def _on_process_gone(self) -> None:
        self._process = None
        self._is_ready = False
        self._publisher.fail_pending()
        self._listener.resume()

    def _on_line(self, line: bytes) -> None:
        """Process a message of the FabricLink of the switch's process."""
        message = json.loads(line)
        if "ready" in message:
            self._is_ready = True
        if "links" in message and self._carrier is not None:
            try:
                self._carrier.change({int(port): at_ns for port, at_ns in message["links"]})
            except OSError as error:
                log.error("links can't be set: %s", error)  # noqa: TRY400 - reason suffices
        if "save" in message:
            self.facts["memory"] = message["save"]
        if "event" in message:
            self._publisher.publish(message["event"])
        if "reply" in message:
            self._publisher.reply(message["request"], message["reply"])

    def _serve_caller(self, sock: socket.socket) -> None:
        if self._is_trusted(sock):
            self._publisher.accept(sock)

    def _forward(self, request: dict[str, Any]) -> bool:
        return self._process is not None and self._process.send(request)


def connect(path: Path, deadline_s: float, name: str = "OCS handoff") -> socket.socket:
    """Connect to a socket of a switch, which may not exist yet; errors call it `name`.

    Raises:
        FabricError: after `deadline_s`.
        UnsupportedError: if the fabric belongs to another user.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(TIMEOUT_S)
        try:
            sock.connect(os.fspath(path))
        except OSError as error:
            sock.close()
            if isinstance(error, PermissionError):
                text = f"{path.parent.name}: a fabric of another user's; run with sudo"
                raise UnsupportedError(text) from error
            is_absent = isinstance(error, FileNotFoundError | ConnectionRefusedError)
            if not is_absent or time.monotonic() >= deadline:
                reason = error.strerror or error
                raise FabricError(f"{name}: nothing listens on {path}: {reason}") from error
            time.sleep(0.05)  # there is no event for a socket that does not exist yet
        else:
            return sock
