import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from random import Random

import pytest

from moefabric.core.errors import SpecError
from moefabric.workload.collectives.all_to_all import PAIRWISE, WindowedAllToAll
from moefabric.workload.collectives.built_in import DEFAULTS
from moefabric.workload.collectives.direct import DIRECT
from moefabric.workload.collectives.halving_doubling import DISSEMINATION, HALVING_DOUBLING
from moefabric.workload.collectives.program import transfers
from moefabric.workload.collectives.ring import CHAIN, MULTI_RING, RING, Ring, ring_orders
from moefabric.workload.collectives.schedule import (
    Call,
    CollectiveSchedule,
    Extent,
    Schedule,
    Step,
    buffer_sizes,
    cut,
    schedule_call,
)
from moefabric.workload.collectives.server_all_to_all import HIERARCHICAL, MIXNET
from moefabric.workload.collectives.tree import TREE, double_tree
from moefabric.workload.graphs.execution_graph import COLLECTIVES, CollectiveKind
from tests.support.collective_interpreter import expected, first, place_before, run_call
from tests.support.schedules import BUILT_IN

RANKS = (*range(1, 9), 11, 16, 17)
ALGORITHMS = [*BUILT_IN.values(), WindowedAllToAll(2, "windowed-2"), Ring(3, "three rings")]
CASES = [(algorithm, kind) for algorithm in ALGORITHMS for kind in algorithm.kinds]


def uneven(rng: Random, ranks: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(rng.choice((0, 0, 1, 7, 64)) for _ in range(ranks)) for _ in range(ranks))


def calls(kind: CollectiveKind, ranks: int, rng: Random) -> list[Call]:
    if kind == "all_to_all":
        even = ((5,) * ranks,) * ranks
        return [Call(kind, sizes, ranks) for sizes in (even, uneven(rng, ranks))]
    sizes = (0,) if kind == "barrier" else (0, 4, 4 * ranks, 12 * ranks + 4)
    return [Call(kind, ((size,),), ranks, root=rng.randrange(ranks)) for size in sizes]


def check_laws(algorithm: CollectiveSchedule, call: Call, rng: Random) -> Schedule:
    """Assert all laws of a call; return its schedule."""
    schedule = schedule_call(algorithm, call)
    assert_form(call, schedule)
    assert_no_races(schedule)
    assert_no_deadlock(schedule)
    assert_results(call, schedule, rng)
    return schedule


def assert_form(call: Call, schedule: Schedule) -> None:
    assert len(schedule.steps) == len(schedule.buffers) == call.ranks
    for rank, steps in enumerate(schedule.steps):
        buffers = schedule.buffers[rank]
        assert buffers.items() >= buffer_sizes(call, rank).items()
        for number, step in enumerate(steps):
            assert step.number == number
            assert all(0 <= before < number for before in step.after)
            for extent in filter(None, (step.extent, step.source)):
                assert extent.size > 0
                assert 0 <= extent.offset <= extent.end <= buffers[extent.buffer]
            assert (step.kind == "copy") == (step.source is not None)
            assert step.kind == "copy" or 0 <= step.peer < call.ranks
            assert step.peer != rank
    transfers(schedule)


def assert_no_races(schedule: Schedule) -> None:
    """Assert that steps of a rank that touch the same bytes have an order, unless both read."""
    for steps in schedule.steps:
        before: list[int] = []  # bits of all steps that end before each step starts
        for step in steps:
            bits = 0
            for number in step.after:
                bits |= before[number] | 1 << number
            before.append(bits)
        for one, other in conflicts(steps):
            first, last = sorted((one, other), key=lambda step: step.number)
            assert before[last.number] >> first.number & 1, (schedule.name, first, last)


def conflicts(steps: Sequence[Step]) -> Iterator[tuple[Step, Step]]:
    """Yield steps that touch the same bytes; additions commute, and reads do not conflict."""
    uses = [(extent, step) for step in steps for extent in touched(step)]
    uses.sort(key=lambda use: (use[0].buffer, use[0].offset))
    for number, (extent, one) in enumerate(uses, 1):
        for at in range(number, len(uses)):
            place, other = uses[at]
            if place.buffer != extent.buffer or place.offset >= extent.end:
                break
            is_addition = one.kind == other.kind == "receive_add"
            is_written = is_write(extent, one) or is_write(place, other)
            if one is not other and is_written and not is_addition:
                yield one, other


def is_write(extent: Extent, step: Step) -> bool:
    return extent is step.extent and step.kind != "send"


def touched(step: Step) -> Iterator[Extent]:
    yield step.extent
    if step.source:
        yield step.source


def assert_no_deadlock(schedule: Schedule) -> None:
    """Assert that a schedule ends even if each send waits until its receiver is ready."""
    numbers = transfers(schedule)
    graph: TopologicalSorter[object] = TopologicalSorter()
    for rank, steps in enumerate(schedule.steps):
        for step in steps:
            node = numbers.get((rank, step.number), (rank, step.number))
            graph.add(node, *(numbers.get((rank, b), (rank, b)) for b in step.after))
    graph.prepare()


def assert_results(call: Call, schedule: Schedule, rng: Random) -> None:
    """Assert that each rank has what the collective means, whatever the order of steps."""
    data = [rng.randbytes(place_before(call, rank).size) for rank in range(call.ranks)]
    for choice in (first, lambda count: count - 1, rng.randrange, rng.randrange):
        outputs = run_call(call, schedule, data, choice)
        for rank, parts in enumerate(expected(call, data)):
            for extent, value in parts.items():
                got = outputs[rank][extent.offset : extent.end]
                assert got == value, (schedule.name, call.kind, call.ranks, rank, extent)


def bytes_sent(schedule: Schedule) -> list[int]:
    """Return the bytes that each rank sends."""
    return [sum(s.extent.size for s in steps if s.kind == "send") for steps in schedule.steps]


def bytes_received(schedule: Schedule) -> list[int]:
    """Return the bytes that each rank receives."""
    kinds = {"receive", "receive_add"}
    return [sum(s.extent.size for s in steps if s.kind in kinds) for steps in schedule.steps]


def bytes_by_phase(schedule: Schedule) -> Counter[str]:
    """Return the bytes that are sent in each phase."""
    count: Counter[str] = Counter()
    for steps in schedule.steps:
        for step in steps:
            if step.kind == "send":
                count[step.phase] += step.extent.size
    return count


@pytest.mark.parametrize(("algorithm", "kind"), CASES, ids=lambda case: getattr(case, "name", case))
def test_laws_hold_for_any_number_of_ranks(
    algorithm: CollectiveSchedule, kind: CollectiveKind
) -> None:
    rng = Random(f"{algorithm.name} {kind}")
    for ranks in RANKS:
        if algorithm is HALVING_DOUBLING and kind != "all_reduce" and ranks & (ranks - 1):
            continue
        for call in calls(kind, ranks, rng):
            check_laws(algorithm, call, rng)


def servers_of(ranks: int, width: int) -> tuple[int, ...]:
    return tuple(rank // width for rank in range(ranks))


def light(
    servers: Sequence[int], pairs: Sequence[tuple[int, int]], count: int
) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    """Return circuits of pairs of servers; circuit c ends at ranks c of the servers."""
    first = [servers.index(server) for server in range(max(servers) + 1)]
    return {
        (a, b): tuple((first[a] + c, first[b] + c) for c in range(count))
        for pair in pairs
        for a, b in (pair, pair[::-1])
    }


@pytest.mark.parametrize("algorithm", [MIXNET, HIERARCHICAL, RING, MULTI_RING, TREE])
@pytest.mark.parametrize(("ranks", "width"), [(4, 2), (6, 3), (9, 3), (12, 4), (16, 8), (7, 1)])
def test_laws_hold_with_several_ranks_a_server(
    algorithm: CollectiveSchedule, ranks: int, width: int
) -> None:
    rng = Random(ranks)
    servers = servers_of(ranks, width)
    pairs = [(a, b) for a in range(max(servers) + 1) for b in range(a) if rng.random() < 0.6]
    for kind in algorithm.kinds:
        for call in calls(kind, ranks, rng):
            circuits = light(servers, pairs, min(2, width))
            eps = tuple(rank for rank in range(ranks) if rank % width == width - 1)
            check_laws(
                algorithm, replace(call, servers=servers, circuits=circuits, eps_ranks=eps), rng
            )


def test_mixnet_takes_ranks_in_any_order_and_servers_of_any_size() -> None:
    rng = Random(5)
    for _ in range(5):
        servers = tuple(rng.randrange(3) for _ in range(9))
        call = Call("all_to_all", uneven(rng, 9), 9, servers=servers, eps_ranks=(0, 4, 7))
        check_laws(MIXNET, call, rng)


def test_chunked_buffers_obey_the_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moefabric.workload.collectives.tree.LEAST_CHUNK", 64)
    size = 3 * 64 + 4
    for algorithm in (CHAIN, TREE):
        for kind in algorithm.kinds:
            check_laws(algorithm, Call(kind, ((size,),), 5, root=3), Random(1))


LEAST = [
    (algorithm, ranks)
    for algorithm in (RING, MULTI_RING, HALVING_DOUBLING, DIRECT)
    for ranks in (2, 3, 4, 8, 16)
    if algorithm is not HALVING_DOUBLING or ranks != 3  # pairs of ranks send whole buffers
]


@pytest.mark.parametrize(("algorithm", "ranks"), LEAST)
def test_reductions_send_the_least_bytes(algorithm: CollectiveSchedule, ranks: int) -> None:
    size = 4 * 720720  # divisible by all ranks and rings
    kinds: dict[CollectiveKind, int] = {"all_reduce": 2, "reduce_scatter": 1}
    for kind, rounds in kinds.items():
        schedule = schedule_call(algorithm, Call(kind, ((size,),), ranks))
        each = rounds * (ranks - 1) * size // ranks
        assert bytes_sent(schedule) == bytes_received(schedule) == [each] * ranks


@pytest.mark.parametrize("algorithm", [RING, MULTI_RING, HALVING_DOUBLING, DIRECT])
def test_all_gather_sends_each_shard_to_all_others(algorithm: CollectiveSchedule) -> None:
    schedule = schedule_call(algorithm, Call("all_gather", ((840,),), 8))
    assert bytes_sent(schedule) == bytes_received(schedule) == [7 * 840] * 8


def test_double_tree_sends_both_halves_twice_at_most() -> None:
    size = 1 << 20
    for ranks in (2, 5, 8, 13, 16):
        schedule = schedule_call(TREE, Call("all_reduce", ((size,),), ranks))
        sent = bytes_sent(schedule)
        assert sum(sent) == 2 * (ranks - 1) * size  # each tree's links carry its half up and down
        assert max(sent) <= 2.5 * size
        assert sent == bytes_received(schedule)


def test_no_rank_is_an_inner_node_of_both_trees() -> None:
    for ranks in range(2, 40):
        inner = [
            {parent for rank in range(ranks) if (parent := tree(rank)) is not None}
            for tree in double_tree(ranks)
        ]
        roots = [
            next(rank for rank in range(ranks) if tree(rank) is None) for tree in double_tree(ranks)
        ]
        assert roots[0] != roots[1]
        assert inner[0] & inner[1] <= set(roots)
        for tree in double_tree(ranks):
            children = [sum(tree(r) == parent for r in range(ranks)) for parent in range(ranks)]
            assert max(children) <= 2


def test_broadcast_and_reduce_send_each_byte_once_to_each_other_rank() -> None:
    for algorithm in (CHAIN, TREE, DIRECT):
        kinds: tuple[CollectiveKind, ...] = ("broadcast", "reduce")
        for kind in kinds:
            sent = bytes_sent(schedule_call(algorithm, Call(kind, ((1 << 20,),), 7, root=2)))
            assert sum(sent) == 6 << 20


def test_all_to_alls_send_what_ranks_owe() -> None:
    sizes = uneven(Random(3), 8)
    for algorithm in (DIRECT, PAIRWISE, WindowedAllToAll()):
        schedule = schedule_call(algorithm, Call("all_to_all", sizes, 8))
        owed = [sum(row) - row[rank] for rank, row in enumerate(sizes)]
        assert bytes_sent(schedule) == owed


def most_in_flight(schedule: Schedule, rank: int) -> int:
    """Return how many sends may be in flight at once: none of them waits for another."""
    sends = [step for step in schedule.steps[rank] if step.kind == "send"]
    by_number = {step.number: step for step in schedule.steps[rank]}

    def depth(step: Step) -> int:
        return 1 + max(
            (depth(by_number[n]) for n in step.after if by_number[n] in sends), default=0
        )

    rounds = [depth(step) for step in sends]
    return max(rounds.count(each) for each in set(rounds))


@pytest.mark.parametrize(("window", "most"), [(1, 1), (2, 2), (5, 5), (None, 8)])
def test_window_bounds_the_rounds_in_flight(window: int | None, most: int) -> None:
    sizes = ((3,) * 9,) * 9
    schedule = schedule_call(WindowedAllToAll(window), Call("all_to_all", sizes, 9))
    assert {most_in_flight(schedule, rank) for rank in range(9)} == {most}


def test_rings_of_single_servers_share_no_link() -> None:
    call = Call("all_reduce", ((400,),), 10)
    orders = ring_orders(call, 8)
    links = [
        {(a, b) for a, b in zip(order, (*order[1:], order[0]), strict=True)} for order in orders
    ]
    assert len(orders) == 4  # strides 1, 3, 7, 9
    assert len(set.union(*links)) == 4 * 10


def test_rings_enter_and_leave_servers_by_other_ranks() -> None:
    call = Call("all_reduce", ((400,),), 12, servers=servers_of(12, 4))
    orders = ring_orders(call, 8)
    crossings = [
        {a for a, b in zip(order, (*order[1:], order[0]), strict=True) if a // 4 != b // 4}
        for order in orders
    ]
    assert len(orders) == 4
    assert set.union(*crossings) == set(range(12))
    assert all(len(ranks) == 3 for ranks in crossings)


def mixnet_call() -> Call:
    """Return figure 8 of the paper: four servers of four GPUs, an EP group of 16."""
    servers = servers_of(16, 4)
    circuits = {
        (a, b): ends
        for (one, two), pairs in {(0, 2): ((2, 9),), (1, 3): ((5, 14), (6, 13))}.items()
        for a, b, ends in ((one, two, pairs), (two, one, tuple((y, x) for x, y in pairs)))
    }
    sizes = ((8,) * 16,) * 16
    return Call(
        "all_to_all", sizes, 16, servers=servers, circuits=circuits, eps_ranks=(3, 7, 11, 15)
    )


def crossing(schedule: Schedule) -> dict[tuple[int, int], tuple[str, int]]:
    return {
        (rank, step.peer): (step.via, step.extent.size)
        for rank, steps in enumerate(schedule.steps)
        for step in steps
        if step.kind == "send" and step.phase == "inter-host"
    }


def test_mixnet_gathers_to_the_ranks_whose_nics_have_circuits() -> None:
    schedule = schedule_call(MIXNET, mixnet_call())
    messages = crossing(schedule)
    assert messages[2, 9] == messages[9, 2] == ("light", 128)
    # Two circuits between servers 1 and 3 carry half each.
    assert messages[5, 14] == messages[6, 13] == ("light", 64)
    # All others go from the EPS rank to the EPS rank, 16 parts at once.
    assert messages[3, 7] == ("eps", 128)
    assert len(messages) == 2 + 4 + 8
    assert all(
        rank % 4 == 3 and peer % 4 == 3 for (rank, peer), m in messages.items() if m[0] == "eps"
    )


def test_mixnet_sends_between_servers_once_and_overlaps_the_inside() -> None:
    call = mixnet_call()
    schedule = schedule_call(MIXNET, call)
    check_laws(MIXNET, call, Random(1))
    sent = bytes_by_phase(schedule)
    assert sent["inter-host"] == 12 * 16 * 8
    assert sent["intra-host"] == 16 * 3 * 8
    # For a server over one circuit or the EPS, 3 of 4 ranks hand over 4 parts of 8 bytes. Over two
    # circuits, ranks 5 and 6 are delegates of their own parts, ranks 14 and 13 of others' parts.
    assert sent["gather"] == 10 * 3 * 32 + 2 * 32 + 4 * 32
    for rank, steps in enumerate(schedule.steps):
        inside = [s for s in steps if s.phase == "intra-host" and s.kind == "send"]
        numbers = {s.number for s in steps if s.phase in {"inter-host", "scatter"}}
        assert len(inside) == 3, rank
        assert not any(set(s.after) & numbers for s in inside)


def test_hierarchical_sends_one_message_to_each_server() -> None:
    call = Call("all_to_all", ((8,) * 16,) * 16, 16, servers=servers_of(16, 4))
    messages = crossing(schedule_call(HIERARCHICAL, call))
    assert set(messages.values()) == {("", 32)}
    assert set(messages) == {
        (a, b) for a in range(16) for b in range(16) if a % 4 == b % 4 and a != b
    }


def test_barrier_hears_of_every_rank() -> None:
    for ranks in RANKS:
        schedule = schedule_call(DISSEMINATION, Call("barrier", ((0,),), ranks))
        rounds = (ranks - 1).bit_length()
        assert {len(steps) for steps in schedule.steps} == {2 * rounds}
        known = {rank: {rank} for rank in range(ranks)}
        for turn in range(rounds):
            known = {r: known[r] | known[(r - (1 << turn)) % ranks] for r in range(ranks)}
        assert all(len(heard) == ranks for heard in known.values())
        for steps in schedule.steps:
            sends = [step for step in steps if step.kind == "send"]
            receives = [step for step in steps if step.kind == "receive"]
            for turn, send in enumerate(sends):
                assert {step.number for step in receives[:turn]} <= set(send.after)


def test_every_collective_has_a_default() -> None:
    assert set(DEFAULTS) == set(COLLECTIVES)
    assert all(kind in algorithm.kinds for kind, algorithm in DEFAULTS.items())


def test_cut_keeps_numbers_whole() -> None:
    parts = cut(Extent("output", 8, 30), 4, 4)
    assert [part.size for part in parts] == [8, 8, 8, 6]
    assert [part.offset for part in parts] == [8, 16, 24, 32]


FAULTS: list[tuple[CollectiveSchedule, Call, str]] = [
    (HALVING_DOUBLING, Call("reduce_scatter", ((24,),), 6), "6 ranks are no power of two"),
    (RING, Call("broadcast", ((24,),), 6), "it has no broadcast, only all_reduce"),
    (RING, Call("all_reduce", ((10,),), 2), "10 bytes are not whole numbers of 4 bytes"),
    (RING, Call("all_reduce", ((-4,),), 2), "a size is negative"),
    (RING, Call("all_reduce", ((4, 4),), 2), "not one row with one number"),
    (RING, Call("all_reduce", ((4,),), 0), "it has no ranks"),
    (CHAIN, Call("broadcast", ((4,),), 2, root=2), "root 2 is not one of 2 ranks"),
    (DIRECT, Call("all_to_all", ((4, 4),), 2), "not 2 rows of 2 numbers"),
    (RING, Call("all_reduce", ((4,),), 2, servers=(0,)), "1 servers are given for 2 ranks"),
    (
        HIERARCHICAL,
        Call("all_to_all", ((1,) * 3,) * 3, 3, servers=(0, 0, 1)),
        "each server needs the same number of ranks",
    ),
    (
        HIERARCHICAL,
        Call("all_to_all", ((1,) * 4,) * 4, 4, servers=(0, 1, 0, 1)),
        "with neighbouring numbers",
    ),
]


@pytest.mark.parametrize(("algorithm", "call", "fault"), FAULTS, ids=[f[2] for f in FAULTS])
def test_impossible_calls_are_refused(
    algorithm: CollectiveSchedule, call: Call, fault: str
) -> None:
    with pytest.raises(SpecError, match=re.escape(fault)):
        schedule_call(algorithm, call)


@pytest.mark.parametrize("make", [lambda: Ring(0), lambda: WindowedAllToAll(0)])
def test_algorithms_that_move_nothing_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(SpecError):
        make()


def test_schedules_are_entry_points() -> None:
    assert {*DEFAULTS.values()} <= {*BUILT_IN.values()}
    assert all(algorithm.name == name for name, algorithm in BUILT_IN.items())
