"""Durations of operations in a replay, from the ends of steps alone."""

import shlex
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from moefabric.api.fabric import load_fabric
from moefabric.core.eps import Eps
from moefabric.core.errors import SpecError
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import Scale
from moefabric.execution.programs.placed_programs import (
    MessagePaths,
    PlacedProgram,
    ProgramModel,
    RankPlacement,
)
from moefabric.execution.programs.program_fabric import ProgramFabric
from moefabric.execution.programs.program_results import ProgramResult
from moefabric.execution.programs.replay import (
    OperationTimes,
    ReplayOptions,
    ReplayResult,
    TraceReplay,
    operation_spans,
    operation_times,
    replayed_operations,
)
from moefabric.traces.formats import read_trace
from moefabric.ui.cli.collectives import replay, replay_lines
from moefabric.workload.collectives.built_in import DEFAULTS
from moefabric.workload.collectives.program import lower
from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node
from tests.support.paths import REPOSITORY

FABRIC = Fabric("lab", (Region("r0", 0, ("s0", "s1"), None),), 1, 0, 1, 8e9, Eps(2))
SIZE = 1_000_000


@pytest.fixture
def placed() -> PlacedProgram:
    """Rank 0 computes 1 ms and rank 1 computes 3 ms; then both exchange 1 MB."""
    exchange = Node(1, "collective", "exchange", (0,), collective="all_to_all", size=2 * SIZE)
    ranks = {
        rank: (Node(0, "compute", duration_s=seconds), exchange)
        for rank, seconds in enumerate((0.001, 0.003))
    }
    placement = RankPlacement(("s0", "s1"), (0, 0))
    paths = MessagePaths(FABRIC, placement)
    program = lower(ExecutionGraph(ranks), DEFAULTS, paths.rank_places)
    return PlacedProgram(program, paths, Scale())


def test_trace_that_sends_nothing_is_refused() -> None:
    graph = ExecutionGraph({0: (Node(0, "compute", duration_s=1.0),), 1: ()}, name="silent")
    with pytest.raises(SpecError, match="silent: there are no collectives and no messages"):
        replayed_operations(graph)
    exchange = Node(1, "collective", "exchange", (0,), collective="all_to_all", size=2 * SIZE)
    sending = ExecutionGraph(dict.fromkeys((0, 1), (*graph.ranks[0], exchange)), name="first")
    assert replayed_operations(sending) == sending
    with pytest.raises(SpecError, match="first: there are no collectives"):
        replayed_operations(sending, 1)


def test_examples_of_the_help_with_a_shipped_trace_fit_the_shipped_fabric(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(REPOSITORY)
    fabric = load_fabric("examples/fabric.yaml").spec.build()
    planned = 0
    for example in replay.examples:
        given = replay.make_context("replay", shlex.split(example)[2:]).params
        if given["trace"].exists():
            graph = read_trace(given["trace"])
            assert isinstance(graph, ExecutionGraph)
            options = ReplayOptions(ranks=given["ranks"], operations=given["operations"])
            programs = cast(ProgramFabric, SimpleNamespace(fabric=fabric))
            planned += bool(TraceReplay(programs, graph, options).program.calls)
    assert planned >= 1


def test_text_of_a_replay_has_its_scale_and_large_errors_as_ratios() -> None:
    rows = [
        OperationTimes("all_gather", 1, 64.0, 1.44e-4, 1e-6, 143.0, 143.0),
        OperationTimes("all_to_all", 1, 1e9, 1.02, 1.0, 0.02, 0.02),
    ]
    sizes = 0.0, 1e9, 0.0, 0
    result = ReplayResult(
        "moe", "lab", 1, 1, "eps", (1.02,), 1.0, 1.0, tuple(rows), *sizes, 0.2, 8.0, ()
    )
    lines = replay_lines(result)
    assert lines[0] == "moe: 1 rank on 1 server of lab, bytes 5:1, time 8:1"
    assert [line.split()[-1] for line in lines if line.startswith("all_")] == ["144x", "+2.0%"]
    scaled = replay_lines(replace(result, byte_scale=400.0))
    assert "bytes 1:400, time 8:1" in scaled[0]


@pytest.mark.parametrize("prefix", ["et_", "kineto_"])
def test_trace_of_gloo_has_steps_that_end(prefix: str) -> None:
    graph = read_trace(REPOSITORY / "tests/data/traces/pytorch/gloo" / prefix)
    assert isinstance(graph, ExecutionGraph)
    paths = MessagePaths(FABRIC, RankPlacement(("s0", "s0", "s1", "s1"), (0, 1, 0, 1)))
    program = lower(replayed_operations(graph), DEFAULTS, paths.rank_places)
    model = ProgramModel(PlacedProgram(program, paths, Scale()))
    assert model.seconds > 0
    assert len({call.call.kind for call in program.calls}) == 7


def test_operation_starts_when_its_first_rank_could_start_it(placed: PlacedProgram) -> None:
    spans = operation_spans(placed, ProgramModel(placed).step_ends_s)
    assert spans[0, 0] == pytest.approx((0.0, 0.001))
    assert spans[1, 0] == pytest.approx((0.0, 0.003))
    start_s, end_s = spans[-1, 0]
    assert start_s == pytest.approx(0.001), "rank 0 waits for rank 1 from then on"
    assert 0.004 < end_s < 0.0044, "1 MB at 8 Gb/s, with headers, once rank 1 is there"


def test_equal_ends_give_no_error_and_late_ends_give_theirs(placed: PlacedProgram) -> None:
    model = ProgramModel(placed)

    def times(factor: float) -> dict[str, OperationTimes]:
        ends_s = [[factor * end for end in own] for own in model.step_ends_s]
        result = ProgramResult(
            (), model.seconds, None, (0.0, 0.0), (0.0, 0.0), ends_s, model.step_ends_s
        )
        return {row.kind: row for row in operation_times(placed, result)}

    assert {kind: row.error for kind, row in times(1.0).items()} == {"all_to_all": 0, "compute": 0}
    late = times(1.5)
    assert late["all_to_all"].error == pytest.approx(0.5)
    assert late["all_to_all"].bytes == pytest.approx(2 * SIZE)
    assert (late["compute"].count, late["all_to_all"].count) == (2, 1)
    assert late["compute"].error_p50 == pytest.approx(0.5)
