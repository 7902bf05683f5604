"""A relay with interfaces in memory, while the machine's clock is set to another time."""

import io
import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from threading import Timer

import pytest

from moefabric.core.link import LinkBehaviour
from moefabric.emulator.link import relay
from moefabric.emulator.link.frame_ring import arrival_ns
from moefabric.emulator.link.messages import RelayPort
from tests.support.switch_frames import udp_frame

DELAY_S = 0.05
HOUR_NS = 3600 * 10**9


class MemoryRing:
    """Ring of an interface in memory, with the kernel's stamps."""

    def __init__(self, interface: str, mtu: int) -> None:
        self.interface, self.mtu = interface, mtu
        self._readable, self._writable = os.pipe()
        self.waiting: list[tuple[int, bytes]] = []
        self.sent: list[tuple[float, bytes]] = []
        self.after_reading: Callable[[], None] = lambda: None
        self.after_sending: Callable[[], None] = lambda: None

    def fileno(self) -> int:
        return self._readable

    def put(self, frame: bytes) -> None:
        self.waiting.append((time.time_ns(), frame))
        os.write(self._writable, b"x")

    def read(self) -> list[tuple[int, bytes]]:
        waiting, self.waiting = self.waiting, []
        if waiting:
            os.read(self._readable, len(waiting))
            self.after_reading()
        return waiting

    def send(self, frame: bytes) -> None:
        self.sent.append((time.monotonic(), frame))
        self.after_sending()

    def lost(self) -> int:
        return 0

    def close(self) -> None:
        os.close(self._readable)
        os.close(self._writable)


@pytest.mark.parametrize("step_ns", [-HOUR_NS, HOUR_NS], ids=["back", "forward"])
def test_a_frame_on_its_way_arrives_in_time_though_the_clock_is_set(
    monkeypatch: pytest.MonkeyPatch, step_ns: int
) -> None:
    wall_ns = time.time_ns
    rings: dict[str, MemoryRing] = {}

    def open_ring(interface: str, mtu: int) -> MemoryRing:
        return rings.setdefault(interface, MemoryRing(interface, mtu))

    monkeypatch.setattr(relay, "FrameRing", open_ring)
    link = LinkBehaviour(1e9, delay_ns=int(DELAY_S * 1e9))
    relayed = relay.Relay([RelayPort("near", link, peer=1), RelayPort("far", link, peer=0)])
    requests, input_end = os.pipe()

    def end() -> None:
        with suppress(OSError):
            os.close(input_end)

    near, far = rings["near"], rings["far"]
    near.after_reading = lambda: monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + step_ns)
    far.after_sending = end
    frame, started_s = udp_frame(60), time.monotonic()
    near.put(frame)
    timer = Timer(5.0, end)
    timer.start()
    with closing(near), closing(far):
        relayed.run(requests, io.BytesIO())
    timer.cancel()
    os.close(requests)
    assert [sent for _, sent in far.sent] == [frame]
    assert far.sent[0][0] - started_s >= DELAY_S
    assert relayed.counters().lateness.max_ns < 1e9


@pytest.mark.parametrize(
    ("age_ns", "known_ns"),
    [(0, 0), (7, 7), (-3, 0), (10 * 10**9, 0)],
    ids=["present", "past", "future", "of another clock"],
)
def test_an_arrival_is_as_long_ago_as_its_stamp_where_that_can_be(
    age_ns: int, known_ns: int
) -> None:
    wall_ns, now_ns = 10**18, 10**12
    assert arrival_ns(wall_ns - age_ns, wall_ns, now_ns) == now_ns - known_ns
