"""Event loop of sockets and timers."""

import socket

from moefabric.runtime.event_loop import IN, RETRY_NS, EventLoop


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
        loop.watch(faulty.fileno(), IN, fail)
        loop.watch(other.fileno(), IN, read)
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
            loop.forget(sock.fileno())
            sock.close()
            peer.close()
        loop.stop()

    for sock, peer in pairs:
        loop.watch(sock.fileno(), IN, close_all)
        peer.send(b"x")
    loop.run()
    loop.close()
    assert calls == 1


def test_timer_that_is_further_away_than_the_kernel_waits_delays_no_socket() -> None:
    loop = EventLoop()
    sock, peer = socket.socketpair()
    with sock, peer:
        loop.call_at(loop.now_ns() + (1 << 32) * 1_000_000, loop.stop)
        loop.watch(sock.fileno(), IN, lambda _events: loop.stop())
        peer.send(b"x")
        loop.run()
        loop.close()


def test_timers_are_called_in_order_and_only_once() -> None:
    loop, calls = EventLoop(), list[str]()
    now_ns = loop.now_ns()
    loop.call_at(now_ns + 2_000_000, lambda: calls.append("second"))
    loop.call_at(now_ns + 1_000_000, lambda: calls.append("first"), precise=True)
    loop.call_at(now_ns + 1_500_000, lambda: calls.append("cancelled")).cancel()
    loop.call_at(now_ns + 12_000_000, loop.stop)
    loop.run()
    assert loop.now_ns() >= now_ns + 12_000_000
    loop.close()
    assert calls == ["first", "second"]


def test_timer_that_adds_another_delays_no_descriptor() -> None:
    loop, calls = EventLoop(), list[int]()
    sock, peer = socket.socketpair()

    def again() -> None:
        loop.call_at(loop.now_ns(), again)

    def arrive(events: int) -> None:
        calls.append(events)
        loop.stop()

    with sock, peer:
        loop.watch(sock.fileno(), IN, arrive)
        again()
        peer.send(b"x")
        loop.run()
        loop.close()
    assert calls == [IN]


def test_forgotten_descriptor_stays_forgotten_after_its_callback_failed() -> None:
    now_ns = 0
    loop = EventLoop(lambda: now_ns)
    sock, peer = socket.socketpair()
    calls = 0

    def fail(_events: int) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("a defect")

    def end_pause() -> None:
        nonlocal now_ns
        loop.forget(sock.fileno())
        now_ns += 2 * RETRY_NS
        loop.call_at(now_ns, loop.stop)

    with sock, peer:
        loop.watch(sock.fileno(), IN, fail)
        peer.send(b"x")
        loop.call_at(0, lambda: loop.call_at(0, lambda: loop.call_at(0, end_pause)))
        loop.run()
        loop.close()
    assert calls == 1
