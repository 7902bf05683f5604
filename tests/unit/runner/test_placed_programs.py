import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.units import Scale
from moefabric.runner.placed_programs import (
    PathChoice,
    PlacedProgram,
    ProgramModel,
    ProgramScale,
    RankPlacement,
)
from moefabric.workload.collectives.built_in import BUILT_IN, DEFAULTS
from moefabric.workload.collectives.program import RankPlaces, lower
from moefabric.workload.collectives.timing import FabricNetwork, predict
from moefabric.workload.execution_graph import ExecutionGraph, Node
from tests.support.fabrics import MESH, fabric


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
    placed = PlacedProgram(
        program, PathChoice(fabric(), placement, lit), ProgramScale.on(Scale(), 1.0)
    )
    network = FabricNetwork(
        fabric(), lit, tuple(zip(placement.servers, placement.gpus, strict=True))
    )
    seconds = predict(program, network).seconds
    assert ProgramModel(placed, greedy=True).seconds == pytest.approx(seconds, rel=0.01)


def test_messages_whose_place_is_free_are_granted_beforehand() -> None:
    graph = ExecutionGraph({rank: exchange(rank) for rank in range(2)})
    placement = RankPlacement(("s0", "s1"), (0, 0))
    placed = PlacedProgram(
        lower(graph, {}), PathChoice(fabric(), placement), ProgramScale.on(Scale(), 1.0)
    )
    for [rank] in placed.requests().values():
        assert [step.get("granted") for step in rank["steps"]] == [True, None, True]


def test_mixnet_sends_by_circuits_where_there_are_any_and_by_the_eps_elsewhere() -> None:
    placement = RankPlacement.spread(fabric(), 32)
    lit = CircuitSet.of(MESH[:3])  # from s0 to all others
    paths = PathChoice(fabric(), placement, lit)
    size = 32 * 4096
    nodes = (Node(0, "collective", collective="all_to_all", size=size),)
    graph = ExecutionGraph(dict.fromkeys(range(32), nodes))
    program = lower(graph, {"all_to_all": BUILT_IN["mixnet"]}, paths.rank_places)
    placed = PlacedProgram(program, paths, ProgramScale.on(Scale(), 1.0))
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
