"""What a verdict rests on: labelled errors of times and rates, and contradictions in the records.

Collectives during failures are reported, but not judged. Those during CPU steal can be left out.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from moefabric.core.circuits import CircuitSet
from moefabric.core.flows import Flow, FlowRecord
from moefabric.core.topology import Fabric
from moefabric.core.units import NS_PER_S
from moefabric.runner.counted_traffic import CountedTraffic, RoutingFault
from moefabric.runner.evidence import Evidence, NamedErrors
from moefabric.runner.fidelity import CPU_STEAL_LIMIT, LabelledError
from moefabric.runner.run_records import (
    CollectiveRun,
    IterationRun,
    ReconfigurationRun,
    RunFailures,
)
from moefabric.simulator.fluid import Link, goodput_share, is_forwarding, link_rate_bps, route
from moefabric.workload.iteration import Collective
from moefabric.workload.tasks import AllReduce, Background

_FULL_SHARE = 0.95
"""Share of capacity at which a link counts as full during the whole predicted time."""


def evidence_of(
    fabric: Fabric,
    iteration: IterationRun,
    failures: RunFailures,
    traffic: CountedTraffic,
    named: set[RoutingFault],
    most_steal: float = CPU_STEAL_LIMIT,
) -> Evidence:
    """Collect what an iteration contributes to the verdict on one fabric's replay.

    Args:
        fabric: The fabric on which the workload was replayed.
        iteration: Record of the iteration.
        failures: Failures during the replay.
        traffic: Bytes counted at ports.
        named: Routing faults that other iterations have named; those of this one are added.
        most_steal: CPU steal share above which a collective is left out.
    """

    def is_judged(run: CollectiveRun) -> bool:
        return run.cpu_steal <= most_steal and not failures.disturbing(run)

    collectives, changes = iteration.collectives, iteration.reconfigurations
    judged = [run for run in collectives if is_judged(run)]
    links = defaultdict[str, list[float]](list)
    for run in judged:
        for item in _link_rate_errors(fabric, run):
            links[item.label].append(item.error)
    records = [record for run in judged for record in run.records]
    worst = max(records, key=lambda record: record.retransmits, default=None)
    return Evidence(
        errors={
            kind: NamedErrors.of(errors)
            for kind, errors in _errors(fabric, iteration, is_judged).items()
        },
        links=links,
        lateness=NamedErrors.of([_lateness(run) for run in judged]),
        settling=NamedErrors.of(list(_settle_errors(fabric, changes))),
        misrouted=list(_misrouted([*collectives, *iteration.transfers], traffic, failures, named)),
        violations=[
            *chain.from_iterable(_violations(fabric, run) for run in collectives),
            *_wrong_volumes(fabric, iteration),
        ],
        refused=[f"{run.region}: {run.change.error}" for run in changes if run.change.error],
        dark=[f"{run.region}: no light on {run.change.dark}" for run in changes if run.change.dark],
        changes=len(changes),
        retransmits=sum(record.retransmits for record in records),
        judged_bytes=sum(record.bytes for record in records),
        worst_retransmits=worst.retransmits if worst else 0,
        worst_flow=f"from {worst.src} to {worst.dst} by {worst.path}" if worst else "",
        collectives=len(collectives),
        judged=len(judged),
    )


def _errors(
    fabric: Fabric, iteration: IterationRun, is_judged: Callable[[CollectiveRun], bool]
) -> dict[str, list[LabelledError]]:
    """Return the errors of what is judged, by kind."""
    errors: dict[str, list[LabelledError]] = {
        kind: []
        for kind in ("flow", "collective", "transfer", "all-reduce", "background", "iteration")
    }
    parts = [(run, "collective") for run in iteration.collectives] + [
        (run, _kind(run)) for run in iteration.transfers
    ]
    for run, kind in parts:
        if is_judged(run):
            if kind != "background":  # pieces of a few frames, of which only the sum matters
                errors["flow"] += _flow_errors(fabric, run)
            errors[kind].append(_completion_error(fabric, run))
    is_repeated = bool(iteration.lost_ns or iteration.retried)
    if iteration.predicted_s and not is_repeated and all(is_judged(run) for run, _ in parts):
        measured_s = (iteration.end_ns - iteration.start_ns) / NS_PER_S / fabric.scale.dilation
        label = f"iteration {iteration.number} of job {iteration.job}"
        errors["iteration"].append(LabelledError(label, measured_s / iteration.predicted_s - 1))
    return errors


def _kind(run: CollectiveRun) -> str:
    """Return the kind of error that a transfer's completion time has."""
    match run.operation:
        case AllReduce() | Background() as work:
            return work.kind
    return "transfer"


def collective_label(run: CollectiveRun) -> str:
    """Return the name of a collective or transfer in a verdict's reasons."""
    layer = getattr(run.operation, "layer", None)
    place = "" if layer is None else f" of layer {layer}"
    batch = f", micro-batch {run.micro_batch}" if run.micro_batch else ""
    kind = f"{run.operation.direction} {run.operation.kind}"
    return f"{run.region}: {kind}{place}, iteration {run.iteration}{batch}"


def _completion_error(fabric: Fabric, run: CollectiveRun) -> LabelledError:
    return LabelledError(collective_label(run), run.error(fabric.scale.dilation))


def _flow_errors(fabric: Fabric, run: CollectiveRun) -> Iterator[LabelledError]:
    for flow, error in run.flow_errors(fabric.scale.dilation):
        path = f"{flow.src} to {flow.dst} by {flow.path}"
        yield LabelledError(f"{path}, {collective_label(run)}", error)


def _lateness(run: CollectiveRun) -> LabelledError:
    """Return how late the last of the senders with a common start began."""
    firsts: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for record in run.records:
        starts_ns = firsts[record.collective]
        starts_ns[record.src] = min(
            record.first_sent_ns, starts_ns.get(record.src, record.first_sent_ns)
        )
    late_ns, server = max(
        (start_ns - min(starts.values()), server)
        for starts in firsts.values()
        for server, start_ns in starts.items()
    )
    return LabelledError(server, late_ns / max(1, run.end_ns - run.start_ns))


def _settle_errors(
    fabric: Fabric, changes: Sequence[ReconfigurationRun]
) -> Iterator[LabelledError]:
    """Yield each measured dark time against the one that the region's OCS should have."""
    for run in changes:
        ocs = next(region.ocs for region in fabric.regions if region.name == run.region)
        transition = run.change.before.transition_to(run.change.after)
        if ocs is None or run.change.error or not transition.setup:
            continue
        specified_s = (ocs.settle_ns + ocs.link_up_ns) / NS_PER_S / fabric.scale.dilation
        if specified_s:
            label = f"{ocs.name}, reconfiguration in iteration {run.iteration}"
            yield LabelledError(label, run.change.settled_s / specified_s - 1)


def _misrouted(
    runs: Sequence[CollectiveRun],
    traffic: CountedTraffic,
    failures: RunFailures,
    named: set[RoutingFault],
) -> Iterator[str]:
    """Yield the flows that took another way than planned, with the first run that they concern."""
    for run in runs:
        for fault in traffic.misrouted(run, failures):
            if fault not in named:
                named.add(fault)
                yield f"{collective_label(run)}: {fault.text}"


def _violations(fabric: Fabric, run: CollectiveRun) -> Iterator[str]:
    """Yield what contradicts the plan in the records of a collective."""
    label = collective_label(run)
    planned = Counter[tuple[str, str, str]]()
    for flow in run.planned:
        planned[flow.src, flow.dst, flow.path] += fabric.scale.size_bytes(flow.bytes)
    measured, received = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for record in run.records:
        measured[record.src, record.dst, record.path] += record.bytes
        received[record.src, record.dst, record.path] += record.received_bytes
        if record.corrupt:
            yield f"{label}: {record.src} to {record.dst} by {record.path}: {record.why}"
        if not (
            record.first_sent_ns <= record.last_sent_ns
            and record.first_sent_ns <= record.first_received_ns <= record.last_received_ns
        ):
            yield (
                f"{label}: the clocks of {record.src} and {record.dst} disagree: bytes arrived "
                "before they were sent"
            )
    for src, dst, path in sorted(planned | measured):
        ordered, sent = planned[src, dst, path], measured[src, dst, path]
        if ordered != sent:
            yield f"{label}: {src} sent {sent} bytes to {dst} by {path}, not the {ordered} ordered"
        if received[src, dst, path] != sent:
            arrived = received[src, dst, path]
            yield f"{label}: {dst} received {arrived} bytes of the {sent} of {src} by {path}"


def _wrong_volumes(fabric: Fabric, iteration: IterationRun) -> Iterator[str]:
    """Yield the pairs of servers between which other bytes were sent than the demand owes.

    The plan has no part in this: a policy that forgets bytes is caught, too.
    """
    parts = defaultdict[tuple[int, int], list[CollectiveRun]](list)
    for run in iteration.collectives:
        parts[id(run.operation), run.micro_batch].append(run)
    for runs in parts.values():
        operation = runs[0].operation
        assert isinstance(operation, Collective)
        sent, flows = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for record in chain.from_iterable(run.records for run in runs):
            sent[record.src, record.dst] += record.bytes
            flows[record.src, record.dst] += 1
        owed = {
            (src, dst): size / fabric.scale.bytes for src, dst, size in operation.demand.pairs()
        }
        for src, dst in sorted({*owed, *sent}):
            # Each flow is rounded to a byte, and has one at least.
            if abs(sent[src, dst] - owed.get((src, dst), 0.0)) > max(1, flows[src, dst]):
                yield (
                    f"{collective_label(runs[0])}: {src} sent {sent[src, dst]} bytes to {dst}; "
                    f"the demand is {owed.get((src, dst), 0.0):.0f}"
                )


def _link_rate_errors(fabric: Fabric, run: CollectiveRun) -> list[LabelledError]:
    """Measured over expected goodput, minus 1, of each link that should be full all the time."""
    by_link: defaultdict[Link, list[tuple[FlowRecord, float]]] = defaultdict(list)
    for _, record, expected_s in run.arrivals():
        for link in _links(fabric, run.circuits, record):
            by_link[link].append((record, expected_s))
    full_bytes_per_bps = (
        _FULL_SHARE * run.plan.seconds * goodput_share(fabric.mtu) / 8 / fabric.scale.bytes
    )
    errors = []
    for link, flows in by_link.items():
        duration_ns = max(r.last_received_ns for r, _ in flows) - min(
            r.first_sent_ns for r, _ in flows
        )
        carried = sum(record.bytes for record, _ in flows)
        if duration_ns > 0 and carried >= full_bytes_per_bps * link_rate_bps(fabric, link):
            expected_ns = max(expected_s for _, expected_s in flows) * NS_PER_S
            error = expected_ns * fabric.scale.dilation / duration_ns - 1
            errors.append(LabelledError(" to ".join(link), error))
    return errors


def _links(fabric: Fabric, circuits: CircuitSet, record: FlowRecord) -> tuple[Link, ...]:
    """Return a flow's cables; of a circuit only the sender's, as the receiver's is equally full."""
    if record.path[0] == "o":
        return ((f"{record.src}/{record.path}", "ocs"),)
    links = route(fabric, circuits, Flow(record.src, record.dst, record.path, record.bytes))
    return tuple(link for link in links if link[0] != "ocs" and not is_forwarding(link))
