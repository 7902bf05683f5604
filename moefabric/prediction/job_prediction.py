"""Predictions of jobs by the event simulation: the flows, start and end of each task."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Final

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Flow
from moefabric.core.routes import Link, crosses_spine
from moefabric.core.topology import Fabric
from moefabric.planner.horizon import ENDLESS
from moefabric.planner.iteration_horizons import IterationHorizons
from moefabric.planner.plan import with_horizon
from moefabric.planner.sending.flow_pacing import SplitPolicy, merge_circuits, planned_flows
from moefabric.planner.sending.partial_offload import circuits_after_s, plan_partial_offload
from moefabric.planner.sending.task_flows import (
    TaskFlows,
    region_by_server,
    task_flows,
    with_counts,
)
from moefabric.prediction.control_time import ControlPrediction
from moefabric.simulator.event_simulation import Step, StepTimes, simulate_iterations
from moefabric.simulator.fair_sharing import Stream
from moefabric.simulator.fluid import goodput_bps, predict_regions
from moefabric.simulator.server_times import gather_and_scatter
from moefabric.workload.iterations.iteration import (
    PAUSE,
    AllReduce,
    Collective,
    Compute,
    Reconfigure,
)
from moefabric.workload.iterations.tasks import Elsewhere, Task


@dataclass(frozen=True)
class IterationPrediction:
    """Prediction of a job's iteration in model seconds.

    `compute_s` is its time without transfers, `computing` the times of its tasks without transfers.
    """

    seconds: float
    compute_s: float
    tasks: tuple[StepTimes, ...]
    computing: tuple[StepTimes, ...]


JobSteps = Sequence[Sequence[tuple[Task, Step]]]
"""A job's iterations in order: the tasks of each, with their steps in the simulation."""


def predict_iterations(fabric: Fabric, jobs: Sequence[JobSteps]) -> list[list[IterationPrediction]]:
    """Return the prediction of each iteration of jobs that run side by side."""
    steps = [[[step for _, step in iteration] for iteration in job] for job in jobs]
    bare = [[[computing(*planned) for planned in iteration] for iteration in job] for job in jobs]
    goodput = links_goodput(fabric, chain.from_iterable(chain.from_iterable(steps)))
    simulated = simulate_iterations(steps, goodput), simulate_iterations(bare, {})
    return [
        [
            IterationPrediction(seconds, compute_s, tuple(tasks), tuple(without))
            for seconds, compute_s, tasks, without in zip(
                _durations(job), _durations(computed), job, computed, strict=True
            )
        ]
        for job, computed in zip(*simulated, strict=True)
    ]


def computing(task: Task, step: Step) -> Step:
    """Return the step without transfers, circuits, and pauses between phases."""
    match task.work:
        case Compute(kind=kind, slowest_s=seconds) if kind != PAUSE:
            return Step(step.after, seconds)
        case Elsewhere(compute_s=seconds):
            return Step(step.after, seconds)
    return Step(step.after)


def _durations(job: Sequence[Sequence[StepTimes]]) -> list[float]:
    """Return each iteration's duration, from the end of the one before to its last task's end."""
    ends = [0.0]
    for iteration in job:
        ends.append(max((task.end_s for task in iteration), default=ends[-1]))
    return [end - start for start, end in pairwise(ends)]


def links_goodput(fabric: Fabric, steps: Iterable[Step]) -> dict[Link, float]:
    """Return the payload rate of each link that steps use, in bits per second."""
    used = {link for step in steps for stream in step.streams for link in stream.links}
    return {link: goodput_bps(fabric, link) for link in used}


@dataclass(frozen=True)
class DispatchPrediction:
    """Prediction of a region's part of a forward dispatch, in model seconds.

    `ideal_s` is the completion time on the circuits that the demand deserves, `lost_s` what it
    takes beyond.
    """

    layer: int
    predicted_wait_s: float
    predicted_exposed_s: float
    ideal_s: float
    lost_s: float


AllToAll = tuple[str, str, int, str]
"""Kind, direction, number among those of this kind and direction in the iteration, and region."""


@dataclass
class JobPrediction:
    """Prediction of an iteration of a job under a policy, in model seconds and bytes.

    `all_to_alls_s` holds the seconds of each region's part of each all-to-all, with all of its
    phases, and `circuits` its circuits; `bytes` and `optical_bytes` are those of all of them.
    `transfers_s` holds the seconds of transfers and all-reduces, each without others. `sent_bytes`
    and `spine_bytes` are of all of them. `region_ends_s` is when each region has ended all but
    all-reduces and the optimiser, from the iteration's start; `region_compute_s` holds these ends
    without transfers. `sendings` are its tasks that send.
    """

    seconds: float
    compute_s: float
    all_to_alls_s: dict[AllToAll, float] = field(default_factory=dict)
    circuits: dict[AllToAll, CircuitSet] = field(default_factory=dict)
    transfers_s: list[float] = field(default_factory=list)
    dispatches: list[DispatchPrediction] = field(default_factory=list)
    bytes: float = 0.0
    optical_bytes: float = 0.0
    sent_bytes: float = 0.0
    spine_bytes: float = 0.0
    reconfigurations: int = 0
    region_ends_s: tuple[float, ...] = ()
    region_compute_s: tuple[float, ...] = ()
    sendings: list["Sending"] = field(default_factory=list)


@dataclass(frozen=True)
class Sending:
    """The part of an iteration in which a task sends, in model seconds from the beginning.

    `alone_s` is its duration without other traffic.
    """

    start_s: float
    end_s: float
    alone_s: float
    streams: tuple[Stream, ...]


@dataclass(frozen=True)
class PlannedTask:
    """A task with its step, its flows and the regions that it reconfigures.

    `late` are flows that wait for new circuits. `lit` holds the circuits of each region at the end
    of an all-to-all. `ideal_s` holds, for a first all-to-all, the model seconds of each region on
    the circuits that its demand deserves.
    """

    task: Task
    step: Step
    flows: TaskFlows | None = None
    late: tuple[Flow, ...] = ()
    reconfigured: tuple[str, ...] = ()
    ideal_s: Mapping[str, float] = field(default_factory=dict)
    lit: Mapping[str, CircuitSet] = field(default_factory=dict)

    @property
    def sent(self) -> tuple[Flow, ...]:
        """All flows of the task, in the order of the streams of its step."""
        return (*(self.flows.flows if self.flows is not None else ()), *self.late)


_SENT: Final = (
    "demand", "split_demands", "counts", "pairs", "bytes", "least_s", "flows", "seconds",
)  # fmt: skip
"""Fields of a task's work that decide its flows."""


class TaskPlanner:
    """Plans tasks in order under a policy, and keeps track of the lit circuits."""

    def __init__(
        self,
        fabric: Fabric,
        policy: SplitPolicy,
        circuits: CircuitSet,
        *,
        moves: bool,
        control: ControlPrediction,
    ) -> None:
        """Start with `circuits` lit; without `moves`, they never change."""
        self.fabric, self.policy, self._moves = fabric, policy, moves
        self._regions = {region.name: region for region in fabric.regions}
        self.circuits = {
            name: CircuitSet(frozenset(c for c in circuits if c.a.server in region.servers))
            for name, region in self._regions.items()
        }
        self._after_s = circuits_after_s(fabric, control.changed_s) if moves else {}
        self._unchanged_s = control.unchanged_s
        self._known: dict[Hashable, TaskFlows | None] = {}
        self._ideal: dict[tuple[DemandMatrix, CircuitSet], Mapping[str, float]] = {}
        self._horizons = IterationHorizons(())
        self._place = 0, 0
        """The task that is planned, and the iterations to come."""

    def plan(self, iterations: Iterable[Sequence[Task]]) -> list[list[PlannedTask]]:
        """Plan the tasks of a job's iterations, one iteration after the other."""
        planned: list[list[PlannedTask]] = []
        listed = list(iterations)
        for number, tasks in enumerate(listed):
            planned.append([])
            self._horizons = IterationHorizons(tasks)
            for position, task in enumerate(tasks):
                self._place = position, len(listed) - number - 1
                planned[-1].append(self._task(task, planned[-1]))
        return planned

    def _task(self, task: Task, planned: Sequence[PlannedTask]) -> PlannedTask:
        match task.work:
            case Compute(slowest_s=seconds) | Elsewhere(seconds=seconds):
                return PlannedTask(task, Step(task.after, seconds))
            case Reconfigure(demand=demand):
                changed = () if task.during is None else planned[task.during].reconfigured
                unchanged = [region for region in task.regions if region not in changed]
                return self._reconfigure(task, demand, unchanged)
            case Collective() as work:
                ideal: Mapping[str, float] = {}
                if work.is_forward_dispatch:
                    ideal = self._ideal_s(work, self.lit(task))
                if work.concurrent is not None and self._after_s:
                    return self._offload(task, work, ideal)
                return self._send(task, ideal)
            case _:
                return self._send(task, {})

    def _ideal_s(self, work: Collective, lit: CircuitSet) -> Mapping[str, float]:
        key = work.demand, lit
        if key not in self._ideal:
            moves = self._moves
            self._ideal[key] = ideal_seconds(self.fabric, self.policy, work, lit, moves=moves)
        return self._ideal[key]

    @property
    def _policy_with_horizon(self) -> SplitPolicy:
        """The policy, with the tasks that follow the planned one."""
        return with_horizon(self.policy, self._horizons.horizon(*self._place))

    def lit(self, task: Task) -> CircuitSet:
        """Return the circuits of a task's regions."""
        return merge_circuits(self.circuits[region] for region in task.regions)

    def _lit_in(self, task: Task) -> dict[str, CircuitSet]:
        return {region: self.circuits[region] for region in task.regions}

    def _reconfigure(self, task: Task, demand: DemandMatrix, regions: Sequence[str]) -> PlannedTask:
        changed, seconds = [], 0.0
        policy = self._policy_with_horizon if self._after_s else self.policy
        for name in (name for name in regions if name in self._after_s):
            region, before = self._regions[name], self.circuits[name]
            region_demand = demand.within(region.servers)
            self.circuits[name] = policy.circuits(self.fabric, region, region_demand, before)
            moves = self.circuits[name] != before
            changed += [name] * moves
            seconds = max(seconds, self._after_s[name] if moves else self._unchanged_s)
        return PlannedTask(task, Step(task.after, seconds), reconfigured=tuple(changed))

    def _offload(self, task: Task, work: Collective, ideal: Mapping[str, float]) -> PlannedTask:
        groups = {region: self.fabric.ep_groups[region] for region in task.regions}
        policy, lit = self._policy_with_horizon, self.lit(task)
        offload = plan_partial_offload(
            self.fabric, policy, work.demand, lit, self._after_s, groups, counts=work.counts
        )
        if offload is None:
            return PlannedTask(task, Step(task.after))
        late: list[Flow] = []
        streams = () if task.barrier else offload.early.streams
        for region in offload.reconfigured_regions:
            self.circuits[region] = offload.target(region)
            if (rest := offload.late_flows(region, self.circuits[region])) is not None:
                late += rest.flows
                if not task.barrier:
                    streams += rest.streams_from(offload.parts[region].after_s)
        step = Step(task.after, offload.early.whole_s if task.barrier else 0.0, streams)
        reconfigured, circuits = offload.reconfigured_regions, self._lit_in(task)
        return PlannedTask(task, step, offload.early, tuple(late), reconfigured, ideal, circuits)

    def _send(self, task: Task, ideal: Mapping[str, float]) -> PlannedTask:
        flows = self._flows(task)
        if flows is None:
            return PlannedTask(task, Step(task.after))
        seconds, streams = (flows.whole_s, ()) if task.barrier else (0.0, flows.streams)
        step, circuits = Step(task.after, seconds, streams), self._lit_in(task)
        return PlannedTask(task, step, flows, ideal_s=ideal, lit=circuits)

    def _flows(self, task: Task) -> TaskFlows | None:
        """Return the flows of a task; tasks of equal demand on the same circuits share them."""
        work, lit = task.work, CircuitSet()
        if isinstance(work, Collective) or not self.fabric.electrical:
            lit = self.lit(task)
        key = type(work), task.regions, lit, *(getattr(work, name, None) for name in _SENT)
        if key not in self._known:
            groups = self.fabric.ep_groups
            self._known[key] = task_flows(self.fabric, self.policy, task, lit, groups)
        return self._known[key]


def predict_jobs(
    fabric: Fabric, planned: Sequence[Sequence[Sequence[PlannedTask]]]
) -> list[JobPrediction]:
    """Return the prediction of each iteration of each job, given its planned tasks."""
    rows = [[[(p.task, p.step) for p in iteration] for iteration in job] for job in planned]
    order = [region.name for region in fabric.regions]
    return [
        _job_prediction(iteration, prediction, order)
        for job, predictions in zip(planned, predict_iterations(fabric, rows), strict=True)
        for iteration, prediction in zip(job, predictions, strict=True)
    ]


def _job_prediction(
    iteration: Sequence[PlannedTask], simulated: IterationPrediction, order: Sequence[str]
) -> JobPrediction:
    predicted = JobPrediction(
        simulated.seconds,
        simulated.compute_s,
        region_ends_s=_region_ends_s(iteration, simulated.tasks, order),
        region_compute_s=_region_ends_s(iteration, simulated.computing, order),
    )
    counts = Counter[tuple[str, str]]()
    for planned, times in zip(iteration, simulated.tasks, strict=True):
        predicted.reconfigurations += len(planned.reconfigured)
        for stream in planned.step.streams:
            predicted.sent_bytes += stream.bytes
            predicted.spine_bytes += stream.bytes if crosses_spine(stream.links) else 0.0
        if planned.flows is None:
            continue
        if isinstance(planned.task.work, AllReduce) and not planned.task.work.is_timed:
            continue
        streams, server = planned.step.streams or planned.flows.streams, planned.flows.server
        sent = times.start_s + server.before_s, times.end_s - server.after_s
        predicted.sendings.append(Sending(*sent, planned.flows.seconds, streams))
        if not isinstance(planned.task.work, Collective):
            predicted.transfers_s.append(planned.flows.seconds)
            continue
        seconds = dict.fromkeys(planned.flows.predictions, times.seconds)
        if planned.task.barrier:
            by_region = planned.flows.predictions.items()
            seconds = {name: fluid.seconds + server.seconds for name, fluid in by_region}
        work = planned.task.work
        counts[work.kind, work.direction] += not work.phase  # its phases follow each other
        number = counts[work.kind, work.direction]
        for region, phase_s in seconds.items():
            key = work.kind, work.direction, number, region
            before_s = predicted.all_to_alls_s.get(key, 0.0)
            predicted.all_to_alls_s[key] = before_s + work.pause_s + phase_s
            predicted.circuits[key] = planned.lit.get(region, CircuitSet())
        predicted.bytes += sum(flow.bytes for flow in planned.sent)
        predicted.optical_bytes += sum(flow.bytes for flow in planned.sent if flow.is_optical)
        works = {n: iteration[n].task.work for n in planned.task.after}
        before = [n for n, other in works.items() if not isinstance(other, Reconfigure)]
        ready_s = max((simulated.tasks[n].end_s for n in before), default=times.start_s)
        wait_s = times.start_s - ready_s
        for region, ideal_s in planned.ideal_s.items():
            if (own_s := seconds.get(region)) is not None:
                predicted.dispatches.append(
                    DispatchPrediction(work.layer, wait_s, wait_s + own_s, ideal_s, own_s - ideal_s)
                )
    return predicted


def _region_ends_s(
    iteration: Sequence[PlannedTask], times: Sequence[StepTimes], order: Sequence[str]
) -> tuple[float, ...]:
    """Return when each region of a job has ended all but all-reduces and what waits for them.

    The order is that of the fabric.
    """
    start_s = min((task_times.start_s for task_times in times), default=0.0)
    ends: dict[str, float] = {}
    for planned, task_times in zip(iteration, times, strict=True):
        work = planned.task.work
        is_update = isinstance(work, Compute) and work.kind == "optimiser"
        if not (isinstance(work, AllReduce) or is_update):
            for region in planned.task.regions:
                ends[region] = max(ends.get(region, 0.0), task_times.end_s - start_s)
    return tuple(ends[region] for region in order if region in ends)


def deserved_circuits(
    fabric: Fabric, policy: SplitPolicy, demand: DemandMatrix, circuits: CircuitSet
) -> CircuitSet:
    """Return the circuits that the policy chooses for a demand while `circuits` are lit."""
    return merge_circuits(
        policy.circuits(fabric, region, demand.within(region.servers), circuits)
        for region in fabric.ocses
        if not set(region.servers).isdisjoint(demand.servers)
    )


def ideal_seconds(
    fabric: Fabric, policy: SplitPolicy, work: Collective, circuits: CircuitSet, *, moves: bool
) -> dict[str, float]:
    """Return the model seconds of each region on the circuits that its demand deserves."""
    lit, demand = circuits, work.demand
    if moves:
        lit = deserved_circuits(fabric, with_horizon(policy, ENDLESS), demand, circuits)
    groups = {
        name: servers
        for name, servers in fabric.ep_groups.items()
        if not set(servers).isdisjoint(demand.servers)
    }
    planned = planned_flows(fabric, policy, demand, lit, groups)
    predictions = predict_regions(fabric, lit, planned, region_by_server(groups))
    server = with_counts(fabric, gather_and_scatter(fabric, lit, planned), work.counts)
    return {name: fluid.seconds + server.seconds for name, fluid in predictions.items()}
