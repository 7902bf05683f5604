"""Conversion of a replay's records into its entry in the run's JSON, in model seconds and bytes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from math import inf

import numpy as np

from moefabric.core.failures import failures_json
from moefabric.core.topology import Fabric, fabric_description
from moefabric.core.units import NS_PER_S
from moefabric.runner.comparison import network_cost
from moefabric.runner.counted_traffic import CountedTraffic
from moefabric.runner.fidelity import Observation, judge, worst_verdict
from moefabric.runner.observation import observe
from moefabric.runner.result_model import (
    EpsSummary,
    FabricResult,
    FidelityResult,
    Integrity,
    Verdict,
    WiringSummary,
)
from moefabric.runner.result_parts import (
    CollectiveResult,
    ControlTime,
    FailureResult,
    FlowResult,
    IterationResult,
    ReconfigurationResult,
    ServerInterval,
)
from moefabric.runner.run_records import (
    CollectiveRun,
    IterationRun,
    ReconfigurationRun,
    RunFailures,
    Span,
)
from moefabric.runner.spine_traffic import spine_bytes


def fabric_result(
    fabric: Fabric,
    name: str,
    policy: str,
    runs: Sequence[IterationRun],
    *,
    cpu_idle: Sequence[float],
    remarks: Sequence[str],
    failures: RunFailures | None = None,
    paced: bool = True,
) -> FabricResult:
    """Convert the records of one fabric's replay into its result.

    Args:
        fabric: The fabric on which the workload was replayed.
        name: Name of the fabric in the experiment.
        policy: Name of the policy that chose the circuits.
        runs: Records of the iterations, of at least one.
        cpu_idle: Idle shares of the machine while packets were under way, one per sample.
        remarks: Reasons for which the run is degraded whatever was measured.
        failures: Failures during the replay. The collectives that they disturbed are reported
            but excluded from the verdict.
        paced: Whether flows were paced.
    """
    failures = (failures or RunFailures()).with_plans_of(runs)
    model_s = _model_seconds(fabric)
    collectives = [run for iteration in runs for run in iteration.collectives]
    transfers = [run for iteration in runs for run in iteration.transfers]
    traffic = CountedTraffic(fabric, [*collectives, *transfers])
    integrity = _integrity([*collectives, *transfers], sum(run.retried for run in runs))
    iteration_s = float(np.median([model_s(run.end_ns - run.start_ns) for run in runs]))
    return FabricResult(
        fabric=name,
        policy=policy,
        wiring=wiring_summary(fabric),
        cost=network_cost(fabric, iteration_s),
        iterations=[_iteration(model_s, run) for run in runs],
        collectives=[_collective(fabric, run, traffic, failures) for run in collectives],
        transfers=[_collective(fabric, run, traffic, failures) for run in transfers],
        reconfigurations=[
            _reconfiguration(run) for iteration in runs for run in iteration.reconfigurations
        ],
        control_time=_control_time(runs),
        harness_s=sum(run.harness_ns for run in runs) / NS_PER_S,
        timeline=_timeline(fabric, runs),
        failures=_failures(fabric, failures, runs),
        integrity=integrity,
        fidelity=_fidelity(
            partial(
                observe,
                fabric,
                runs,
                failures,
                integrity,
                cpu_idle=cpu_idle,
                remarks=remarks,
                traffic=traffic,
                paced=paced,
            )
        ),
    )


def _fidelity(observation: Callable[..., Observation]) -> FidelityResult:
    """Judge all collectives or, if that verdict is better, those without CPU steal.

    A hypervisor that takes the CPU may delay a collective, but needn't.
    """
    judged = judge(observation(most_steal=inf))
    if judged.verdict is not Verdict.PASS:
        without_steal = judge(observation())
        if worst_verdict((judged.verdict, without_steal.verdict)) is judged.verdict:
            return without_steal
    return judged


def empty_result(fabric: Fabric, name: str, policy: str) -> FabricResult:
    """Return the result of a fabric on which no iteration ended: it is invalid."""
    return FabricResult(
        fabric=name,
        policy=policy,
        wiring=wiring_summary(fabric),
        fidelity=FidelityResult(verdict=Verdict.INVALID, reasons=["no iteration ended"]),
    )


def invalidated(result: FabricResult, reasons: Sequence[str]) -> FabricResult:
    """Return a result that these reasons, if there are any, make invalid."""
    if not reasons:
        return result
    fidelity = result.fidelity.model_copy(
        update={"verdict": Verdict.INVALID, "reasons": [*reasons, *result.fidelity.reasons]}
    )
    return result.model_copy(update={"fidelity": fidelity})


def control_time_remarks(runs: Sequence[IterationRun], control_s: float | None) -> list[str]:
    """Return a remark if controllers needed longer than a fixed `control_s` (model seconds)."""
    if control_s is None:
        return []
    took_s = [r.change.phases.control_s for run in runs for r in run.reconfigurations]
    late_s = [seconds for seconds in took_s if seconds > control_s + 1e-9]
    if not late_s:
        return []
    needed = f"{len(late_s)} of {len(took_s)} needed up to {1e3 * max(late_s):.1f} ms"
    allowed = f"control_time {1e3 * control_s:g} ms"
    return [f"the control plane is slower than {allowed}: {needed}; raise the dilation"]


def _control_time(runs: Sequence[IterationRun]) -> ControlTime:
    """Summarise the control time of the requests that succeeded."""
    changes = [r.change for run in runs for r in run.reconfigurations if not r.change.error]
    moved = [c.phases.control_s for c in changes if c.before != c.after]
    others = [c.phases.control_s for c in changes if c.before == c.after]
    result = ControlTime(count=len(moved), unchanged_count=len(others))
    if moved:
        p50, p95 = (float(np.quantile(moved, q)) for q in (0.5, 0.95))
        result = result.model_copy(update={"p50_s": p50, "p95_s": p95})
    if others:
        p50 = float(np.quantile(others, 0.5))
        result = result.model_copy(update={"unchanged_p50_s": p50})
    return result


def wiring_summary(fabric: Fabric) -> WiringSummary:
    """Summarise the servers, NICs, switches and scale of a fabric."""
    return WiringSummary(
        servers=len(fabric.primary_servers),
        regions={region: list(servers) for region, servers in fabric.ep_groups.items()},
        backups=list(fabric.backup_servers),
        gpus_per_server=fabric.gpus,
        optical_nics=fabric.optical,
        electrical_nics=fabric.electrical,
        kind=fabric_description(fabric),
        panel=fabric.patch_panel,
        eps=_eps_summary(fabric),
        nic_rate_bps=fabric.nic_rate_bps,
        emulated_nic_rate_bps=fabric.scale.rate_bps(fabric.nic_rate_bps),
        bytes_scale=fabric.scale.bytes,
        dilation=fabric.scale.dilation,
        mtu=fabric.mtu,
    )


def _eps_summary(fabric: Fabric) -> EpsSummary | None:
    if fabric.eps is None or not fabric.leaves:
        return None
    return EpsSummary(
        kind=str(fabric.eps.kind),
        leaves={leaf: [str(nic) for nic in fabric.nics_under(leaf)] for leaf in fabric.leaves},
        spines=list(fabric.spines),
        oversubscription=fabric.eps.oversubscription,
        uplink_rate_bps=fabric.uplink_rate_bps,
    )


def _model_seconds(fabric: Fabric) -> Callable[[float], float]:
    return lambda wall_ns: wall_ns / NS_PER_S / fabric.scale.dilation


def _iteration(model_s: Callable[[float], float], run: IterationRun) -> IterationResult:
    measured_s, compute_s = model_s(run.end_ns - run.start_ns), model_s(run.compute_ns)
    return IterationResult(
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
) -> CollectiveResult:
    model_s, counted = _model_seconds(fabric), traffic.bytes_of(run)
    optical_bytes = sum(flow.bytes for flow in run.planned if flow.is_optical)
    total_bytes = sum(flow.bytes for flow in run.planned)
    return CollectiveResult(
        region=run.region,
        iteration=run.iteration,
        layer=run.operation.layer,
        kind=run.operation.kind,
        direction=run.operation.direction,
        micro_batch=run.micro_batch,
        measured_s=model_s(run.end_ns - run.start_ns),
        predicted_s=run.predicted_s,
        planned_s=run.plan.seconds,
        reported_error=run.error(fabric.scale.dilation),
        waited_s=model_s(run.waited_ns),
        predicted_wait_s=run.expected_wait_s,
        moved_now=run.reconfigured_meanwhile,
        bytes=round(total_bytes),
        bytes_by_light=None if counted.by_light is None else round(counted.by_light),
        bytes_by_eps=None if counted.by_eps is None else round(counted.by_eps),
        bytes_planned_by_light=round(optical_bytes),
        bytes_planned_by_eps=round(total_bytes - optical_bytes),
        bytes_planned_by_spines=round(spine_bytes(fabric, run.planned)),
        misrouted=[fault.text for fault in traffic.misrouted(run, failures)],
        moved_by_failure=[fault.text for fault in traffic.moved_by_failure(run, failures)],
        dark_s=model_s(run.dark_ns),
        retransmits=sum(record.retransmits for record in run.records),
        cpu_steal=run.cpu_steal,
        harness_s=run.harness_ns / NS_PER_S,
        failures=failures.disturbing(run),
    )


def flow_results(fabric: Fabric, runs: Sequence[IterationRun]) -> list[FlowResult]:
    """Convert the records of all flows of a replay: of its collectives, then of its transfers."""
    sent = [
        *(run for iteration in runs for run in iteration.collectives),
        *(run for iteration in runs for run in iteration.transfers),
    ]
    return [flow for run in sent for flow in _flows(fabric, run)]


def _flows(fabric: Fabric, run: CollectiveRun) -> Iterator[FlowResult]:
    model_s = _model_seconds(fabric)
    for flow, record, expected_s in run.arrivals():
        yield FlowResult(
            region=run.region,
            iteration=run.iteration,
            layer=run.operation.layer,
            kind=run.operation.kind,
            direction=run.operation.direction,
            micro_batch=run.micro_batch,
            src=flow.src,
            dst=flow.dst,
            path=flow.path,
            bytes=round(flow.bytes),
            start_s=model_s(record.first_sent_ns - run.start_ns),
            end_s=model_s(record.last_received_ns - run.start_ns),
            predicted_end_s=expected_s,
            retransmits=record.retransmits,
        )


def _reconfiguration(run: ReconfigurationRun) -> ReconfigurationResult:
    phases = run.change.phases
    return ReconfigurationResult(
        region=run.region,
        iteration=run.iteration,
        layer=run.operation.layer,
        direction=run.operation.direction,
        micro_batch=run.micro_batch,
        reason="demand",
        circuits_before=[str(c) for c in run.change.before],
        circuits_after=[str(c) for c in run.change.after],
        circuits_dark=[str(c) for c in run.change.dark],
        error=run.change.error,
        **asdict(phases),
        control_s=phases.control_s,
    )


def _timeline(fabric: Fabric, runs: Sequence[IterationRun]) -> list[ServerInterval]:
    """Intervals of one iteration of all jobs, each job from its own start, sorted by time.

    The iteration is the last in which circuits changed, or else the last.
    """
    changed = [
        run for run in runs if any(r.change.before != r.change.after for r in run.reconfigurations)
    ]
    number = (changed or runs)[-1].number
    spans = [(run.start_ns, span) for run in runs if run.number == number for span in run.spans]
    spans.sort(key=lambda item: (item[1].start_ns - item[0], fabric.server_index[item[1].server]))
    return [
        _interval(fabric, span, start_ns).model_copy(
            update={
                "iteration": number,
                "direction": span.direction,
                "layer": span.layer,
                "micro_batch": span.micro_batch,
            }
        )
        for start_ns, span in spans
    ]


def _interval(fabric: Fabric, span: Span, start_ns: int) -> ServerInterval:
    model_s = _model_seconds(fabric)
    return ServerInterval(
        server=span.server,
        kind=span.kind,
        start_s=model_s(span.start_ns - start_ns),
        end_s=model_s(span.end_ns - start_ns),
    )


def _failures(
    fabric: Fabric, failures: RunFailures, runs: Sequence[IterationRun]
) -> list[FailureResult]:
    """Convert each failure, with the activity of the servers concerned in its iteration."""
    model_s, by_number = _model_seconds(fabric), {run.number: run for run in runs}
    results = []
    entries = failures_json(
        failures.failures,
        failures.windows,
        lambda start_ns, end_ns: model_s(failures.run_ns(end_ns) - failures.run_ns(start_ns)),
    )
    for entry, failure in zip(entries, failures.failures, strict=True):
        details: dict[str, object] = {"marks": {}, "measured_s": None, "lanes": []}
        if run := by_number.get(entry["iteration"]):
            instants_ns = {
                "injected": failure.injected_ns,
                "detected": failure.detected_ns,
                "recovered": failure.recovered_ns,
            }
            details["marks"] = {
                name: model_s(failures.run_ns(instant_ns) - run.start_ns)
                for name, instant_ns in instants_ns.items()
                if instant_ns is not None
            }
            details["measured_s"] = model_s(run.end_ns - run.start_ns)
            details["lanes"] = _lanes(fabric, run, failure.what)
        results.append(FailureResult.model_validate(entry | details))
    return results


def _lanes(fabric: Fabric, run: IterationRun, what: Sequence[str]) -> list[ServerInterval]:
    """Activity of the failed and the backup servers; of the first server if a switch failed."""
    active = {span.server for span in run.spans}
    failed = {name.partition("/")[0] for name in what} & active or {fabric.servers[0]}
    shown = failed | (active & set(fabric.backup_servers))
    return [_interval(fabric, span, run.start_ns) for span in run.spans if span.server in shown]


def _integrity(collectives: Sequence[CollectiveRun], retried: int) -> Integrity:
    records = [record for run in collectives for record in run.records]
    corrupt = sum(record.corrupt for record in records)
    return Integrity(
        bytes_sent=sum(record.bytes for record in records),
        bytes_received=sum(record.received_bytes for record in records),
        corrupt=corrupt,
        lost_transfers=sum(not record.ok for record in records) - corrupt,
        retried_transfers=retried,
    )
