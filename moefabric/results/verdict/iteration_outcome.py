"""Outcome of an iteration, in model seconds and bytes: its rows of the JSON and measurements."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Final

from pydantic import Field

from moefabric.core.circuits import CircuitSet
from moefabric.core.topology import Fabric
from moefabric.core.units import NS_PER_S
from moefabric.results import parts
from moefabric.results.model import CircuitEnds
from moefabric.results.parts import Json, ResultPart
from moefabric.results.records.counted_traffic import CountedTraffic, Misrouting
from moefabric.results.records.queue_readings import spine_bytes
from moefabric.results.records.records import (
    CollectiveRun,
    IterationRun,
    ReconfigurationRun,
    RunFailures,
    Span,
)
from moefabric.results.verdict.first_all_to_all import FirstDispatch, FirstDispatches
from moefabric.results.verdict.measurements import FabricMeasurements
from moefabric.workload.iterations.iteration import Collective


class IterationOutcome(ResultPart):
    """Rows and measurements of one iteration of one job."""

    result: parts.IterationResult
    """Times of the iteration."""
    collectives: list[parts.CollectiveResult] = Field(default_factory=list)
    """Every region's part of the iteration's all-to-alls."""
    transfers: list[parts.CollectiveResult] = Field(default_factory=list)
    """Transfers between regions."""
    flows: list[parts.FlowResult] = Field(default_factory=list)
    """Flows, if the run records them."""
    reconfigurations: list[parts.ReconfigurationResult] = Field(default_factory=list)
    """Reconfigurations."""
    timeline: list[parts.ServerInterval] = Field(default_factory=list)
    """Activities of servers, by time from the start of the iteration."""
    first_dispatches: list[FirstDispatch] = Field(default_factory=list)
    """First all-to-alls of layers."""
    measured: FabricMeasurements
    """Measurements of collectives, without those under CPU steal and failures."""
    circuits: list[CircuitEnds] = Field(default_factory=list)
    """Circuits at the end of the iteration."""

    @property
    def place(self) -> tuple[int, int]:
        """Numbers of the job and of the iteration."""
        return self.result.job, self.result.iteration

    @property
    def changed_circuits(self) -> bool:
        """True if a reconfiguration changed circuits."""
        return any(one.circuits_before != one.circuits_after for one in self.reconfigurations)


ROW_LISTS: Final = ("iterations", "collectives", "transfers", "flows", "reconfigurations")
"""Fields of a fabric's result whose rows are those of its iterations."""


def joined_rows(outcomes: Iterable[IterationOutcome]) -> Json:
    """Return the rows of iterations by their fields in a fabric's result; no flows if none has."""
    rows: Json = {name: [] for name in ROW_LISTS}
    for outcome in outcomes:
        rows["iterations"].append(outcome.result)
        for name in ROW_LISTS[1:]:
            rows[name] += getattr(outcome, name)
    return {name: listed for name, listed in rows.items() if listed or name != "flows"}


def outcomes_of(
    fabric: Fabric,
    runs: Sequence[IterationRun],
    failures: RunFailures | None = None,
    *,
    flows: bool = False,
    circuits: CircuitSet | None = None,
    cpu_idle: Sequence[float] = (),
    first_dispatches: FirstDispatches | None = None,
) -> list[IterationOutcome]:
    """Convert the records of iterations, with which no other iteration shared its time.

    Args:
        fabric: The fabric on which the workload was replayed.
        runs: Records of the iterations.
        failures: Failures so far.
        flows: Whether the outcomes hold every flow.
        circuits: The circuits at the end of the last iteration.
        cpu_idle: Idle shares of the machine during these iterations; the first one has them.
        first_dispatches: Returns the first all-to-alls of iterations; None if they don't matter.
    """
    failures = (failures or RunFailures()).with_plans_of(runs)
    sent = [run for iteration in runs for run in (*iteration.collectives, *iteration.transfers)]
    traffic = CountedTraffic(fabric, sent)
    named = set[Misrouting]()

    def measured(run: IterationRun) -> FabricMeasurements:
        measurements = FabricMeasurements.of(fabric, run, failures, traffic, named)
        if run is runs[0]:
            measurements.cpu_idle = array("d", cpu_idle)
        return measurements

    outcomes = []
    for run in runs:
        first = first_dispatches if not run.substituted else None
        outcomes.append(
            IterationOutcome(
                result=_iteration(model_seconds(fabric), run),
                collectives=[_collective(fabric, c, traffic, failures) for c in run.collectives],
                transfers=[_collective(fabric, c, traffic, failures) for c in run.transfers],
                flows=list(iteration_flows(fabric, run)) if flows else [],
                reconfigurations=[_reconfiguration(change) for change in run.reconfigurations],
                timeline=_timeline(fabric, run),
                first_dispatches=first([run]) if first else [],
                measured=measured(run),
                circuits=[(str(c.a), str(c.b)) for c in circuits or ()],
            )
        )
    return outcomes


def iteration_flows(fabric: Fabric, run: IterationRun) -> Iterator[parts.FlowResult]:
    """Yield all flows of an iteration: of its collectives, then of its transfers."""
    model_s = model_seconds(fabric)
    for sent in (*run.collectives, *run.transfers):
        for flow, record, predicted_s in sent.arrivals():
            yield parts.FlowResult(
                **_place(sent),
                kind=sent.operation.kind,
                phase=getattr(sent.operation, "phase", 0),
                src=flow.src,
                dst=flow.dst,
                path=flow.path,
                bytes=round(flow.bytes),
                start_s=model_s(record.first_sent_ns - sent.start_ns),
                end_s=model_s(record.last_received_ns - sent.start_ns),
                predicted_end_s=predicted_s,
                retransmits=record.retransmits,
            )


def model_seconds(fabric: Fabric) -> Callable[[float], float]:
    """Return a function from wall nanoseconds to model seconds."""
    return lambda wall_ns: wall_ns / NS_PER_S / fabric.scale.dilation


def _iteration(model_s: Callable[[float], float], run: IterationRun) -> parts.IterationResult:
    measured_s, compute_s = model_s(run.end_ns - run.start_ns), model_s(run.compute_ns)
    return parts.IterationResult(
        job=run.job,
        iteration=run.number,
        measured_s=measured_s,
        predicted_s=run.predicted_s,
        compute_s=compute_s,
        exposed_comm_s=measured_s - compute_s,
        skipped_s=model_s(run.skipped_ns),
        lost_s=model_s(run.lost_ns),
        harness_s=run.harness_ns / NS_PER_S,
    )


def _collective(
    fabric: Fabric, run: CollectiveRun, traffic: CountedTraffic, failures: RunFailures
) -> parts.CollectiveResult:
    model_s, counted = model_seconds(fabric), traffic.bytes_of(run)
    optical_bytes = sum(flow.bytes for flow in run.planned if flow.is_optical)
    total_bytes = sum(flow.bytes for flow in run.planned)
    return parts.CollectiveResult(
        **_place(run),
        kind=run.operation.kind,
        **_phase(run),
        measured_s=model_s(run.end_ns - run.start_ns),
        predicted_s=run.predicted_s,
        planned_s=run.plan.seconds,
        reported_error=run.error(fabric.scale.dilation),
        waited_s=model_s(run.waited_ns),
        predicted_wait_s=run.predicted_wait_s,
        moved_now=run.reconfigured_meanwhile,
        bytes=round(total_bytes),
        bytes_by_light=None if counted.by_light is None else round(counted.by_light),
        bytes_by_eps=None if counted.by_eps is None else round(counted.by_eps),
        bytes_planned_by_light=round(optical_bytes),
        bytes_planned_by_eps=round(total_bytes - optical_bytes),
        bytes_planned_by_spines=round(spine_bytes(fabric, run.planned)),
        misrouted=[one.text for one in traffic.misrouted(run, failures)],
        moved_by_failure=[one.text for one in traffic.misrouted(run, failures, moved=True)],
        dark_s=model_s(run.dark_ns),
        retransmits=sum(record.retransmits for record in run.records),
        cpu_steal=run.cpu_steal,
        harness_s=run.harness_ns / NS_PER_S,
        failures=failures.disturbing(run),
    )


def _place(run: CollectiveRun | ReconfigurationRun) -> Json:
    """Return where in an iteration something happened."""
    return {
        "region": run.region,
        "iteration": run.iteration,
        "layer": run.operation.layer,
        "direction": run.operation.direction,
        "micro_batch": run.micro_batch,
    }


def _phase(run: CollectiveRun) -> Json:
    """Return the place of a phase in its all-to-all, and the time around it; empty without both."""
    work, pause_s = run.operation, run.server.seconds
    if not isinstance(work, Collective) or (work.phases == 1 and not work.pause_s + pause_s):
        return {}
    return {"phase": work.phase, "phases": work.phases, "pause_s": work.pause_s + pause_s}


def _reconfiguration(run: ReconfigurationRun) -> parts.ReconfigurationResult:
    phases = run.change.phases
    return parts.ReconfigurationResult(
        **_place(run),
        reason="demand",
        circuits_before=[str(c) for c in run.change.before],
        circuits_after=[str(c) for c in run.change.after],
        circuits_dark=[str(c) for c in run.change.dark],
        error=run.change.error,
        **asdict(phases),
        control_s=phases.control_s,
    )


def _timeline(fabric: Fabric, run: IterationRun) -> list[parts.ServerInterval]:
    """Return the activities of an iteration from its own start, sorted by time."""
    order = fabric.server_index
    intervals = []
    for span in sorted(run.spans, key=lambda span: (span.start_ns, order[span.server])):
        place = {"iteration": run.number, "direction": span.direction, "layer": span.layer}
        place["micro_batch"] = span.micro_batch
        interval = server_interval(fabric, span, run.start_ns)
        intervals.append(interval.model_copy(update=place))
    return intervals


def server_interval(fabric: Fabric, span: Span, start_ns: int) -> parts.ServerInterval:
    """Return a span in model seconds from the start of its iteration."""
    model_s = model_seconds(fabric)
    return parts.ServerInterval(
        server=span.server,
        kind=span.kind,
        start_s=model_s(span.start_ns - start_ns),
        end_s=model_s(span.end_ns - start_ns),
    )
