"""Beginning of a collective: all transfers begin before any of them fills its buffer."""

import socket
from collections.abc import Iterator

import pytest

from moefabric.agents.engine import wire
from moefabric.agents.engine.outgoing import OutgoingConnection
from moefabric.agents.engine.requests import Fields
from moefabric.agents.engine.resources import Resources
from moefabric.agents.engine.sockets import Destination
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
def connection() -> Iterator[OutgoingConnection]:
    """A connection over the loopback interface whose peer has greeted and reads nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        path = Fields({"peer": "s1", "path": "e0", "address": "127.0.0.1", "port": port})
        outgoing = OutgoingConnection(Resources("s0"), Destination(path, "cubic", 512 * 1024))
        peer, _ = listener.accept()
        with peer:
            outgoing.ready(OUT)
            peer.recv(4096)
            peer.sendall(wire.ACKNOWLEDGEMENT.pack(0, 0, 1, 0))
            while outgoing.state == "greeting":
                outgoing.ready(IN)
            assert outgoing.state == "up"
            yield outgoing
        outgoing.lose("the test is over")


def test_transfer_begins_with_one_segment_and_goes_on_in_the_next_turn(
    connection: OutgoingConnection,
) -> None:
    send = Send(TransferKey(1, "s1", "e0", 0), MEGABYTE, None)
    connection.send(send)
    first = send.moved
    assert first == connection.segment - wire.HEADER.size
    connection.ready(OUT)
    assert send.moved > 2 * first
