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


def test_callback_may_close_another_ready_socket() -> None:
    loop = EventLoop()
    pairs = [socket.socketpair() for _ in range(2)]
    calls = 0

    def close_all(_events: int) -> None:
        nonlocal calls
        calls += 1
        for sock, peer in pairs:
            loop.watch(sock, 0, close_all)
            sock.close()
            peer.close()
        loop.stop()

    for sock, peer in pairs:
        loop.watch(sock, 1, close_all)
        peer.send(b"x")
    loop.run()
    loop.close()
    assert calls == 1
