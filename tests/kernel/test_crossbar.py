"""BPF crossbar in the kernel, with real frames between namespaces."""

import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from moefabric.core.errors import FabricError
from moefabric.emulator.crossbar.bpf_crossbar import BpfCrossbar, Layout, crossbar_refusal
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.linux import bpf_assembler as bpf
from moefabric.emulator.linux import bpf_syscalls as bpf_calls
from moefabric.emulator.linux.bpf_assembler import Reg, Size
from tests.kernel.optical_bench import (
    HostNetwork,
    address,
    input_counters,
    output_counters,
    received_datagrams,
)

N = 6
Sockets = dict[int, socket.socket]


@pytest.fixture(scope="module")
def network() -> Iterator[HostNetwork]:
    with HostNetwork(N) as joined:
        yield joined


@pytest.fixture(scope="module")
def attached(network: HostNetwork) -> BpfCrossbar:
    return network.crossbar()


@pytest.fixture(scope="module")
def sockets(network: HostNetwork) -> Sockets:
    return {host: network.udp(host) for host in network.hosts}


@pytest.fixture
def crossbar(attached: BpfCrossbar, sockets: Sockets) -> BpfCrossbar:
    """Crossbar without cross-connects; no socket has unread frames."""
    attached.load({})
    for sock in sockets.values():
        received_datagrams(sock)
    return attached


def circuits(*pairs: tuple[int, int], lit_at_ns: int = 0) -> dict[tuple[int, int], int]:
    """Return cross-connects for both directions of each pair of ports."""
    return {(a, N + b): lit_at_ns for pair in pairs for a, b in (pair, pair[::-1])}


def test_machine_that_runs_these_tests_supports_crossbar() -> None:
    assert crossbar_refusal() is None


def test_circuit_carries_frames_both_ways(crossbar: BpfCrossbar, sockets: Sockets) -> None:
    crossbar.load(circuits((1, 4)))
    sockets[1].sendto(b"there", address(4))
    sockets[4].sendto(b"back", address(1))
    assert received_datagrams(sockets[4]) == [b"there"]
    assert received_datagrams(sockets[1]) == [b"back"]


def test_cross_connect_carries_frames_one_way_only(crossbar: BpfCrossbar, sockets: Sockets) -> None:
    crossbar.load({(1, N + 4): 0})
    sockets[1].sendto(b"there", address(4))
    sockets[4].sendto(b"back", address(1))
    assert received_datagrams(sockets[4]) == [b"there"]
    assert received_datagrams(sockets[1]) == []


def test_unlit_port_drops_and_counts_frame(crossbar: BpfCrossbar, sockets: Sockets) -> None:
    before = input_counters(crossbar)[2].dropped_unlit
    sockets[2].sendto(b"lost", address(3))
    assert input_counters(crossbar)[2].dropped_unlit == before + 1
    assert [received_datagrams(sockets[host]) for host in range(1, N + 1)] == [[]] * N


def test_counters_count_frames_and_ethernet_bytes(crossbar: BpfCrossbar, sockets: Sockets) -> None:
    crossbar.load(circuits((1, 2)))
    before, outputs = input_counters(crossbar)[1], output_counters(crossbar)
    for _ in range(3):
        sockets[1].sendto(b"x" * 100, address(2))
    after = input_counters(crossbar)[1]
    assert after.forwarded_frames - before.forwarded_frames == 3
    assert after.forwarded_bytes - before.forwarded_bytes == 3 * (14 + 20 + 8 + 100)
    left = output_counters(crossbar)
    assert {port for port in left if left[port] != outputs[port]} == {N + 2}
    assert left[N + 2].frames - outputs[N + 2].frames == 3
    assert left[N + 2].bytes - outputs[N + 2].bytes == 3 * (14 + 20 + 8 + 100)
    assert len(received_datagrams(sockets[2])) == 3


def test_circuit_is_dark_until_its_instant(crossbar: BpfCrossbar, sockets: Sockets) -> None:
    before = input_counters(crossbar)[1].dropped_dark
    lit_at_ns = time.monotonic_ns() + 30_000_000
    crossbar.load(circuits((1, 2), lit_at_ns=lit_at_ns))
    sent: list[tuple[int, int]] = []
    pause = threading.Event()
    while (now_ns := time.monotonic_ns()) < lit_at_ns + 10_000_000:
        sockets[1].sendto(len(sent).to_bytes(4, "big"), address(2))
        sent.append((now_ns, time.monotonic_ns()))
        pause.wait(0.0002)
    arrived = {int.from_bytes(datagram, "big") for datagram in received_datagrams(sockets[2])}
    # A datagram passes at some time between the two readings of the clock.
    assert {n for n, (begin_ns, _) in enumerate(sent) if begin_ns >= lit_at_ns} <= arrived
    assert arrived <= {n for n, (_, end_ns) in enumerate(sent) if end_ns >= lit_at_ns}
    assert input_counters(crossbar)[1].dropped_dark - before == len(sent) - len(arrived) > 0


def test_unchanged_circuit_loses_no_frame_while_others_change(
    crossbar: BpfCrossbar, sockets: Sockets
) -> None:
    count, others = 4000, itertools.cycle([(3, 4), (3, 5), (4, 6), (5, 6)])
    stop = threading.Event()
    crossbar.load(circuits((1, 2), next(others)))
    changes = 0

    def change() -> None:
        nonlocal changes
        while not stop.wait(0.0003):
            crossbar.load(circuits((1, 2), next(others)))
            changes += 1

    changer = threading.Thread(target=change)
    changer.start()
    arrived = []
    for number in range(count):
        sockets[1].sendto(number.to_bytes(4, "big"), address(2))
        arrived += received_datagrams(sockets[2])
    stop.set()
    changer.join()
    assert [int.from_bytes(datagram, "big") for datagram in arrived] == list(range(count))
    assert changes > 20


def test_whole_matching_changes_at_once(crossbar: BpfCrossbar, sockets: Sockets) -> None:
    """No frame is lost between two matchings that alternate."""
    first, second = circuits((1, 2), (3, 4), (5, 6)), circuits((1, 4), (3, 6), (5, 2))
    stop, flips = threading.Event(), 0
    crossbar.load(first)

    def flip() -> None:
        nonlocal flips
        while not stop.wait(0.0002):
            flips += 1
            crossbar.load(second if flips % 2 else first)

    before = input_counters(crossbar)
    flipper = threading.Thread(target=flip)
    flipper.start()
    rounds = 1000
    for _ in range(rounds):
        for host in range(1, N + 1):
            # A NIC drops frames for another MAC, so the counters show that each frame got out.
            sockets[host].sendto(b"where", address(host % N + 1))
    stop.set()
    flipper.join()
    after = input_counters(crossbar)
    assert {
        p: after[p].forwarded_frames - before[p].forwarded_frames for p in after
    } == dict.fromkeys(after, rounds)
    assert all(after[p].dropped_unlit == before[p].dropped_unlit for p in after)
    assert flips > 20


def test_load_writes_idle_generation_then_selects_it(crossbar: BpfCrossbar) -> None:
    layout = Layout(crossbar.ports)
    with closing(bpf_calls.Memory(os.dup(crossbar.fd), layout.length)) as memory:
        crossbar.load(circuits((1, 2)))
        selected = memory.view[Layout.SELECTOR]
        crossbar.load(circuits((1, 3)))
        assert memory.view[Layout.SELECTOR] == 1 - selected
        start = layout.entries(selected)
        old_generation = bytes(memory.view[start : start + layout.generation_bytes])
        assert old_generation == layout.pack(circuits((1, 2)))


def test_other_holder_of_descriptor_reads_and_changes_cross_connects(
    crossbar: BpfCrossbar, sockets: Sockets
) -> None:
    crossbar.load(circuits((1, 2), lit_at_ns=7))
    second = BpfCrossbar(Ports(N), os.dup(crossbar.fd))
    assert second.cross_connects() == circuits((1, 2), lit_at_ns=7)
    second.load(circuits((1, 3)))
    second.close()
    sockets[1].sendto(b"moved", address(3))
    assert received_datagrams(sockets[3]) == [b"moved"]
    assert crossbar.cross_connects() == circuits((1, 3))


def test_attach_names_missing_interface(network: HostNetwork, crossbar: BpfCrossbar) -> None:
    with pytest.raises(FabricError, match="no interface p99"):
        crossbar.attach({1: "p99"}, network.path(network.ocs))


def test_attaching_twice_works(
    network: HostNetwork, crossbar: BpfCrossbar, sockets: Sockets
) -> None:
    crossbar.attach({1: "p1"}, network.path(network.ocs))
    crossbar.load(circuits((1, 2)))
    sockets[1].sendto(b"once", address(2))
    assert received_datagrams(sockets[2]) == [b"once"]


def test_refused_program_reports_verifiers_reason() -> None:
    with pytest.raises(
        FabricError, match=r"of wild: Permission denied; verifier: R1 invalid mem access 'scalar'"
    ):
        bpf_calls.load_program(
            "wild", [bpf.move(Reg.R1, 1), bpf.load(Size.WORD, Reg.R0, Reg.R1), bpf.exit_program()]
        )
