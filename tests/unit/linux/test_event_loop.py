"""Event loop of sockets and timers."""

import socket

from moefabric.emulator.linux.event_loop import RETRY_NS, EventLoop


def test_failing_socket_delays_no_other_and_is_called_again_later() -> None:
    now_ns = 0
    loop = EventLoop(lambda: now_ns)
    faulty, first = socket.socketpair()
    other, second = socket.socketpair()
    calls: list[str] = []

    def fail(_events: int) -> None:
        calls.append("faulty")
        raise RuntimeError("a defect")

    def read(_events: int) -> None:
        nonlocal now_ns
        calls.append(other.recv(1).decode())
        if calls.count("faulty") == 2:
            loop.stop()
        now_ns += RETRY_NS // 2
        second.send(b"y")

    with faulty, first, other, second:
        loop.watch(faulty, 1, fail)
        loop.watch(other, 1, read)
        first.send(b"x")
        second.send(b"y")
        loop.run()
        loop.close()
    assert sorted(calls[:2]) == ["faulty", "y"]
    assert calls.count("y") >= 3
