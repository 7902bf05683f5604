"""Agents that share a loop: each stops, goes on, ends and fails without the others."""

import os
import socket
from collections.abc import Iterator

import pytest

from moefabric.agents.engine.host import Host, LoopShare
from moefabric.agents.engine.requests import RefusedError
from moefabric.runtime.event_loop import IN, NOW, EventLoop


class Pair:
    """A connected pair of sockets, one end of which a share watches."""

    def __init__(self, share: LoopShare) -> None:
        self.near, self.far = socket.socketpair()
        self.read, self.fails = list[bytes](), False
        share.watch(self.near.fileno(), IN, self.ready)

    def ready(self, _mask: int) -> None:
        self.read.append(self.near.recv(16))
        if self.fails:
            raise ValueError

    def close(self) -> None:
        self.near.close()
        self.far.close()


@pytest.fixture
def loop() -> EventLoop:
    return EventLoop()


@pytest.fixture
def shares(loop: EventLoop) -> list[LoopShare]:
    return [LoopShare(loop), LoopShare(loop)]


@pytest.fixture
def pairs(shares: list[LoopShare]) -> Iterator[list[Pair]]:
    pairs = [Pair(share) for share in shares]
    yield pairs
    for pair in pairs:
        pair.close()


def turn(loop: EventLoop) -> None:
    """Call all that is ready or due."""
    loop.running = True
    loop.call_at(NOW() + 2_000_000, loop.stop)
    loop.run()


def test_suspended_share_waits_with_bytes_and_timers(
    loop: EventLoop, shares: list[LoopShare], pairs: list[Pair]
) -> None:
    due = list[int]()
    for number, share in enumerate(shares):
        share.call_at(NOW(), lambda number=number: due.append(number))  # type: ignore[misc]
    cancelled = shares[0].call_at(NOW(), lambda: due.append(7))
    shares[0].suspend()
    cancelled.cancel()
    for pair in pairs:
        pair.far.send(b"!")
    turn(loop)
    assert (due, [pair.read for pair in pairs]) == ([1], [[], [b"!"]])
    shares[0].resume()
    turn(loop)
    assert (due, [pair.read for pair in pairs]) == ([1, 0], [[b"!"], [b"!"]])


@pytest.mark.parametrize("suspended", [False, True])
def test_ended_share_closes_its_descriptors_and_is_called_no_more(
    loop: EventLoop, shares: list[LoopShare], pairs: list[Pair], suspended: bool
) -> None:
    shares[0].call_at(NOW(), lambda: pytest.fail("it was called"))
    if suspended:
        shares[0].suspend()
    shares[0].end()
    assert pairs[0].far.recv(16) == b"", "the kernel has closed the other end"
    pairs[1].far.send(b"!")
    turn(loop)
    assert [pair.read for pair in pairs] == [[], [b"!"]]
    number = pairs[0].near.fileno()
    other = os.dup(pairs[1].near.fileno())
    os.close(other)
    assert other != number, "the number is the socket's until that is gone"


def test_failing_callback_of_one_share_costs_the_other_nothing(
    loop: EventLoop, shares: list[LoopShare], pairs: list[Pair]
) -> None:
    pairs[0].fails = True
    for _ in range(3):
        for pair in pairs:
            pair.far.send(b"!")
        turn(loop)
    assert shares[1].faults == loop.faults == 1, "the failing descriptor pauses"
    assert pairs[1].read == [b"!"] * 3


def test_agents_of_a_host_share_its_buffer_only() -> None:
    host = Host()
    one, two = (host.add(server, "/proc/self/ns/net").resources for server in ("s0", "s1"))
    assert one.buffer is two.buffer
    assert one.secret != two.secret
    assert one.counters is not two.counters
    assert one.loop is not two.loop


def test_signal_that_no_agent_takes_is_refused() -> None:
    host = Host()
    host.add("s0", "/proc/self/ns/net")
    host.signal("s7", 9)  # nobody's, or that of an agent that has been killed
    with pytest.raises(RefusedError, match="an agent takes no signal 15"):
        host.signal("s0", 15)
