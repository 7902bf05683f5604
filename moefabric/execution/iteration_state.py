"""The state of one iteration of one job."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter

from moefabric.core.units import NS_PER_S
from moefabric.planner.horizon import Horizon
from moefabric.planner.iteration_horizons import IterationHorizons
from moefabric.planner.sending.task_flows import Groups
from moefabric.results.records.records import CollectiveRun, IterationRun
from moefabric.simulator.event_simulation import Step
from moefabric.simulator.fair_sharing import Stream
from moefabric.workload.iterations.iteration import Compute, Reconfigure
from moefabric.workload.iterations.job import Job
from moefabric.workload.iterations.tasks import Task


@dataclass(frozen=True)
class SentTask:
    """A task whose transfers are done.

    Attributes:
        number: The task's position in the iteration.
        runs: The records of its transfers, each with the positions of its planned flows among the
            streams of the task's step.
    """

    number: int
    runs: tuple[tuple[CollectiveRun, tuple[int, ...]], ...]

    @property
    def start_ns(self) -> int:
        """Instant at which the first byte was really sent, on the run's clock."""
        return min(run.start_ns + run.harness_ns for run, _ in self.runs)

    @property
    def before_s(self) -> float:
        """Model seconds inside servers before the first byte."""
        return self.runs[0][0].server.before_s


@dataclass(eq=False)
class IterationState:
    """The tasks of an iteration: their ends, which may be known in advance, and their steps.

    Attributes:
        groups: The servers that work for each region in this iteration.
        on_end: Called when all ends are known.
        reconfigured: Regions whose circuits changed during a collective, by the position of the
            collective.
        later_iterations: Iterations of the job after this one.
        observed: Whether observers of the run count its collectives.
        cancelled: Whether a loss has ended the iteration; it starts again as another state.
        sent: The tasks whose transfers are done.
    """

    job: Job
    tasks: Sequence[Task]
    groups: Groups
    run: IterationRun
    on_end: Callable[[], None] = lambda: None
    ends: list[int | None] = field(init=False)
    steps: list[Step] = field(init=False)
    reconfigured: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    later_iterations: int = 0
    observed: bool = True
    cancelled: bool = False
    sent: list[SentTask] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ends = [None] * len(self.tasks)
        self.steps = [Step(task.after) for task in self.tasks]
        self._order = TopologicalSorter[int]()
        for number, task in enumerate(self.tasks):
            self._order.add(number, *task.after)
        self._order.prepare()

    def free(self) -> Sequence[int]:
        """Return the tasks that wait for no other task, each of them once."""
        return self._order.get_ready()

    def servers(self, number: int) -> list[str]:
        """Return the servers that work on a task."""
        return [name for region in self.tasks[number].regions for name in self.groups[region]]

    def ready_ns(self, number: int) -> int:
        """Return when all tasks that a task waits for have ended."""
        return self._end_of(self.tasks[number].after)

    def unlit_ns(self, number: int) -> int:
        """Return when all tasks that a task waits for have ended, except reconfigurations."""
        return self._end_of([n for n in self.tasks[number].after if not self._is_light(n)])

    def predicted_wait_s(self, number: int, dilation: float) -> float:
        """Return the model seconds from `unlit_ns` until the circuits of a task are due."""
        due = [
            self.ready_ns(n) + round(self.steps[n].seconds * dilation * NS_PER_S)
            for n in self.tasks[number].after
            if self._is_light(n)
        ]
        return max(0, max(due, default=0) - self.unlit_ns(number)) / NS_PER_S / dilation

    def unlit_regions(self, number: int) -> list[str]:
        """Return a reconfiguration's regions whose circuits didn't change during the collective."""
        task = self.tasks[number]
        changed = () if task.during is None else self.reconfigured[task.during]
        return [region for region in task.regions if region not in changed]

    def horizon(self, number: int) -> Horizon:
        """Return the tasks that follow a task's request for circuits."""
        return IterationHorizons(self.tasks).horizon(number, self.later_iterations)

    def _end_of(self, numbers: Sequence[int]) -> int:
        return max([self.run.start_ns, *(self.ends[n] or 0 for n in numbers)])

    def _is_light(self, number: int) -> bool:
        return isinstance(self.tasks[number].work, Reconfigure)

    def end(self, number: int, instant_ns: int) -> Sequence[int]:
        """End a task, and return the tasks that now wait for no other task."""
        self.ends[number] = instant_ns
        self._order.done(number)
        return self.free()

    def replace_tasks(self, tasks: Sequence[Task], *, keep_computation: bool = False) -> None:
        """Replace the tasks by equally dependent ones with more of their demand known.

        Args:
            keep_computation: Whether computation stays as it is.
        """
        assert [task.after for task in tasks] == [task.after for task in self.tasks]
        self.tasks = [
            old if keep_computation and isinstance(old.work, Compute) else new
            for old, new in zip(self.tasks, tasks, strict=True)
        ]

    def replace_work(self, number: int, work: Compute) -> None:
        """Replace the computation of a task."""
        tasks = list(self.tasks)
        tasks[number] = replace(tasks[number], work=work)
        self.tasks = tasks

    def set_step(self, number: int, seconds: float = 0.0, streams: tuple[Stream, ...] = ()) -> None:
        """Set the task's step in the simulation: seconds of computation, or streams of bytes."""
        self.steps[number] = Step(self.tasks[number].after, seconds, streams)
