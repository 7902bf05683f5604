"""Collectives as nccl-tests defines them: sizes, counts and bandwidths."""

from dataclasses import replace

import pytest

from moefabric.core.errors import SpecError
from moefabric.core.units import Scale
from moefabric.execution.programs.perf import (
    KINDS,
    PerfKind,
    PerfResult,
    PerfRow,
    perf_call,
    size_findings,
    sizes_between,
    zipf_weights,
)
from moefabric.execution.programs.placed_programs import (
    MessagePaths,
    PlacedProgram,
    ProgramModel,
    RankPlacement,
    program_scale,
)
from moefabric.execution.programs.program_results import ProgramResult
from moefabric.results.model import FidelityResult
from moefabric.results.verdict.reasons import RunSetting
from moefabric.results.verdict.verdict import judge_program
from moefabric.simulator.fluid import goodput_share
from moefabric.ui.cli.collectives import perf_tail
from moefabric.workload.collectives.built_in import DEFAULTS
from moefabric.workload.collectives.costs import bus_factor, counted_bytes
from moefabric.workload.collectives.program import Program
from moefabric.workload.collectives.schedule import Extent, schedule_call
from moefabric.workload.collectives.tree import chunks_of
from tests.support.fabrics import fabric
from tests.support.schedules import BUILT_IN

MEGABYTE = 1 << 20
WHOLE = Extent("output", 0, 96_000_000)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in {"barrier", "alltoallv"}])
def test_size_is_the_larger_of_a_ranks_buffers(kind: PerfKind) -> None:
    call = perf_call(kind, MEGABYTE, 8)
    assert counted_bytes(call) == MEGABYTE
    assert not list(call.faults())


def test_busiest_rank_of_an_alltoallv_sends_the_size() -> None:
    call = perf_call(
        "alltoallv", MEGABYTE, 4, weights=[[0, 1, 1, 2], [1, 0, 0, 0], [0] * 4, [0] * 4]
    )
    assert [sum(row) for row in call.sizes] == [MEGABYTE, MEGABYTE // 4, 0, 0]
    for own in (zipf_weights(8), list(zip(*zipf_weights(8), strict=True))):
        assert len({round(sum(row), 9) for row in own}) == 1


@pytest.mark.parametrize("weights", [[[1.0]], [[0.0] * 2] * 2, [[1.0, -1.0]] * 2])
def test_impossible_weights_are_a_fault(weights: list[list[float]]) -> None:
    with pytest.raises(SpecError, match="2 rows of 2 numbers are needed"):
        perf_call("alltoallv", MEGABYTE, 2, weights=weights)


def test_sizes_follow_a_factor_or_a_step() -> None:
    assert list(sizes_between(1, 8)) == [1, 2, 4, 8]
    assert list(sizes_between(10, 30, step=10)) == [10, 20, 30]
    assert list(sizes_between(5, 4)) == []


def test_numbers_that_do_not_divide_are_left_out_as_in_nccl_tests() -> None:
    call = perf_call("alltoall", 103, 4)
    assert call.sizes == ((24,) * 4,) * 4


def model_s(kind: PerfKind, size: int, electrical: int = 1, algorithm: str = "") -> float:
    lab = fabric(0, electrical, regions=(4,), scale=Scale(1000))
    placement = RankPlacement.spread(lab, 4)
    call = perf_call(kind, size // 1000, 4)
    schedule = BUILT_IN[algorithm] if algorithm else DEFAULTS[call.kind]
    program = Program.of_call(call, schedule_call(schedule, call))
    scale = program_scale(lab.scale, 1000)
    return ProgramModel(PlacedProgram(program, MessagePaths(lab, placement), scale)).seconds


@pytest.mark.parametrize("kind", ["alltoall", "allreduce", "allgather", "reducescatter"])
def test_bus_bandwidth_of_the_model_is_the_ports_rate(kind: PerfKind) -> None:
    size = 96_000_000
    factor = bus_factor(perf_call(kind, size, 4))
    assert size * factor / model_s(kind, size) == pytest.approx(
        100e9 / 8 * goodput_share(1500), rel=1e-6
    )


def test_broadcast_follows_in_chunks() -> None:
    """A chain of 3 hops takes (chunks + 2) times a chunk, not 3 times the buffer."""
    size = 96_000_000_000
    one_hop_s = 8 * size / 100e9 / goodput_share(1500)
    chunks = len(chunks_of(perf_call("broadcast", size // 1000, 4), WHOLE))
    assert chunks > 3
    expected = one_hop_s * (chunks + 2) / chunks
    assert model_s("broadcast", size) == pytest.approx(expected, rel=1e-3)


def test_messages_are_divided_among_nics() -> None:
    size = 960_000_000
    for kind in ("alltoall", "allreduce"):
        assert model_s(kind, size, 4) == pytest.approx(model_s(kind, size) / 4, rel=1e-3)


@pytest.mark.parametrize("ranks", [0, 5, 33])
def test_ranks_that_can_not_be_spread_are_a_fault(ranks: int) -> None:
    with pytest.raises(SpecError, match=f"{ranks} ranks can't be spread evenly over 4 servers"):
        RankPlacement.spread(fabric(), ranks)


def test_ranks_fill_servers_evenly() -> None:
    placement = RankPlacement.spread(fabric(), 8)
    assert placement.servers == ("s0", "s0", "s1", "s1", "s2", "s2", "s3", "s3")
    assert placement.gpus == (0, 1) * 4
    assert len(RankPlacement.spread(fabric()).servers) == 32


def measured(
    *seconds: float, idle: float = 0.9, paced: bool = False, counted: float = 3e9, wrong: int = 0
) -> FidelityResult:
    """Return the verdict on iterations that the model predicts to take a second."""
    framed, counts = (0.0, 1e9), (0.0, counted)
    runs = ProgramResult(
        seconds, 1.0, wrong, framed, counts, framed_bytes=framed, paced=paced, cpu_idle=[idle]
    )
    setting = RunSetting(option="--seconds", wall_s=2.0)
    return judge_program([*runs.findings()], [*size_findings(64, runs)], [idle], setting)


@pytest.mark.parametrize(
    ("fidelity", "verdict", "reason"),
    [
        pytest.param(measured(1.01, 1.0, 1.01), "pass", None, id="quiet"),
        pytest.param(
            measured(1.3, 1.8, 2.0), "invalid", "median error of 64-byte times", id="slow"
        ),
        pytest.param(measured(1.0, 1.0, 1.12, paced=True), "degraded", "95th perc", id="paced"),
        pytest.param(measured(1.0, 1.0, 1.12), "pass", None, id="tcp-varies"),
        pytest.param(measured(1.0, 1.0, 1.0, idle=0.2), "degraded", "least idle", id="busy"),
        pytest.param(measured(1.12, 1.12, 1.12, idle=0.02), "invalid", "too slow", id="starved"),
        pytest.param(measured(1.0, 1.0, 1.0, counted=2e9), "invalid", "bytes by the", id="astray"),
        pytest.param(measured(1.0, 1.0, 1.0, wrong=7), "invalid", "7 numbers", id="wrong"),
    ],
)
def test_verdict_names_what_is_wrong_with_a_measurement(
    fidelity: FidelityResult, verdict: str, reason: str | None
) -> None:
    assert fidelity.verdict == verdict, fidelity.reasons
    assert any(reason in one for one in fidelity.reasons) if reason else not fidelity.reasons


def test_size_that_is_the_start_of_agents_alone_needs_a_larger_one() -> None:
    remedies = measured(130.0, 134.0).remedies
    assert remedies == [
        "measure larger sizes (-b), as this one lasts less than agents need to start"
    ]


def test_verdict_of_a_measurement_has_its_remedy_in_text_and_json() -> None:
    row = PerfRow(64, 16, 1.6, 1.0, 1.0, 0, 1.0, 1.0, 1.6, 1.6, 1.6, 1.0, 1.0, 0.0)
    result = PerfResult("alltoall", "direct", "lab", 4, 4, "eps", 3, 0, (row,))
    assert result.to_json()["verdict"] == "pass"
    busy = replace(result, fidelity=measured(1.6, 1.6, 1.6))
    lines = [*perf_tail(busy)]
    assert "# Verdict              : invalid" in lines
    assert any("remedy: run it with nothing else on the machine" in line for line in lines)
    assert any("--seconds 8" in line for line in lines), lines
    assert busy.to_json()["findings"]


@pytest.mark.parametrize(("kind", "grants"), [("alltoall", 0), ("allreduce", 1)])
def test_planned_bytes_have_the_frames_of_messages_and_the_grants_of_late_ones(
    kind: PerfKind, grants: int
) -> None:
    lab = fabric(0, 1, regions=(4,))
    placement = RankPlacement.spread(lab, 4)
    call = perf_call(kind, 64 * 400, 4)
    program = Program.of_call(call, schedule_call(DEFAULTS[call.kind], call))
    placed = PlacedProgram(program, MessagePaths(lab, placement), Scale())
    messages, late = len(placed.parts), len(placed.parts.keys() - placed.early)
    assert bool(late) is bool(grants)
    (_, plain), (_, framed) = (placed.bytes_by_network(framed=f) for f in (False, True))
    assert plain == sum(placed.connections.values())
    assert framed == plain + 128 * messages + 64 * late
