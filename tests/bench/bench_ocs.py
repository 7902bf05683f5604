"""What the optical switch keeps of what it promises: the time of a matching through SCPI, and dark time as packets see it."""

import contextlib
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from emulator import namespaces
from emulator.carrier import Carrier
from emulator.crossbar import BpfCrossbar
from emulator.light import Ports
from emulator.loop import Timers
from emulator.mirrors import BPF, Mirrors
from emulator.plant import Links, Plant, listening_within
from tests.kernel.carrier_bench import CarrierWatch
from tests.kernel.optical_bench import Wires, missing_for_kernel_tests

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
]

SOURCES = Path(__file__).parents[2]
BROADCAST = ("10.9.0.255", 9)
SO_TIMESTAMPNS = 35  # socket(7); Python has no name for it
Arrival = tuple[int, int]  # at which host, and when (CLOCK_REALTIME, ns)
CIRCUITS = 64
MATCHINGS = 300
ROUNDS = 100
DISTURBED_NS = 100_000
"""An edge of the dark is seen as sharply as frames follow one another; where the machine paused the sender for longer, it isn't seen."""


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    """Before other programs of the machine, and so is the switch's process: what those take isn't the switch's."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    yield
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@contextmanager
def served(
    folder: Path,
    facts: dict[str, object],
    fds: list[int],
    links: Callable[[Timers], Callable[[Links], None]] | None = None,
) -> Iterator[None]:
    """A process that serves the switch."""
    plant = Plant(folder / "ocs0.plant", facts, fds, links)
    command = [sys.executable, "-m", "emulator.ocs", "--plant", str(plant.path)]
    process = subprocess.Popen(command, cwd=SOURCES)
    try:
        plant.wait_ready(deadline_s=20)
        yield
    finally:
        plant.close()
        process.wait(timeout=10)


def asked(sock: socket.socket, line: bytes) -> bytes:
    """The reply to a line."""
    sock.sendall(line)
    said = b""
    while not said.endswith(b"\n"):
        said += sock.recv(65536)
    return said


def matching(shift: int) -> bytes:
    """64 circuits: NIC i with NIC 64 + (i + shift) mod 64, both ways, as SCPI has them."""
    ports = 2 * CIRCUITS
    pairs = [(i + 1, CIRCUITS + (i + shift) % CIRCUITS + 1) for i in range(CIRCUITS)]
    joined = [(a, ports + b) for pair in pairs for a, b in (pair, pair[::-1])]
    lists = ",".join(f"(@{','.join(str(pair[side]) for pair in joined)})" for side in (0, 1))
    return f":oxc:swit:conn:only {lists};*opc?\n".encode()


def test_a_matching_of_64_circuits_takes_a_millisecond_or_so(tmp_path: Path) -> None:
    ports = Ports(2 * CIRCUITS, 2 * CIRCUITS)
    crossbar = BpfCrossbar.create(ports)
    with ExitStack() as held:
        held.callback(crossbar.close)
        listener = held.enter_context(listening_within(None, "127.0.0.1", 0))
        facts: dict[str, object] = {"crossbar": BPF, "ports": ports.inputs, "settle_ns": 0, "serial": "1"}
        held.enter_context(served(tmp_path, facts, [crossbar.fd, listener.fileno()]))
        client = held.enter_context(socket.create_connection(listener.getsockname(), timeout=5))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        took = []
        for turn in range(MATCHINGS):
            line = matching(turn % CIRCUITS)
            started = time.perf_counter_ns()
            assert asked(client, line) == b"1\n"
            took.append((time.perf_counter_ns() - started) / 1e6)
            assert len(crossbar.show()) == 2 * CIRCUITS
    p50, p99 = statistics.median(took), statistics.quantiles(took, n=100)[98]
    print(f"\n64 circuits (128 cross-connects), command to *opc?: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    assert p50 <= 1.5


def matched(output: int) -> bytes:
    """Host 1's light goes to that output alone."""
    return f":oxc:swit:conn:only (@1),(@{output});*opc?\n".encode()


class Stream:
    """Frames for everybody from host 1, one close after the other, each known to have arrived at host 2, at host 3, or nowhere."""

    def __init__(self, wires: Wires) -> None:
        self._from = wires.udp(1)
        self._from.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        self._to = [self._listening(wires, host) for host in (2, 3)]

    @staticmethod
    def _listening(wires: Wires, host: int) -> socket.socket:
        there = wires.path(wires.host(host))
        sock = namespaces.within(there, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sock.bind(BROADCAST)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sock.setblocking(False)
        return sock

    def close(self) -> None:
        for sock in self._to:
            sock.close()

    def dark_ns(self, client: socket.socket, line: bytes, to: int) -> tuple[int, int]:
        """How long frames arrive nowhere upon that line, before they arrive at host `to`; and how sharply that was seen: the
        longest that the sender paused, or the machine let a frame lie, at an edge of it.
        """
        sent, arrived = [], dict[int, Arrival]()
        client.sendall(line)
        deadline = time.monotonic_ns() + 2_000_000_000
        while not any(host == to for host, _ in arrived.values()):
            sent.append(time.time_ns())
            self._from.sendto(b"%d" % (len(sent) - 1), BROADCAST)
            self._drain(arrived)
            assert time.monotonic_ns() < deadline, "the light did not come"
        reply = client.recv(16)
        assert reply == b"1\n", reply
        first = min(number for number, (host, _) in arrived.items() if host == to)
        last = max((number for number, (host, _) in arrived.items() if host != to), default=0)
        late = [arrived[number][1] - sent[number] for number in (first, last) if number in arrived]
        pauses = [sent[min(last + 1, first)] - sent[last], sent[first] - sent[max(first - 1, last)]]
        return sent[first] - sent[last], max(*late, *pauses)

    def _drain(self, arrived: dict[int, "Arrival"]) -> None:
        for host, sock in zip((2, 3), self._to, strict=True):
            with contextlib.suppress(BlockingIOError):
                while True:
                    said, [(_, _, stamp)], *_ = sock.recvmsg(16, 64)
                    seconds, nanoseconds = struct.unpack("qq", stamp)
                    arrived[int(said)] = host, seconds * 1_000_000_000 + nanoseconds


@pytest.mark.parametrize("settle_ms", [1, 10, 25, 100])
def test_dark_time_is_what_was_asked_for(tmp_path: Path, settle_ms: int) -> None:
    with ExitStack() as held:
        wires = held.enter_context(Wires(3))
        there = wires.path(wires.ocs)
        mirrors = Mirrors(BPF, Ports(3, 3), wires.plug_in(), there)
        held.callback(mirrors.close)
        listener = held.enter_context(listening_within(None, "127.0.0.1", 0))
        settle_ns = settle_ms * 1_000_000
        facts: dict[str, object] = {**mirrors.facts, "settle_ns": settle_ns, "serial": "1"}
        held.enter_context(served(tmp_path, facts, [mirrors.fd, listener.fileno()]))
        client = held.enter_context(socket.create_connection(listener.getsockname(), timeout=5))
        asked(client, matched(6))
        stream = Stream(wires)
        held.callback(stream.close)
        seen = [stream.dark_ns(client, matched(5 + turn % 2), 2 + turn % 2) for turn in range(ROUNDS)]
    errors = sorted(abs(dark - settle_ns) / 1e6 for dark, pause in seen if pause <= DISTURBED_NS)
    told = f"{len(errors)} of {ROUNDS} seen sharply"
    p50, p99 = statistics.median(errors), statistics.quantiles(errors, n=100, method="inclusive")[98]
    print(f"\nsettle {settle_ms} ms: dark-time error p50 {p50:.3f} ms, p99 {p99:.3f} ms, {told}")
    assert len(errors) >= ROUNDS / 2, told
    assert p99 <= 0.3


def test_the_link_is_up_as_long_after_the_light_as_was_asked_for(tmp_path: Path) -> None:
    link_up_ns, settle_ns = 20_000_000, 5_000_000
    with ExitStack() as held:
        wires = held.enter_context(Wires(3))
        there = wires.path(wires.ocs)
        interfaces = wires.plug_in()
        mirrors = Mirrors(BPF, Ports(3, 3), interfaces, there)
        held.callback(mirrors.close)
        listener = held.enter_context(listening_within(None, "127.0.0.1", 0))
        facts: dict[str, object] = {**mirrors.facts, "settle_ns": settle_ns, "serial": "1"}
        facts |= {"link_up_ns": link_up_ns, "link_down": True}
        watch = held.enter_context(CarrierWatch(wires.path(wires.host(2))))
        crossbar = held.enter_context(contextlib.closing(BpfCrossbar(Ports(3, 3), os.dup(mirrors.fd))))
        descriptors = [mirrors.fd, listener.fileno()]

        def links(timers: Timers) -> Callable[[Links], None]:
            return held.enter_context(contextlib.closing(Carrier(interfaces, there, timers))).change

        held.enter_context(served(tmp_path, facts, descriptors, links))
        client = held.enter_context(socket.create_connection(listener.getsockname(), timeout=5))
        watch.until(False)
        down, up = [], []
        for _ in range(ROUNDS):
            asked(client, matched(5))
            up.append((watch.until(True) - crossbar.show()[1].lit_at_ns - link_up_ns) / 1e6)
            commanded = time.monotonic_ns()
            client.sendall(matched(6))
            down.append((watch.until(False) - commanded) / 1e6)
            assert client.recv(16) == b"1\n"
    for what, took in (("up too late by", up), ("down after the command by", down)):
        p50, p99 = statistics.median(took), statistics.quantiles(took, n=100, method="inclusive")[98]
        print(f"\nlink {what}: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    assert min(up) >= 0
    assert statistics.median(up) <= 2
    assert statistics.median(down) <= 5
