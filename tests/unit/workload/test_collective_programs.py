from random import Random

import pytest

from moefabric.core.errors import SpecError
from moefabric.workload.collectives.built_in import DEFAULTS
from moefabric.workload.collectives.program import (
    NO_TRANSFER,
    Program,
    RankPlaces,
    lower,
    transfers,
)
from moefabric.workload.collectives.schedule import Extent, Schedule, Step
from moefabric.workload.graphs.execution_graph import WORLD, CollectiveKind, ExecutionGraph, Node
from tests.support.collective_interpreter import (
    Buffers,
    added,
    execute,
    expected,
    filled,
    first,
    place_before,
)
from tests.support.schedules import BUILT_IN


def collective(
    number: int,
    kind: CollectiveKind,
    size: int,
    *,
    group: str = WORLD,
    splits: tuple[int, ...] = (),
    root: int = 0,
    stream: int = -1,
) -> Node:
    return Node(
        number,
        "collective",
        collective=kind,
        size=size,
        group=group,
        splits=splits,
        root=root,
        stream=stream,
    )


def graph_of_everything() -> ExecutionGraph:
    """Return six ranks in two groups: all collectives on two streams, messages, computation."""
    ranks = {}
    for rank in range(6):
        row = tuple((rank + peer) % 3 * 5 for peer in range(6))
        group = f"g{rank % 2}"
        nodes = [
            collective(1, "all_to_all", sum(row), splits=row, stream=0),
            collective(2, "all_reduce", 52, group=group, stream=1),
            Node(3, "compute", after=(1, 2), duration_s=1e-6),
            collective(4, "broadcast", 20, root=4, stream=0),
            collective(5, "reduce_scatter", 52, group=group, stream=1),
            collective(6, "all_gather", 12, stream=0),
            collective(7, "barrier", 0, stream=0),
            collective(8, "all_to_all", 30, group=group, stream=1),
            collective(9, "reduce", 8, root=5, stream=0),
            collective(10, "gather", 8, root=3, stream=0),
            collective(11, "scatter", 24, root=1, stream=0),
            Node(12, "send", peer=(rank + 1) % 6, size=9 + rank, tag=7, stream=2),
            Node(13, "receive", peer=(rank - 1) % 6, size=9 + (rank - 1) % 6, tag=7, stream=2),
        ]
        ranks[rank] = tuple(nodes)
    return ExecutionGraph(ranks, {"g0": (4, 0, 2), "g1": (1, 3, 5)})


def buffers_of(
    program: Program, rng: Random
) -> tuple[dict[tuple[int, int], Buffers], list[list[bytes]]]:
    """Return random buffers of each call and rank, and what each rank gives."""
    buffers: dict[tuple[int, int], Buffers] = {}
    data: list[list[bytes]] = []
    for number, call in enumerate(program.calls):
        data.append([])
        for index, rank in enumerate(call.ranks):
            given = rng.randbytes(place_before(call.call, index).size)
            buffers[number, rank] = filled(call.call, call.schedule, index, given)
            data[-1].append(given)
    return buffers, data


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("width", [1, 2, 3])
def test_programs_run_right_in_any_order(seed: int, width: int) -> None:
    rng = Random(seed)
    places = RankPlaces(tuple(rank // width for rank in range(6)))
    schedules = dict(DEFAULTS) | {
        "all_to_all": BUILT_IN[rng.choice(["direct", "pairwise", "mixnet"])],
        "all_reduce": BUILT_IN[rng.choice(["ring", "tree", "multi-ring", "halving-doubling"])],
        "broadcast": BUILT_IN[rng.choice(["tree", "chain"])],
    }
    program = lower(graph_of_everything(), schedules, places)
    buffers, data = buffers_of(program, rng)
    execute(program, buffers, rng.randrange)
    for number, call in enumerate(program.calls):
        results = expected(call.call, data[number])
        for index, rank in enumerate(call.ranks):
            for extent, value in results[index].items():
                got = bytes(buffers[number, rank].get("output", b""))[extent.offset : extent.end]
                assert got == value, (call.call.kind, rank)


def test_calls_take_groups_roots_and_splits() -> None:
    program = lower(graph_of_everything(), DEFAULTS)
    assert program.ranks == 6
    by_kind = {(call.call.kind, call.ranks): call.call for call in program.calls}
    assert by_kind["all_reduce", (4, 0, 2)].size == 52
    assert by_kind["all_to_all", (1, 3, 5)].sizes == ((10, 10, 10),) * 3
    assert by_kind["reduce", (0, 1, 2, 3, 4, 5)].root == 5
    assert by_kind["all_to_all", (5, 0)].sizes == ((0, 14), (0, 0))
    assert by_kind["all_to_all", (0, 1, 2, 3, 4, 5)].sizes[2] == (10, 0, 5, 10, 0, 5)


def test_calls_of_equal_sizes_share_a_schedule() -> None:
    nodes = tuple(collective(n, "all_reduce", 400) for n in range(50))
    program = lower(ExecutionGraph(dict.fromkeys(range(4), nodes)), DEFAULTS)
    assert len(program.calls) == 50
    assert len({id(call.schedule) for call in program.calls}) == 1
    numbers = {
        step.transfer for rank in range(4) for step in program.steps(rank) if step.kind == "send"
    }
    assert numbers == set(range(50 * 4 * 6))


def test_operations_follow_streams_and_dependencies() -> None:
    nodes = (
        Node(5, "compute", after=(9,), duration_s=1.0, stream=1),
        Node(7, "compute", duration_s=2.0, stream=1),
        Node(9, "compute", duration_s=3.0),
    )
    program = lower(ExecutionGraph({0: nodes}), {})
    assert [(o.node, o.after, o.duration_s) for o in program.operations[0]] == [
        (9, (), 3.0),
        (5, (0,), 1.0),
        (7, (1,), 2.0),
    ]


def test_steps_join_calls_and_number_transfers() -> None:
    nodes = (
        collective(0, "all_to_all", 12),
        Node(1, "compute", after=(0,), duration_s=1.0),
        collective(2, "all_to_all", 12),
    )
    program = lower(ExecutionGraph(dict.fromkeys(range(3), nodes)), DEFAULTS)
    steps = list(program.steps(1))
    assert [step.number for step in steps] == list(range(len(steps)))
    kinds = [step.kind for step in steps]
    assert kinds == ["copy", "send", "receive", "send", "receive", "compute", "compute", *kinds[:6]]
    assert steps[5].after == (0, 1, 2, 3, 4)
    assert (steps[6].after, steps[6].duration_s) == ((5,), 1.0)
    assert all(step.after == () for step in steps[7:12])  # nothing orders the second call
    everything = [step for rank in range(3) for step in program.steps(rank)]
    sent = sorted(step.transfer for step in everything if step.kind == "send")
    received = sorted(step.transfer for step in everything if step.kind == "receive")
    assert sent == received == list(range(12))
    assert all(
        (step.transfer == NO_TRANSFER) == (step.kind in {"copy", "compute"}) for step in everything
    )


def test_reductions_of_a_ring_wait_for_no_step_of_their_call_and_its_receives_do() -> None:
    nodes = (
        Node(0, "compute", duration_s=1.0, stream=0),
        collective(1, "all_reduce", 64, stream=0),
    )
    steps = list(lower(ExecutionGraph(dict.fromkeys(range(4), nodes)), DEFAULTS).steps(0))
    waits = {
        (step.kind, any(steps[number].call == step.call for number in step.after))
        for step in steps
        if step.kind in {"receive", "receive_add"}
    }
    assert waits == {("receive_add", False), ("receive", True)}


def test_impossible_graphs_and_missing_schedules_are_errors() -> None:
    lonely = ExecutionGraph({0: (Node(0, "send", peer=1, size=4),), 1: ()}, name="lonely")
    with pytest.raises(SpecError, match="lonely: messages from rank 0 to 1"):
        lower(lonely, DEFAULTS)
    with pytest.raises(SpecError, match="group world: no schedule is given for all_reduce"):
        lower(ExecutionGraph({0: (collective(0, "all_reduce", 4),)}), {})
    own = (Node(0, "send", peer=0, size=4), Node(1, "receive", peer=0, size=4))
    with pytest.raises(SpecError, match="rank 0, operation 0: a rank does not send"):
        lower(ExecutionGraph({0: own}), {})


def test_different_sizes_are_noted_and_odd_numbers_add_as_bytes() -> None:
    graph = ExecutionGraph(
        {0: (collective(0, "all_reduce", 6),), 1: (collective(0, "all_reduce", 10),)}
    )
    program = lower(graph, DEFAULTS)
    assert program.calls[0].call.size == 10
    assert program.calls[0].call.element == 2
    assert program.notes == (
        "Ranks give different sizes of an all_reduce; the largest one is taken.",
    )


def test_unmatched_sends_are_an_error() -> None:
    place = Extent("output", 0, 4)
    steps = ((Step(0, "send", place, 1),), ())
    with pytest.raises(SpecError, match="schedule wrong: the sends of rank 0 to rank 1"):
        transfers(Schedule("wrong", steps, ({"output": 4}, {"output": 4})))


def test_execution_names_deadlocks() -> None:
    nodes = {
        rank: (
            Node(0, "receive", peer=1 - rank, size=4, stream=0),
            Node(1, "send", peer=1 - rank, size=4, stream=0),
        )
        for rank in range(2)
    }
    program = lower(ExecutionGraph(nodes), {})
    buffers, _ = buffers_of(program, Random(1))
    with pytest.raises(SpecError, match="4 steps wait for each other"):
        execute(program, buffers, first)


def test_numbers_add_without_their_overflow() -> None:
    assert added(bytes([255, 1, 255, 255]), bytes([1, 2, 1, 0]), 2) == bytes([0, 4, 0, 0])
