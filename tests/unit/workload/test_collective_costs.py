from typing import Final

import pytest

from moefabric.workload.collectives.built_in import DEFAULTS
from moefabric.workload.collectives.costs import bus_factor, counted_bytes, port_bytes
from moefabric.workload.collectives.program import Program
from moefabric.workload.collectives.schedule import Call, schedule_call
from moefabric.workload.graphs.execution_graph import COLLECTIVES, CollectiveKind
from tests.support.collective_timing import NonBlockingNetwork, bandwidth, bound_s, predict
from tests.support.schedules import BUILT_IN

SIZE: Final = 8 * 1024
# nccl-tests: what is S for 8 ranks with SIZE bytes in the call, and busbw / algbw.
DEFINITIONS: Final[dict[CollectiveKind, tuple[int, float]]] = {
    "all_to_all": (8 * SIZE, 7 / 8),
    "all_reduce": (SIZE, 14 / 8),
    "all_gather": (8 * SIZE, 7 / 8),
    "reduce_scatter": (SIZE, 7 / 8),
    "broadcast": (SIZE, 1.0),
    "reduce": (SIZE, 1.0),
    "gather": (8 * SIZE, 7 / 8),
    "scatter": (SIZE, 7 / 8),
    "barrier": (0, 0.0),
}


def call_of(kind: CollectiveKind, ranks: int = 8, size: int = SIZE) -> Call:
    if kind == "all_to_all":
        return Call(kind, ((size,) * ranks,) * ranks, ranks)
    return Call(kind, ((0 if kind == "barrier" else size,),), ranks, root=ranks // 2)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_bandwidths_are_those_of_nccl_tests(kind: CollectiveKind) -> None:
    call = call_of(kind)
    counted, factor = DEFINITIONS[kind]
    assert counted_bytes(call) == counted
    assert bus_factor(call) == pytest.approx(factor)
    measured = bandwidth(call, 1e-3)
    assert measured.algorithm == pytest.approx(counted * 1e3)
    assert measured.bus == pytest.approx(counted * 1e3 * factor)


def test_bus_bandwidth_is_the_rate_of_a_full_port() -> None:
    kinds: tuple[CollectiveKind, ...] = ("all_to_all", "all_reduce", "all_gather", "reduce_scatter")
    for kind in kinds:
        call = call_of(kind)
        seconds = bound_s(call, 8e9)
        assert bandwidth(call, seconds).bus == pytest.approx(1e9), kind


def test_uneven_all_to_all_counts_its_busiest_sender() -> None:
    call = Call("all_to_all", ((50, 1, 2), (30, 0, 0), (10, 10, 0)), 3)
    assert counted_bytes(call) == 30
    assert bus_factor(call) == 1.0
    assert port_bytes(call) == 40  # rank 0 receives 30 and 10
    assert bus_factor(Call("all_to_all", ((0, 0), (0, 0)), 2)) == 0.0


BOUNDS: Final[list[tuple[CollectiveKind, int, int]]] = [
    # Bytes of the busiest port with 8 ranks of one port each, and with 4 servers of two ranks.
    ("all_to_all", 7 * SIZE, 2 * 6 * SIZE),
    ("all_reduce", 2 * 7 * SIZE // 8, 2 * 3 * SIZE // 4),
    ("reduce_scatter", 7 * SIZE // 8, 3 * SIZE // 4),
    ("all_gather", 7 * SIZE, 6 * SIZE),
    ("broadcast", SIZE, SIZE),
    ("reduce", SIZE, SIZE),
    ("gather", 7 * SIZE, 6 * SIZE),
    ("scatter", 7 * SIZE // 8, 3 * SIZE // 4),
    ("barrier", 0, 0),
]


@pytest.mark.parametrize(("kind", "rank_bytes", "server_bytes"), BOUNDS)
def test_port_bytes(kind: CollectiveKind, rank_bytes: int, server_bytes: int) -> None:
    call = call_of(kind)
    assert port_bytes(call) == rank_bytes
    servers = [rank // 2 for rank in range(8)]
    assert port_bytes(call, servers) == server_bytes
    assert port_bytes(call, [0] * 8) == 0


def test_a_server_may_be_the_bottleneck() -> None:
    call = Call("all_to_all", ((SIZE,) * 8,) * 8, 8, servers=(0, 0, 0, 0, 1, 1, 1, 1))
    assert bound_s(call, 8e9) == pytest.approx(7 * SIZE / 1e9)
    assert bound_s(call, 8e9, 8e9) == pytest.approx(16 * SIZE / 1e9)


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_schedule_is_faster_than_the_bound(name: str) -> None:
    algorithm = BUILT_IN[name]
    for kind in algorithm.kinds:
        for ranks in (2, 4, 8):
            call = call_of(kind, ranks)
            program = Program.of_call(call, schedule_call(algorithm, call))
            assert predict(program, NonBlockingNetwork(8e9)).seconds >= bound_s(call, 8e9) * (
                1 - 1e-9
            )


REACHED: Final[list[tuple[str, CollectiveKind]]] = [
    ("direct", "all_to_all"),
    ("pairwise", "all_to_all"),
    ("windowed", "all_to_all"),
    ("ring", "all_reduce"),
    ("ring", "reduce_scatter"),
    ("ring", "all_gather"),
    ("multi-ring", "all_reduce"),
    ("halving-doubling", "all_reduce"),
    ("direct", "all_reduce"),
    ("direct", "gather"),
    ("direct", "scatter"),
]


@pytest.mark.parametrize(("name", "kind"), REACHED)
@pytest.mark.parametrize("ranks", [4, 16])
def test_schedules_of_least_bytes_reach_the_bound(
    name: str, kind: CollectiveKind, ranks: int
) -> None:
    call = call_of(kind, ranks, 1 << 20)
    program = Program.of_call(call, schedule_call(BUILT_IN[name], call))
    seconds = predict(program, NonBlockingNetwork(8e9)).seconds
    assert seconds == pytest.approx(bound_s(call, 8e9), rel=1e-6)


def test_ring_of_any_size_takes_its_closed_form() -> None:
    for ranks in (2, 4, 8):
        for size in (4096, 1 << 20):
            call = call_of("all_reduce", ranks, size)
            program = Program.of_call(call, schedule_call(DEFAULTS["all_reduce"], call))
            seconds = predict(program, NonBlockingNetwork(8e9, 1e-6)).seconds
            closed = 2 * (ranks - 1) * (1e-6 + size / ranks / 1e9)
            assert seconds == pytest.approx(closed, rel=1e-6)


def test_chains_and_trees_pass_chunks_on_while_others_arrive() -> None:
    size, rate_bps = 64 << 20, 8e9
    whole = size / 1e9
    cases: list[tuple[str, CollectiveKind]] = [
        ("chain", "broadcast"),
        ("chain", "reduce"),
        ("tree", "all_reduce"),
    ]
    times: dict[tuple[str, CollectiveKind], float] = {}
    for name, kind in cases:
        call = call_of(kind, 8, size)
        program = Program.of_call(call, schedule_call(BUILT_IN[name], call))
        times[name, kind] = predict(program, NonBlockingNetwork(rate_bps)).seconds
    # The last of 32 chunks has seven links to cross.
    assert times["chain", "broadcast"] == pytest.approx(whole * (32 + 6) / 32, rel=1e-6)
    assert times["chain", "reduce"] == pytest.approx(whole * (32 + 6) / 32, rel=1e-6)
    # Each port carries four halves of 32 chunks. A chunk climbs three links and descends three.
    assert 2 * whole < times["tree", "all_reduce"] < 2 * whole * (32 + 6) / 32
