import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.eps import Eps
from moefabric.core.units import Scale
from moefabric.execution.programs.placed_programs import (
    MessagePaths,
    PlacedProgram,
    ProgramModel,
    RankPlacement,
    _into_untouched_places,
)
from moefabric.execution.programs.rank_requests import program_requests
from moefabric.simulator.fluid import goodput_bps
from moefabric.workload.collectives.built_in import DEFAULTS
from moefabric.workload.collectives.program import ProgramStep, RankPlaces, lower
from moefabric.workload.collectives.schedule import Extent
from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node
from tests.support.collective_timing import FabricNetwork, predict
from tests.support.fabrics import MESH, fabric
from tests.support.schedules import BUILT_IN


def exchange(rank: int) -> tuple[Node, ...]:
    """Return what each of two ranks does: it sends, and then it receives."""
    return (
        Node(0, "send", peer=1 - rank, size=8_000_000, stream=0),
        Node(1, "compute", duration_s=1e-3 * rank, stream=0),
        Node(2, "receive", peer=1 - rank, size=8_000_000, stream=0),
    )


def training(rank: int) -> tuple[Node, ...]:
    """Return an all-reduce beside two all-to-alls and computation."""
    return (
        Node(0, "collective", collective="all_reduce", size=8_000_000, stream=0),
        Node(1, "compute", duration_s=1e-4 * rank, stream=1),
        Node(2, "collective", collective="all_to_all", size=4_000_000, stream=1),
        Node(3, "collective", collective="all_to_all", size=4_000_000, after=(0,), stream=1),
    )


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("circuits", [(), MESH])
def test_models_with_and_without_agents_agree(ranks: int, circuits: tuple[str, ...]) -> None:
    nodes = exchange if ranks == 2 else training
    placement = RankPlacement(("s0", "s0", "s1", "s2")[-ranks:], (0, 1, 0, 0)[-ranks:])
    lit, graph = CircuitSet.of(circuits), ExecutionGraph({r: nodes(r) for r in range(ranks)})
    program = lower(graph, DEFAULTS, RankPlaces(placement.server_numbers))
    placed = PlacedProgram(program, MessagePaths(fabric(), placement, lit), Scale())
    network = FabricNetwork(
        fabric(), lit, tuple(zip(placement.servers, placement.gpus, strict=True))
    )
    seconds = predict(program, network).seconds
    assert ProgramModel(placed, greedy=True).seconds == pytest.approx(seconds, rel=0.01)


def test_messages_whose_place_is_free_are_granted_beforehand() -> None:
    graph = ExecutionGraph({rank: exchange(rank) for rank in range(2)})
    placement = RankPlacement(("s0", "s1"), (0, 0))
    placed = PlacedProgram(lower(graph, {}), MessagePaths(fabric(), placement), Scale())
    requests = program_requests(placed, placed.paces()).values()
    granted = [[step.get("granted") for step in rank["steps"]] for [rank] in requests]
    assert granted == [[True, None, True]] * 2


def test_messages_take_the_nics_of_their_gpus_if_each_has_one() -> None:
    placement = RankPlacement(("s0", "s1"), (3, 6))
    pooled, own = (
        MessagePaths(fabric(0, 4, eps=Eps(4, nic_per_gpu=on)), placement) for on in (False, True)
    )
    assert [path for path, _ in pooled.shares(0, 1, "")] == ["e0", "e1", "e2", "e3"]
    assert own.shares(0, 1, "") == [("e1-3", 1.0)]


def test_mixnet_sends_by_circuits_where_there_are_any_and_by_the_eps_elsewhere() -> None:
    placement = RankPlacement.spread(fabric(), 32)
    lit = CircuitSet.of(MESH[:3])  # from s0 to all others
    paths = MessagePaths(fabric(), placement, lit)
    size = 32 * 4096
    nodes = (Node(0, "collective", collective="all_to_all", size=size),)
    graph = ExecutionGraph(dict.fromkeys(range(32), nodes))
    program = lower(graph, {"all_to_all": BUILT_IN["mixnet"]}, paths.rank_places)
    placed = PlacedProgram(program, paths, Scale())
    pairs = {(src, dst): path[0] for src, dst, path in placed.connections}
    assert {pair for pair, kind in pairs.items() if kind == "o"} == {
        pair for other in ("s1", "s2", "s3") for pair in (("s0", other), (other, "s0"))
    }
    assert set(placed.connections.values()) == {64 * 4096}
    assert len(placed.connections) == len(pairs) == 12
    # Only delegates send to other servers: ranks of NICs o0 to o2, and of e0.
    steps = [step for own in placed.steps for step in own]
    assert {s.phase for s in steps} - {""} == {
        "gather",
        "inter-host",
        "intra-host",
        "scatter",
        "local",
    }
    outside = {
        rank % 8
        for rank, own in enumerate(placed.steps)
        for step in own
        if step.kind == "send" and step.peer // 8 != rank // 8
    }
    assert outside == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("extents", "untouched"),
    [
        pytest.param([(0, 10), (10, 10), (30, 5)], [0, 1, 2], id="side-by-side"),
        pytest.param([(0, 100), (50, 10)], [0], id="within-an-earlier-one"),
        pytest.param([(50, 10), (0, 100)], [0], id="around-an-earlier-one"),
        pytest.param([(0, 10), (20, 10), (5, 20), (12, 3)], [0, 1], id="joins-two"),
        pytest.param([(0, 10), (9, 2), (11, 1), (10, 1)], [0, 2], id="by-one-byte"),
    ],
)
def test_place_is_free_if_no_earlier_step_touches_a_byte_of_it(
    extents: list[tuple[int, int]], untouched: list[int]
) -> None:
    steps = [
        ProgramStep(n, "receive", call=0, extent=Extent("output", *extent), transfer=n)
        for n, extent in enumerate(extents)
    ]
    assert list(_into_untouched_places(steps)) == untouched


def test_messages_of_a_connection_follow_one_another_in_the_model() -> None:
    """The receiver computes as soon as it has the first of two messages."""
    size = 100_000_000
    sender = tuple(Node(n, "send", peer=1, size=size, tag=n) for n in range(2))
    receiver = (
        *(Node(n, "receive", peer=0, size=size, tag=n) for n in range(2)),
        Node(2, "compute", duration_s=1.0, after=(0,)),
    )
    lab, placement = fabric(), RankPlacement(("s0", "s1"), (0, 0))
    program = lower(ExecutionGraph({0: sender, 1: receiver}), {})
    placed = PlacedProgram(program, MessagePaths(lab, placement), Scale())
    first_s = 8 * size / goodput_bps(lab, ("s0/e0", "leaf0"))
    assert ProgramModel(placed, greedy=True).seconds == pytest.approx(1.0 + first_s)
