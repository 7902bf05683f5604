"""The tasks of a hybrid run: those of emulated regions, and the effects of all other regions.

Emulated regions compute, reconfigure and send as in the whole cluster. Modelled regions appear
as lags of emulated tasks (`moefabric.workload.iterations.tasks`) and as background flows on the
links that emulated regions use (`moefabric.prediction.background`).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Literal

from moefabric.core.routes import Link
from moefabric.core.topology import Fabric
from moefabric.prediction.background import LEAST_WALL_S, Piece, RatedFlow, average, pieces
from moefabric.prediction.job_prediction import PlannedTask, computing
from moefabric.simulator.event_simulation import StepTimes
from moefabric.workload.iterations.iteration import Transfer
from moefabric.workload.iterations.tasks import (
    START,
    AllReduce,
    BackgroundTransfer,
    Elsewhere,
    Lag,
    Lags,
    Task,
    TaskPart,
    Work,
    task_lags,
)

BackgroundMode = Literal["replayed", "average", "none"]
"""Rates of background flows: those of the model over time, their average, or no flows."""


@dataclass(frozen=True)
class ModelledIteration:
    """An iteration of the whole cluster in the model.

    Attributes:
        planned: Its tasks.
        times: When each of them starts and ends, in model seconds from the start of the job.
        start_s: When it starts.
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
    own = _servers(cluster, emulated)
    return frozenset(
        link
        for planned_task in planned
        for flow, stream in zip(planned_task.sent, planned_task.step.streams, strict=True)
        if flow.src in own or flow.dst in own
        for link in stream.links
    )


def sent_flows(tasks: Iterable[Task]) -> list[tuple[str, str]]:
    """Return sender and receiver of every flow between given servers, without collectives."""
    pairs: dict[tuple[str, str], None] = {}
    for task in tasks:
        match task.work:
            case Transfer(pairs=own) | AllReduce(pairs=own):
                pairs |= dict.fromkeys(own)
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
                one = Task(regions, task.micro_batch, work, after, during=during)
                self.executed[position] = self._add(one)
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
        own = tuple(pair for pair in work.pairs if not self.own.isdisjoint(pair))
        if not own or isinstance(work, Transfer):
            return replace(work, pairs=own) if own else None
        seconds = planned_task.flows.seconds if planned_task.flows is not None else 0.0
        return replace(work, pairs=own, least_s=seconds)

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
            RatedFlow(flow, times.stream_rates[number], times.stream_ends_s[number])
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
