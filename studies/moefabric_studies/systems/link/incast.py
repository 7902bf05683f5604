"""Synchronised senders and one receiver behind a shallow queue: rounds of real TCP."""

import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from moefabric import NS_PER_S, FabricError, duration_text, size_text
from moefabric.api.links import NIC, Host, Lateness, LinkBehaviour, run, star
from moefabric_studies.systems.study import Measure

_SEGMENT, _FRAME = 1448, 1514
"""Payload and length of a full frame of TCP with time stamps, with Ethernet header."""
_ROUND_S: Final = 30.0
_BUFFER_BYTES: Final = 1 << 20
_CONNECT_S: Final = 5.0


@dataclass(frozen=True)
class Incast:
    """Rounds in which hosts send a block each to one receiver at the same time.

    Attributes:
        rate_bps: Rate of the receiver's link.
        delay_ns: Propagation delay each way.
        block_bytes: Bytes that each host sends in a round.
        rounds: Number of rounds.
    """

    rate_bps: float
    delay_ns: int
    block_bytes: int
    rounds: int

    def bound_s(self, senders: int) -> float:
        """Return the least duration of a round: a round trip's half and all frames."""
        frames = senders * self.block_bytes / _SEGMENT * _FRAME
        return self.delay_ns / NS_PER_S + 8 * frames / self.rate_bps


@dataclass(frozen=True)
class IncastCell:
    """Rounds with one number of senders.

    Attributes:
        incast: Sizes of the rounds.
        senders: Number of senders.
        queue_bytes: Room of the receiver's queue.
        least_timeout_ns: Least retransmission timeout; None for Linux's 200 ms.
        seconds: Duration of each round.
        drops: Packets dropped at the receiver's port.
        lateness: Lateness of the relay.
    """

    incast: Incast
    senders: int
    queue_bytes: int
    least_timeout_ns: int | None
    seconds: tuple[float, ...]
    drops: int
    lateness: Lateness

    @property
    def name(self) -> str:
        """Queue and timeout."""
        timeout = self.least_timeout_ns
        text = size_text(self.queue_bytes)
        return text if timeout is None else f"{text}, timeout {duration_text(timeout)}"

    @property
    def share(self) -> float:
        """Goodput of all rounds over that of the link."""
        return len(self.seconds) * self.incast.bound_s(self.senders) / sum(self.seconds)

    @property
    def slowdown(self) -> float:
        """Duration of the slowest round over its bound."""
        return max(self.seconds) / self.incast.bound_s(self.senders)

    def lost_share(self) -> Measure:
        """Return the part of the goodput that is lost, in per cent; a sample for each round."""
        bound_s = self.incast.bound_s(self.senders)
        samples = tuple(100 * (1 - bound_s / seconds) for seconds in self.seconds)
        note = f"{self.senders} senders, {self.name}; samples are single rounds."
        return Measure(100 * (1 - self.share), samples, note)


def measure_incast(
    incast: Incast, numbers: Sequence[int], queue_bytes: int, least_timeout_ns: int | None = None
) -> list[IncastCell]:
    """Measure rounds of some of the hosts at a switch.

    Args:
        incast: Sizes of the rounds.
        numbers: Numbers of senders.
        queue_bytes: Room of the receiver's queue.
        least_timeout_ns: Least retransmission timeout; None for Linux's 200 ms.

    Raises:
        FabricError: Without root, or if a round does not end.
    """
    back = LinkBehaviour(delay_ns=incast.delay_ns)
    bottleneck = LinkBehaviour(incast.rate_bps, incast.delay_ns, queue_bytes=queue_bytes)
    cells = []
    with star([back] * max(numbers) + [bottleneck]) as net:
        receiver = net.hosts[-1]
        if least_timeout_ns is not None:
            for host in net.hosts:
                host.call(partial(set_least_timeout, least_timeout_ns))
        for senders in numbers:
            with open_flows(net.hosts[:senders], receiver, "cubic") as flows:
                for near, _ in flows:
                    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
                    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _round(flows, incast.block_bytes)  # slow start isn't measured
                net.reset()
                seconds = tuple(_round(flows, incast.block_bytes) for _ in range(incast.rounds))
            counters = net.counters()
            drops = counters.ports[receiver.port].dropped
            sizes = senders, queue_bytes, least_timeout_ns
            cells.append(IncastCell(incast, *sizes, seconds, drops, counters.lateness))
    return cells


def set_least_timeout(least_ns: int) -> None:
    """Set the least retransmission timeout of the calling thread's host."""
    [route] = run(["ip", "-4", "route", "show", "dev", NIC]).splitlines()
    timeout_ms = f"{max(1, least_ns // 1_000_000)}ms"
    run(["ip", "route", "change", *route.split(), "dev", NIC, "rto_min", timeout_ms])


Flow = tuple[socket.socket, socket.socket]
"""Sender's and receiver's end of a connection."""


def connected(near: Host, far: Host, congestion: str, port: int = 0) -> Flow:
    """Connect two hosts by TCP; neither end blocks.

    Args:
        congestion: Congestion control of both ends.
        port: Port of both ends; 0 for any.

    Raises:
        FabricError: The kernel lacks the congestion control, or the hosts can't connect.
    """
    create = partial(socket.create_server, (far.address, port))
    with far.call(create) as listener, ExitStack() as undo:
        sock = undo.enter_context(near.call(partial(socket.socket, socket.AF_INET)))
        for end in (listener, sock):
            end.settimeout(_CONNECT_S)
            try:
                # Set before the connection, because DCTCP negotiates ECN with it.
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
            except OSError as error:
                raise FabricError(f"this kernel has no congestion control {congestion}") from error
        try:
            sock.bind((near.address, port))
            sock.connect(listener.getsockname())
            peer, _ = listener.accept()
        except OSError as error:
            raise FabricError(f"hosts {near.number} and {far.number}: {error}") from error
        undo.pop_all()
    sock.setblocking(False)
    peer.setblocking(False)
    return sock, peer


@contextmanager
def open_flows(hosts: Sequence[Host], receiver: Host, congestion: str) -> Iterator[list[Flow]]:
    """Connect each of the hosts to a receiver, until the end of the `with`."""
    with ExitStack() as stack:
        yield [
            (stack.enter_context(near), stack.enter_context(far))
            for near, far in (connected(host, receiver, congestion) for host in hosts)
        ]


def _round(flows: Sequence[Flow], block_bytes: int) -> float:
    """Send a block on each connection, and return the seconds until all have arrived."""
    block, missing = bytes(block_bytes), {far: block_bytes for _, far in flows}
    with selectors.DefaultSelector() as selector:
        for far in missing:
            selector.register(far, selectors.EVENT_READ, data=far)
        began_s = time.monotonic()
        for near, _ in flows:
            if near.send(block) < block_bytes:
                raise FabricError(f"a block of {size_text(block_bytes)} exceeds a socket's buffer")
        while any(missing.values()):
            ready = selector.select(began_s + _ROUND_S - time.monotonic())
            if not ready:
                raise FabricError(f"incast: a round did not end within {_ROUND_S:g} s")
            for key, _ in ready:
                missing[key.data] -= len(key.data.recv(_BUFFER_BYTES))
        return time.monotonic() - began_s
