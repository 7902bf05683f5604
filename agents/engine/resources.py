"""Resources that all data connections of an agent share, and the base class of connections."""

from __future__ import annotations

import ctypes
import errno
import secrets
import socket
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from moefabric.agents.engine.payload import Position, shared_pattern
from moefabric.agents.engine.requests import os_error_text
from moefabric.agents.engine.sockets import NO_LINGER, Destination, Network
from moefabric.agents.engine.transfers import Receive, TransferKey
from moefabric.agents.engine.wire import ACKNOWLEDGEMENT, LINE
from moefabric.runtime.connection_limit import ConnectionLimit
from moefabric.runtime.event_loop import CallbackOwner, EventLoop, Loop

if TYPE_CHECKING:
    from moefabric.agents.engine.connections import UnnamedConnection
    from moefabric.agents.engine.programs import Run

COUNTERS = ("bytes_sent", "bytes_received", "corrupt", "strays", "bytes_forwarded", "refused")
ANSWERS = 64 * ACKNOWLEDGEMENT.size  # bytes of answers that are read at once
MOST_UNNAMED = 512  # connections without a greeting; the oldest is closed for a further one
READ = 256 * 1024  # a read and the block to compare fit into a core's second-level cache


REMEMBERED = 1024  # number of ended collectives whose late transfers are recognised


class Arrivals:
    """The transfers that a server expects from its peers.

    Attributes:
        ended: Numbers of collectives whose transfers are late from now on.
        held: By transfer of ranks' bytes that came too early, what reads it once it is expected.
    """

    def __init__(self, counters: dict[str, int]) -> None:
        self.counters = counters
        self.expected: dict[TransferKey, Receive] = {}
        self.early: OrderedDict[TransferKey, Receive] = OrderedDict()
        self.ended: OrderedDict[int, None] = OrderedDict()
        self.held: dict[TransferKey, Callable[[], object]] = {}

    def expect(self, receive: Receive) -> Receive:
        """Expect a transfer; return the one that has already begun, if any, else this one."""
        early = self.early.pop(receive.key, None)
        if early is not None:
            if sizes := receive.size_fault(early.bytes):
                early.ok, early.why = False, sizes
            receive = early
        if receive.ok is None:
            self.expected[receive.key] = receive
        held = self.held.pop(receive.key, None)
        if held is not None:
            held()
        return receive

    def begin(self, key: TransferKey, length: int) -> Receive:
        """Return the transfer that a header announces, be it expected, early or late."""
        expected = self.expected.get(key)
        if expected is not None and expected.ok is None and expected.first_ns is None:
            return expected
        receive = Receive(key, length)
        if expected is not None or key.collective in self.ended:
            self.counters["strays"] += 1
            return receive
        self.early[key] = receive
        while len(self.early) > 16 * REMEMBERED:
            self.early.popitem(last=False)
        return receive

    def is_early(self, key: TransferKey) -> bool:
        """Return whether a transfer came before the request that says where its bytes belong."""
        return key not in self.expected and key.collective not in self.ended

    def begin_content(
        self, key: TransferKey, length: int, unexpected: str
    ) -> tuple[Receive, Position]:
        """Return the transfer of ranks' bytes that a header announces, and their places.

        `why` of the transfer says what is wrong with it, or what `unexpected` says of one that
        nobody expects. Bytes of a wrong transfer are discarded.
        """
        receive = self.expected.get(key)
        content = None if receive is None else receive.payload
        if receive is None or content is None or receive.ok is not None or receive.first_ns:
            self.counters["strays"] += 1
            receive = Receive(key, length)
            receive.why = unexpected
            return receive, Position(length)
        receive.why = receive.size_fault(length)
        return receive, Position(length) if receive.why else content

    def expected_from(self, peer: str, path: str) -> list[Receive]:
        """Return the transfers that are expected from a peer by a path."""
        return [r for r in self.expected.values() if (r.peer, r.path) == (peer, path)]

    def collective_ended(self, number: int, receives: list[Receive]) -> None:
        """Treat transfers of a collective as late from now on."""
        for receive in receives:
            self.expected.pop(receive.key, None)
        self.ended[number] = None
        while len(self.ended) > REMEMBERED:
            self.ended.popitem(last=False)


class ReceiveBuffer:
    """A buffer for reads. A byte has the same offset within a cache line as in the stream.

    Attributes:
        places: By offset within a line, where a read begins and the memory that it fills.
    """

    def __init__(self, size: int) -> None:
        self.bytes = bytearray(size + 2 * LINE)
        first = -ctypes.addressof(ctypes.c_char.from_buffer(self.bytes)) % LINE
        view = memoryview(self.bytes)
        self.places = [
            (first + phase, view[first + phase : first + phase + size]) for phase in range(LINE)
        ]


class Resources:
    """Objects that all connections of one server's agent share.

    Args:
        loop: The event loop; None for a new one.
        buffer: The buffer for reads, which other agents of the process may use too; None for a new
            one.

    Attributes:
        runs: The runs of programs that have not ended, by number.
        incoming: Connections that peers opened, by peer and path.
        secret: What a greeting has to contain. Whoever commands this agent's peers hands it to
            them.
        unnamed: Connections that peers opened without a greeting so far.
        relays: Connections from senders for whom this agent is a relay, by sender, receiver and
            path.
        destinations: Data ports of the peers to whom this agent has opened connections.
    """

    def __init__(
        self,
        name: str,
        loop: Loop | None = None,
        buffer: ReceiveBuffer | None = None,
        network: Network | None = None,
    ) -> None:
        self.name = name
        self.secret = secrets.token_hex(16)
        self.loop: Loop = loop or EventLoop()
        self.pattern = shared_pattern()
        self.buffer = buffer or ReceiveBuffer(READ)
        self.network = network or Network()
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.arrivals = Arrivals(self.counters)
        self.runs: dict[int, Run] = {}
        self.incoming: dict[tuple[str, str], DataConnection] = {}
        self.unnamed: ConnectionLimit[UnnamedConnection] = ConnectionLimit(
            lambda connection: connection.refuse(), MOST_UNNAMED, MOST_UNNAMED
        )
        self.relays: dict[tuple[str, str, str], DataConnection] = {}
        self.destinations: dict[str, Destination] = {}


class DataConnection(CallbackOwner):
    """A connection with a peer or a rank. A fault on it ends this connection and no other.

    Attributes:
        unsent: Bytes that the kernel has not taken yet.
        incomplete: First bytes of an answer whose others have not arrived.
        closed: Whether the connection is closed, or another one's.
    """

    sock: socket.socket

    def __init__(self, resources: Resources) -> None:
        self.resources, self.loop = resources, resources.loop
        self.unsent, self.incomplete, self.closed = b"", b"", False
        self.least = 0  # bytes for which the kernel wakes this process; 0 if that isn't known

    def ready(self, mask: int) -> None:
        """Read or write, as far as the socket is ready for it."""
        try:
            self.transfer(mask)
        except BlockingIOError:
            return
        except OSError as error:
            self.lose(os_error_text(error))

    @abstractmethod
    def transfer(self, mask: int) -> None:
        """Read or write; raise OSError if the connection broke."""

    def send_bytes(self, data: memoryview | bytes = b"") -> None:
        """Send bytes after those that are unsent; keep what the kernel doesn't take."""
        before = self.unsent
        left = memoryview(before + data if before else data)
        try:
            while left:
                left = left[self.sock.send(left) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self.lose(os_error_text(error))
            return
        if before or left:
            self.unsent = bytes(left)
            self.watch()

    def read_answers(self) -> list[bytes]:
        """Read the peer's answers to transfers; raise OSError if the connection broke."""
        data = self.sock.recv(ANSWERS)
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the peer")
        answers = self.incomplete + data
        whole = len(answers) // ACKNOWLEDGEMENT.size * ACKNOWLEDGEMENT.size
        self.incomplete = answers[whole:]
        places = range(0, whole, ACKNOWLEDGEMENT.size)
        return [answers[place : place + ACKNOWLEDGEMENT.size] for place in places]

    @abstractmethod
    def watch(self) -> None:
        """Have the loop call this connection when its socket is ready for what it has to do."""

    def wake_after(self, count: int) -> None:
        """Have the kernel wake this process for a number of bytes."""
        if count != self.least:
            self.least = count
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def close(self, *, reset: bool = False) -> bool:
        """Close the socket, and drop what its kernel has not sent if it is reset.

        Returns:
            Whether the connection was open.
        """
        if self.closed:
            return False
        self.closed = True
        self.loop.forget(self.sock.fileno())
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.sock.close()
        return True

    @abstractmethod
    def lose(self, why: str) -> None:
        """Close the connection and end all its transfers."""

    def callback_failed(self, error: Exception) -> None:
        """Close this connection only."""
        self.lose(f"a fault of the agent {self.resources.name}: {error!r}")
