"""Reading: a run's JSON as the figures that table and page show, one `Result` a fabric.

Lenient on purpose: a figure that a run lacks is None and is told as missing, for a report of a run
that went wrong is needed most. Times are the model's seconds and bytes the model's bytes, as in the JSON.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from moefabric.report.result import (
    PHASES,
    VERDICTS,
    AllToAll,
    Interval,
    Reconfiguration,
    Result,
    baseline,
    middle,
)


def results(run: Mapping[str, Any]) -> list[Result]:
    """Every fabric of a run, in the run's order."""
    rows = _rows(run, "results")
    read = [_result(row) for row in rows]
    base = baseline(read)
    return [_against(result, row.get("ratios") or {}, base) for result, row in zip(read, rows, strict=True)]


def number(value: object) -> float | None:
    """`value` if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _rows(source: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    return [row for row in source.get(key) or () if isinstance(row, Mapping)]


def _result(row: Mapping[str, Any]) -> Result:
    iterations = _rows(row, "iterations")
    collectives = _rows(row, "collectives")
    fidelity, cost = row.get("fidelity") or {}, row.get("cost") or {}
    verdict, reasons = _verdict(fidelity)
    regions = _regions(row.get("wiring") or {})
    return Result(
        name=str(row.get("fabric", "unnamed")),
        policy=str(row.get("policy") or ""),
        verdict=verdict,
        reasons=reasons,
        iterations=len(iterations),
        iteration_s=middle(number(each.get("measured_s")) for each in iterations),
        predicted_iteration_s=middle(number(each.get("predicted_s")) for each in iterations),
        compute_s=middle(number(each.get("compute_s")) for each in iterations),
        exposed_s=middle(number(each.get("exposed_comm_s")) for each in iterations),
        all_to_alls=_all_to_alls(collectives),
        bytes_by_light=_sum(collectives, "bytes_by_light"),
        bytes_by_eps=_sum(collectives, "bytes_by_eps"),
        dark_s=_sum(collectives, "dark_s") / max(1, len(iterations)) / max(1, len(regions)),
        reconfigurations=tuple(_reconfiguration(each) for each in _rows(row, "reconfigurations")),
        timeline=_timeline(_rows(row, "timeline")),
        demand=_demand(row.get("demand")),
        demand_label=str(row.get("demand_label") or ""),
        circuits=_circuits(row.get("circuits") or ()),
        network_usd=number(cost.get("network_usd")),
        dollar_to_eps=number(cost.get("to_eps")),
        unpriced=str(cost.get("why") or ""),
        wiring=row.get("wiring") or {},
        regions=regions,
        stages=int(number((row.get("shape") or {}).get("pp")) or 1),
        fidelity=fidelity,
        integrity=row.get("integrity") or {},
    )


def _regions(wiring: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The servers of each region; none where there is but one."""
    said = wiring.get("regions")
    if not isinstance(said, Mapping) or len(said) < 2:
        return {}
    return {str(name): tuple(map(str, servers)) for name, servers in said.items() if servers}


def _against(result: Result, said: Mapping[str, Any], base: Result | None) -> Result:
    """The result with its all-to-all relative to the baseline: as the run says, else from the medians."""
    measured, predicted = number(said.get("measured_vs_eps")), number(said.get("predicted_vs_eps"))
    if base is not None:
        measured = _quotient(result.measured_s, base.measured_s) if measured is None else measured
        predicted = _quotient(result.predicted_s, base.predicted_s) if predicted is None else predicted
    return replace(result, ratio_measured=measured, ratio_predicted=predicted)


def _quotient(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _sum(rows: Iterable[Mapping[str, Any]], key: str) -> float:
    return sum(number(row.get(key)) or 0.0 for row in rows)


def _verdict(fidelity: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    reasons = tuple(str(reason) for reason in fidelity.get("reasons") or ())
    verdict = fidelity.get("verdict")
    if verdict in VERDICTS:
        return str(verdict), reasons
    missing = "the run carries no verdict" if verdict is None else f"the run's verdict is unknown: {verdict}"
    return "invalid", (missing, *reasons)


def _all_to_alls(rows: Iterable[Mapping[str, Any]]) -> tuple[AllToAll, ...]:
    found = []
    for row in rows:
        kind, measured = str(row.get("kind", "")), number(row.get("measured_s"))
        if measured is None or not any(word in kind for word in ("dispatch", "combine", "all-to-all")):
            continue
        found.append(
            AllToAll(
                measured,
                number(row.get("predicted_s")),
                region=str(row.get("region") or ""),
                iteration=int(number(row.get("iteration")) or 0),
                layer=int(number(row.get("layer")) or 0),
                kind=kind,
                backward=row.get("pass") == "backward",
            )
        )
    return tuple(found)


def _reconfiguration(row: Mapping[str, Any]) -> Reconfiguration:
    before, after = row.get("circuits_before"), row.get("circuits_after")
    layer, way = row.get("layer"), row.get("pass") or ""
    said = (row.get("region"), row.get("reason"), "" if layer is None else f"layer {layer} {way}".strip())
    phases = {phase: seconds for phase in PHASES if (seconds := number(row.get(f"{phase}_s"))) is not None}
    total = number(row.get("total_s"))
    return Reconfiguration(
        name=", ".join(str(part) for part in said if part),
        moved=not (
            isinstance(before, list)
            and isinstance(after, list)
            and sorted(map(str, before)) == sorted(map(str, after))
        ),
        phases=phases,
        total_s=sum(phases.values()) if total is None else total,
    )


def _timeline(rows: Iterable[Mapping[str, Any]]) -> tuple[Interval, ...]:
    """The intervals, shifted so that the iteration begins at 0."""
    read = [interval for row in rows if (interval := _interval(row)) is not None]
    begin = min((interval.start_s for interval in read), default=0.0)
    return tuple(replace(i, start_s=i.start_s - begin, end_s=i.end_s - begin) for i in read)


def _interval(row: Mapping[str, Any]) -> Interval | None:
    start, end, layer = number(row.get("start_s")), number(row.get("end_s")), number(row.get("layer"))
    if start is None or end is None or end < start:
        return None
    kind = str(row.get("kind") or "other")
    return Interval(
        server=str(row.get("server") or "?"),
        kind=kind.removeprefix("backward-"),
        backward=row.get("pass") == "backward" or kind.startswith("backward-"),
        layer=None if layer is None else int(layer),
        start_s=start,
        end_s=end,
        micro_batch=int(number(row.get("micro_batch")) or 0),
    )


def _demand(rows: Any) -> tuple[tuple[float, ...], ...]:
    """A square matrix of bytes; none where the run has another shape."""
    matrix = tuple(tuple(number(cell) or 0.0 for cell in row) for row in rows or ())
    return matrix if all(len(row) == len(matrix) for row in matrix) else ()


def _circuits(pairs: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    """Circuits as pairs of NICs, whether written `["s0/o0", "s3/o2"]` or `s0/o0~s3/o2`."""
    ends = (pair.split("~") if isinstance(pair, str) else [str(end) for end in pair] for pair in pairs)
    return tuple((end[0], end[1]) for end in ends if len(end) == 2)
