"""Regions apart: each goes through its own tasks as their dependencies allow, and what one waits for is nothing to the others.

One loop tells the agents, asks the controllers in threads, and wakes when something has ended. A region whose controller says nothing in time, or is
gone, sends by the EPS; its light is taken again when it answers. Computing is waiting: of a wait while no packet and no light is on its way in any
region, all but the end is skipped (`SkippingClock`).
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Final, Protocol

from moefabric.circuits import CircuitSet
from moefabric.errors import ControlError
from moefabric.experiment.clock import Clock, MonotonicClock, SkippingClock
from moefabric.experiment.collective import ARMING_NS
from moefabric.experiment.course import Course, Programme, judge
from moefabric.experiment.cpu import stolen_and_total
from moefabric.experiment.flight import Flights, sending_spans, told
from moefabric.experiment.lighting import Light, moving_spans
from moefabric.experiment.runs import IterationRun, Moved, ReconfigurationRun, Span
from moefabric.experiment.sending import Policy, lit_together
from moefabric.failures import Window
from moefabric.iteration import Collective, Compute, Reconfigure
from moefabric.records import FlowRecord, Phases
from moefabric.schedule.shape import Job
from moefabric.seams import PacedFlow
from moefabric.topology import Fabric
from moefabric.units import NS_PER_S

PATIENCE_S: Final = 1.0
"""How long a region waits for its controller's word, besides twice the time that its light needs, before it goes by the EPS."""
OWES: Final = "its controller still owes an answer"


class Agents(Protocol):
    """Agents whose transfers go on beside each other."""

    def launch(self, flows: Sequence[PacedFlow], start_ns: int | None, deadline_s: float) -> int:
        """Let these flows start at that instant, None is when each server hears of it; the number by which `ended` tells of them."""

    def ended(self, until_ns: int | None) -> dict[int, list[FlowRecord]]:
        """Wait until one has ended, `wake` is called or the instant has come; the records of all that ended. AgentError where an agent is gone."""

    def wake(self) -> None:
        """Let `ended` return; any thread may."""


@dataclass
class _Asked:
    """A controller that owes an answer, and the task that waits for it while it has patience."""

    course: Course
    number: int
    start_ns: int
    answer: "Future[Moved]"
    end_ns: int | None = None
    waited_for: bool = True


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
        self._patience_ns = {
            region.name: round(patience_s * NS_PER_S)
            + (2 * (region.ocs.settle_ns + region.ocs.link_up_ns) if region.ocs else 0)
            for region in fabric.regions
        }
        self._lit = {
            region.name: CircuitSet(frozenset(c for c in lit if c.a.server in region.servers))
            for region in fabric.regions
        }
        self._dark_ns = dict.fromkeys(self._lit, 0)
        self._asked: dict[str, _Asked] = {}
        self._tasks: dict[int, tuple[Course, int]] = {}
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._count = self._going = 0

    @property
    def circuits(self) -> CircuitSet:
        """What is lit in all regions, as far as it is known."""
        return lit_together(self._lit.values())

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
        self._background.shutdown(wait=not self._asked)

    def _turn(self) -> None:
        """Do what is due, then wait for what comes first."""
        while self._timers and self._timers[0][0] <= self.clock.now_ns():
            heappop(self._timers)[2]()
        if not self._going:
            return
        until = self._timers[0][0] if self._timers else None
        idle = not self.flights.flying and not self._asked
        if idle and until is None:
            return
        if idle and until is not None:
            self.clock.skip_towards(until)
        arrived = self.agents.ended(None if until is None else self.clock.wall_ns(until))
        for number, records in arrived.items():
            self._arrived(number, records)
        for region in [name for name, asked in self._asked.items() if asked.answer.done()]:
            self._answered(region, self._asked.pop(region))

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
            case Reconfigure() if task.region in self.lights:
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
        task = course.tasks[number]
        circuits = self._lit[task.region] if isinstance(task.work, Collective) else CircuitSet()
        flight = self.flights.start(course.run.number, task, circuits, ready_ns)
        if flight is None:
            self._ended(course, number, ready_ns)
            return
        self._tasks[flight] = course, number
        course.lasts(number, streams=self.flights.flying[flight].streams)

    def _arrived(self, flight: int, records: Sequence[FlowRecord]) -> None:
        course, number = self._tasks.pop(flight)
        task, dark = course.tasks[number], 0
        if isinstance(task.work, Collective):
            dark, self._dark_ns[task.region] = self._dark_ns[task.region], 0
        run = self.flights.land(flight, records, dark)
        course.run.spans += sending_spans(self.fabric, run)
        if isinstance(task.work, Collective):
            course.run.collectives.append(run)
            self.progress(told(task))
        else:
            course.run.transfers.append(run)
        self._ended(course, number, run.end_ns)

    # --- light -----------------------------------------------------------------------------------------------------

    def _ask(self, course: Course, number: int) -> None:
        """Ask a region's controller, which has so long to answer; one that owes an answer isn't asked again."""
        task = course.tasks[number]
        assert isinstance(task.work, Reconfigure)
        now = self.clock.now_ns()
        if task.region in self._asked:
            self._without_light(course, number, now, OWES)
            return
        answer = self._background.submit(self.lights[task.region].reconfigure, task.work.demand)
        asked = self._asked[task.region] = _Asked(course, number, now, answer)
        self._at(now + self._patience_ns[task.region], lambda: self._out_of_patience(asked))

        def told(_: "Future[Moved]") -> None:
            asked.end_ns = self.clock.now_ns()
            self.agents.wake()

        answer.add_done_callback(told)

    def _out_of_patience(self, asked: _Asked) -> None:
        task = asked.course.tasks[asked.number]
        if asked.waited_for and self._asked.get(task.region) is asked and not asked.answer.done():
            asked.waited_for = False
            waited_s = (self.clock.now_ns() - asked.start_ns) / NS_PER_S
            self._without_light(
                asked.course,
                asked.number,
                asked.start_ns,
                f"its controller didn't answer within {waited_s:.1f} s",
            )

    def _answered(self, region: str, asked: _Asked) -> None:
        """Take an answer, late though it may be."""
        try:
            moved, end = asked.answer.result(), asked.end_ns or self.clock.now_ns()
        except ControlError as fault:
            self._lit[region] = CircuitSet()
            if asked.waited_for:
                self._without_light(asked.course, asked.number, asked.start_ns, str(fault))
            return
        self._lit[region] = moved.after
        if not asked.waited_for:
            return
        changed = moved.before != moved.after and not moved.why
        settled_s = moved.phases.settle_s if changed else 0.0
        self._dark_ns[region] += round(settled_s * NS_PER_S)
        asked.course.lasts(asked.number, settled_s / self.fabric.scale.dilation)
        self._told_of_light(asked.course, asked.number, moved, asked.start_ns, end)
        self._ended(asked.course, asked.number, end)

    def _without_light(self, course: Course, number: int, start_ns: int, why: str) -> None:
        """The region relies on no light until its controller has answered."""
        region, now = course.tasks[number].region, self.clock.now_ns()
        before, self._lit[region] = self._lit[region], CircuitSet()
        waited = Phases(total_s=(now - start_ns) / NS_PER_S)
        self._told_of_light(course, number, Moved(before, CircuitSet(), waited, why=why), start_ns, now)
        self._ended(course, number, now)

    def _told_of_light(self, course: Course, number: int, moved: Moved, start_ns: int, end_ns: int) -> None:
        task, run = course.tasks[number], course.run
        assert isinstance(task.work, Reconfigure)
        made = ReconfigurationRun(
            run.number, task.work, moved, start_ns, end_ns, task.region, task.micro_batch, moved.why
        )
        run.reconfigurations.append(made)
        if not moved.why:
            spans = moving_spans(self.fabric, [made])
            run.spans += [replace(span, micro_batch=task.micro_batch) for span in spans]
