"""The run's JSON: what one fabric's replay says, in the model's seconds and bytes (the contract of README's "JSON" section)."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from moefabric.baseline import baseline
from moefabric.circuits import CircuitSet
from moefabric.experiment.costs import cost
from moefabric.experiment.runs import CollectiveRun, IterationRun, ReconfigurationRun, Suffered
from moefabric.failures import to_json
from moefabric.fidelity import Observation, judge
from moefabric.flows import Flow
from moefabric.fluid import Link, goodput_share, link_rate_bps, route
from moefabric.kinds import in_words
from moefabric.records import FlowRecord
from moefabric.topology import Fabric
from moefabric.units import NS_PER_S

Json = dict[str, Any]
STOLEN = 0.03
"""A collective during which others had more than this share of the machine's CPU says nothing of the fabric: it is told, not judged."""
_FULL = 0.95
"""A NIC that has to carry this share of what it can in the predicted time is expected to be full all the while."""


def result(
    fabric: Fabric,
    name: str,
    policy: str,
    runs: Sequence[IterationRun],
    *,
    cpu_idle: Sequence[float],
    remarks: Sequence[str],
    suffered: Suffered | None = None,
) -> Json:
    """One fabric's entry in `results`. Collectives that felt a failure are told, not judged."""
    suffered = (suffered or Suffered()).through(runs)
    model_s = _model_seconds(fabric)
    collectives = [run for iteration in runs for run in iteration.collectives]
    transfers = [run for iteration in runs for run in iteration.transfers]
    whole = [run for run in collectives if not suffered.disturbed(run)]
    ours = [run for run in whole if run.stolen <= STOLEN]
    integrity = _integrity([*collectives, *transfers])
    seen = Observation(
        completion_errors=[model_s(run.end_ns - run.start_ns) / run.prediction.seconds - 1 for run in ours],
        link_rate_errors=[error for run in ours for error in _link_rate_errors(fabric, run)],
        cpu_idle=cpu_idle,
        lateness=[_lateness(run) for run in ours],
        disturbed=1 - len(ours) / len(whole) if whole else 0.0,
        remarks=remarks,
        **integrity,
    )
    shown = _shown(runs)
    drawn = [run for run in runs if run.number == shown.number]
    return {
        "fabric": name,
        "policy": policy,
        "wiring": wiring(fabric),
        "cost": cost(fabric, _median_s(model_s, runs)),
        "iterations": [_iteration(fabric, run) for run in runs],
        "collectives": [
            _collective(fabric, run) | {"failures": suffered.disturbed(run)} for run in collectives
        ],
        "transfers": [_collective(fabric, run) for run in transfers],
        "reconfigurations": [
            _reconfiguration(fabric, run) for iteration in runs for run in iteration.reconfigurations
        ],
        "timeline": [
            {
                "iteration": shown.number,
                "server": span.server,
                "kind": span.kind,
                "pass": span.direction,
                "layer": span.layer,
                "micro_batch": span.micro_batch,
                "start_s": model_s(span.start_ns - begun_ns),
                "end_s": model_s(span.end_ns - begun_ns),
            }
            # Jobs have nothing to do with each other: each is drawn from its own start.
            for begun_ns, span in sorted(
                ((run.start_ns, span) for run in drawn for span in run.spans),
                key=lambda drawn: (drawn[1].start_ns - drawn[0], fabric.index[drawn[1].server]),
            )
        ],
        "failures": _failures(fabric, suffered, runs),
        "integrity": integrity | {"retried_transfers": sum(run.retried for run in runs)},
        "fidelity": asdict(judge(seen)) | {"verdict": str(judge(seen).verdict)},
    }


def _median_s(model_s: Callable[[float], float], runs: Sequence[IterationRun]) -> float:
    return float(np.median([model_s(run.end_ns - run.start_ns) for run in runs]))


def _failures(fabric: Fabric, suffered: Suffered, runs: Sequence[IterationRun]) -> list[Json]:
    """Each failure, with its iteration's picture: what the servers did, and when what was seen, in model seconds of that iteration."""
    model_s, by_number = _model_seconds(fabric), {run.number: run for run in runs}
    made = to_json(suffered.failures, suffered.windows)
    for entry, failure in zip(made, suffered.failures, strict=True):
        run = by_number.get(entry["iteration"])
        instants = {
            "injected": failure.injected_ns,
            "detected": failure.detected_ns,
            "recovered": failure.recovered_ns,
        }
        entry["marks"] = {
            name: model_s(suffered.shown_ns(at) - run.start_ns)
            for name, at in instants.items()
            if run is not None and at is not None
        }
        entry["measured_s"] = model_s(run.end_ns - run.start_ns) if run else None
        entry["lanes"] = _lanes(fabric, run, failure.what) if run else []
    return made


def _lanes(fabric: Fabric, run: IterationRun, what: Sequence[str]) -> list[Json]:
    """What the servers concerned did in that iteration; of a region's or a switch's failure, its first server."""
    model_s = _model_seconds(fabric)
    named = {name.partition("/")[0] for name in what}
    servers = named & {span.server for span in run.spans} or {fabric.servers[0]}
    stand_ins = {span.server for span in run.spans} & set(fabric.backups)
    return [
        {
            "server": span.server,
            "kind": span.kind,
            "start_s": model_s(span.start_ns - run.start_ns),
            "end_s": model_s(span.end_ns - run.start_ns),
        }
        for span in run.spans
        if span.server in servers | stand_ins
    ]


def _shown(runs: Sequence[IterationRun]) -> IterationRun:
    """The iteration to draw: the last in which light moved, or else the last."""
    moved = [run for run in runs if any(r.moved.before != r.moved.after for r in run.reconfigurations)]
    return (moved or runs)[-1]


def _model_seconds(fabric: Fabric) -> Callable[[float], float]:
    return lambda wall_ns: wall_ns / NS_PER_S / fabric.scale.dilation


def wiring(fabric: Fabric) -> Json:
    return {
        "servers": len(fabric.working),
        "regions": {region: list(servers) for region, servers in fabric.groups.items()},
        "backups": list(fabric.backups),
        "gpus_per_server": fabric.gpus,
        "optical_nics": fabric.optical,
        "electrical_nics": fabric.electrical,
        "kind": in_words(fabric),
        "panel": fabric.panel,
        "eps": _eps(fabric),
        "nic_rate_bps": fabric.nic_rate_bps,
        "emulated_nic_rate_bps": fabric.scale.rate_bps(fabric.nic_rate_bps),
        "bytes_scale": fabric.scale.bytes,
        "dilation": fabric.scale.dilation,
        "mtu": fabric.mtu,
    }


def _eps(fabric: Fabric) -> Json | None:
    """The packet switches and which NICs end on each leaf; none where there are none."""
    if fabric.eps is None or not fabric.leaves:
        return None
    return {
        "kind": str(fabric.eps.kind),
        "leaves": {leaf: [str(nic) for nic in fabric.nics_under(leaf)] for leaf in fabric.leaves},
        "spines": list(fabric.spines),
        "oversubscription": fabric.eps.oversubscription,
        "uplink_rate_bps": fabric.uplink_rate_bps,
    }


def _iteration(fabric: Fabric, run: IterationRun) -> Json:
    model_s = _model_seconds(fabric)
    measured, compute = model_s(run.end_ns - run.start_ns), model_s(run.compute_ns)
    predicted = compute + _slowest_regions(
        (c.operation, c.expected_wait_s + c.prediction.seconds) for c in run.collectives
    )
    return {
        "job": run.job,
        "iteration": run.number,
        "measured_s": measured,
        "predicted_s": predicted if run.predicted_s is None else run.predicted_s,
        "compute_s": compute,
        "exposed_comm_s": measured - compute,
        "skipped_s": model_s(run.skipped_ns),
        "lost_s": model_s(run.lost_ns),
    }


def _slowest_regions(parts: Iterable[tuple[object, float]]) -> float:
    """Seconds of operations that all regions do side by side: the slowest region's, operation after operation."""
    longest: dict[int, float] = {}
    for operation, seconds in parts:
        longest[id(operation)] = max(seconds, longest.get(id(operation), 0.0))
    return sum(longest.values())


def _collective(fabric: Fabric, run: CollectiveRun) -> Json:
    model_s = _model_seconds(fabric)
    light = sum(flow.bytes for flow in run.planned if flow.by_light)
    total = sum(flow.bytes for flow in run.planned)
    return {
        "region": run.region,
        "iteration": run.iteration,
        "layer": run.operation.layer,
        "kind": run.operation.kind,
        "pass": run.operation.direction,
        "micro_batch": run.micro_batch,
        "measured_s": model_s(run.end_ns - run.start_ns),
        "predicted_s": run.prediction.seconds,
        "waited_s": model_s(run.waited_ns),
        "predicted_wait_s": run.expected_wait_s,
        "moved_now": run.moved_now,
        "bytes": round(total),
        "bytes_by_light": round(light),
        "bytes_by_eps": round(total - light),
        "dark_s": model_s(run.dark_ns),
        "retransmits": sum(record.retransmits for record in run.records),
        "stolen_cpu": run.stolen,
    }


def _reconfiguration(fabric: Fabric, run: ReconfigurationRun) -> Json:
    phases = asdict(run.moved.phases)
    settle_wall_s = phases["settle_s"]
    phases["settle_s"] = settle_wall_s / fabric.scale.dilation
    phases["total_s"] += phases["settle_s"] - settle_wall_s
    return {
        "region": run.region,
        "iteration": run.iteration,
        "layer": run.operation.layer,
        "pass": run.operation.direction,
        "micro_batch": run.micro_batch,
        "reason": "demand",
        "circuits_before": [str(c) for c in run.moved.before],
        "circuits_after": [str(c) for c in run.moved.after],
        "circuits_dark": [str(c) for c in run.moved.dark],
        "unanswered": run.why,
        **phases,
    }


def _integrity(collectives: Sequence[CollectiveRun]) -> dict[str, int]:
    records = [record for run in collectives for record in run.records]
    return {
        "bytes_sent": sum(record.bytes for record in records),
        "bytes_received": sum(record.bytes for record in records if record.ok),
        "corrupt": sum(not record.ok and "changed" in record.why for record in records),
        "lost_transfers": sum(not record.ok and "changed" not in record.why for record in records),
    }


def _lateness(run: CollectiveRun) -> float:
    """How far apart the senders started what they were told to start together, as a share of the collective."""
    firsts: dict[int, dict[str, int]] = {}
    for record in run.records:
        mine = firsts.setdefault(record.collective, {})
        mine[record.src] = min(record.first_sent_ns, mine.get(record.src, record.first_sent_ns))
    apart = max(max(each.values()) - min(each.values()) for each in firsts.values())
    return apart / max(1, run.end_ns - run.start_ns)


def _link_rate_errors(fabric: Fabric, run: CollectiveRun) -> list[float]:
    """Goodput of each link that should be full all the time, as it was received, against the planned one; minus 1."""
    by_link: defaultdict[Link, list[FlowRecord]] = defaultdict(list)
    for record in run.records:
        for link in _links(fabric, record):
            by_link[link].append(record)
    planned_ns = run.prediction.seconds * fabric.scale.dilation * NS_PER_S
    full_bytes = _FULL * run.prediction.seconds * goodput_share(fabric.mtu) / 8 / fabric.scale.bytes
    took_ns = [
        max(r.last_received_ns for r in records) - min(r.first_sent_ns for r in records)
        for link, records in by_link.items()
        if sum(record.bytes for record in records) >= full_bytes * link_rate_bps(fabric, link)
    ]
    return [planned_ns / took - 1 for took in took_ns if took > 0]


def _links(fabric: Fabric, record: FlowRecord) -> tuple[Link, ...]:
    """The links that it was sent over; of light the sender's NIC alone, for the other end carries the same."""
    if record.path[0] == "o":
        return ((f"{record.src}/{record.path}", "ocs"),)
    return route(fabric, CircuitSet(), Flow(record.src, record.dst, record.path, record.bytes))


def ratios(results: Sequence[Json]) -> None:
    """Put into each result how long its all-to-alls are, relative to those of the run's baseline (medians of those that nothing disturbed)."""
    base = baseline(results)
    if base is None:
        return
    for entry in results:
        entry["ratios"] = {
            f"{what}_vs_eps": _median_ratio(entry["collectives"], base["collectives"], f"{what}_s")
            for what in ("measured", "predicted")
        }


def _median_ratio(
    ours: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]], key: str
) -> float | None:
    theirs = {_place(c): c[key] for c in base if _undisturbed(c)}
    found = [c[key] / theirs[_place(c)] for c in ours if _undisturbed(c) and _place(c) in theirs]
    return float(np.median(found)) if found else None


def _undisturbed(collective: Mapping[str, Any]) -> bool:
    return collective.get("stolen_cpu", 0.0) <= STOLEN and not collective.get("failures")


def _place(collective: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which all-to-all it is, in every fabric alike."""
    return tuple(
        collective.get(name) for name in ("region", "iteration", "layer", "kind", "pass", "micro_batch")
    )
