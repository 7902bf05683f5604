"""Reading: a run's JSON as the figures that table and page show, one `Result` a fabric.

Lenient on purpose: a figure that a run lacks is None and is told as missing, for a report of a run
that went wrong is needed most. Times are the model's seconds and bytes the model's bytes, as in the JSON.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, quantiles
from typing import Any

PHASES = ("demand", "plan", "divert", "command", "settle", "verify", "admit")
"""The phases of a reconfiguration, in their order; each is `<phase>_s` in the JSON."""

VERDICTS = ("pass", "degraded", "invalid")
"""From best to worst."""

BASELINE = "eps"
"""Policy, or name, of the fabric that the others are measured against."""


@dataclass(frozen=True)
class AllToAll:
    """One dispatch or combine: its completion time, measured and by the fluid model."""

    measured_s: float
    predicted_s: float | None
    region: str = ""
    iteration: int = 0
    layer: int = 0
    kind: str = ""
    backward: bool = False

    @property
    def error(self) -> float | None:
        """How much longer it took than predicted, as a share of the prediction."""
        return self.measured_s / self.predicted_s - 1 if self.predicted_s else None


@dataclass(frozen=True)
class Reconfiguration:
    """One reconfiguration: seconds by phase, and in all. `moved` is False where the circuits wanted were lit already."""

    name: str
    moved: bool
    phases: Mapping[str, float]
    total_s: float

    @property
    def control_s(self) -> float:
        """What it took without waiting for light: every phase but settle."""
        return sum(seconds for phase, seconds in self.phases.items() if phase != "settle")


@dataclass(frozen=True)
class Interval:
    """What one server did from when to when, in one iteration."""

    server: str
    kind: str
    backward: bool
    layer: int | None
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Result:
    """One fabric under a policy, its figures (medians over iterations) and its verdict."""

    name: str
    policy: str
    verdict: str
    reasons: tuple[str, ...]
    iterations: int = 0
    iteration_s: float | None = None
    predicted_iteration_s: float | None = None
    compute_s: float | None = None
    exposed_s: float | None = None
    all_to_alls: tuple[AllToAll, ...] = ()
    ratio_measured: float | None = None
    ratio_predicted: float | None = None
    bytes_by_light: float = 0.0
    bytes_by_eps: float = 0.0
    dark_s: float = 0.0
    reconfigurations: tuple[Reconfiguration, ...] = ()
    timeline: tuple[Interval, ...] = ()
    demand: tuple[tuple[float, ...], ...] = ()
    demand_label: str = ""
    circuits: tuple[tuple[str, str], ...] = ()
    wiring: Mapping[str, Any] = field(default_factory=dict)
    regions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The servers of each region, where there are several."""
    fidelity: Mapping[str, Any] = field(default_factory=dict)
    integrity: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measured_s(self) -> float | None:
        """Median completion time of its all-to-alls."""
        return middle(a.measured_s for a in self.all_to_alls)

    @property
    def predicted_s(self) -> float | None:
        """Median of the fluid predictions of its all-to-alls."""
        return middle(a.predicted_s for a in self.all_to_alls if a.predicted_s is not None)

    @property
    def error(self) -> float | None:
        """Median of its all-to-alls' signed errors."""
        return middle(a.error for a in self.all_to_alls if a.error is not None)

    @property
    def error_p95(self) -> float | None:
        """95th percentile of its all-to-alls' errors, sign left out."""
        errors = sorted(abs(a.error) for a in self.all_to_alls if a.error is not None)
        if len(errors) < 2:
            return errors[0] if errors else None
        return quantiles(errors, n=20, method="inclusive")[-1]

    @property
    def exposed_share(self) -> float | None:
        """Exposed communication as a share of the iteration."""
        if self.exposed_s is None or not self.iteration_s:
            return None
        return self.exposed_s / self.iteration_s

    @property
    def light_share(self) -> float | None:
        """Bytes that went by light, as a share of all."""
        whole = self.bytes_by_light + self.bytes_by_eps
        return self.bytes_by_light / whole if whole else None

    @property
    def changes(self) -> tuple[Reconfiguration, ...]:
        """The reconfigurations that moved light, or all of them where none did: those worth timing."""
        return tuple(r for r in self.reconfigurations if r.moved) or self.reconfigurations

    @property
    def count(self) -> str:
        """How many reconfigurations moved light, and out of how many where not all did: `42`, `3 of 42`."""
        moved, asked = sum(r.moved for r in self.reconfigurations), len(self.reconfigurations)
        return str(asked) if moved == asked else f"{moved} of {asked}"

    @property
    def total_s(self) -> float | None:
        """Median change of light, from demand in to last rule confirmed."""
        return middle(r.total_s for r in self.changes)

    def phase_s(self, phase: str) -> float | None:
        """Median of one phase over its changes of light."""
        return middle(r.phases[phase] for r in self.changes if phase in r.phases)


def results(run: Mapping[str, Any]) -> list[Result]:
    """Every fabric of a run, in the run's order."""
    rows = _rows(run, "results")
    read = [_result(row) for row in rows]
    base = baseline(read)
    return [_against(result, row.get("ratios") or {}, base) for result, row in zip(read, rows, strict=True)]


def baseline(judged: Iterable[Result]) -> Result | None:
    """The fabric without light that the others are measured against, if the run has it."""
    return next((result for result in judged if BASELINE in (result.policy, result.name)), None)


def overall(judged: Iterable[Result]) -> str:
    """The worst verdict among them; a run without results proves nothing and is invalid."""
    return max((result.verdict for result in judged), key=VERDICTS.index, default="invalid")


def number(value: object) -> float | None:
    """`value` if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def middle(values: Iterable[float | None]) -> float | None:
    """The median of those there are."""
    there = [value for value in values if value is not None]
    return median(there) if there else None


def _rows(source: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    return [row for row in source.get(key) or () if isinstance(row, Mapping)]


def _result(row: Mapping[str, Any]) -> Result:
    iterations = _rows(row, "iterations")
    collectives = _rows(row, "collectives")
    fidelity = row.get("fidelity") or {}
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
        wiring=row.get("wiring") or {},
        regions=regions,
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
    return tuple(
        Interval(i.server, i.kind, i.backward, i.layer, i.start_s - begin, i.end_s - begin) for i in read
    )


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
    )


def _demand(rows: Any) -> tuple[tuple[float, ...], ...]:
    """A square matrix of bytes; none where the run has another shape."""
    matrix = tuple(tuple(number(cell) or 0.0 for cell in row) for row in rows or ())
    return matrix if all(len(row) == len(matrix) for row in matrix) else ()


def _circuits(pairs: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    """Circuits as pairs of NICs, whether written `["s0/o0", "s3/o2"]` or `s0/o0~s3/o2`."""
    ends = (pair.split("~") if isinstance(pair, str) else [str(end) for end in pair] for pair in pairs)
    return tuple((end[0], end[1]) for end in ends if len(end) == 2)
