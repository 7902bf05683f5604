"""Workers, parameter servers and rings on programmable links, and the channels between them."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from typing import Final

from moefabric import FabricError
from moefabric.api.links import NOW, EventLoop, Host, LinkedHosts, dctcp
from moefabric_studies.systems.dlcp.transports import DCTCP, TransportChoice
from moefabric_studies.systems.link.incast import connected, set_least_timeout
from moefabric_studies.tensors.channel import OnTensor, TensorChannel
from moefabric_studies.tensors.datagrams import DatagramChannel
from moefabric_studies.tensors.receiver import Received
from moefabric_studies.tensors.sender import REORDERING
from moefabric_studies.tensors.streams import StreamChannel

_PORTS: Final = range(10_000, 60_000)
_DEADLINE_S: Final = 30.0
_SPRAYED_REORDERING: Final = 24
"""Packets by which equal paths reorder those of one sender: half of a path's queue."""

Ends = tuple[TensorChannel, TensorChannel]
"""The two ends of a channel."""


class Network:
    """Channels between hosts; one process owns the sockets of all of them, and one clock.

    Args:
        hosts: The hosts and their links.
        choice: How tensors are sent.
        seed: Seed of port numbers, and so of the paths that flows have.
        stack: Closes all channels.

    Attributes:
        loop: Calls back when packets arrive.
        hosts: The hosts and their links.
    """

    def __init__(
        self, hosts: LinkedHosts, choice: TransportChoice, seed: int, stack: ExitStack
    ) -> None:
        self.loop, self.hosts = EventLoop(), hosts
        self._choice, self._stack = choice, stack
        self._ports = iter(Random(seed).sample(_PORTS, len(_PORTS)))
        self._congestion = choice.congestion
        if choice.congestion == DCTCP.congestion:
            self._congestion = self._stack.enter_context(dctcp())
        for host in hosts.hosts if choice.rto_min_ms else ():
            host.call(partial(set_least_timeout, choice.rto_min_ms * 1_000_000))

    def connect(self, first: Host, second: Host, at_first: OnTensor, at_second: OnTensor) -> Ends:
        """Open a channel between two hosts.

        Args:
            first: One host.
            second: The other.
            at_first: Called with each tensor that is complete at the first host.
            at_second: The same at the second host.
        """
        choice, port = self._choice, next(self._ports)
        channel: Callable[[socket.socket, OnTensor], TensorChannel]
        if choice.is_bounded_loss:
            sockets = _datagram_pair(first, second, port)
            channel = partial(
                DatagramChannel,
                self.loop,
                prioritized=choice.prioritized,
                reordering=_SPRAYED_REORDERING if choice.sprayed else REORDERING,
            )
        else:
            sockets = connected(first, second, self._congestion, port)
            for sock in sockets:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            channel = partial(StreamChannel, self.loop, prioritized=choice.prioritized)
        ends = channel(sockets[0], at_first), channel(sockets[1], at_second)
        for end in ends:
            self._stack.callback(end.close)
        return ends

    def run(self, deadline_s: float = _DEADLINE_S) -> None:
        """Let tensors travel until a callback calls `loop.stop`.

        Raises:
            FabricError: If the deadline passes first, or a callback fails.
        """
        expired: list[bool] = []

        def expire() -> None:
            expired.append(True)
            self.loop.stop()

        timer = self.loop.call_at(NOW() + int(deadline_s * 1e9), expire)
        self.loop.running = True
        self.loop.run()
        timer.cancel()
        if self.loop.faults:
            raise FabricError(f"{self._choice.name}: a callback failed; see the log")
        if expired:
            raise FabricError(f"{self._choice.name}: tensors were not complete in {deadline_s:g} s")


@contextmanager
def open_network(hosts: LinkedHosts, choice: TransportChoice, seed: int = 0) -> Iterator[Network]:
    """Open a network without channels, and close its channels at the end."""
    with ExitStack() as stack:
        yield Network(hosts, choice, seed, stack)


def ignore(_received: Received) -> None:
    """Do nothing with a tensor of the direction in which none is sent."""


def _datagram_pair(first: Host, second: Host, port: int) -> tuple[socket.socket, socket.socket]:
    ends = [host.call(partial(_datagram_socket, host.address, port)) for host in (first, second)]
    for sock, peer in zip(ends, (second, first), strict=True):
        sock.connect((peer.address, port))
    return ends[0], ends[1]


def _datagram_socket(address: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sock.bind((address, port))
    return sock
