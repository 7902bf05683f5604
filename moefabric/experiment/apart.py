"""Regions apart: each goes through its own tasks as their dependencies allow, and what one waits for is nothing to the others.

One loop tells the agents, asks the controllers in threads, and wakes when something has ended. A region whose controller says nothing in time, or is
gone, sends by the EPS; its light is taken again when it answers. Computing is waiting: of a wait while no packet and no light is on its way in any
region, all but the end is skipped (`SkippingClock`).
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Protocol

from moefabric.circuits import CircuitSet
from moefabric.experiment.asking import PATIENCE_S, Answer, Asking
from moefabric.experiment.clock import Clock, MonotonicClock, SkippingClock
from moefabric.experiment.collective import ARMING_NS
from moefabric.experiment.course import Course, Programme, judge
from moefabric.experiment.cpu import stolen_and_total
from moefabric.experiment.diverting import light_after_s
from moefabric.experiment.flight import Flights, sending_spans, told
from moefabric.experiment.forecast import Parting, parting
from moefabric.experiment.lighting import Light, moving_spans
from moefabric.experiment.runs import IterationRun, ReconfigurationRun, Span
from moefabric.experiment.sending import Policy, lit_together
from moefabric.failures import Window
from moefabric.iteration import Collective, Compute, Reconfigure
from moefabric.records import FlowRecord
from moefabric.schedule.shape import Job
from moefabric.schedule.tasks import Task
from moefabric.seams import PacedFlow
from moefabric.topology import Fabric
from moefabric.units import NS_PER_S


class Agents(Protocol):
    """Agents whose transfers go on beside each other."""

    def launch(self, flows: Sequence[PacedFlow], start_ns: int | None, deadline_s: float) -> int:
        """Let these flows start at that instant, None is when each server hears of it; the number by which `ended` tells of them."""

    def ended(self, until_ns: int | None) -> dict[int, list[FlowRecord]]:
        """Wait until one has ended, `wake` is called or the instant has come; the records of all that ended. AgentError where an agent is gone."""

    def wake(self) -> None:
        """Let `ended` return; any thread may."""


@dataclass
class _Sent:
    """A task whose bytes are on their way, in as many flights as are `out` or still to come, of which `first` stands for all; what has arrived of them."""

    course: Course
    number: int
    first: int
    out: int = 1
    records: list[FlowRecord] = field(default_factory=list)


class Apart:
    """Runs jobs side by side on one fabric under one policy. Regions without a light to move, in `lights`, keep what is `lit`."""

    def __init__(
        self,
        fabric: Fabric,
        policy: Policy,
        agents: Agents,
        lights: Mapping[str, Light],
        lit: CircuitSet,
        *,
        paced: bool = True,
        clock: Clock | None = None,
        background: Executor | None = None,
        arming_ns: int = ARMING_NS,
        patience_s: float = PATIENCE_S,
        begins: Callable[[int], None] = lambda _: None,
        stolen: Callable[[], tuple[int, int]] = stolen_and_total,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`begins` is called before each iteration of the first job."""
        self.fabric, self.agents, self.lights, self.progress = fabric, agents, lights, progress
        self._begins = begins
        self.lasted: list[Window] = []
        """The iterations of the first job."""
        self.clock = SkippingClock(clock or MonotonicClock())
        self.flights = Flights(
            fabric, policy, agents.launch, self.clock, paced=paced, arming_ns=arming_ns, stolen=stolen
        )
        self._background = background or ThreadPoolExecutor(
            max(1, len(lights)), thread_name_prefix="reconfigure"
        )
        self._asking = Asking(
            fabric, lights, lit, self.clock, self._background, patience_s, self._at, agents.wake
        )
        self._due_s = light_after_s(fabric)
        """What light is held to need, whatever it took."""
        self._tasks: dict[int, _Sent] = {}
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._count = self._going = 0

    @property
    def circuits(self) -> CircuitSet:
        """What is lit in all regions, as far as it is known."""
        return lit_together(self._asking.lit.values())

    @property
    def windows(self) -> list[tuple[int, int]]:
        """When packets flew (`Flights.windows`)."""
        return self.flights.windows

    def run(self, programmes: Mapping[Job, Programme], iterations: int) -> list[IterationRun]:
        """So many iterations of each job, as they went. AgentError where a transfer is lost for good."""
        courses: list[Course] = []
        now, self._going = self.clock.now_ns(), len(programmes)
        for job, programme in programmes.items():
            self._begin(courses, job, programme, 0, iterations, now)
        while self._going:
            self._turn()
        self._timers.clear()
        judge(self.fabric, courses, self.flights.landed)
        return [course.run for course in courses]

    def close(self) -> None:
        """End the background threads; a controller that is silent is not waited for."""
        self._background.shutdown(wait=not self._asking.owed)

    def _turn(self) -> None:
        """Do what is due, then wait for what comes first."""
        while self._timers and self._timers[0][0] <= self.clock.now_ns():
            heappop(self._timers)[2]()
        if not self._going:
            return
        until = self._timers[0][0] if self._timers else None
        idle = not self.flights.flying and not self._asking.owed
        if idle:
            if until is None:
                raise AssertionError("every task waits for another one")
            self.clock.skip_towards(until)
        arrived = self.agents.ended(None if until is None else self.clock.wall_ns(until))
        for number, records in arrived.items():
            self._arrived(number, records)
        self._asking.answered()

    def _at(self, instant_ns: int, action: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._timers, (instant_ns, self._count, action))

    # --- tasks -----------------------------------------------------------------------------------------------------

    def _begin(
        self, courses: list[Course], job: Job, programme: Programme, number: int, iterations: int, now: int
    ) -> None:
        if number == iterations:
            self._going -= 1
            return
        if not job.number:
            self._begins(number)
        run = IterationRun(number, now, job=job.number, skipped_ns=-self.clock.skipped_ns)
        course = Course(job, programme, run)
        courses.append(course)

        def then() -> None:
            if not job.number:
                self.lasted.append(self._window(run))
            run.skipped_ns += self.clock.skipped_ns
            self._begin(courses, job, programme, number + 1, iterations, run.end_ns)

        course.then = lambda: self._at(run.end_ns, then)
        for first in course.first:
            self._ready(course, first)

    def _window(self, run: IterationRun) -> Window:
        seconds = (run.end_ns - run.start_ns) / NS_PER_S / self.fabric.scale.dilation
        was_ns = self.clock.wall_was_ns
        return Window(run.number, was_ns(run.start_ns), was_ns(run.end_ns), seconds)

    def _ready(self, course: Course, number: int) -> None:
        """All that a task waits for has ended, or ends at an instant that is known."""
        at, task = course.ready_ns(number), course.tasks[number]
        match task.work:
            case Compute():
                self._compute(course, number, task.work, at)
            case Reconfigure() if task.region in self.lights and not course.is_lit(number):
                self._at(at, lambda: self._ask(course, number))
            case Reconfigure():
                self._ended(course, number, at)
            case _:
                self._at(at - self.flights.arming(task), lambda: self._launch(course, number, at))

    def _ended(self, course: Course, number: int, instant_ns: int) -> None:
        for freed in course.ended(number, instant_ns):
            self._ready(course, freed)
        if course.over and not course.run.end_ns:
            course.run.end_ns = max(end for end in course.ends if end is not None)
            course.then()

    def _compute(self, course: Course, number: int, work: Compute, start_ns: int) -> None:
        task = course.tasks[number]
        servers = self.fabric.groups[task.region]
        ends = [start_ns + self.fabric.scale.wall_ns(seconds * NS_PER_S) for seconds in work.seconds]
        course.run.spans += [
            Span(server, work.kind, work.direction, work.layer, start_ns, end, task.micro_batch)
            for server, end in zip(servers, ends, strict=True)
        ]
        course.lasts(number, work.slowest_s)
        self._ended(course, number, max(ends))

    def _launch(self, course: Course, number: int, ready_ns: int) -> None:
        task, asking = course.tasks[number], self._asking
        collective = isinstance(task.work, Collective)
        circuits = asking.lit[task.region] if collective else CircuitSet()
        dilation = self.fabric.scale.dilation
        could_ns = course.but_for_light_ns(number)
        expected_s = max(0, course.light_expected_ns(number, dilation) - could_ns) / NS_PER_S / dilation
        waits = ready_ns, could_ns, expected_s
        parted = self._parting(task, circuits)
        if parted is None:
            flight = self.flights.start(course.run.number, task, circuits, *waits)
        else:
            flight = self.flights.start_parted(course.run.number, task, parted, *waits)
        if flight is None:
            self._ended(course, number, ready_ns)
            return
        self._sending(_Sent(course, number, flight), flight)
        if parted is not None and parted.moves:
            self._move_meanwhile(self._tasks[flight], parted)

    def _parting(self, task: Task, circuits: CircuitSet) -> Parting | None:
        """How a collective goes that doesn't wait for its light; None for all others."""
        work, region = task.work, task.region
        if not isinstance(work, Collective) or work.meanwhile is None or region not in self.lights:
            return None
        expected_s = self._asking.expected_s(region, self.flights.arming(task))
        return parting(self.fabric, self.flights.policy, region, work.demand, circuits, expected_s)

    def _sending(self, sent: _Sent, flight: int) -> None:
        self._tasks[flight] = sent
        sent.course.lasts(sent.number, streams=self.flights.flying[sent.first].streams)

    def _arrived(self, flight: int, records: Sequence[FlowRecord]) -> None:
        sent = self._tasks.pop(flight)
        sent.out -= 1
        sent.records += records
        if not sent.out:
            self._landed(sent)

    def _landed(self, sent: _Sent) -> None:
        course, task = sent.course, sent.course.tasks[sent.number]
        dark = self._asking.dark_ns(task.region) if isinstance(task.work, Collective) else 0
        run = self.flights.land(sent.first, sent.records, dark)
        course.run.spans += sending_spans(self.fabric, run)
        if isinstance(task.work, Collective):
            course.run.collectives.append(run)
            self.progress(told(task))
        else:
            course.run.transfers.append(run)
        self._ended(course, sent.number, run.end_ns)

    # --- light -----------------------------------------------------------------------------------------------------

    def _ask(self, course: Course, number: int) -> None:
        """Ask a region's controller for light; the task has ended when it may be used, or isn't to be waited for."""
        region, work = course.tasks[number].region, course.tasks[number].work
        assert isinstance(work, Reconfigure)

        def then(answer: Answer) -> None:
            course.lasts(number, self._due_s[region] if answer.changed else 0.0)
            self._told_of_light(course, number, work, answer)
            self._ended(course, number, answer.end_ns)

        self._asking.ask(region, work.demand, then)

    def _move_meanwhile(self, sent: _Sent, parted: Parting) -> None:
        """Ask for light when a collective starts that doesn't wait for it; what was left for it is sent when it is there, or isn't to be waited for."""
        course, work = sent.course, sent.course.tasks[sent.number].work
        assert isinstance(work, Collective)
        assert work.meanwhile is not None
        wanted = work.meanwhile
        sent.out += 1

        def then(answer: Answer) -> None:
            if not answer.moved.why:
                course.moved.add(sent.number)
            self._told_of_light(course, sent.number, wanted, answer)
            rest = self.flights.follow(sent.first, parted, answer.moved.after)
            if rest is not None:
                self._sending(sent, rest)
                return
            sent.out -= 1
            if not sent.out:
                self._landed(sent)

        start = self.flights.flying[sent.first].start_ns
        self._at(start, lambda: self._asking.ask(parted.region, wanted.demand, then))

    def _told_of_light(self, course: Course, number: int, work: Reconfigure, answer: Answer) -> None:
        task, run, moved = course.tasks[number], course.run, answer.moved
        made = ReconfigurationRun(
            run.number, work, moved, answer.start_ns, answer.end_ns, task.region, task.micro_batch, moved.why
        )
        run.reconfigurations.append(made)
        if not moved.why:
            spans = moving_spans(self.fabric, [made])
            run.spans += [replace(span, micro_batch=task.micro_batch) for span in spans]
