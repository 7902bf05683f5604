"""Contract of crossbars: in memory and in BPF."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from moefabric.core.errors import FabricError
from moefabric.emulator.crossbar.crossbar import Crossbar, Lights, Ports
from moefabric.runtime.waiting import Deadline
from tests.kernel.optical_bench import HostNetwork, address, received_datagrams
from tests.support.memory_crossbar import MemoryCrossbar

N = 4


@dataclass
class Bench:
    """Crossbar, and a function that sends a frame into a port and returns where it came out."""

    crossbar: Crossbar
    send: Callable[[int], int | None]


def in_memory() -> Bench:
    crossbar = MemoryCrossbar(Ports(N))

    def send(port: int) -> int | None:
        out_port = crossbar.forward(port, time.monotonic_ns())
        return None if out_port is None else out_port - N

    return Bench(crossbar, send)


def in_kernel(make: Callable[[HostNetwork], Crossbar], undo: ExitStack) -> Bench:
    network = undo.enter_context(HostNetwork(N))
    crossbar = make(network)
    sockets = {host: network.udp(host) for host in network.hosts}

    def send(port: int) -> int | None:
        """Send a datagram for each host, so that the one that gets them takes its own."""
        for host in network.hosts:
            if host != port:
                sockets[port].sendto(b"light", address(host))
        receivers = [host for host in network.hosts if received_datagrams(sockets[host])]
        assert len(receivers) <= 1
        return receivers[0] if receivers else None

    return Bench(crossbar, send)


@pytest.fixture(scope="module", params=["memory", pytest.param("bpf", marks=pytest.mark.kernel)])
def attached(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with ExitStack() as undo:
        match request.param:
            case "bpf":
                yield in_kernel(HostNetwork.crossbar, undo)
            case _:
                yield in_memory()


@pytest.fixture
def bench(attached: Bench) -> Bench:
    attached.crossbar.load({})
    return attached


def circuits(*pairs: tuple[int, int], lit_at_ns: int = 0) -> dict[tuple[int, int], int]:
    return {(a, N + b): lit_at_ns for pair in pairs for a, b in (pair, pair[::-1])}


def outputs(bench: Bench) -> dict[int, int | None]:
    return {port: bench.send(port) for port in range(1, N + 1)}


def test_frames_leave_by_output_of_cross_connect_only(bench: Bench) -> None:
    assert outputs(bench) == {1: None, 2: None, 3: None, 4: None}
    bench.crossbar.load(circuits((1, 3)))
    assert outputs(bench) == {1: 3, 2: None, 3: 1, 4: None}
    bench.crossbar.load({(1, N + 2): 0, (4, N + 1): 0})
    assert outputs(bench) == {1: 2, 2: None, 3: None, 4: 1}


def test_cross_connects_returns_what_was_loaded(bench: Bench) -> None:
    loaded = circuits((1, 3), lit_at_ns=time.monotonic_ns() + 10**12)
    bench.crossbar.load(loaded)
    assert bench.crossbar.cross_connects() == loaded
    bench.crossbar.load({})
    assert bench.crossbar.cross_connects() == {}


def test_caller_may_change_loaded_and_returned_mappings(bench: Bench) -> None:
    loaded = circuits((1, 3))
    bench.crossbar.load(loaded)
    loaded.clear()
    bench.crossbar.cross_connects().clear()
    assert bench.crossbar.cross_connects() == circuits((1, 3))


def test_settling_cross_connects_are_dark_while_others_are_lit(bench: Bench) -> None:
    lit_at_ns = 0

    def outputs_in_the_dark(settle_ns: int) -> dict[int, int | None] | None:
        """Return the outputs while two ports settle; None if they were lit meanwhile."""
        nonlocal lit_at_ns
        bench.crossbar.load(circuits((1, 2)))
        lit_at_ns = time.monotonic_ns() + settle_ns
        bench.crossbar.load(circuits((1, 2)) | circuits((3, 4), lit_at_ns=lit_at_ns))
        seen = outputs(bench)
        return seen if time.monotonic_ns() < lit_at_ns else None

    seen = (outputs_in_the_dark(settle_ns) for settle_ns in (100_000_000, 1_000_000_000))
    assert next(filter(None, seen)) == {1: 2, 2: 1, 3: None, 4: None}
    threading.Event().wait(max(0.0, (lit_at_ns - time.monotonic_ns()) / 1e9))
    Deadline.after(30).wait_for(lambda: outputs(bench) == {1: 2, 2: 1, 3: 4, 4: 3}, "light")


@pytest.mark.parametrize(
    ("cross_connects", "message"),
    [
        pytest.param({(0, N + 1): 0}, "0: inputs are 1..4", id="port-zero"),
        pytest.param({(N + 1, N + 1): 0}, "5: inputs are 1..4", id="no-such-input"),
        pytest.param({(1, 2): 0}, "2: outputs are 5..8", id="no-such-output"),
        pytest.param({(1, 9): 0}, "9: outputs are 5..8", id="beyond-the-last-output"),
        pytest.param({(1, 7): 0, (2, 7): 0}, "output 7 twice", id="twice"),
    ],
)
def test_impossible_matching_is_refused_and_changes_nothing(
    bench: Bench, cross_connects: Lights, message: str
) -> None:
    bench.crossbar.load(circuits((1, 2)))
    with pytest.raises(FabricError, match=message):
        bench.crossbar.load(cross_connects)
    assert bench.crossbar.cross_connects() == circuits((1, 2))
    assert outputs(bench) == {1: 2, 2: 1, 3: None, 4: None}
