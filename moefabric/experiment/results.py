"""The run's JSON: what one fabric's replay says, in the model's seconds and bytes (the contract of README's "JSON" section)."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from moefabric.experiment.runs import CollectiveRun, IterationRun, ReconfigurationRun
from moefabric.fidelity import Observation, judge
from moefabric.fluid import goodput_share
from moefabric.iteration import Operation
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
) -> Json:
    """One fabric's entry in `results`."""
    model_s = _model_seconds(fabric)
    collectives = [run for iteration in runs for run in iteration.collectives]
    ours = [run for run in collectives if run.stolen <= STOLEN]
    integrity = _integrity(collectives)
    seen = Observation(
        completion_errors=[model_s(run.end_ns - run.start_ns) / run.prediction.seconds - 1 for run in ours],
        link_rate_errors=[error for run in ours for error in _link_rate_errors(fabric, run)],
        cpu_idle=cpu_idle,
        lateness=[_lateness(run) for run in ours],
        disturbed=1 - len(ours) / len(collectives) if collectives else 0.0,
        remarks=remarks,
        **integrity,
    )
    shown = _shown(runs)
    return {
        "fabric": name,
        "policy": policy,
        "wiring": _wiring(fabric),
        "iterations": [_iteration(fabric, run) for run in runs],
        "collectives": [_collective(fabric, run) for run in collectives],
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
                "start_s": model_s(span.start_ns - shown.start_ns),
                "end_s": model_s(span.end_ns - shown.start_ns),
            }
            for span in sorted(shown.spans, key=lambda span: (span.start_ns, fabric.index[span.server]))
        ],
        "integrity": integrity,
        "fidelity": asdict(judge(seen)) | {"verdict": str(judge(seen).verdict)},
    }


def _shown(runs: Sequence[IterationRun]) -> IterationRun:
    """The iteration to draw: the last in which light moved, or else the last."""
    moved = [run for run in runs if any(r.moved.before != r.moved.after for r in run.reconfigurations)]
    return (moved or runs)[-1]


def _model_seconds(fabric: Fabric) -> Callable[[float], float]:
    return lambda wall_ns: wall_ns / NS_PER_S / fabric.scale.dilation


def _wiring(fabric: Fabric) -> Json:
    return {
        "servers": len(fabric.servers),
        "regions": {region.name: list(region.servers) for region in fabric.regions},
        "gpus_per_server": fabric.gpus,
        "optical_nics": fabric.optical,
        "electrical_nics": fabric.electrical,
        "nic_rate_bps": fabric.nic_rate_bps,
        "emulated_nic_rate_bps": fabric.scale.rate_bps(fabric.nic_rate_bps),
        "bytes_scale": fabric.scale.bytes,
        "dilation": fabric.scale.dilation,
        "mtu": fabric.mtu,
    }


def _iteration(fabric: Fabric, run: IterationRun) -> Json:
    model_s = _model_seconds(fabric)
    measured, compute = model_s(run.end_ns - run.start_ns), model_s(run.compute_ns)
    predicted = compute + _slowest_regions(
        [(c.operation, c.prediction.seconds) for c in run.collectives]
        + [
            (r.operation, r.moved.phases.settle_s / fabric.scale.dilation)
            for r in run.reconfigurations
            if r.moved.before != r.moved.after and r.operation.direction == "forward"
        ]
    )
    return {
        "iteration": run.number,
        "measured_s": measured,
        "predicted_s": predicted,
        "compute_s": compute,
        "exposed_comm_s": measured - compute,
        "skipped_s": model_s(run.skipped_ns),
    }


def _slowest_regions(parts: Iterable[tuple[Operation, float]]) -> float:
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
        "measured_s": model_s(run.end_ns - run.start_ns),
        "predicted_s": run.prediction.seconds,
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
        "reason": "demand",
        "circuits_before": [str(c) for c in run.moved.before],
        "circuits_after": [str(c) for c in run.moved.after],
        "circuits_dark": [str(c) for c in run.moved.dark],
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
    """How far apart the senders started, as a share of the collective."""
    firsts: dict[str, int] = {}
    for record in run.records:
        firsts[record.src] = min(record.first_sent_ns, firsts.get(record.src, record.first_sent_ns))
    return (max(firsts.values()) - min(firsts.values())) / max(1, run.end_ns - run.start_ns)


def _link_rate_errors(fabric: Fabric, run: CollectiveRun) -> list[float]:
    """Goodput of each NIC that should be full all the time, as it was received, against the planned one; minus 1."""
    by_nic: defaultdict[tuple[str, str, str], list[FlowRecord]] = defaultdict(list)
    for record in run.records:
        by_nic["from", record.src, record.path].append(record)
        if record.path[0] == "e":  # of light, the other end carries the same
            by_nic["to", record.dst, f"e{int(record.path[1:]) % fabric.electrical}"].append(record)
    planned_ns = run.prediction.seconds * fabric.scale.dilation * NS_PER_S
    rate_bps = fabric.scale.rate_bps(fabric.nic_rate_bps) * goodput_share(fabric.mtu)
    full_bytes = _FULL * planned_ns / NS_PER_S * rate_bps / 8
    took_ns = [
        max(r.last_received_ns for r in records) - min(r.first_sent_ns for r in records)
        for records in by_nic.values()
        if sum(record.bytes for record in records) >= full_bytes
    ]
    return [planned_ns / took - 1 for took in took_ns if took > 0]


def ratios(results: Sequence[Json]) -> None:
    """Put into each result how long its all-to-alls are, relative to those of the fabric `eps` in the same run (medians)."""
    base = next((r for r in results if r["policy"] == "eps"), None)
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
    theirs = {_place(c): c[key] for c in base}
    found = [c[key] / theirs[_place(c)] for c in ours if _place(c) in theirs]
    return float(np.median(found)) if found else None


def _place(collective: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which all-to-all it is, in every fabric alike."""
    return tuple(collective.get(name) for name in ("region", "iteration", "layer", "kind", "pass"))
