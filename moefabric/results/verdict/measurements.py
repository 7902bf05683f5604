"""Measurements on which a verdict rests: errors of times and rates, contradictions in records.

Each iteration has measurements of its own, which its line in the journal holds. Those of a fabric
are their sum. Every error is kept, eight bytes each, so that medians and percentiles are exact.
Labels are kept only of the errors that a reason may name.

Collectives during failures and CPU steal are reported, but not judged, whether or not these did
harm: what counts is fixed before the times are known.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from copy import deepcopy
from itertools import chain
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator

from moefabric.core.circuits import CircuitSet
from moefabric.core.flows import Flow, FlowRecord
from moefabric.core.routes import Link, is_forwarding, route
from moefabric.core.topology import Fabric
from moefabric.core.units import NS_PER_S
from moefabric.results.model import CPU_STEAL_LIMIT, Integrity
from moefabric.results.parts import ResultPart
from moefabric.results.records.counted_traffic import CountedTraffic, Misrouting
from moefabric.results.records.records import (
    CollectiveRun,
    IterationRun,
    ReconfigurationRun,
    RunFailures,
)
from moefabric.results.verdict import circuit_changes, instants
from moefabric.results.verdict.reasons import MOST_NAMES, OUTLIER, OUTLIER_DEVIATIONS, LabelledError
from moefabric.simulator.fluid import goodput_share, link_rate_bps
from moefabric.workload.iterations.iteration import AllReduce
from moefabric.workload.iterations.tasks import BackgroundTransfer, owed_bytes

_NORMAL_DEVIATION = 1.4826
"""Standard deviation of a normal distribution relative to its median absolute deviation."""
_FULL_SHARE = 0.95
"""Share of capacity at which a link counts as full during the whole predicted time."""


def _floats(values: Iterable[float]) -> MutableSequence[float]:
    try:
        return array("d", values)
    except TypeError as error:
        raise ValueError("Input should be a list of numbers") from error


Floats = Annotated[MutableSequence[float], PlainValidator(_floats), PlainSerializer(list)]
"""Numbers of eight bytes each; a list in JSON."""


class Errors(ResultPart):
    """Relative errors of one kind."""

    model_config = ConfigDict(frozen=False)

    values: Floats = Field(default_factory=lambda: array("d"))
    """All errors, in order of arrival."""
    named: list[LabelledError] = Field(default_factory=list)
    """The errors of the greatest magnitude that may be outliers, and that of the greatest of all,
    in order of arrival."""

    @classmethod
    def of(cls, errors: Iterable[LabelledError]) -> Self:
        """Return labelled errors without the labels that no reason names."""
        listed = list(errors)
        return cls(values=[one.error for one in listed], named=_extremes(listed))

    def __iadd__(self, other: Self) -> Self:
        self.values.extend(other.values)
        self.named = _extremes([*self.named, *other.named])
        return self

    @property
    def signed(self) -> NDArray[np.float64]:
        """All errors."""
        return np.array(self.values, np.float64)

    @property
    def worst(self) -> LabelledError | None:
        """The error of the greatest magnitude."""
        return max(self.named, key=lambda one: abs(one.error), default=None)

    def outlier_share(self, least: float = OUTLIER) -> float:
        """Return the error above which a sample is an outlier: `least`, or more by their spread."""
        center = float(np.median(self.signed))
        deviation = _NORMAL_DEVIATION * float(np.median(np.abs(self.signed - center)))
        return max(least, abs(center) + OUTLIER_DEVIATIONS * deviation)

    def outliers(self, share: float) -> list[LabelledError]:
        """Return the greatest outliers, greatest first; reasons name no more."""
        return _outliers(self.named, share)


def least_error(share: float) -> float:
    """Return the error of a time that is as many times too short as one of `share` is too long."""
    return 1 / (1 + share) - 1


def _outliers(errors: Iterable[LabelledError], share: float) -> list[LabelledError]:
    outliers = [one for one in errors if not least_error(share) <= one.error <= share]
    return sorted(outliers, key=lambda one: -abs(one.error))[:MOST_NAMES]


def _extremes(errors: Sequence[LabelledError]) -> list[LabelledError]:
    """Return the error of the greatest magnitude and the greatest outliers, in their order."""
    worst = max(errors, key=lambda one: abs(one.error), default=None)
    extremes = [id(one) for one in (worst, *_outliers(errors, OUTLIER))]
    return [one for one in errors if id(one) in extremes]


class FabricMeasurements(ResultPart):
    """Measurements of one or of many iterations of a fabric."""

    model_config = ConfigDict(frozen=False)

    errors: dict[str, Errors] = Field(default_factory=dict)
    """Measured / predicted - 1 by kind: `flow`, `collective`, `transfer`, `iteration`, ..."""
    links: dict[str, Floats] = Field(default_factory=dict)
    """Measured / planned goodput - 1 of full links."""
    lateness: Errors = Field(default_factory=Errors)
    """Lateness of each collective's last server, as a share of the collective."""
    starts: Errors = Field(default_factory=Errors)
    """Lateness of each collective's first server after the start that was ordered, likewise."""
    reports: Errors = Field(default_factory=Errors)
    """How long after a collective's last byte the agents reported its end, likewise."""
    arrivals: dict[str, Floats] = Field(default_factory=dict)
    """How much earlier than senders knew of it servers say that bytes arrived, likewise."""
    circuits: list[str] = Field(default_factory=list)
    """Reconfigurations for another demand than that of the layer, or to other circuits than those
    that the policy chooses."""
    control: dict[str, Floats] = Field(default_factory=dict)
    """Control time / expected control time of a region's requests that move circuits, or don't."""
    dark_time: Errors = Field(default_factory=Errors)
    """Measured dark time / nearest time that the profile of the OCS allows, minus 1."""
    dark_means: dict[str, Floats] = Field(default_factory=dict)
    """Measured / mean dark time by the profile, minus 1, of each OCS with random times."""
    dark_deviations: dict[str, Floats] = Field(default_factory=dict)
    """The standard deviations that the profile gives these."""
    cpu_idle: Floats = Field(default_factory=lambda: array("d"))
    """Idle shares of the machine while packets were under way."""
    misrouted: list[str] = Field(default_factory=list)
    """Flows that took another path than planned."""
    contradictions: list[str] = Field(default_factory=list)
    """Other contradictions between records, counters and demand."""
    failed_changes: list[str] = Field(default_factory=list)
    """Why reconfigurations failed that no failure explains."""
    dark_changes: list[str] = Field(default_factory=list)
    """Reconfigurations that left circuits dark, and that no failure explains."""
    requests: dict[str, int] = Field(default_factory=dict)
    """Requests for circuits by region, without those that failures explain."""
    refusals: dict[str, int] = Field(default_factory=dict)
    """Failed requests by region."""
    repetitions: int = 0
    """TCP segments that judged collectives sent again."""
    most_repetitions: tuple[int, str] = (0, "")
    """Segments that one flow sent again, at most, and that flow."""
    judged_bytes: int = 0
    """Emulated bytes of judged collectives."""
    collectives: int = 0
    """Number of collectives."""
    judged: int = 0
    """Number of collectives that are judged."""
    integrity: Integrity = Field(default_factory=Integrity)
    """Conservation of bytes."""

    def add(self, other: "FabricMeasurements") -> None:
        """Add the measurements of another iteration."""
        for name in FabricMeasurements.model_fields:
            setattr(self, name, _sum(getattr(self, name), getattr(other, name)))

    @property
    def disturbed(self) -> float:
        """Share of collectives that aren't judged."""
        return 1 - self.judged / self.collectives if self.collectives else 0.0

    @classmethod
    def of(
        cls,
        fabric: Fabric,
        iteration: IterationRun,
        failures: RunFailures,
        traffic: CountedTraffic,
        named: set[Misrouting],
    ) -> Self:
        """Measure an iteration.

        Args:
            fabric: The fabric on which the workload was replayed.
            iteration: Record of the iteration.
            failures: Failures during the replay.
            traffic: Bytes counted at ports.
            named: Misroutings that other iterations have named; those of this one are added.
        """

        def is_judged(run: CollectiveRun) -> bool:
            return run.cpu_steal <= CPU_STEAL_LIMIT and not failures.disturbing(run)

        collectives, changes = iteration.collectives, iteration.reconfigurations
        unexplained = _unexplained(fabric, changes, failures)
        sent = [*collectives, *iteration.transfers]
        judged = [run for run in collectives if is_judged(run)]
        dark_times = list(circuit_changes.dark_times(fabric, changes))
        records = [record for run in judged for record in run.records]
        errors = _errors(fabric, iteration, is_judged)
        wrong = chain.from_iterable(_contradictions(fabric, run) for run in sent)
        return cls(
            errors={kind: Errors.of(labelled) for kind, labelled in errors.items()},
            links=_by_name(error for run in judged for error in _link_rate_errors(fabric, run)),
            lateness=Errors.of(LabelledError(*instants.lateness(run)) for run in judged),
            starts=Errors.of(
                LabelledError(f"{server}, {collective_label(run)}", share)
                for run in judged
                for server, share in instants.start_shares(fabric, run)
            ),
            circuits=[
                *circuit_changes.wrong_demands(fabric, iteration),
                *circuit_changes.other_circuits(fabric, changes, failures),
            ],
            control=_by_name(circuit_changes.control_ratios(changes)),
            reports=Errors.of(
                LabelledError(collective_label(run), instants.report_share(run)) for run in judged
            ),
            arrivals=_by_name(chain.from_iterable(map(instants.arrival_shares, judged))),
            dark_time=Errors.of(circuit_changes.dark_time_errors(dark_times)),
            dark_means=_by_name(circuit_changes.dark_time_means(dark_times)),
            dark_deviations=_by_name(circuit_changes.dark_time_deviations(dark_times)),
            misrouted=list(_misrouted(sent, traffic, failures, named)),
            contradictions=[*wrong, *_wrong_volumes(fabric, iteration)],
            failed_changes=[f"{c.region}: {c.change.error}" for c in unexplained if c.change.error],
            dark_changes=[
                f"{c.region}: no light on {c.change.dark}" for c in unexplained if c.change.dark
            ],
            requests=Counter(c.region for c in unexplained),
            refusals=Counter(c.region for c in unexplained if c.change.error),
            repetitions=sum(record.retransmits for record in records),
            most_repetitions=_most_repetitions(records),
            judged_bytes=sum(record.bytes for record in records),
            collectives=len(collectives),
            judged=len(judged),
            integrity=_integrity(sent, iteration.retried),
        )


def _unexplained(
    fabric: Fabric, changes: Sequence[ReconfigurationRun], failures: RunFailures
) -> list[ReconfigurationRun]:
    """Return the reconfigurations that succeeded, or whose failure no injected one explains."""
    regions = {region.name: region for region in fabric.regions}
    return [
        change
        for change in changes
        if not (
            (change.change.error or change.change.dark)
            and failures.explain(regions[change.region], change)
        )
    ]


def _by_name(samples: Iterable[tuple[str, float]]) -> dict[str, MutableSequence[float]]:
    """Return the values of all collectives by name of their link or server."""
    values = defaultdict[str, MutableSequence[float]](list)
    for name, value in samples:
        values[name].append(value)
    return dict(values)


def _most_repetitions(records: Sequence[FlowRecord]) -> tuple[int, str]:
    """Return the most segments that a flow sent again, and that flow in words."""
    worst = max(records, key=lambda record: record.retransmits, default=None)
    if worst is None:
        return 0, ""
    return worst.retransmits, f"from {worst.src} to {worst.dst} by {worst.path}"


def _sum(total: Any, other: Any) -> Any:
    """Return the sum of a field's values; a list or mapping `total` grows."""
    match other:
        case dict():
            for key, value in other.items():
                total[key] = _sum(total[key], value) if key in total else deepcopy(value)
            return total
        case tuple():
            return max(total, other, key=lambda pair: pair[0])
        case Integrity():
            return Integrity(**{n: (getattr(total, n) or 0) + (v or 0) for n, v in other})
        case _:
            total += other
            return total


def _integrity(sent: Sequence[CollectiveRun], retried: int) -> Integrity:
    records = [record for run in sent for record in run.records]
    corrupt = sum(record.corrupt for record in records)
    return Integrity(
        bytes_sent=sum(record.bytes for record in records),
        bytes_received=sum(record.received_bytes for record in records),
        corrupt=corrupt,
        lost_transfers=sum(not record.ok for record in records) - corrupt,
        retried_transfers=retried,
    )


def _errors(
    fabric: Fabric, iteration: IterationRun, is_judged: Callable[[CollectiveRun], bool]
) -> dict[str, list[LabelledError]]:
    """Return the errors of judged collectives, transfers and iterations, by kind."""
    kinds = ("flow", "collective", "transfer", "all-reduce", "background", "iteration")
    errors: dict[str, list[LabelledError]] = {kind: [] for kind in kinds}
    parts = [(run, "collective") for run in iteration.collectives]
    parts += [(run, _kind(run)) for run in iteration.transfers]
    dilation = fabric.scale.dilation
    for run, kind in parts:
        if is_judged(run) and _is_timed(run):
            label = collective_label(run)
            errors[kind].append(LabelledError(label, run.error(dilation)))
            if kind == "background":  # pieces of a few frames, of which only the sum matters
                continue
            for flow, error in run.flow_errors(dilation):
                path = f"{flow.src} to {flow.dst} by {flow.path}"
                errors["flow"].append(LabelledError(f"{path}, {label}", error))
    is_repeated = bool(iteration.lost_ns or iteration.retried)
    if iteration.predicted_s and not is_repeated and all(is_judged(run) for run, _ in parts):
        measured_s = (iteration.end_ns - iteration.start_ns) / NS_PER_S / dilation
        label = f"iteration {iteration.number} of job {iteration.job}"
        errors["iteration"].append(LabelledError(label, measured_s / iteration.predicted_s - 1))
    return errors


def _is_timed(run: CollectiveRun) -> bool:
    """Return whether the time of a collective or transfer is judged by itself."""
    return not isinstance(run.operation, AllReduce) or run.operation.is_timed


def _kind(run: CollectiveRun) -> str:
    """Return the kind of error that a transfer's completion time has."""
    work = run.operation
    return work.kind if isinstance(work, AllReduce | BackgroundTransfer) else "transfer"


def collective_label(run: CollectiveRun) -> str:
    """Return the name of a collective or transfer in a verdict's reasons."""
    layer = getattr(run.operation, "layer", None)
    place = "" if layer is None else f" of layer {layer}"
    batch = f", micro-batch {run.micro_batch}" if run.micro_batch else ""
    kind = f"{run.operation.direction} {run.operation.kind}"
    return f"{run.region}: {kind}{place}, iteration {run.iteration}{batch}"


def _misrouted(
    runs: Sequence[CollectiveRun],
    traffic: CountedTraffic,
    failures: RunFailures,
    named: set[Misrouting],
) -> Iterator[str]:
    """Yield the flows that took another path than planned, with the first run that they concern."""
    for run in runs:
        for one in traffic.misrouted(run, failures):
            if one not in named:
                named.add(one)
                yield f"{collective_label(run)}: {one.text}"


def _contradictions(fabric: Fabric, run: CollectiveRun) -> Iterator[str]:
    """Yield the contradictions between the plan and the records of a collective or transfer."""
    label = collective_label(run)
    planned, measured, received = (Counter[tuple[str, str, str]]() for _ in range(3))
    for flow in run.planned:
        planned[flow.src, flow.dst, flow.path] += fabric.scale.size_bytes(flow.bytes)
    for record in run.records:
        way = src, dst, path = record.src, record.dst, record.path
        measured[way] += record.bytes
        received[way] += record.received_bytes
        if record.corrupt:
            yield f"{label}: {src} to {dst} by {path}: {record.why}"
        instants_ns = [record.first_sent_ns, record.first_received_ns, record.last_received_ns]
        if instants_ns != sorted(instants_ns) or record.last_sent_ns < record.first_sent_ns:
            disagreement = f"the clocks of {src} and {dst} disagree"
            yield f"{label}: {disagreement}: bytes arrived before they were sent"
    for way in sorted(planned | measured):
        (src, dst, path), sent, arrived = way, measured[way], received[way]
        if planned[way] != sent:
            ordered = f"not the {planned[way]} ordered"
            yield f"{label}: {src} sent {sent} bytes to {dst} by {path}, {ordered}"
        if arrived != sent:
            yield f"{label}: {dst} received {arrived} bytes of the {sent} of {src} by {path}"


def _wrong_volumes(fabric: Fabric, iteration: IterationRun) -> Iterator[str]:
    """Yield the pairs of servers between which other bytes were sent than the demand owes.

    The plan has no part in this: a policy that forgets bytes is caught, too.
    """
    parts = defaultdict[tuple[int, int], list[CollectiveRun]](list)
    for run in iteration.collectives:
        parts[id(run.operation), run.micro_batch].append(run)
    for runs in (*parts.values(), *([run] for run in iteration.transfers)):
        sent, flows = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for record in chain.from_iterable(run.records for run in runs):
            sent[record.src, record.dst] += record.bytes
            flows[record.src, record.dst] += 1
        owed = defaultdict[tuple[str, str], float](float)
        for src, dst, size in owed_bytes(runs[0].operation):
            owed[src, dst] += size / fabric.scale.bytes
        for src, dst in sorted({*owed, *sent}):
            size, demanded = sent[src, dst], owed[src, dst]
            # Each flow is rounded to a byte, and has one at least.
            if abs(size - demanded) > max(1, flows[src, dst]):
                label = collective_label(runs[0])
                yield f"{label}: {src} sent {size} bytes to {dst}; the demand is {demanded:.0f}"


def _link_rate_errors(fabric: Fabric, run: CollectiveRun) -> list[LabelledError]:
    """Measured over expected goodput, minus 1, of each link that should be full all the time."""
    by_link: defaultdict[Link, list[tuple[FlowRecord, float]]] = defaultdict(list)
    for _, record, predicted_s in run.arrivals():
        for link in _links(fabric, run.circuits, record):
            by_link[link].append((record, predicted_s))
    full_s = _FULL_SHARE * run.plan.seconds * goodput_share(fabric.mtu) / fabric.scale.bytes
    errors = []
    for link, flows in by_link.items():
        start_ns = min(record.first_sent_ns for record, _ in flows)
        duration_ns = max(record.last_received_ns for record, _ in flows) - start_ns
        carried = sum(record.bytes for record, _ in flows)
        if duration_ns > 0 and 8 * carried >= full_s * link_rate_bps(fabric, link):
            predicted_ns = max(predicted_s for _, predicted_s in flows) * NS_PER_S
            error = predicted_ns * fabric.scale.dilation / duration_ns - 1
            errors.append(LabelledError(" to ".join(link), error))
    return errors


def _links(fabric: Fabric, circuits: CircuitSet, record: FlowRecord) -> tuple[Link, ...]:
    """Return a flow's cables; of a circuit only the sender's, as the receiver's is equally full."""
    if record.path[0] == "o":
        return ((f"{record.src}/{record.path}", "ocs"),)
    links = route(fabric, circuits, Flow(record.src, record.dst, record.path, record.bytes))
    return tuple(link for link in links if link[0] != "ocs" and not is_forwarding(link))
