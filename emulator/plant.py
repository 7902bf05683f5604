"""The handing over: how the fabric process gives an optical switch's process its mirrors and its address.

The fabric listens on a unix socket, `ocs0.plant`. Who connects gets one JSON line of facts together with open descriptors
(SCM_RIGHTS): the crossbar's memory and a listening TCP socket. With these a process needs no privilege and may live in another
container. It says `ready` once it serves, and serves until the fabric's end closes. A process that takes over from one that
died gets the same descriptors, so light stays on meanwhile.
"""

import array
import json
import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from emulator import namespaces
from emulator.lines import Lines
from emulator.loop import Loop, Timers
from emulator.told import Told
from moefabric.errors import FabricError

log = logging.getLogger(__name__)

FACTS_BYTES = 1 << 20
DESCRIPTORS = 16
READY = b"ready\n"

Facts = dict[str, Any]
Links = Mapping[int, int | None]
"""Ports that lose their link now; and from when each has it (CLOCK_MONOTONIC, ns), None for never."""


def ask_path(plant: Path) -> Path:
    """Where the process that serves a plant can be asked: `ocs0.ask` beside `ocs0.plant`."""
    return plant.with_suffix(".ask")


def hand_over(sock: socket.socket, facts: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Send facts and descriptors; the descriptors stay open here too."""
    line = json.dumps(dict(facts)).encode() + b"\n"
    if len(line) > FACTS_BYTES or len(fds) > DESCRIPTORS:
        raise FabricError(f"plant: {len(line)} bytes and {len(fds)} descriptors are too much to hand over")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sent = sock.sendmsg([line], rights)
    sock.sendall(line[sent:])


def receive(sock: socket.socket) -> tuple[Facts, list[int]]:
    """Facts and descriptors, as handed over. Waits as long as the socket's timeout; FabricError for anything else."""
    fds = array.array("i")
    try:
        return _facts(_line(sock, fds)), list(fds)
    except (OSError, ValueError, FabricError) as wrong:
        for fd in fds:
            os.close(fd)
        raise FabricError(f"plant: nothing received: {wrong}") from wrong


def _line(sock: socket.socket, fds: "array.array[int]") -> bytes:
    """The line that comes, and into `fds` the descriptors with it."""
    line = b""
    room = socket.CMSG_SPACE(DESCRIPTORS * fds.itemsize)
    while not line.endswith(b"\n"):
        part, ancillary, flags, _ = sock.recvmsg(FACTS_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, rights in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
        line += part
        if not part:
            raise FabricError(f"the fabric's end closed after {len(line)} bytes")
        if flags & socket.MSG_CTRUNC or len(line) > FACTS_BYTES:
            raise FabricError(f"too much after {len(line)} bytes")
    return line


def _facts(line: bytes) -> Facts:
    facts = json.loads(line)
    if not isinstance(facts, dict):
        raise FabricError(f"facts are a JSON object, not {line[:80]!r}")
    return facts


def listening_within(netns: str | None, address: str, port: int) -> socket.socket:
    """A listening TCP socket in the namespace at that path (None: the caller's). FabricError where it can't be bound."""
    sock = namespaces.within(netns, socket.socket) if netns else socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(16)
    except OSError as refused:
        sock.close()
        raise FabricError(f"plant: can't listen on {address}:{port}: {refused.strerror}") from refused
    return sock


class Plant:
    """The fabric's side of one optical switch: hands it to whoever connects, one process at a time, and stays in touch with it.

    The next process waits until the one before it is gone, so that two never move the same mirrors. Peers are root or the fabric's own
    user (SO_PEERCRED); others are turned away. Beside the plant, at `ask_path`, others may ask the process something (a line of JSON each
    way) or follow its events.
    """

    def __init__(
        self,
        path: Path,
        facts: Mapping[str, Any],
        fds: Sequence[int],
        links: Callable[[Timers], Callable[[Links], None]] | None = None,
    ) -> None:
        """Listen on `path`. The descriptors stay the caller's, and open until `close`. FabricError if the path is taken.

        `links`, given the plant's timers, makes what sets links down and up as the process asks.
        """
        self.path, self.facts, self._fds = path, dict(facts), tuple(fds)
        self._ready = threading.Event()
        self._loop = Loop()
        self._links = links(self._loop) if links else None
        self._told = Told(self._loop)
        self._peer: Lines | None = None
        self._stop_reading, self._stop = socket.socketpair()
        self._listeners: list[socket.socket] = []
        try:
            self._listener = self._listen(path)
            self._asking = self._listen(ask_path(path))
        except OSError as refused:
            self._close_all()
            raise FabricError(f"plant: can't listen on {path}: {refused.strerror}") from refused
        self._loop.watch(self._stop_reading, selectors.EVENT_READ, lambda _: self._loop.stop())
        self._loop.watch(self._listener, selectors.EVENT_READ, self._welcome)
        self._loop.watch(self._asking, selectors.EVENT_READ, self._hear_out)
        self._thread = threading.Thread(target=self._loop.run, name=f"plant {path.name}", daemon=True)
        self._thread.start()
        self._closed = False

    def wait_ready(self, deadline_s: float) -> None:
        """Return when a process serves the switch. FabricError after `deadline_s`."""
        if not self._ready.wait(deadline_s):
            raise FabricError(f"{self.path.name}: no process served this switch within {deadline_s:g} s")

    @property
    def served(self) -> bool:
        """Whether a process serves the switch now."""
        return self._ready.is_set()

    def close(self) -> None:
        """Close the fabric's end, upon which the process that serves ends. Twice is no fault."""
        if self._closed:
            return
        self._closed = True
        self._stop.close()
        self._thread.join(timeout=5)
        if self._peer is not None:
            self._peer.close()
        self._told.close()
        for path in (self.path, ask_path(self.path)):
            path.unlink(missing_ok=True)
        self._close_all()

    def _listen(self, path: Path) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listeners.append(listener)
        listener.bind(os.fspath(path))
        path.chmod(0o600)
        listener.listen(8)
        listener.setblocking(False)
        return listener

    def _close_all(self) -> None:
        for sock in (*self._listeners, self._stop_reading, self._stop):
            sock.close()
        self._loop.close()

    def _welcome(self, _events: int) -> None:
        """Hand over to a process, and let none other in until it is gone."""
        if (peer := self._accepted(self._listener)) is None:
            return
        self._loop.watch(self._listener, 0, self._welcome)
        self._peer = Lines(peer, self._loop, self._heard, self._gone)
        try:
            peer.settimeout(5)
            hand_over(peer, self.facts, self._fds)
            peer.settimeout(0)
        except (OSError, FabricError) as failed:  # a peer that dies leaves its place to the next
            log.warning("not handed over: %s", failed)
            self._peer.close()
            return
        self._peer.begin()

    def _accepted(self, listener: socket.socket) -> socket.socket | None:
        try:
            peer, _ = listener.accept()
        except OSError:
            return None
        if allowed(peer):
            return peer
        log.warning("turned away", extra={"plant": str(self.path)})
        peer.close()
        return None

    def _gone(self) -> None:
        self._peer = None
        self._ready.clear()
        self._told.left()
        self._loop.watch(self._listener, selectors.EVENT_READ, self._welcome)

    def _heard(self, line: bytes) -> None:
        """The process says something: `ready`, or what its `Outside` has to tell."""
        if line + b"\n" == READY:
            self._ready.set()
            return
        told = json.loads(line)
        if "links" in told and self._links:
            try:
                self._links({int(port): at_ns for port, at_ns in told["links"]})
            except OSError as refused:
                log.error("links are not set: %s", refused)  # noqa: TRY400 - the reason says it all
        if "keep" in told:
            self.facts["memory"] = told["keep"]
        if "event" in told:
            self._told.event(told["event"])
        if "answer" in told:
            self._told.answer(told["answer"], told["said"])

    def _hear_out(self, _events: int) -> None:
        """Somebody asks."""
        if (caller := self._accepted(self._asking)) is not None:
            caller.setblocking(False)
            self._told.caller(caller, lambda asked: self._peer is not None and self._peer.send(asked))


def allowed(peer: socket.socket) -> bool:
    """Whether the process at the other end is root's or the caller's own user's."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in {0, os.geteuid()}


def connected(path: Path, deadline_s: float) -> socket.socket:
    """A connection to the plant at `path`, which may not be there yet. FabricError after `deadline_s`."""
    deadline = time.monotonic() + deadline_s
    tried = threading.Event()
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(os.fspath(path))
        except (FileNotFoundError, ConnectionRefusedError) as absent:
            sock.close()
            if time.monotonic() >= deadline:
                raise FabricError(f"plant: nobody listens on {path}: {absent.strerror}") from absent
            tried.wait(0.05)  # a socket that isn't there yet has no event to wait for
        except OSError as refused:
            sock.close()
            raise FabricError(f"plant: {path}: {refused.strerror}") from refused
        else:
            return sock
