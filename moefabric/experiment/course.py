"""A course: one iteration of one job as its tasks are done, and how long the fluid simulation of the same tasks says that it takes."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from moefabric.experiment.forecast import as_started, foreseen
from moefabric.experiment.runs import CollectiveRun, IterationRun
from moefabric.fluid import Prediction
from moefabric.iteration import Reconfigure
from moefabric.schedule.shape import Job
from moefabric.schedule.simulate import Step, Stream
from moefabric.schedule.tasks import Task, hides_in
from moefabric.topology import Fabric
from moefabric.units import NS_PER_S

Programme = Callable[[int], Sequence[Task]]
"""What a job does in each iteration."""


@dataclass
class Course:
    """When each task ended (None is not known yet), and what each was, for the simulation. An end may be known before it comes."""

    job: Job
    programme: Programme
    run: IterationRun
    then: Callable[[], None] = lambda: None
    """What is done when all ends are known."""
    tasks: Sequence[Task] = field(init=False)
    ends: list[int | None] = field(init=False)
    steps: list[Step] = field(init=False)
    waits: list[int] = field(init=False)
    followers: dict[int, list[int]] = field(init=False)
    moved: set[int] = field(default_factory=set)
    """Collectives in which light moved."""

    def __post_init__(self) -> None:
        self.tasks = self.programme(self.run.number)
        self.ends = [None] * len(self.tasks)
        self.steps = [Step(task.after) for task in self.tasks]
        self.waits = [len(task.after) for task in self.tasks]
        self.followers = defaultdict(list)
        for number, task in enumerate(self.tasks):
            for before in task.after:
                self.followers[before].append(number)

    @property
    def first(self) -> list[int]:
        """Tasks that wait for nothing."""
        return [number for number, waits in enumerate(self.waits) if not waits]

    @property
    def over(self) -> bool:
        """Whether all ends are known."""
        return None not in self.ends

    def ready_ns(self, number: int) -> int:
        """When all that a task waits for is done."""
        return self._after(self.tasks[number].after)

    def but_for_light_ns(self, number: int) -> int:
        """When all that a task waits for is done, were there light at once."""
        return self._after([n for n in self.tasks[number].after if not self._light(n)])

    def light_expected_ns(self, number: int, dilation: float) -> int:
        """When the light that a task waits for should be there, by what its optics take; 0 where it waits for none."""
        due = [
            self.ready_ns(n) + round(self.steps[n].seconds * dilation * NS_PER_S)
            for n in self.tasks[number].after
            if self._light(n)
        ]
        return max(due, default=0)

    def is_lit(self, number: int) -> bool:
        """Whether what a reconfiguration wants was lit while the collective went on that it is for."""
        light = self.tasks[number]
        return any(n in self.moved and hides_in(light, self.tasks[n]) for n in light.after)

    def _after(self, numbers: Sequence[int]) -> int:
        return max([self.run.start_ns, *(self.ends[n] or 0 for n in numbers)])

    def _light(self, number: int) -> bool:
        return isinstance(self.tasks[number].work, Reconfigure)

    def ended(self, number: int, instant_ns: int) -> list[int]:
        """A task ends at that instant; the tasks that waited for it alone."""
        self.ends[number] = instant_ns
        freed = []
        for follower in self.followers[number]:
            self.waits[follower] -= 1
            if not self.waits[follower]:
                freed.append(follower)
        return freed

    def lasts(self, number: int, seconds: float = 0.0, streams: tuple[Stream, ...] = ()) -> None:
        """What a task is in the simulation: model seconds, or bytes."""
        self.steps[number] = Step(self.tasks[number].after, seconds, streams)


def judge(
    fabric: Fabric, courses: Sequence[Course], sent: Sequence[tuple[CollectiveRun, tuple[Stream, ...]]]
) -> None:
    """Put what the simulation says into the runs of these courses, and of all that they `sent`.

    An iteration is held against that of the same tasks, each started by those it waits for; what a task sends against the same bytes started when
    they really were, beside all else that flew then, so that one late start isn't counted twice.
    """
    for course, said in zip(_in_order(courses), _foreseen(fabric, courses), strict=True):
        course.run.predicted_s = said[0]
        course.run.compute_ns = fabric.scale.wall_ns(said[1] * NS_PER_S)
    model_s = 1 / NS_PER_S / fabric.scale.dilation
    predicted = as_started(fabric, [(run.start_ns * model_s, streams) for run, streams in sent])
    better = {
        id(run): replace(run, prediction=_lasting(run.prediction, s))
        for (run, _), s in zip(sent, predicted, strict=True)
    }
    for course in courses:
        course.run.collectives[:] = [better[id(run)] for run in course.run.collectives]
        course.run.transfers[:] = [better[id(run)] for run in course.run.transfers]


def _lasting(alone: Prediction, seconds: float) -> Prediction:
    return replace(alone, seconds=seconds)


def _by_job(courses: Sequence[Course]) -> list[list[Course]]:
    jobs: dict[int, list[Course]] = {}
    for course in sorted(courses, key=lambda course: (course.job.number, course.run.number)):
        jobs.setdefault(course.job.number, []).append(course)
    return list(jobs.values())


def _in_order(courses: Sequence[Course]) -> list[Course]:
    return [course for job in _by_job(courses) for course in job]


def _foreseen(fabric: Fabric, courses: Sequence[Course]) -> list[tuple[float, float]]:
    """Model seconds of each iteration, and those of computing alone, in order."""
    rows = [[list(zip(c.tasks, c.steps, strict=True)) for c in job] for job in _by_job(courses)]
    return [(each.seconds, each.compute_s) for job in foreseen(fabric, rows) for each in job]
