"""A client's connection: bytes out in the order of their turns, bytes in for as long as the client reads what it gets."""

import contextlib
import logging
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable

from emulator.loop import Loop
from emulator.ocs.frontend import Session

log = logging.getLogger(__name__)

HEARD_BYTES = 64 * 1024
"""At most so much is read at a time."""
UNREAD_BYTES = 64 * 1024
"""A client that leaves so much unread isn't read either."""
MOST_BYTES = 1 << 20
"""A client for which so much waits is hung up on."""
TURNS = 256
"""A client to whom so many replies are owed isn't read until some are said."""
RESET = struct.pack("ii", 1, 0)


class Owed:
    """A reply that is owed, and then said."""

    def __init__(self, said: Callable[[], None]) -> None:
        self._said = said
        self.reply: bytes | None = None

    def say(self, data: bytes) -> None:
        """Reply."""
        if self.reply is None:
            self.reply = data
            self._said()


class Connection:
    """One client: the door's end of it, and the `Wire` of its session."""

    def __init__(self, sock: socket.socket, loop: Loop, parted: Callable[["Connection"], None]) -> None:
        """`parted(self)` is called once, when the connection is no more."""
        self._sock, self._loop, self._parted = sock, loop, parted
        self._address = "{}:{}".format(*sock.getpeername()[:2])
        self._owed: deque[Owed] = deque()
        self._unsent = bytearray()
        self._closing = self._half_closed = self._muted = self.dead = False
        self.before: Callable[[], bool] = lambda: True
        """Asked when bytes have come, before the session hears them; False: it never does."""
        self.session: Session

    @property
    def peer(self) -> str:
        return self._address

    def begin(self, session: Session) -> None:
        """Hear the client out from now on."""
        self.session = session
        self._watch()

    def turn(self) -> Owed:
        owed = Owed(self._said)
        self._owed.append(owed)
        return owed

    def send(self, data: bytes) -> None:
        if self.dead:
            return
        self._unsent += data
        if len(self._unsent) > MOST_BYTES:
            self.reset()
        else:
            self._flush()

    def close(self) -> None:
        self._closing = True
        if not self.dead:
            self._flush()

    def reset(self) -> None:
        """Break off: the client gets a TCP reset, and nothing of what waited for it."""
        if not self.dead:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.part()

    def mute(self) -> None:
        """Send nothing any more."""
        self._muted = True

    def part(self) -> None:
        """Close the socket. Twice is no fault."""
        if self.dead:
            return
        self.dead = True
        self._loop.watch(self._sock, 0, self._ready)
        self._sock.close()
        self._owed.clear()
        self.session.gone()
        self._parted(self)

    def _said(self) -> None:
        """Send what is said in order."""
        if self.dead:
            return
        while self._owed and self._owed[0].reply is not None:
            self._unsent += self._owed.popleft().reply or b""
        self._flush()

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if events & selectors.EVENT_READ and not self.dead:
            self._hear()

    def _hear(self) -> None:
        try:
            heard = self._sock.recv(HEARD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.part()
            return
        if not heard:
            self._half_closed = True  # who stops sending still hears what is due
            self._flush()
        elif self.before():
            self._tell(heard)
            self._watch()

    def _tell(self, heard: bytes) -> None:
        try:
            self.session.heard(heard)
        except Exception:  # a fault of ours ends this connection, and nobody else's
            log.exception("%s sent what could not be heard out", self.peer)
            self.reset()

    def _flush(self) -> None:
        """Send what the client takes, and wait for what its state calls for."""
        if self._muted:
            self._unsent.clear()
        if self._unsent:
            try:
                del self._unsent[: self._sock.send(self._unsent)]
            except BlockingIOError:
                pass
            except OSError:
                self.part()
                return
        if (self._half_closed or self._closing) and not self._unsent and not self._owed:
            self.part()
        else:
            self._watch()

    def _watch(self) -> None:
        if self.dead:
            return
        waiting = len(self._unsent) + sum(len(one.reply or b"") for one in self._owed)
        listens = (
            not (self._half_closed or self._closing) and waiting < UNREAD_BYTES and len(self._owed) < TURNS
        )
        self._loop.watch(
            self._sock,
            selectors.EVENT_READ * listens | selectors.EVENT_WRITE * bool(self._unsent),
            self._ready,
        )
