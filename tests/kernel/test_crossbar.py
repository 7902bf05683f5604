"""The crossbar in the kernel, with real frames between namespaces."""

import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from emulator import bpf, bpf_calls
from emulator.bpf import Reg, Size
from emulator.crossbar import BpfCrossbar, Layout, crossbar_support
from emulator.light import Light, Ports
from moefabric.errors import FabricError
from tests.kernel.optical_bench import Wires, address, heard, missing_for_kernel_tests

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
]

N = 6
Sockets = dict[int, socket.socket]


@pytest.fixture(scope="module")
def wires() -> Iterator[Wires]:
    with Wires(N) as made:
        yield made


@pytest.fixture(scope="module")
def plugged(wires: Wires) -> BpfCrossbar:
    return wires.crossbar()


@pytest.fixture(scope="module")
def sockets(wires: Wires) -> Sockets:
    return {host: wires.udp(host) for host in wires.hosts}


@pytest.fixture
def crossbar(plugged: BpfCrossbar, sockets: Sockets) -> BpfCrossbar:
    """All dark, and nothing waiting anywhere."""
    plugged.load({})
    for sock in sockets.values():
        heard(sock)
    return plugged


def circuits(*pairs: tuple[int, int], lit_at_ns: int = 0) -> dict[int, Light]:
    """Both directions of each pair of ports."""
    return {a: Light(N + b, lit_at_ns) for pair in pairs for a, b in (pair, pair[::-1])}


def test_this_machine_is_said_to_support_what_it_supports() -> None:
    assert crossbar_support() is None


def test_a_circuit_carries_frames_both_ways(crossbar: BpfCrossbar, sockets: Sockets) -> None:
    crossbar.load(circuits((1, 4)))
    sockets[1].sendto(b"there", address(4))
    sockets[4].sendto(b"back", address(1))
    assert heard(sockets[4]) == [b"there"]
    assert heard(sockets[1]) == [b"back"]


def test_a_cross_connect_carries_frames_one_way_only(crossbar: BpfCrossbar, sockets: Sockets) -> None:
    crossbar.load({1: Light(N + 4, 0)})
    sockets[1].sendto(b"there", address(4))
    sockets[4].sendto(b"back", address(1))
    assert heard(sockets[4]) == [b"there"]
    assert heard(sockets[1]) == []


def test_without_light_a_frame_is_dropped_and_counted(crossbar: BpfCrossbar, sockets: Sockets) -> None:
    before = crossbar.counters()[2].dropped_unlit
    sockets[2].sendto(b"lost", address(3))
    assert crossbar.counters()[2].dropped_unlit == before + 1
    assert [heard(sockets[host]) for host in range(1, N + 1)] == [[]] * N


def test_forwarded_frames_are_counted_with_their_ethernet_bytes(
    crossbar: BpfCrossbar, sockets: Sockets
) -> None:
    crossbar.load(circuits((1, 2)))
    before = crossbar.counters()[1]
    for _ in range(3):
        sockets[1].sendto(b"x" * 100, address(2))
    after = crossbar.counters()[1]
    assert after.forwarded_frames - before.forwarded_frames == 3
    assert after.forwarded_bytes - before.forwarded_bytes == 3 * (14 + 20 + 8 + 100)
    assert len(heard(sockets[2])) == 3


def test_a_circuit_is_dark_until_its_instant_and_lit_from_it(crossbar: BpfCrossbar, sockets: Sockets) -> None:
    before = crossbar.counters()[1].dropped_dark
    lit_at_ns = time.monotonic_ns() + 30_000_000
    crossbar.load(circuits((1, 2), lit_at_ns=lit_at_ns))
    sent: list[int] = []
    pause = threading.Event()
    while (now := time.monotonic_ns()) < lit_at_ns + 10_000_000:
        sockets[1].sendto(now.to_bytes(8, "big"), address(2))
        sent.append(now)
        pause.wait(0.0002)
    arrived = [int.from_bytes(datagram, "big") for datagram in heard(sockets[2])]
    # A datagram that was stamped just before the instant may pass just after it.
    assert [at for at in sent if at >= lit_at_ns] == [at for at in arrived if at >= lit_at_ns]
    assert lit_at_ns - min(arrived) < 2_000_000
    assert crossbar.counters()[1].dropped_dark - before == len(sent) - len(arrived)


def test_an_untouched_circuit_loses_no_frame_while_others_move(
    crossbar: BpfCrossbar, sockets: Sockets
) -> None:
    count, others = 4000, itertools.cycle([(3, 4), (3, 5), (4, 6), (5, 6)])
    stop = threading.Event()
    crossbar.load(circuits((1, 2), next(others)))
    moves = 0

    def move() -> None:
        nonlocal moves
        while not stop.wait(0.0003):
            crossbar.load(circuits((1, 2), next(others)))
            moves += 1

    mover = threading.Thread(target=move)
    mover.start()
    arrived = []
    for number in range(count):
        sockets[1].sendto(number.to_bytes(4, "big"), address(2))
        arrived += heard(sockets[2])
    stop.set()
    mover.join()
    assert [int.from_bytes(datagram, "big") for datagram in arrived] == list(range(count))
    assert moves > 20


def test_a_whole_matching_flips_at_once(crossbar: BpfCrossbar, sockets: Sockets) -> None:
    """While matchings alternate, each frame has light, and none is lost between them."""
    one, other = circuits((1, 2), (3, 4), (5, 6)), circuits((1, 4), (3, 6), (5, 2))
    stop, flips = threading.Event(), 0
    crossbar.load(one)

    def flip() -> None:
        nonlocal flips
        while not stop.wait(0.0002):
            flips += 1
            crossbar.load(other if flips % 2 else one)

    counted = crossbar.counters()
    flipper = threading.Thread(target=flip)
    flipper.start()
    rounds = 1000
    for _ in range(rounds):
        for host in range(1, N + 1):
            # A NIC refuses frames for another's MAC, so that each frame found its way out is read from the counters.
            sockets[host].sendto(b"where", address(host % N + 1))
    stop.set()
    flipper.join()
    after = crossbar.counters()
    assert {p: after[p].forwarded_frames - counted[p].forwarded_frames for p in after} == dict.fromkeys(
        after, rounds
    )
    assert all(after[p].dropped_unlit == counted[p].dropped_unlit for p in after)
    assert flips > 20


def test_a_matching_is_written_where_no_frame_looks_and_then_put_in_force(crossbar: BpfCrossbar) -> None:
    layout = Layout(crossbar.ports)
    with closing(bpf_calls.Memory(os.dup(crossbar.fd), layout.length)) as memory:
        crossbar.load(circuits((1, 2)))
        in_force = memory.view[Layout.SELECT]
        crossbar.load(circuits((1, 3)))
        assert memory.view[Layout.SELECT] == 1 - in_force
        start = layout.entry(in_force, 0)
        untouched = bytes(memory.view[start : start + layout.generation_bytes])
        assert untouched == layout.packed(circuits((1, 2)))


def test_another_holder_of_the_descriptor_sees_and_moves_the_same_light(
    crossbar: BpfCrossbar, sockets: Sockets
) -> None:
    crossbar.load(circuits((1, 2), lit_at_ns=7))
    second = BpfCrossbar(Ports(N, N), os.dup(crossbar.fd))
    assert second.show() == circuits((1, 2), lit_at_ns=7)
    second.load(circuits((1, 3)))
    second.close()
    sockets[1].sendto(b"moved", address(3))
    assert heard(sockets[3]) == [b"moved"]
    assert crossbar.show() == circuits((1, 3))


def test_an_interface_that_is_not_there_is_named(wires: Wires, crossbar: BpfCrossbar) -> None:
    with pytest.raises(FabricError, match="no interface p99"):
        crossbar.attach({1: "p99"}, wires.path(wires.ocs))


def test_attaching_twice_is_no_fault(wires: Wires, crossbar: BpfCrossbar, sockets: Sockets) -> None:
    crossbar.attach({1: "p1"}, wires.path(wires.ocs))
    crossbar.load(circuits((1, 2)))
    sockets[1].sendto(b"once", address(2))
    assert heard(sockets[2]) == [b"once"]


def test_a_program_the_verifier_refuses_is_told_in_the_verifiers_words() -> None:
    with pytest.raises(
        FabricError, match=r"of wild: Permission denied; verifier: R1 invalid mem access 'scalar'"
    ):
        bpf_calls.load_classifier(
            "wild", [bpf.move(Reg.R1, 1), bpf.load(Size.WORD, Reg.R0, Reg.R1), bpf.leave()]
        )
