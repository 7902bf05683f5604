"""The handing over: how the fabric process gives an optical switch's process its mirrors and its address.

The fabric listens on a unix socket, `ocs0.plant`. Who connects gets one JSON line of facts together with open descriptors
(SCM_RIGHTS): the crossbar's memory and a listening TCP socket. With these a process needs no privilege and may live in another
container. It says `ready` once it serves, and serves until the fabric's end closes. A process that takes over from one that
died gets the same descriptors, so light stays on meanwhile.
"""

import array
import contextlib
import json
import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emulator import namespaces
from moefabric.errors import FabricError

log = logging.getLogger(__name__)

FACTS_BYTES = 64 * 1024
DESCRIPTORS = 16
READY = b"ready\n"

Facts = dict[str, Any]


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
    """The fabric's side of one optical switch: hands it to whoever connects, one process at a time.

    The next one waits until the one before it is gone, so that two never move the same mirrors. Peers are root or the fabric's own
    user (SO_PEERCRED); others are turned away.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Listen on `path`. The descriptors stay the caller's, and open until `close`. FabricError if the path is taken."""
        self.path, self.facts, self._fds = path, dict(facts), tuple(fds)
        self._ready = threading.Event()
        self._stop_reading, self._stop = os.pipe()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(os.fspath(path))
            path.chmod(0o600)
            self._listener.listen(4)
        except OSError as refused:
            self._close_all()
            raise FabricError(f"plant: can't listen on {path}: {refused.strerror}") from refused
        self._thread = threading.Thread(target=self._serve, name=f"plant {path.name}", daemon=True)
        self._thread.start()

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
        if self._stop < 0:
            return
        os.close(self._stop)
        self._stop = -1
        self._thread.join(timeout=5)
        self.path.unlink(missing_ok=True)
        self._close_all()

    def _close_all(self) -> None:
        self._listener.close()
        for fd in (self._stop_reading, self._stop):
            if fd >= 0:
                os.close(fd)
        self._stop_reading = self._stop = -1

    def _serve(self) -> None:
        while self._readable(self._listener):
            peer, _ = self._listener.accept()
            with peer, contextlib.suppress(OSError):  # a peer that dies leaves its place to the next
                if allowed(peer):
                    self._attend(peer)
                else:
                    log.warning("turned away", extra={"plant": str(self.path)})
            self._ready.clear()

    def _attend(self, peer: socket.socket) -> None:
        """Hand over, and stay until the peer is gone."""
        peer.settimeout(5)
        hand_over(peer, self.facts, self._fds)
        said = b""
        while self._readable(peer) and (part := peer.recv(64)):
            said = (said + part)[-64:]
            if said.endswith(READY):
                self._ready.set()

    def _readable(self, sock: socket.socket) -> bool:
        """Wait until the socket has something; False if the plant closes instead."""
        with selectors.DefaultSelector() as waiting:
            waiting.register(sock, selectors.EVENT_READ)
            waiting.register(self._stop_reading, selectors.EVENT_READ)
            return all(key.fileobj is sock for key, _ in waiting.select())


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
