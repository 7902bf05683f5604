"""Conversion of a executor's records into model seconds and bytes, whatever the scale."""

import json
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import FailureRecord
from moefabric.core.flows import Flow, FlowRecord
from moefabric.core.topology import Fabric
from moefabric.core.transition import ReconfigurationPhases
from moefabric.core.units import Scale
from moefabric.execution.executor import ControlSettings, Executor, Instruments, RunSettings
from moefabric.planner.mixnet import MIXNET
from moefabric.results.model import FabricResult, RunResult, Verdict
from moefabric.results.records.counted_traffic import CountedTraffic
from moefabric.results.records.records import (
    CircuitChange,
    CollectiveRun,
    IterationRun,
    ReconfigurationRun,
    RunFailures,
)
from moefabric.results.verdict.fabric_result import fabric_result
from moefabric.results.verdict.instants import lateness
from moefabric.results.verdict.iteration_outcome import iteration_flows, outcomes_of
from moefabric.results.verdict.measurements import FabricMeasurements, _link_rate_errors
from moefabric.results.verdict.verdict import judge
from moefabric.simulator.fluid import Prediction
from moefabric.ui.cli.schema import schema_text
from moefabric.workload.iterations.iteration import Collective, Compute, Operation, Reconfigure
from tests.support.fabrics import fabric
from tests.support.memory_testbed import (
    ImmediateExecutor,
    MemoryAgents,
    MemoryController,
    VirtualClock,
)

SERVERS = ("s0", "s1", "s2", "s3")
TENTH = 0.1 * 100e9 / 8 * 1448 / 1514
DEMAND = DemandMatrix(
    SERVERS, [[0.0, TENTH, 0.0, 0.0], [0.0] * 4, [0.0, 0.0, 0.0, TENTH], [0.0, TENTH / 2, 0.0, 0.0]]
)
OPERATIONS: tuple[Operation, ...] = (
    Compute("attention", "forward", 0, (0.010,) * 4),
    Reconfigure("forward", 0, DEMAND),
    Collective("dispatch", "forward", 0, DEMAND),
    Compute("expert", "forward", 0, (0.020, 0.010, 0.010, 0.010)),
    Collective("combine", "forward", 0, DEMAND.combine()),
)


def replayed(
    scale: Scale, iterations: int = 2, steal_ticks: tuple[tuple[int, int], ...] = ()
) -> FabricResult:
    """Return the result of a few iterations in memory; the arguments are those of `replay`."""
    wired, runs = replay(scale, iterations, steal_ticks)
    return fabric_result(wired, "mixnet", "mixnet", runs, cpu_idle=[0.5], remarks=[])


def replay(
    scale: Scale, iterations: int = 2, steal_ticks: tuple[tuple[int, int], ...] = ()
) -> tuple[Fabric, list[IterationRun]]:
    """Replay a few iterations in memory.

    Args:
        scale: Scale of rates, bytes and times.
        iterations: Number of iterations.
        steal_ticks: Stolen and total CPU ticks read before and after the first collectives.
    """
    ticks = chain(steal_ticks, repeat((0, 0)))
    wired = fabric(1, 1, scale=scale, settle_ns=scale.wall_ns(25_000_000))
    clock = VirtualClock(now_ns=10**12)
    light = MemoryController(wired, MIXNET, clock)
    agents = MemoryAgents(wired, lambda: light.lit, clock)
    executor = Executor(
        wired,
        MIXNET,
        agents,
        {"r0": light},
        CircuitSet(),
        settings=RunSettings(arming_ns=6_000_000, control=ControlSettings(control_s=0.0)),
        instruments=Instruments(
            clock=clock,
            background=ImmediateExecutor(),
            cpu_steal=lambda: next(ticks),
            counters=agents.counters,
        ),
    )
    return wired, [executor.iteration(number, OPERATIONS) for number in range(iterations)]


@pytest.mark.parametrize(
    "scale", [Scale(), Scale(500), Scale(1000, 2)], ids=["real-size", "bytes", "dilated"]
)
def test_results_are_in_model_units_at_every_scale(scale: Scale) -> None:
    result = replayed(scale)
    dispatch, combine = result.collectives[:2]
    assert (
        dispatch.measured_s
        == pytest.approx(dispatch.predicted_s, rel=1e-4)
        == pytest.approx(0.1, rel=1e-4)
    )
    assert dispatch.bytes == round(2.5 * TENTH)
    assert (dispatch.bytes_by_light, dispatch.bytes_by_eps) == (
        round(2 * TENTH),
        round(0.5 * TENTH),
    )
    assert dispatch.dark_s == pytest.approx(0.025)
    assert combine.dark_s == 0
    assert result.iterations[0].compute_s == pytest.approx(0.030)
    assert result.reconfigurations[0].settle_s == pytest.approx(0.025)


@pytest.mark.parametrize("scale", [Scale(), Scale(1000, 2)], ids=["real-size", "dilated"])
def test_flows_have_model_units_and_add_up_to_their_collective(scale: Scale) -> None:
    wired, runs = replay(scale, iterations=1)
    flows = [flow for run in runs for flow in iteration_flows(wired, run)]
    dispatch = [flow for flow in flows if flow.kind == "dispatch"]
    assert {(flow.src, flow.dst, flow.iteration, flow.layer) for flow in dispatch} == {
        ("s0", "s1", 0, 0), ("s2", "s3", 0, 0), ("s3", "s1", 0, 0),
    }  # fmt: skip
    collective = replayed(scale, iterations=1).collectives[0]
    assert sum(flow.bytes for flow in dispatch) == pytest.approx(collective.bytes)
    assert min(flow.start_s for flow in dispatch) == 0
    assert max(flow.end_s for flow in dispatch) == pytest.approx(collective.measured_s)
    expected_s = max(flow.predicted_end_s for flow in dispatch)
    assert expected_s == pytest.approx(collective.predicted_s)


def test_predicted_iteration_includes_computation_and_the_wait_for_light() -> None:
    first, second = replayed(Scale()).iterations
    assert first.predicted_s == pytest.approx(0.030 + 0.2 + 0.025)
    assert second.predicted_s == pytest.approx(0.030 + 0.2), "the circuits are lit already"
    assert first.measured_s == pytest.approx(0.030 + 0.2 + 0.025)
    assert first.exposed_comm_s == pytest.approx(0.2 + 0.025)
    assert first.harness_s == pytest.approx(0.006), "to start agents"


def test_result_is_json_with_the_documented_names() -> None:
    result = replayed(Scale(), iterations=1)
    document = json.loads(json.dumps(result.to_json()))
    assert document.keys() >= {
        "fabric", "policy", "iterations", "collectives", "reconfigurations", "integrity",
        "fidelity",
    }  # fmt: skip
    assert document["iterations"][0].keys() >= {
        "measured_s", "predicted_s", "compute_s", "exposed_comm_s",
    }  # fmt: skip
    assert document["collectives"][0].keys() >= {
        "iteration", "layer", "kind", "measured_s", "predicted_s", "bytes", "bytes_by_light",
        "bytes_by_eps", "dark_s",
    }  # fmt: skip
    assert document["reconfigurations"][0].keys() >= {
        "region", "reason", "circuits_before", "circuits_after", "demand_s", "plan_s", "divert_s",
        "command_s", "settle_s", "verify_s", "admit_s", "total_s",
    }  # fmt: skip
    assert document["reconfigurations"][0]["circuits_after"] == ["s0/o0~s1/o0", "s2/o0~s3/o0"]
    integrity = result.integrity
    assert integrity.bytes_sent == integrity.bytes_received == pytest.approx(2 * 2.5 * TENTH)
    assert (integrity.corrupt, integrity.lost_transfers) == (0, 0)
    assert (
        document["fidelity"]["reasons"][-1]
        == "2 collectives were judged; a 95th percentile needs 20"
    )
    assert document["fidelity"]["completion_error_p95"] < 1e-3


def test_json_of_a_result_is_read_back_as_the_same_result() -> None:
    result = replayed(Scale(), iterations=2)
    assert FabricResult.model_validate(json.loads(json.dumps(result.to_json()))) == result


def test_run_with_the_result_conforms_to_the_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    run = RunResult(experiment="e", verdict=Verdict.PASS, results=[replayed(Scale(1000, 2))])
    schema = json.loads(schema_text("run"))
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(run.to_json())))


def test_timeline_is_of_the_last_iteration_with_a_change_of_circuits() -> None:
    timeline = replayed(Scale(), iterations=2).timeline
    assert {interval.iteration for interval in timeline} == {0}, "the second needs no change"
    assert min(interval.start_s for interval in timeline) == 0
    assert [interval.kind for interval in timeline if interval.server == "s3"] == [
        "attention", "reconfiguration", "dark", "dispatch", "expert", "combine",
    ]  # fmt: skip


def test_iteration_changes_circuits_if_any_of_its_reconfigurations_does() -> None:
    [outcome] = outcomes_of(*replay(Scale(), iterations=1))
    [moved] = outcome.reconfigurations
    kept = moved.model_copy(update={"circuits_before": moved.circuits_after})
    for changes, has_changed in (([moved, kept], True), ([kept], False), ([], False)):
        update = {"reconfigurations": changes}
        assert outcome.model_copy(update=update).changed_circuits is has_changed


def test_run_without_transfers_is_invalid() -> None:
    idle = IterationRun(0, 0, end_ns=10)
    result = fabric_result(fabric(), "f", "mixnet", [idle], cpu_idle=[], remarks=[])
    assert result.fidelity.verdict is Verdict.INVALID


def record(src: str, path: str, size: int, end_ns: int) -> FlowRecord:
    return FlowRecord(1, src, "s3", path, size, size, None, 100, end_ns, 150, end_ns, 0, ok=True)


@pytest.mark.parametrize(
    ("records", "errors"),
    [
        pytest.param([record("s0", "o0", 11955, 1100)], [0.0], id="as-planned"),
        pytest.param([record("s0", "o0", 11955, 2100)], [-0.5], id="half-rate"),
        pytest.param(
            [record("s0", "o0", 11955, 1100), record("s1", "o0", 11238, 600)],
            [0.0],
            id="not-full-is-ignored",
        ),
        pytest.param(
            [record("s0", "o0", 11955, 1100), record("s1", "o0", 11477, 600)],
            [0.0, 1.0],
            id="nearly-full-counts",
        ),
        pytest.param(
            [record("s0", "o0", 5978, 600), record("s0", "o0", 5978, 1100)],
            [0.0],
            id="flows-share-a-nic",
        ),
        pytest.param(
            [record("s0", "e0", 5978, 600), record("s1", "e0", 5978, 1100)],
            [0.0],
            id="flows-share-a-receiving-nic",
        ),
        pytest.param([record("s0", "o0", 11955, 100)], [], id="no-duration"),
    ],
)
def test_link_rate_errors_compare_full_links_with_their_planned_rate(
    records: list[FlowRecord], errors: list[float]
) -> None:
    """A NIC of 100 Gb/s carries 11,955 bytes of payload in a microsecond."""
    operation = Collective("dispatch", "forward", 0, DEMAND)
    planned = Prediction(1000e-9, (), None, {})
    flows = tuple(Flow(r.src, r.dst, r.path, r.bytes) for r in records)
    flows_s = (1000e-9,) * len(flows)
    run = CollectiveRun(0, operation, planned, flows, tuple(records), 0, flows_s=flows_s)
    assert [item.error for item in _link_rate_errors(fabric(), run)] == pytest.approx(errors)


def test_collectives_with_cpu_steal_are_reported_but_not_judged() -> None:
    result = replayed(Scale(), steal_ticks=((0, 100), (10, 200)))
    assert [c.cpu_steal for c in result.collectives] == [0.1, 0, 0, 0]
    assert result.fidelity.disturbed == 0.25
    assert result.fidelity.completion_errors["collective"].n == 3
    quiet = replayed(Scale(), steal_ticks=((0, 100), (3, 200)))
    assert quiet.fidelity.disturbed == 0, "a share of 0.03 is tolerated"


def test_lateness_compares_only_senders_with_a_common_start() -> None:
    """Flows that wait for light have a start of their own."""
    operation = Collective("dispatch", "forward", 0, DEMAND)
    now = [record("s0", "e0", 1000, 1100), record("s1", "e0", 1000, 1100)]
    later = [replace(record("s2", "o0", 1000, 1100), collective=2, first_received_ns=600)]
    run = CollectiveRun(0, operation, Prediction(1e-6, (), None, {}), (), (*now, *later), 0)
    assert lateness(run)[1] == 0
    late = replace(run, records=(*now, replace(later[0], collective=1)))
    assert lateness(late)[1] == pytest.approx(0.45)


@pytest.mark.parametrize("stolen", [0, 3])
def test_collectives_under_steal_are_left_out_whether_or_not_it_did_harm(stolen: int) -> None:
    ticks = [(0, 100), (stolen and 100, 200)] * 3
    result = replayed(Scale(), iterations=12, steal_ticks=tuple(ticks))
    assert result.fidelity.disturbed == pytest.approx(stolen / 24)
    assert result.fidelity.completion_errors["collective"].n == 24 - stolen


DARK, LIT = CircuitSet.of(["s0/o0~s1/o0"]), CircuitSet.of(["s2/o0~s3/o0"])
REFUSED, WITHOUT_LIGHT = {"error": "ocs0 refuses"}, {"dark": DARK}


def failed(kind: str, what: str, injected_ns: int, cleared_ns: int | None = None) -> FailureRecord:
    return FailureRecord(FailureKind(kind), (what,), injected_ns, cleared_ns=cleared_ns)


REFUSAL = "1 of {} reconfigurations failed (r0: ocs0 refuses)"


@pytest.mark.parametrize(
    ("outcomes", "failures", "reasons"),
    [
        pytest.param([{}, {}], (), [], id="as-requested"),
        pytest.param([{}, REFUSED], (), [REFUSAL.format(2)], id="refused"),
        pytest.param(
            [WITHOUT_LIGHT, {}],
            (),
            ["1 of 2 reconfigurations left circuits dark (r0: no light on s0/o0~s1/o0)"],
            id="dark",
        ),
        pytest.param(
            [REFUSED, WITHOUT_LIGHT], (failed("ocs", "ocs0", 0),), [], id="ocs-without-power"
        ),
        pytest.param(
            [{}, REFUSED, {}], (failed("nic", "s1/o0", 15, 17),), [], id="nic-failed-meanwhile"
        ),
        pytest.param(
            [{}, REFUSED, {}], (failed("nic", "s1/o0", 5, 7),), [], id="first-after-the-failure"
        ),
        pytest.param(
            [{}, {}, REFUSED],
            (failed("nic", "s1/o0", 5, 7),),
            [REFUSAL.format(3)],
            id="second-after-the-failure",
        ),
        pytest.param(
            [{}, REFUSED, {}],
            (failed("nic", "s1/o0", 25),),
            [REFUSAL.format(3)],
            id="before-the-failure",
        ),
        pytest.param(
            [{}, REFUSED, {}],
            (failed("ocs", "ocs7", 0), failed("server", "s9", 0), failed("controller", "r7", 0)),
            [REFUSAL.format(3)],
            id="failures-of-other-regions",
        ),
        pytest.param(
            [{}, REFUSED, {}],
            (failed("gpu", "s1/0", 0),),
            [REFUSAL.format(3)],
            id="death-of-a-rank",
        ),
        pytest.param(
            [{}, REFUSED, REFUSED, {}],
            (failed("controller", "r0", 12),),
            [],
            id="until-a-killed-controller-is-back",
        ),
        pytest.param(
            [{}, REFUSED, {}, {}, REFUSED],
            (failed("controller", "r0", 12),),
            [REFUSAL.format(4)],
            id="once-a-killed-controller-is-back",
        ),
    ],
)
def test_reconfigurations_that_failed_or_left_circuits_dark_are_reasons(
    outcomes: list[dict[str, Any]], failures: tuple[FailureRecord, ...], reasons: list[str]
) -> None:
    wired = fabric()
    phases, reconfigure = ReconfigurationPhases(total_s=1.0), Reconfigure("forward", 0, DEMAND)
    changes = [
        ReconfigurationRun(
            0, reconfigure, CircuitChange(LIT, LIT, phases, **outcome), 10 * place, 10 * place + 9
        )
        for place, outcome in enumerate(outcomes)
    ]
    run = IterationRun(0, 0, reconfigurations=changes)
    known = RunFailures(failures).with_plans_of([run])
    measured = FabricMeasurements.of(wired, run, known, CountedTraffic(wired, ()), set())
    found = judge(measured).reasons
    assert [reason for reason in found if "reconfigurations" in reason] == reasons


@pytest.mark.parametrize("requests", [1, 2], ids=["none-since", "one-since"])
def test_later_iterations_need_the_last_request_only(requests: int) -> None:
    """The first request after a failure is explained by it, and no other."""
    wired, port = fabric(), FailureRecord(FailureKind.OCS_PORT, ("s0/o0",), 2, 3, 4, cleared_ns=5)
    phases, work = ReconfigurationPhases(total_s=1.0), Reconfigure("forward", 0, DEMAND)
    changes = [
        ReconfigurationRun(0, work, CircuitChange(LIT, LIT, phases), start, start + 8)
        for start in (0, 10, 20)
    ]
    earlier, following = changes[:requests], changes[requests]
    known = RunFailures((port,)).with_plans_of([IterationRun(0, 0, reconfigurations=earlier)])
    kept = known.of_later_iterations()
    assert (len(kept.requests), len(kept.planned_ns), kept.are_over) == (1, 1, True)
    later = kept.with_plans_of([IterationRun(1, 0, reconfigurations=[following])])
    assert later.explain(wired.regions[0], following) is (requests == 1)
