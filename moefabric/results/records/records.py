"""Records of iterations, collectives and reconfigurations, and spans of the timeline."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import FailureRecord, IterationWindow
from moefabric.core.flows import Flow, FlowRecord, Split
from moefabric.core.topology import Fabric, Region
from moefabric.core.transition import ReconfigurationPhases
from moefabric.core.units import NS_PER_S
from moefabric.planner.horizon import UNKNOWN, Horizon
from moefabric.results.records.port_windows import TransferCount
from moefabric.simulator.fluid import Prediction
from moefabric.simulator.server_times import ServerTimes
from moefabric.workload.iterations.iteration import Reconfigure
from moefabric.workload.iterations.tasks import Sent


@dataclass(frozen=True, slots=True)
class CircuitChange:
    """A controller's reply to a demand.

    Attributes:
        before: The circuits that traffic relied on.
        after: The circuits that traffic may use from now on.
        phases: Seconds of each phase of the change: wall seconds in a controller's reply, model
            seconds in records.
        dark: Requested circuits without light; the EPS carries the traffic of their pairs.
        error: Why the controller did not change the circuits as requested; empty if it did.
        split: The controller's split of the demand over `after`, if it planned exactly these
            circuits.
        settled_s: Model seconds that the controller waited for light, in records.
    """

    before: CircuitSet
    after: CircuitSet
    phases: ReconfigurationPhases
    dark: CircuitSet = field(default_factory=CircuitSet)
    error: str = ""
    split: Split | None = None
    settled_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CollectiveRun:
    """A region's part of a collective, or a transfer between regions.

    Instants are nanoseconds of the run's clock, from the first byte sent to the last one received,
    as if the harness took no time; predictions are model seconds.

    Attributes:
        dark_ns: How long circuits of the region were dark before the collective.
        cpu_steal: The share of the machine's CPU that a hypervisor gave to others meanwhile.
        ready_ns: When the first byte could have been sent without waiting for circuits or agents
            (0: unknown).
        predicted_wait_s: Model seconds from `ready_ns` until new circuits were predicted.
        reconfigured_meanwhile: Whether new circuits were used during the collective.
        harness_ns: Delay of the first byte beyond that of the modelled cluster, because agents
            had to be ordered to start.
        flows_s: Predicted model seconds from the start of the collective to the arrival of each
            `planned` flow.
        count: Counters of the whole transfer, of which other regions' runs are parts; None if
            nobody counted.
        circuits: Circuits that were lit.
        ordered_ns: The start that each order named, by its number; empty if unknown.
        report_ns: How long after an order's last byte its report came, at most; 0 if unknown.
        server: The times inside servers before the first byte and after the last one.
    """

    iteration: int
    operation: Sent
    plan: Prediction
    planned: tuple[Flow, ...]
    records: tuple[FlowRecord, ...]
    dark_ns: int
    cpu_steal: float = 0.0
    region: str = "r0"
    micro_batch: int = 0
    ready_ns: int = 0
    predicted_wait_s: float = 0.0
    reconfigured_meanwhile: bool = False
    harness_ns: int = 0
    flows_s: tuple[float, ...] = ()
    count: TransferCount | None = None
    circuits: CircuitSet = field(default_factory=CircuitSet)
    ordered_ns: Mapping[int, int] = field(default_factory=dict)
    report_ns: int = 0
    server: ServerTimes = field(default_factory=ServerTimes)

    @property
    def predicted_s(self) -> float:
        """Predicted completion time in model seconds: that of the last flow."""
        return max(self.flows_s)

    def measured_s(self, dilation: float) -> float:
        """Return the completion time in model seconds."""
        return (self.end_ns - self.start_ns) / NS_PER_S / dilation

    def error(self, dilation: float) -> float:
        """Return measured over predicted completion time, minus 1."""
        return self.measured_s(dilation) / self.predicted_s - 1

    def arrivals(self) -> Iterator[tuple[Flow, FlowRecord, float]]:
        """Yield each planned flow that was sent, its record and its predicted model seconds."""
        records = defaultdict[tuple[str, str, str], list[FlowRecord]](list)
        for record in sorted(self.records, key=lambda record: record.collective):
            records[record.src, record.dst, record.path].append(record)
        for flow, predicted_s in zip(self.planned, self.flows_s, strict=True):
            if sent := records[flow.src, flow.dst, flow.path]:
                yield flow, sent.pop(0), predicted_s

    def flow_errors(self, dilation: float) -> Iterator[tuple[Flow, float]]:
        """Yield each planned flow that was sent, and how much later than predicted it arrived.

        The error is a share of the collective's predicted time. As a share of the flow's own, it
        would be large for a flow of a few frames, whatever the cause, and matter to no one.
        """
        for flow, record, predicted_s in self.arrivals():
            arrived_s = (record.last_received_ns - self.start_ns) / NS_PER_S / dilation
            yield flow, (arrived_s - predicted_s) / self.predicted_s

    @property
    def waited_ns(self) -> int:
        """Time that the collective waited for circuits."""
        return max(0, self.start_ns - self.ready_ns) if self.ready_ns else 0

    @property
    def start_ns(self) -> int:
        """Instant of the first byte sent."""
        return min(record.first_sent_ns for record in self.records)

    @property
    def end_ns(self) -> int:
        """Instant of the last byte received."""
        return max(record.last_received_ns for record in self.records)


@dataclass(frozen=True, slots=True)
class ReconfigurationRun:
    """Record of a region's reconfiguration.

    Attributes:
        demand: The region's demand that its controller got; None if none did.
        horizon: The all-to-alls to come that it got.
        expected_control_s: Model seconds besides settling that no controller has influence on:
            those of the experiment, or of benchmarks.
        chosen: The circuits that the policy chooses for the demand when the run asks it; None if
            it wasn't asked.
        plan_s: Model seconds that this choice took.
    """

    iteration: int
    operation: Reconfigure
    change: CircuitChange
    start_ns: int
    end_ns: int
    region: str = "r0"
    micro_batch: int = 0
    demand: DemandMatrix | None = None
    horizon: Horizon = UNKNOWN
    expected_control_s: float = 0.0
    chosen: CircuitSet | None = None
    plan_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Span:
    """An activity of one server in the timeline."""

    server: str
    kind: str
    direction: str
    layer: int | None
    start_ns: int
    end_ns: int
    micro_batch: int = 0


def sending_spans(fabric: Fabric, run: CollectiveRun) -> list[Span]:
    """Return the span in which each server sent or received."""
    records = defaultdict[str, list[FlowRecord]](list)
    for record in run.records:
        records[record.src].append(record)
        records[record.dst].append(record)
    what, spans = run.operation, []
    for server in sorted(records, key=fabric.server_index.__getitem__):
        start_ns = min(record.first_sent_ns for record in records[server])
        end_ns = max(record.last_received_ns for record in records[server])
        place = what.direction, what.layer
        spans.append(Span(server, what.kind, *place, start_ns, end_ns, run.micro_batch))
    return spans


def reconfiguration_spans(fabric: Fabric, run: ReconfigurationRun) -> list[Span]:
    """Return the reconfiguration and dark spans of the servers whose circuits changed."""
    change, phases, wall_ns = run.change, run.change.phases, fabric.scale.wall_ns
    transition = change.before.transition_to(change.after)
    servers = {s for part in (transition.teardown, transition.setup) for c in part for s in c.pair}
    before_dark_s = phases.demand_s + phases.plan_s + phases.divert_s
    dark = run.start_ns + wall_ns(before_dark_s * NS_PER_S)
    lit = min(run.end_ns, dark + wall_ns(phases.settle_s * NS_PER_S))
    return [
        Span(
            server, kind, run.operation.direction, run.operation.layer, start, end, run.micro_batch
        )
        for server in sorted(servers, key=fabric.server_index.__getitem__)
        for kind, start, end in (("reconfiguration", run.start_ns, run.end_ns), ("dark", dark, lit))
    ]


@dataclass(frozen=True, order=True, slots=True)
class CircuitRequest:
    """A request for circuits since the first failure, on the wall clock."""

    start_ns: int
    region: str
    granted: bool


@dataclass(frozen=True)
class RunFailures:
    """The failures during a run and the windows of its iterations, on the wall clock.

    Attributes:
        wall_ns: Converts an instant of the run's clock to the wall clock.
        run_ns: Converts an instant of the wall clock to the run's clock.
        planned_ns: When traffic was first planned for the circuits that a failure had left: ends
            of the reconfigurations that succeeded, and starts of transfers after a report.
        reopened_ns: Ends of the first collectives over reopened connections, in restarted
            iterations.
        requests: Requests for circuits, in the order of their starts.
    """

    failures: tuple[FailureRecord, ...] = ()
    windows: tuple[IterationWindow, ...] = ()
    wall_ns: Callable[[int], int] = int
    run_ns: Callable[[int], int] = int
    planned_ns: tuple[int, ...] = ()
    reopened_ns: tuple[int, ...] = ()
    requests: tuple[CircuitRequest, ...] = ()

    def with_plans_of(self, runs: Iterable["IterationRun"]) -> "RunFailures":
        """Return these failures with the reconfigurations and restarts of these iterations."""
        listed = list(runs)
        changes = [change for run in listed for change in run.reconfigurations]
        granted = (change for change in changes if not change.change.error)
        planned_ns = {*self.planned_ns, *(self.wall_ns(change.end_ns) for change in granted)}
        requests = {*self.requests, *map(self._request, changes)}
        reopened_ns = {*self.reopened_ns} | {
            self.wall_ns(min(c.end_ns + c.harness_ns for c in run.collectives))
            for run in listed
            if run.lost_ns and run.collectives
        }
        planned, reopened = tuple(sorted(planned_ns)), tuple(sorted(reopened_ns))
        return replace(
            self, planned_ns=planned, reopened_ns=reopened, requests=tuple(sorted(requests))
        )

    def of_later_iterations(self) -> "RunFailures":
        """Return what later iterations need to know, given that the failures are over.

        That is the last plan, and the last request for circuits of each region: no later activity
        lies before these.
        """
        last = {request.region: request for request in self.requests}
        return replace(self, planned_ns=self.planned_ns[-1:], requests=tuple(sorted(last.values())))

    def _request(self, run: "ReconfigurationRun") -> CircuitRequest:
        return CircuitRequest(self.wall_ns(run.start_ns), run.region, not run.change.error)

    def explain(self, region: Region, run: "ReconfigurationRun") -> bool:
        """Return whether a failure of the region explains that circuits were refused or dark.

        A failure explains the requests of its own region while it lasts, and the first request
        after it, by whose reply the controller knows of the end.
        """
        start_ns, end_ns = self.wall_ns(run.start_ns), self.wall_ns(run.end_ns)
        requests = [request for request in self.requests if request.region == region.name]
        for failure in self.failures:
            if end_ns < failure.injected_ns or not _concerns_circuits(failure, region):
                continue
            over_ns = failure.cleared_ns
            if over_ns is None and failure.kind.traits.restarts:
                granted = (request.start_ns for request in requests if request.granted)
                over_ns = next((at for at in granted if at >= failure.injected_ns), None)
            if over_ns is None:
                return True
            later_ns = (r.start_ns for r in requests if r.start_ns > over_ns)
            first_ns = next(later_ns, None)
            if start_ns <= over_ns or start_ns == first_ns:
                return True
        return False

    @property
    def are_over(self) -> bool:
        """True if all failures are cleared, and circuits were planned since: nothing is disturbed.

        Connections are reopened by then, if an iteration has ended since.
        """
        last_ns = max(self.planned_ns, default=0)
        return all(
            failure.cleared_ns is not None
            and max(failure.cleared_ns, failure.recovered_ns or 0) <= last_ns
            for failure in self.failures
        )

    def iteration_of(self, failure: FailureRecord) -> IterationWindow | None:
        """Return the iteration in which a failure was injected, or the next; None after all."""
        at = failure.injected_ns
        later = [window for window in self.windows if at <= window.end_ns]
        return next((window for window in later if window.start_ns <= at), next(iter(later), None))

    def had_cut_off(self, run: CollectiveRun) -> bool:
        """Return whether a loss had cut off transfers before the end of a collective."""
        end_ns = self.wall_ns(run.end_ns + run.harness_ns)
        return any(reopened_ns <= end_ns for reopened_ns in self.reopened_ns)

    def disturbing(self, run: CollectiveRun) -> list[int]:
        """Return the positions of the failures for which a collective was not planned."""
        start = self.wall_ns(run.start_ns + run.harness_ns)
        end = self.wall_ns(run.end_ns + run.harness_ns)
        return [
            position
            for position, failure in enumerate(self.failures)
            if failure.disturbs(start, end, self.planned_ns, self.reopened_ns)
        ]


def _concerns_circuits(failure: FailureRecord, region: Region) -> bool:
    """Return whether a failure concerns the controller, the OCS, a NIC or a server of a region.

    The death of a rank leaves its server's NICs alone.
    """
    if failure.kind is FailureKind.GPU:
        return False
    names = {region.name, *region.servers, *([region.ocs.name] if region.ocs is not None else [])}
    return any(name.partition("/")[0] in names for name in failure.what)


@dataclass(slots=True)
class IterationRun:
    """Record of an iteration of a job.

    Attributes:
        skipped_ns: Waiting time that the run's clock skipped.
        transfers: Activations and gradients between stages, all-reduces of replicas.
        substituted: Whether backup servers or GPUs worked for lost ones.
        retried: Number of transfers that a loss cut off and that were repeated.
        lost_ns: Duration of the attempts that losses ended, until the last attempt began.
        predicted_s: Model seconds of the iteration's tasks in the event simulation.
    """

    number: int
    start_ns: int
    end_ns: int = 0
    compute_ns: int = 0
    skipped_ns: int = 0
    collectives: list[CollectiveRun] = field(default_factory=list)
    reconfigurations: list[ReconfigurationRun] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    transfers: list[CollectiveRun] = field(default_factory=list)
    job: int = 0
    substituted: bool = False
    retried: int = 0
    lost_ns: int = 0
    predicted_s: float = 0.0

    def without_rows(self, spans: Sequence[Span] = ()) -> "IterationRun":
        """Return the run without its records: times, and these activities."""
        return replace(self, collectives=[], reconfigurations=[], transfers=[], spans=list(spans))

    @property
    def harness_ns(self) -> int:
        """Sum of the harness times of collectives and transfers, each order's counted once."""
        orders = {
            run.records[0].collective: run.harness_ns
            for run in (*self.collectives, *self.transfers)
        }
        return sum(orders.values())
