"""A thousand random matchings under traffic: no misdirected frame, no loss on kept circuits."""

import random
import socket
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise

import pytest

from moefabric.controller.southbound.ocs.connection import DeviceConnection
from moefabric.controller.southbound.ocs.cross_connects import CrossConnect, difference
from moefabric.controller.southbound.ocs.scpi import ScpiDriver
from moefabric.core.ocs import DeviceProfile, SettleTime
from moefabric.emulator.crossbar.bpf_crossbar import BpfCrossbar
from moefabric.emulator.linux.frame_stream import FrameReceiver, FrameStream
from moefabric.emulator.ocs.device_spec import DeviceSpec
from moefabric.emulator.ocs.server import OcsServer
from tests.kernel.optical_bench import HostNetwork
from tests.support.ocs_serving import serve_until

PORTS = 8
MATCHINGS = 1000
SETTLE_NS = 300_000
SPACING_NS = 100_000
LONGEST_S = 60.0


@dataclass(frozen=True)
class Change:
    """One change from command to settled light; `before` and `after` map inputs to outputs."""

    began_ns: int
    ended_ns: int
    before: dict[int, int]
    after: dict[int, int]


@contextmanager
def switch(crossbar: BpfCrossbar) -> Iterator[ScpiDriver]:
    """Serve the crossbar as a device over TCP."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = OcsServer(crossbar, DeviceSpec(DeviceProfile(settle=SettleTime(fixed_ns=SETTLE_NS))))
    address: tuple[str, int] = listener.getsockname()[:2]
    server.open(listener, "scpi")
    hear, say = socket.socketpair()
    serving = threading.Thread(target=serve_until, args=(server, hear))
    serving.start()
    device = ScpiDriver(DeviceConnection("ocs0", address))
    try:
        yield device
    finally:
        device.close()
        say.close()
        serving.join(10)
        hear.close()


def matching(draw: random.Random, now: dict[int, int]) -> dict[int, int]:
    """Return another matching that keeps about half of the cross-connects."""
    kept = {p: q for p, q in now.items() if draw.random() < 0.5}
    inputs = [p for p in range(1, PORTS + 1) if p not in kept]
    outputs = [q for q in range(PORTS + 1, 2 * PORTS + 1) if q not in kept.values()]
    draw.shuffle(outputs)
    return kept | {p: q for p, q in zip(inputs, outputs, strict=True) if draw.random() < 0.8}


def changed(device: ScpiDriver, now: dict[int, int], target: dict[int, int]) -> Change:
    """Execute a change."""
    began = time.monotonic_ns()
    assert device.apply(difference(now.items(), target.items())) is None
    device.wait_settled(5)
    return Change(began, time.monotonic_ns(), now, target)


def test_no_frame_is_misdirected_and_kept_circuits_lose_none() -> None:
    draw, changes, came = random.Random(4), list[Change](), dict[int, list[int]]()
    with ExitStack() as undo:
        wires = undo.enter_context(HostNetwork(PORTS))
        device = undo.enter_context(switch(wires.crossbar()))
        places = [(wires.path(wires.host(host)), "nic") for host in wires.hosts]
        ears = [FrameReceiver(*place) for place in places]
        for ear in ears:
            undo.callback(ear.close)
        stream = undo.enter_context(FrameStream(places, SPACING_NS))
        stream.wait_sent(PORTS)
        ends, now = time.monotonic() + LONGEST_S, dict[int, int]()
        while len(changes) < MATCHINGS and time.monotonic() < ends:
            changes.append(changed(device, now, matching(draw, now)))
            now = changes[-1].after
            stream.wait_sent(stream.sent + PORTS)
            if not len(changes) % 20:
                _listen(ears, came)
        stream.wait_sent(stream.sent + PORTS)
        sent_ns = stream.sent_ns(0, stream.sent)
        _listen(ears, came)
    astray, lost, through = judged(sent_ns, came, changes)
    print(
        f"\n{len(changes)} matchings, {len(sent_ns)} frames, {through} through, "
        f"{astray} astray, {lost} lost on kept circuits"
    )
    assert len(changes) == MATCHINGS
    assert through > len(sent_ns) / 4
    assert (astray, lost) == (0, 0)


def _listen(ears: Sequence[FrameReceiver], came: dict[int, list[int]]) -> None:
    for port, ear in enumerate(ears, PORTS + 1):
        for number in ear.received():
            came.setdefault(number, []).append(port)


def judged(
    sent_ns: Sequence[int], came: dict[int, list[int]], changes: Sequence[Change]
) -> tuple[int, int, int]:
    """Count misdirected frames, frames lost on kept cross-connects, and delivered ones.

    A frame crosses the switch between its own record and the next one's: they are sent in turn.
    """
    begins, finishes = [c.began_ns for c in changes], [c.ended_ns for c in changes]
    astray = lost = through = 0
    for number, (noted, following) in enumerate(pairwise(sent_ns)):
        source = number % PORTS + 1
        first, end = bisect_left(finishes, noted), bisect_right(begins, following)
        lights = [changes[first - 1].after.get(source)] if first else [None]
        lights += [change.after.get(source) for change in changes[first:end]]
        ports = came.get(number, [])
        through += len(ports) == 1
        astray += len(ports) > 1 or any(port not in lights for port in ports)
        lost += not ports and None not in lights and len(set(lights)) == 1
    return astray, lost, through


@pytest.mark.parametrize(
    ("ports", "verdict"),
    [
        pytest.param([9], (0, 0, 1), id="by-its-light"),
        pytest.param([10], (1, 0, 1), id="astray"),
        pytest.param([9, 10], (1, 0, 0), id="twice"),
        pytest.param([], (0, 1, 0), id="lost"),
    ],
)
def test_frames_of_kept_circuits_are_counted(
    ports: list[int], verdict: tuple[int, int, int]
) -> None:
    changes: list[CrossConnect] = [(1, 9), (2, 10)]
    steady = [Change(0, 1, {}, dict(changes)), Change(50, 70, dict(changes), {1: 9, 2: 11})]
    assert judged([60, 65], {0: ports}, steady) == verdict
