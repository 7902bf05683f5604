"""The job of a hybrid run: a cluster in the model, and the tasks of its emulated part.

Emulated regions compute, reconfigure and send as in the whole cluster. Modelled regions appear
as lags of emulated tasks (`moefabric.workload.iterations.tasks`) and as background flows.

The model says at which rate each flow of the whole cluster proceeds at each instant. A flow that
crosses a link of an emulated region is replayed: as pieces of a constant rate each, sent one after
another by a server that stands for the modelled one. A piece has the model's bytes and the model's
rate. It is a paced TCP flow, as in the whole cluster: it keeps to the model's rate where the link
has room for it. Where flows of the emulated region are faster than in the model, it takes its fair
share.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Final, Literal, Self

from moefabric.config.experiment import ExperimentSpec, FabricChoice
from moefabric.config.guarded_policy import guarded_policy
from moefabric.core.errors import SpecError
from moefabric.core.fabric_part import fabric_part
from moefabric.core.flows import Flow
from moefabric.core.routes import Link
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import Scale
from moefabric.prediction.job_prediction import PlannedTask, computing, links_goodput
from moefabric.prediction.jobs import Jobs, Programme
from moefabric.prediction.simulated_regions import SimulatedRegions, simulated_regions
from moefabric.prediction.workload_loader import workload_of, workload_on
from moefabric.report.formatting import counted
from moefabric.simulator.event_simulation import StepTimes, simulate_iterations
from moefabric.simulator.fair_sharing import RateChange
from moefabric.workload.iterations.iteration import (
    AllReduce,
    Collective,
    Pair,
    Reconfigure,
    Transfer,
)
from moefabric.workload.iterations.job import Job, JobShape
from moefabric.workload.iterations.pipeline import lockstep_tasks
from moefabric.workload.iterations.substitution import Substitutions
from moefabric.workload.iterations.tasks import (
    START,
    BackgroundTransfer,
    Elsewhere,
    Lag,
    Lags,
    Task,
    TaskPart,
    Work,
    task_lags,
)

_TOLERANCE: Final = 0.05
"""Relative difference of rates, and of instants as a part of the task, that a piece ignores."""
LEAST_WALL_S: Final = 0.06
"""Least duration of a piece, in wall seconds: agents start within some milliseconds."""
BackgroundMode = Literal["replayed", "average", "none"]
"""Rates of background flows: those of the model over time, their average, or no flows."""


@dataclass(frozen=True)
class RatedFlow:
    """A flow of the model, with its rate over time.

    Attributes:
        flow: The flow, in bytes of the model.
        changes: Changes of its rate, the first one being its start.
        end_s: Its end, in seconds from the same beginning as the changes.
    """

    flow: Flow
    changes: Sequence[RateChange]
    end_s: float


@dataclass(frozen=True)
class Piece:
    """Flows that start together and take equally long, in seconds from the start of their task."""

    after_s: float
    seconds: float
    flows: tuple[Flow, ...]


def pieces(rated: Iterable[RatedFlow], start_s: float, least_s: float = 0.0) -> list[Piece]:
    """Divide the flows of a task into pieces of a constant rate, in the order of their starts.

    Args:
        start_s: When the task starts, in seconds from the same beginning as the flows' rates.
        least_s: Least duration of a piece, unless the whole flow is shorter.
    """
    listed = list(rated)
    task_s = max((flow.end_s for flow in listed), default=start_s) - start_s
    flows_at: defaultdict[tuple[int, int], list[tuple[float, float, Flow]]] = defaultdict(list)
    step_s = task_s * _TOLERANCE
    for rated_flow in listed:
        for first_s, last_s, size in _constant(rated_flow, max(step_s, least_s)):
            key = round((first_s - start_s) / step_s), round((last_s - start_s) / step_s)
            way = rated_flow.flow.src, rated_flow.flow.dst, rated_flow.flow.path
            flows_at[key].append((first_s - start_s, last_s - first_s, Flow(*way, size)))
    unordered = []
    for part in flows_at.values():
        starts_s, lasts_s, flows = zip(*part, strict=True)
        unordered.append(Piece(min(starts_s), max(lasts_s), flows))
    return sorted(unordered, key=lambda piece: piece.after_s)


def _constant(rated: RatedFlow, least_s: float) -> Iterator[tuple[float, float, float]]:
    """Yield start, end and bytes of the parts in which a flow has about one rate.

    A part shorter than `least_s` is merged with the part before it.
    """
    ends = [*(instant for instant, _ in rated.changes[1:]), rated.end_s]
    first_s, size, rate_bps = rated.changes[0][0], 0.0, rated.changes[0][1]
    remaining = rated.flow.bytes
    for (instant_s, next_bps), end_s in zip(rated.changes, ends, strict=True):
        differs = abs(next_bps - rate_bps) > _TOLERANCE * rate_bps
        if differs and instant_s - first_s >= least_s and rated.end_s - instant_s >= least_s:
            yield first_s, instant_s, size
            remaining -= size
            first_s, size, rate_bps = instant_s, 0.0, next_bps
        size += next_bps / 8 * (end_s - instant_s)
    yield first_s, rated.end_s, remaining


def average(rated: Iterable[RatedFlow], seconds: float) -> Piece:
    """Return one piece that sends all bytes of an iteration at their average rates.

    Args:
        rated: The flows of all tasks of the iteration.
        seconds: Duration of the iteration.
    """
    sizes: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for flow in (rated_flow.flow for rated_flow in rated):
        sizes[flow.src, flow.dst, flow.path] += flow.bytes
    return Piece(0.0, seconds, tuple(Flow(*way, size) for way, size in sizes.items()))


@dataclass(frozen=True)
class ModelledIteration:
    """An iteration of the whole cluster in the model.

    Attributes:
        times: When each task starts and ends, in model seconds from the start of the job.
        start_s: When the iteration starts, likewise.
    """

    planned: Sequence[PlannedTask]
    times: Sequence[StepTimes]
    start_s: float

    @property
    def seconds(self) -> float:
        """Duration of the iteration."""
        return max((times.end_s for times in self.times), default=self.start_s) - self.start_s


def used_links(
    cluster: Fabric, emulated: Collection[str], planned: Iterable[PlannedTask]
) -> frozenset[Link]:
    """Return the links that flows from or to servers of emulated regions cross."""
    servers = _servers(cluster, emulated)
    return frozenset(
        link
        for planned_task in planned
        for flow, stream in zip(planned_task.sent, planned_task.step.streams, strict=True)
        if flow.src in servers or flow.dst in servers
        for link in stream.links
    )


def sent_flows(tasks: Iterable[Task]) -> list[tuple[str, str]]:
    """Return sender and receiver of every flow between given servers, without collectives."""
    pairs: dict[tuple[str, str], None] = {}
    for task in tasks:
        match task.work:
            case Transfer(pairs=ends) | AllReduce(pairs=ends):
                pairs |= dict.fromkeys(ends)
            case BackgroundTransfer(flows=flows):
                pairs |= {(flow.src, flow.dst): None for flow in flows}
    return list(pairs)


def _servers(cluster: Fabric, regions: Collection[str]) -> frozenset[str]:
    return frozenset(
        server for region in cluster.regions if region.name in regions for server in region.servers
    )


@dataclass
class HybridTasks:
    """Lists the tasks of an iteration of which some regions are emulated.

    Attributes:
        cluster: The whole cluster.
        emulated: Names of the emulated regions.
        links: The links that they use.
        iteration: The iteration in the model.
        mode: Rates of background flows.
        tasks: The tasks, each after the tasks for which it waits.
        executed: Position of the executed part of each of the cluster's tasks.
        waits: Position of the task that ends a lag after an executed task.
    """

    cluster: Fabric
    emulated: Sequence[str]
    links: frozenset[Link]
    iteration: ModelledIteration
    mode: BackgroundMode = "replayed"
    tasks: list[Task] = field(default_factory=list)
    executed: dict[int, int] = field(default_factory=dict)
    waits: dict[tuple[int, Lag], int] = field(default_factory=dict)

    def build(self) -> tuple[Task, ...]:
        """Return the tasks."""
        planned, times = self.iteration.planned, self.iteration.times
        executed = [self._executed(planned_task) for planned_task in planned]
        rated = list(map(self._rated, planned, times))
        starts, end = task_lags(list(map(self._part, planned, executed, times)))
        least_s = LEAST_WALL_S / self.cluster.scale.dilation
        for position, (planned_task, work) in enumerate(zip(planned, executed, strict=True)):
            task, lags = planned_task.task, starts[position]
            if work is not None:
                before = {self.executed[n] for n in task.after if n in self.executed}
                after = tuple(sorted(before | set(self._after(lags))))
                regions = self._regions(task, work)
                during = None if task.during is None else self.executed[task.during]
                executed_task = Task(regions, task.micro_batch, work, after, during=during)
                self.executed[position] = self._add(executed_task)
            if self.mode == "replayed":
                for piece in pieces(rated[position], times[position].start_s, least_s):
                    self._add_background(piece, task, lags)
        if self.mode == "average":
            flows = chain.from_iterable(rated)
            self._add_background(average(flows, self.iteration.seconds), planned[0].task, {})
        self._after(end)
        return tuple(self.tasks)

    @cached_property
    def own(self) -> frozenset[str]:
        """Servers of the emulated regions."""
        return _servers(self.cluster, self.emulated)

    def _executed(self, planned_task: PlannedTask) -> Work | None:
        """Return the executed part of a task's work; None if the whole task is modelled."""
        work = planned_task.task.work
        if not isinstance(work, Transfer | AllReduce):
            return work if set(planned_task.task.regions) <= set(self.emulated) else None
        pairs = tuple(pair for pair in work.pairs if not self.own.isdisjoint(pair))
        if not pairs or isinstance(work, Transfer):
            return replace(work, pairs=pairs) if pairs else None
        seconds = planned_task.flows.seconds if planned_task.flows is not None else 0.0
        return replace(work, pairs=pairs, least_s=seconds)

    def _part(self, planned_task: PlannedTask, work: Work | None, times: StepTimes) -> TaskPart:
        task, step = planned_task.task, planned_task.step
        if work is None:
            return TaskPart(task.after, False, times.seconds, computing(task, step).seconds)
        modelled_ends_s = [
            end_s
            for flow, end_s in zip(planned_task.sent, times.stream_ends_s, strict=True)
            if self.own.isdisjoint((flow.src, flow.dst))
        ]
        lasts_s = max(modelled_ends_s) - times.start_s if modelled_ends_s else None
        return TaskPart(task.after, True, lasts_s)

    def _regions(self, task: Task, work: Work) -> tuple[str, ...]:
        """Return the regions of a task that have a part in its executed work."""
        if not isinstance(work, Transfer | AllReduce):
            return task.regions
        names = self._regions_of(server for pair in work.pairs for server in pair)
        return tuple(region for region in task.regions if region in names)

    def _regions_of(self, servers: Iterable[str]) -> tuple[str, ...]:
        names = {self.cluster.region_of[server].name for server in servers}
        return tuple(region.name for region in self.cluster.regions if region.name in names)

    def _rated(self, planned_task: PlannedTask, times: StepTimes) -> list[RatedFlow]:
        """Return the modelled flows of a task that cross links of emulated regions."""
        streams = zip(planned_task.sent, planned_task.step.streams, strict=True)
        return [
            RatedFlow(
                flow, times.stream_rates[number], times.stream_ends_s[number] - stream.latency_s
            )
            for number, (flow, stream) in enumerate(streams)
            if number in times.stream_rates
            and self.own.isdisjoint((flow.src, flow.dst))
            and not self.links.isdisjoint(stream.links)
        ]

    def _add_background(self, piece: Piece, task: Task, lags: Lags) -> None:
        if not piece.flows:
            return
        work = task.work
        background = BackgroundTransfer(piece.flows, piece.seconds, work.direction, work.layer)
        regions = self._regions_of(server for f in piece.flows for server in (f.src, f.dst))
        after = self._after({n: lag.then(piece.after_s, 0.0) for n, lag in lags.items()})
        self._add(Task(regions, task.micro_batch, background, after))

    def _after(self, lags: Lags) -> tuple[int, ...]:
        """Return the tasks that end these lags after executed tasks."""
        waits = (self._wait(n, lag) for n, lag in lags.items() if n != START or lag.seconds)
        return tuple(sorted(waits))

    def _wait(self, executed: int, lag: Lag) -> int:
        if not lag.seconds:
            return self.executed[executed]
        if (executed, lag) not in self.waits:
            after = () if executed == START else (self.executed[executed],)
            work = Elsewhere(lag.seconds, lag.compute_s)
            self.waits[executed, lag] = self._add(Task(tuple(self.emulated), 0, work, after))
        return self.waits[executed, lag]

    def _add(self, task: Task) -> int:
        self.tasks.append(task)
        return len(self.tasks) - 1


@dataclass(frozen=True)
class HybridJobs:
    """The job of a cluster of which some regions are emulated.

    Attributes:
        whole: The job of the cluster in the model.
        fabric: The part that is emulated.
        iterations: The tasks of each iteration.
        simulated: The regions of the cluster that are simulated, which stand for all.
    """

    whole: Jobs
    fabric: Fabric
    iterations: tuple[tuple[Task, ...], ...]
    simulated: SimulatedRegions

    @classmethod
    def of(
        cls, spec: ExperimentSpec, choice: FabricChoice, name: str, scale: Scale, folder: Path
    ) -> Self:
        """Simulate a cluster, and return the job of its emulated part.

        Args:
            spec: The experiment, which has a section `hybrid`.
            choice: The fabric of the cluster.
            name: Name of the emulated part.
            scale: The scale of the run.
            folder: Folder of the experiment's file; relative paths start there.

        Raises:
            SpecError: An emulated region isn't among the simulated ones.
        """
        assert spec.hybrid is not None
        emulated, simulated = spec.hybrid.emulated, simulated_regions(spec, choice)
        cluster = simulated.part.build_fabric(choice, name, scale)
        _check_simulated(emulated, cluster, simulated.all_regions)
        work = workload_of(choice, workload_on(simulated.part, cluster, folder))
        jobs = Jobs.of(simulated.part, cluster, work, spec.training.dp)
        iterations = tuple(
            HybridTasks(cluster, emulated, links, iteration, spec.hybrid.background).build()
            for links, iteration in _modelled(spec, choice, jobs)
        )
        servers = {server for group in emulated for server in cluster.ep_groups[group]}
        ends = {end for tasks in iterations for pair in sent_flows(tasks) for end in pair}
        part = fabric_part(cluster, name, emulated, ends - servers)
        return cls(jobs, part, iterations, simulated)

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """The emulated regions."""
        return tuple(region for region in self.fabric.regions if not region.modelled)

    @property
    def all(self) -> tuple[Job, ...]:
        """The only job."""
        return (Job(0, JobShape(), self.regions),)

    @property
    def programmes(self) -> dict[Job, Programme]:
        """The programme of the job."""
        return {job: partial(self.tasks, job) for job in self.all}

    @property
    def warm_up(self) -> dict[Job, Programme]:
        """A dispatch and combine in the emulated regions."""
        [job] = self.all
        servers = [server for region in self.regions for server in region.servers]
        operations = [
            replace(operation, demand=operation.demand.submatrix(servers))
            for operation in self.whole.work.warm_up()
            if isinstance(operation, Reconfigure | Collective)
        ]
        tasks = lockstep_tasks(operations, [region.name for region in self.regions])
        return {job: lambda _number, _substitutions: tasks}

    @property
    def background_flows(self) -> int:
        """Number of background flows of all iterations."""
        works = (task.work for tasks in self.iterations for task in tasks)
        return sum(len(work.flows) for work in works if isinstance(work, BackgroundTransfer))

    @property
    def server_pairs_between_regions(self) -> tuple[Pair, ...]:
        """Pairs of servers of different regions that send each other something."""
        region_of = self.fabric.region_of
        pairs = dict.fromkeys(pair for tasks in self.iterations for pair in sent_flows(tasks))
        return tuple((a, b) for a, b in pairs if region_of[a] != region_of[b])

    def tasks(self, _job: Job, number: int, _substitutions: Substitutions) -> Sequence[Task]:
        """Return the tasks of an iteration."""
        return self.iterations[number]


AnyJobs = Jobs | HybridJobs
"""Jobs on a fabric, with the tasks of their iterations."""


def _check_simulated(emulated: Sequence[str], cluster: Fabric, regions: int) -> None:
    """Raise SpecError unless the emulated regions are among those that are simulated."""
    for number, name in enumerate(emulated):
        if name not in cluster.ep_groups:
            count = len(cluster.ep_groups)
            sample = f"the model has {counted(count, 'region')} for all {regions}"
            message = f"{name}: {sample}: give one of r0 to r{count - 1}"
            raise SpecError([(f"hybrid.emulated[{number}]", message)])


def _modelled(
    spec: ExperimentSpec, choice: FabricChoice, jobs: Jobs
) -> list[tuple[frozenset[Link], ModelledIteration]]:
    """Return each iteration in the model, with the links that emulated regions use in it."""
    assert spec.hybrid is not None
    cluster, work = jobs.fabric, jobs.work
    planner = jobs.planner(guarded_policy(choice.policy), spec.control_s, choice.first_policy)
    [job] = jobs.all
    planned = planner.plan(jobs.tasks(job, n, Substitutions()) for n in range(work.iterations))
    steps = [[task.step for task in iteration] for iteration in planned]
    links = [used_links(cluster, spec.hybrid.emulated, iteration) for iteration in planned]
    goodput = links_goodput(cluster, chain.from_iterable(steps))
    [times] = simulate_iterations([steps], goodput, frozenset[Link]().union(*links))
    modelled, start_s = [], 0.0
    for used, tasks, task_times in zip(links, planned, times, strict=True):
        modelled.append((used, ModelledIteration(tasks, task_times, start_s)))
        start_s += modelled[-1][1].seconds
    return modelled
