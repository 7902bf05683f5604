"""Beginning of a collective: all transfers begin before any of them fills its buffer."""

import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import pytest

from moefabric.agents.engine import wire
from moefabric.agents.engine.outgoing import OutgoingConnection
from moefabric.agents.engine.requests import Fields
from moefabric.agents.engine.resources import Resources
from moefabric.agents.engine.sockets import SO_MAX_PACING_RATE, Destination
from moefabric.agents.engine.transfers import Send, TransferKey
from moefabric.runtime.event_loop import IN, NOW, OUT, EventLoop

MEGABYTE = 1_000_000


def test_due_timer_is_called_between_ready_descriptors() -> None:
    loop, calls = EventLoop(), list[str]()
    pairs = [socket.socketpair() for _ in range(2)]

    def called(_mask: int) -> None:
        calls.append("descriptor")
        loop.call_at(NOW(), lambda: calls.append("timer"))
        if len(calls) > 1:
            loop.stop()

    for near, far in pairs:
        far.send(b"!")
        loop.watch(near.fileno(), IN, called)
    loop.run()
    assert calls == ["descriptor", "timer", "descriptor", "timer"]
    for end in (end for pair in pairs for end in pair):
        end.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def peer(listener: socket.socket, outgoing: OutgoingConnection) -> Iterator[socket.socket]:
    """The other end of a connection, which has greeted."""
    peer, _ = listener.accept()
    with closing(peer):
        outgoing.ready(OUT)
        peer.recv(4096)
        peer.sendall(wire.ACKNOWLEDGEMENT.pack(0, 0, 1, 0))
        while outgoing.state == "greeting":
            outgoing.ready(IN)
        yield peer


@pytest.fixture
def outgoing(listener: socket.socket) -> Iterator[OutgoingConnection]:
    """A connection over the loopback interface that is being opened."""
    port = listener.getsockname()[1]
    path = Fields({"peer": "s1", "path": "e0", "address": "127.0.0.1", "port": port})
    outgoing = OutgoingConnection(Resources("s0"), Destination(path, "cubic", 512 * 1024))
    yield outgoing
    outgoing.lose("the test is over")


@pytest.fixture
def connection(outgoing: OutgoingConnection, peer: socket.socket) -> OutgoingConnection:
    """A connection whose peer has greeted and reads nothing."""
    assert peer.fileno() >= 0
    assert outgoing.state == "up"
    return outgoing


def test_transfer_begins_with_one_segment_and_goes_on_in_the_next_turn(
    connection: OutgoingConnection,
) -> None:
    send = Send(TransferKey(1, "s1", "e0", 0), MEGABYTE, None)
    connection.send(send)
    first = send.moved
    assert first == connection.segment - wire.HEADER.size
    connection.ready(OUT)
    assert send.moved > 2 * first


class CountedSocket:
    """A socket whose calls into the kernel are noted, but for those that only name it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.calls = sock, list[str]()

    def __getattr__(self, name: str) -> Any:
        if name != "fileno":
            self.calls.append(name)
        return getattr(self.sock, name)


def transfer(number: int, rate_bps: float | None, size: int = MEGABYTE) -> Send:
    return Send(TransferKey(number, "s1", "e0", 0), size, rate_bps)


def pace(connection: OutgoingConnection) -> int:
    """Return the pace of a connection in bytes a second."""
    raw = connection.sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8)
    return int.from_bytes(raw, sys.byteorder)


@pytest.mark.parametrize("size", [MEGABYTE, 1000, 0])
def test_prepared_transfer_starts_with_one_call(connection: OutgoingConnection, size: int) -> None:
    send = transfer(1, 8e6, size)
    connection.prepare(send, NOW())
    assert (send.moved, send.first_ns) == (0, None)
    assert pace(connection) == 1_000_000
    counted = CountedSocket(connection.sock)
    connection.sock = cast(socket.socket, counted)
    connection.send(send)
    assert counted.calls[0] == "send"
    if size == MEGABYTE:
        assert counted.calls == ["send"]
        assert send.moved == connection.segment - wire.HEADER.size
    else:  # it ends at once
        assert counted.calls == ["send", "send"]
        assert (send.moved, send.in_trailer) == (size, True)
    connection.sock = counted.sock


def test_transfer_that_comes_before_a_prepared_one_has_its_own_pace(
    connection: OutgoingConnection, peer: socket.socket
) -> None:
    late, early = transfer(1, 8e6, 100), transfer(2, 80e6, 100)
    connection.prepare(late, NOW())
    connection.send(early)
    assert pace(connection) == 10_000_000
    connection.send(late)
    connection.ready(OUT)
    assert pace(connection) == 1_000_000
    size = wire.framed_size(100)
    for number in (2, 1):
        header = wire.HEADER.unpack(peer.recv(size, socket.MSG_WAITALL)[: wire.HEADER.size])
        assert header is not None
        assert header[0] == number


def test_busy_connection_keeps_the_pace_of_its_transfer(connection: OutgoingConnection) -> None:
    connection.send(transfer(1, 8e6))
    connection.prepare(transfer(2, 80e6), NOW())
    assert pace(connection) == 1_000_000


def test_abandoned_transfer_leaves_an_idle_connection_without_its_pace(
    connection: OutgoingConnection,
) -> None:
    send = transfer(1, 8e6)
    connection.prepare(send, NOW())
    connection.abandon(send)
    assert pace(connection) >= 0xFFFFFFFF
    connection.prepare(transfer(2, 80e6), NOW())
    assert pace(connection) == 10_000_000


def test_transfer_that_a_lost_connection_had_prepared_leaves_by_the_next_one(
    connection: OutgoingConnection,
) -> None:
    send = transfer(1, 8e6)
    lost = OutgoingConnection(connection.resources, connection.destination)
    lost.state, lost.segment = "up", 1000
    lost.prepare(send, NOW())
    lost.lose("gone")
    connection.send(send)
    assert send.moved == connection.segment - wire.HEADER.size
