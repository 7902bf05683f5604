"""The seam to the mirrors, kept by each crossbar: in memory, in BPF, and of tc filters."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from emulator.light import Crossbar, Light, MemoryCrossbar, Ports
from moefabric.errors import FabricError
from tests.kernel.optical_bench import Wires, address, heard, missing_for_kernel_tests

N = 4
WITH_ROOT = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
]


@dataclass
class Bench:
    """A crossbar, and a frame sent into one of its ports: where it came out, if it did (1..N)."""

    crossbar: Crossbar
    sent: Callable[[int], int | None]


def in_memory() -> Bench:
    crossbar = MemoryCrossbar(Ports(N, N))

    def sent(port: int) -> int | None:
        out_port = crossbar.forward(port, 60, time.monotonic_ns())
        return None if out_port is None else out_port - N

    return Bench(crossbar, sent)


def in_the_kernel(made: Callable[[Wires], Crossbar], held: ExitStack) -> Bench:
    wires = held.enter_context(Wires(N))
    crossbar = made(wires)
    sockets = {host: wires.udp(host) for host in wires.hosts}

    def sent(port: int) -> int | None:
        """A datagram for each host goes in, so that whichever the light leads to takes its own."""
        for host in wires.hosts:
            if host != port:
                sockets[port].sendto(b"light", address(host))
        came_out = [host for host in wires.hosts if heard(sockets[host])]
        assert len(came_out) <= 1
        return came_out[0] if came_out else None

    return Bench(crossbar, sent)


@pytest.fixture(
    scope="module",
    params=["memory", pytest.param("bpf", marks=WITH_ROOT), pytest.param("mirred", marks=WITH_ROOT)],
)
def plugged(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with ExitStack() as held:
        match request.param:
            case "bpf":
                yield in_the_kernel(Wires.crossbar, held)
            case "mirred":
                yield in_the_kernel(Wires.mirred_crossbar, held)
            case _:
                yield in_memory()


@pytest.fixture
def bench(plugged: Bench) -> Bench:
    plugged.crossbar.load({})
    return plugged


def circuits(*pairs: tuple[int, int], lit_at_ns: int = 0) -> dict[int, Light]:
    return {a: Light(N + b, lit_at_ns) for pair in pairs for a, b in (pair, pair[::-1])}


def ways(bench: Bench) -> dict[int, int | None]:
    return {port: bench.sent(port) for port in range(1, N + 1)}


def test_light_leads_each_frame_where_it_shines_and_nowhere_else(bench: Bench) -> None:
    assert ways(bench) == {1: None, 2: None, 3: None, 4: None}
    bench.crossbar.load(circuits((1, 3)))
    assert ways(bench) == {1: 3, 2: None, 3: 1, 4: None}
    bench.crossbar.load({1: Light(N + 2, 0), 4: Light(N + 1, 0)})
    assert ways(bench) == {1: 2, 2: None, 3: None, 4: 1}


def test_what_was_loaded_is_shown(bench: Bench) -> None:
    lights = circuits((1, 3), lit_at_ns=time.monotonic_ns() + 10**12)
    bench.crossbar.load(lights)
    assert bench.crossbar.show() == lights
    bench.crossbar.load({})
    assert bench.crossbar.show() == {}


def test_a_loaded_matching_is_the_callers_to_change(bench: Bench) -> None:
    lights = circuits((1, 3))
    bench.crossbar.load(lights)
    lights.clear()
    bench.crossbar.show().clear()
    assert bench.crossbar.show() == circuits((1, 3))


def test_what_settles_is_dark_while_the_rest_is_lit(bench: Bench) -> None:
    bench.crossbar.load(circuits((1, 2)))
    lit_at_ns = time.monotonic_ns() + 300_000_000
    bench.crossbar.load(circuits((1, 2)) | circuits((3, 4), lit_at_ns=lit_at_ns))
    assert ways(bench) == {1: 2, 2: 1, 3: None, 4: None}
    assert time.monotonic_ns() < lit_at_ns, "too slow a machine to see the dark"
    threading.Event().wait((lit_at_ns - time.monotonic_ns()) / 1e9 + 0.1)
    assert ways(bench) == {1: 2, 2: 1, 3: 4, 4: 3}


@pytest.mark.parametrize(
    ("lights", "said"),
    [
        pytest.param({0: Light(N + 1, 0)}, "input 0 is not one of 1..4", id="port-nought"),
        pytest.param({N + 1: Light(N + 1, 0)}, "input 5 is not one of 1..4", id="no-such-input"),
        pytest.param({1: Light(2, 0)}, "output 2 is not one of 5..8", id="no-such-output"),
        pytest.param({1: Light(9, 0)}, "output 9 is not one of 5..8", id="beyond-the-last-output"),
        pytest.param(
            {1: Light(7, 0), 2: Light(7, 0)}, "output 7 would have the light of 2 inputs", id="twice"
        ),
    ],
)
def test_an_impossible_matching_is_refused_and_nothing_moves(
    bench: Bench, lights: dict[int, Light], said: str
) -> None:
    bench.crossbar.load(circuits((1, 2)))
    with pytest.raises(FabricError, match=said):
        bench.crossbar.load(lights)
    assert bench.crossbar.show() == circuits((1, 2))
    assert ways(bench) == {1: 2, 2: 1, 3: None, 4: None}
