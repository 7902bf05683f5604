"""What the switch costs: throughput and round trip against a bare veth pair, and the time to change its flows."""

import multiprocessing
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import pytest

from emulator import bpf, bpf_calls, namespaces
from emulator.crossbar import BpfCrossbar
from emulator.light import Light, Ports
from emulator.switch.chassis import Chassis
from emulator.switch.datapath import BpfDatapath
from emulator.switch.flow import ALL, Flow, Output
from emulator.switch.instructions import Descriptors
from emulator.switch.match import Match
from emulator.switch.program import switch_program
from tests.kernel.iperf import gigabits_per_second
from tests.kernel.optical_bench import Wires, address, missing_for_kernel_tests
from tests.namespaces import must
from tests.switch_frames import ipv4

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
]

ROUNDS = 5
TRIPS = 4000
HOST, NIC = 1, 2
IP = {"eth_type": 0x0800}


def routed(masks: int, here: int, there: int) -> list[Flow]:
    """The host's address is behind its port, the other behind the NIC's, by the last of so many masks; nothing else fits."""
    others = [
        Flow(Match.of(**IP, ipv4_src=(0xAC100000, 0xFFFFFFFF << bit & 0xFFFFFFFF)), 9)
        for bit in range(2, masks)
    ]
    hosts = [
        Flow(Match.of(**IP, ipv4_dst=0x0A090000 + host), 1, (Output(port),))
        for host, port in ((here, HOST), (there, NIC))
    ]
    return [*others, *hosts, Flow(Match.of(eth_type=0x0806), 0, (Output(ALL),))]


def link(wires: Wires, a: str, b: str) -> None:
    must("ip", "-n", wires.ocs, "link", "add", a, "type", "veth", "peer", "name", b)
    for end in (a, b):
        must("ip", "-n", wires.ocs, "link", "set", end, "up")


@contextmanager
def chain(chassis: Chassis, numbers: tuple[int, int]) -> Iterator[tuple[Wires, list[BpfDatapath]]]:
    """Host 1, its switch, the crossbar, the other switch, host 2."""
    with ExitStack() as undo:
        wires = undo.enter_context(Wires(2))
        hosts = wires.plug_in()
        place = wires.path(wires.ocs)
        switches = []
        for host, number in zip(wires.hosts, numbers, strict=True):
            link(wires, f"e{host}", f"o{host}")
            switch = undo.enter_context(closing(BpfDatapath(chassis, number)))
            switch.attach({HOST: hosts[host], NIC: f"e{host}"}, place)
            switches.append(switch)
        crossbar = undo.enter_context(closing(BpfCrossbar.create(Ports(2, 2))))
        crossbar.attach({1: "o1", 2: "o2"}, place)
        crossbar.load({1: Light(4, 0), 2: Light(3, 0)})
        yield wires, switches


@pytest.fixture(scope="module")
def chassis() -> Iterator[Chassis]:
    with closing(Chassis(8)) as made:
        yield made


def _echo(sock: socket.socket, times: int) -> None:
    for _ in range(times):
        frame, sender = sock.recvfrom(64)
        sock.sendto(frame, sender)


def round_trip_us(wires: Wires) -> float:
    """The median of TRIPS datagrams and their echoes, one after the other."""
    with ExitStack() as undo:
        near, far = (undo.enter_context(_udp(wires, host)) for host in wires.hosts)
        echo = multiprocessing.get_context("fork").Process(target=_echo, args=(far, TRIPS), daemon=True)
        echo.start()
        took = []
        for _ in range(TRIPS):
            started = time.perf_counter_ns()
            near.sendto(b"x", address(2))
            near.recv(64)
            took.append(time.perf_counter_ns() - started)
        echo.join(timeout=10)
    return statistics.median(took) / 1e3


def _udp(wires: Wires, host: int) -> socket.socket:
    """A socket that waits 5 s by the kernel's own clock: Python's time-outs would add a poll(2) to each call."""
    there = wires.path(wires.host(host))
    sock = namespaces.within(there, partial(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, (5).to_bytes(8, "little") + bytes(8))
    sock.bind(address(host))
    return sock


@pytest.mark.skipif(not shutil.which("iperf3"), reason="needs iperf3")
@pytest.mark.parametrize("masks", [2, 16])
def test_two_switches_and_a_crossbar_are_nearly_as_fast_as_a_bare_veth_pair(
    chassis: Chassis, masks: int
) -> None:
    numbers = (0, 1) if masks == 2 else (2, 3)
    with Wires(2) as bare, chain(chassis, numbers) as (through, switches):
        bare.pair(1, 2)
        for switch, here, there in zip(switches, (1, 2), (2, 1), strict=True):
            switch.load(routed(masks, here, there))
        wire, switched, wire_us, switched_us = [], [], [], []
        for _ in range(ROUNDS):  # interleaved, so that the machine's moods hit both
            wire.append(gigabits_per_second(bare))
            switched.append(gigabits_per_second(through))
            wire_us.append(round_trip_us(bare))
            switched_us.append(round_trip_us(through))
    ratio = statistics.median(switched) / statistics.median(wire)
    best = max(switched) / max(wire)
    trip = statistics.median(switched_us) / statistics.median(wire_us)
    print(
        f"\n{masks} masks: host-switch-crossbar-switch-host {statistics.median(switched):.1f} Gb/s, bare veth pair "
        f"{statistics.median(wire):.1f} Gb/s: ratio {ratio:.2f} (of the best runs {best:.2f}); round trip "
        f"{statistics.median(switched_us):.1f} µs, bare {statistics.median(wire_us):.1f} µs: ratio {trip:.2f}"
    )
    assert max(ratio, best) >= 0.75
    assert min(trip, min(switched_us) / min(wire_us)) <= 2


def test_a_mask_more_costs_a_look_up_more() -> None:
    """The program alone, on one frame again and again, by the kernel's own clock."""
    frame = ipv4(dst=0x0A090002)
    with closing(Chassis(1)) as one, closing(BpfDatapath(one, 0)) as switch:
        maps = Descriptors(3, 4, 5)
        length = len(bpf.assembled(switch_program(one.layout, maps))) // 8
        took = {}
        for masks in (2, 4, 8, 16):
            switch.load(routed(masks, 1, 2))
            runs = [bpf_calls.run_classifier(one.program, frame, 200_000) for _ in range(ROUNDS)]
            assert {verdict for verdict, _ in runs} == {bpf.TC_ACT_SHOT}, "no port is attached"
            took[masks] = statistics.median(duration for _, duration in runs)
    slope = (took[16] - took[2]) / 14
    said = ", ".join(f"{masks} masks {ns:.0f} ns" for masks, ns in took.items())
    print(f"\nprogram of {length} instructions: {said} a frame; {slope:.0f} ns for each mask more")
    assert slope < 100


def took_ms(do: Callable[[], None]) -> float:
    """Of the processor, in Python and kernel, so that a busy machine changes little."""
    started = time.process_time()
    do()
    return (time.process_time() - started) * 1e3


def test_flows_change_in_milliseconds_and_one_in_a_fraction(chassis: Chassis) -> None:
    with closing(BpfDatapath(chassis, 4)) as switch:
        firsts, others = [], []
        for turn in range(ROUNDS):
            pair = (
                [Flow(Match.of(**IP, ipv4_dst=turn << 24 | i), 1, (Output(2),)) for i in range(1000)]
                for _ in "ab"
            )
            switch.load([])
            firsts.append(took_ms(partial(switch.load, next(pair))))
            others.append(took_ms(partial(switch.load, next(pair))))
        print(
            f"\n1,000 flows into an empty table: {statistics.median(firsts):.1f} ms of a processor; instead of as many others: "
            f"{statistics.median(others):.1f} ms"
        )
        assert min(firsts) <= 40
        for table, most_ms in ((50, 0.5), (200, 0.5), (1000, 2.0)):
            some, took = [Flow(Match.of(**IP, ipv4_dst=i), 1, (Output(2),)) for i in range(table)], []
            for turn in range(100):
                one = Flow(Match.of(**IP, ipv4_dst=0x0B000000 + turn), 1, (Output(1),))
                took.append(took_ms(partial(switch.load, [*some, one])))
            print(f"one flow more among {table}: {statistics.median(took):.2f} ms of a processor")
            assert min(took) <= most_ms


def test_a_large_fabrics_switches_are_made_at_once() -> None:
    """160 switches, 128 of them with 9 ports each; making the wires is not counted."""
    names = {number: {port: f"s{number}p{port}" for port in range(1, 10)} for number in range(128)}
    with Wires(0) as wires, ExitStack() as undo:
        wires.namespace(wires.ocs)
        lines = [
            f"link add {name} type veth peer {name}x" for some in names.values() for name in some.values()
        ]
        command = ["ip", "-n", wires.ocs, "-batch", "-"]
        subprocess.run(command, input="\n".join(lines), text=True, check=True, timeout=60)
        started = time.perf_counter()
        made = undo.enter_context(closing(Chassis(160)))
        switches = [undo.enter_context(closing(BpfDatapath(made, number))) for number in range(160)]
        room = time.perf_counter() - started

        def attach_all() -> None:
            for number, some in names.items():
                switches[number].attach(some)

        namespaces.within(wires.path(wires.ocs), attach_all)
        took = time.perf_counter() - started
    print(f"\n160 switches: {room:.2f} s; 1,152 ports plugged in: {took - room:.2f} s")
    assert took < 2
