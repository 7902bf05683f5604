"""The forecast of tasks: what each of them sends over which light, and when each would start and end were bytes water.

A collective that doesn't wait for its light is sent in two parts: what goes at once, and what new light takes from when it is expected on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.experiment.diverting import Diverted, diverted, late_flows
from moefabric.experiment.sending import Policy, planned_flows
from moefabric.flows import Flow, Share, flows
from moefabric.fluid import Link, Prediction, goodput_bps, predict_routed, route
from moefabric.iteration import Collective, Compute
from moefabric.schedule.simulate import Lasted, Step, Stream, side_by_side, simulate
from moefabric.schedule.tasks import AllReduce, Task, Transfer
from moefabric.topology import Fabric


@dataclass(frozen=True)
class Sending:
    """What a task sends, and how long it would take, alone on the fabric; the pace of its flows is that at which they would end together.

    `after_s` says, where some of them start later than the others, how many seconds later each does.
    """

    flows: tuple[Flow, ...]
    ways: tuple[tuple[Link, ...], ...]
    alone: Prediction
    after_s: tuple[float, ...] = ()

    def streams(self, *, greedily: bool = False) -> tuple[Stream, ...]:
        """The same as water."""
        after_s = self.after_s or (0.0,) * len(self.flows)
        return tuple(
            Stream(flow.bytes, way, inf if greedily else pace, after)
            for flow, way, pace, after in zip(
                self.flows, self.ways, self.alone.rates_bps, after_s, strict=True
            )
        )

    def followed_by(self, rest: "Sending", after_s: float) -> "Sending":
        """Both, the rest so many seconds later, and over when this one is said to be."""
        rates_bps = self.alone.rates_bps + rest.alone.rates_bps
        return Sending(
            self.flows + rest.flows,
            self.ways + rest.ways,
            replace(self.alone, rates_bps=rates_bps),
            (0.0,) * len(self.flows) + (after_s,) * len(rest.flows),
        )


def sending(fabric: Fabric, policy: Policy, task: Task, circuits: CircuitSet) -> Sending | None:
    """What a task sends while these circuits of its region are lit; None where it is nothing."""
    match task.work:
        case Collective(demand=demand):
            planned = planned_flows(fabric, policy, demand, circuits, {task.region: demand.servers})
        case Transfer(pairs=pairs, bytes=size) | AllReduce(pairs=pairs, bytes=size):
            circuits = CircuitSet()
            planned = flows(fabric, circuits, [Share(src, dst, 0.0, size) for src, dst in pairs])
        case _:
            planned = ()
    if not planned:
        return None
    ways = tuple(route(fabric, circuits, flow) for flow in planned)
    return Sending(planned, ways, predict_routed(fabric, planned, ways))


@dataclass(frozen=True)
class Parting:
    """A region's collective that doesn't wait for its light: how it is parted, and what it sends at once; `moves` is whether its light moves meanwhile."""

    region: str
    plan: Diverted
    now: Sending

    @property
    def moves(self) -> bool:
        """Whether light moves at the start."""
        return bool(self.plan.moving)

    @property
    def after_s(self) -> float:
        """When its new light is expected, in model seconds from the start."""
        return self.plan.parts[self.region].after_s

    @property
    def seconds(self) -> float:
        """When all of it should have arrived."""
        return self.plan.predictions[self.region].seconds

    @property
    def target(self) -> CircuitSet:
        """What should be lit when all is as planned."""
        part = self.plan.parts[self.region]
        return CircuitSet(part.kept.circuits | part.new.circuits)

    def rest(self, fabric: Fabric, lit: CircuitSet) -> Sending | None:
        """What was left for new light, now that `lit` is: to end with all else, or as soon as it can where that is later."""
        flowing = late_flows(fabric, self.plan, lit)
        if not flowing:
            return None
        ways = tuple(route(fabric, lit, flow) for flow in flowing)
        alone = predict_routed(fabric, flowing, ways)
        seconds = max(alone.seconds, self.seconds - self.after_s)
        return Sending(flowing, ways, _ending_in(alone, flowing, seconds))

    def whole(self, fabric: Fabric) -> Sending:
        """All that it sends, if its light comes as expected."""
        rest = self.rest(fabric, self.target) if self.moves else None
        return self.now if rest is None else self.now.followed_by(rest, self.after_s)


def parting(
    fabric: Fabric, policy: Policy, region: str, demand: DemandMatrix, lit: CircuitSet, after_s: float | None
) -> Parting | None:
    """How a region's collective goes while its light, which is `lit`, may be moved; new light is expected after so many model seconds, None is never.

    None where nothing is sent.
    """
    due = {} if after_s is None else {region: after_s}
    plan = diverted(fabric, policy, demand, lit, due, {region: demand.servers})
    if not plan.now:
        return None
    light = plan.parts[region].kept if plan.moving else lit
    ways = tuple(route(fabric, light, flow) for flow in plan.now)
    alone = predict_routed(fabric, plan.now, ways)
    return Parting(
        region, plan, Sending(plan.now, ways, _ending_in(alone, plan.now, plan.predictions[region].seconds))
    )


def _ending_in(alone: Prediction, flowing: Sequence[Flow], seconds: float) -> Prediction:
    return replace(alone, seconds=seconds, rates_bps=tuple(8 * flow.bytes / seconds for flow in flowing))


def goodput(fabric: Fabric, steps: Iterable[Step]) -> dict[Link, float]:
    """What the links that these steps use carry."""
    used = {link for step in steps for stream in step.streams for link in stream.links}
    return {link: goodput_bps(fabric, link) for link in used}


@dataclass(frozen=True)
class Foreseen:
    """One iteration of one job: model seconds, those it would last were there nothing but computing, and each of its tasks."""

    seconds: float
    compute_s: float
    tasks: tuple[Lasted, ...]


Course = Sequence[Sequence[tuple[Task, Step]]]
"""A job's iterations, one after the other: its tasks, and what each of them is in a simulation."""


def foreseen(fabric: Fabric, courses: Sequence[Course]) -> list[list[Foreseen]]:
    """The iterations of jobs side by side."""
    steps = [[[step for _, step in iteration] for iteration in course] for course in courses]
    bare = [[[_computing(*each) for each in iteration] for iteration in course] for course in courses]
    seen = side_by_side(steps, goodput(fabric, (step for c in steps for i in c for step in i)))
    return [
        [
            Foreseen(seconds, compute_s, tuple(tasks))
            for seconds, compute_s, tasks in zip(_seconds(course), _seconds(alone), course, strict=True)
        ]
        for course, alone in zip(seen, side_by_side(bare, {}), strict=True)
    ]


def _computing(task: Task, step: Step) -> Step:
    """The step without bytes and light."""
    return Step(step.after, task.work.slowest_s if isinstance(task.work, Compute) else 0.0)


def _seconds(course: Sequence[Sequence[Lasted]]) -> list[float]:
    """How long each iteration lasts: until its last task is done, from when that of the one before was."""
    ends = [0.0]
    for iteration in course:
        ends.append(max((task.end_s for task in iteration), default=ends[-1]))
    return [end - start for start, end in pairwise(ends)]


def as_started(fabric: Fabric, begun: Sequence[tuple[float, tuple[Stream, ...]]]) -> list[float]:
    """How long these bytes flow, when those of each start at the instant given (model seconds), whatever they waited for."""
    first = min((start for start, _ in begun), default=0.0)
    steps = [Step(streams=streams, not_before_s=start - first) for start, streams in begun]
    return [seen.seconds for seen in simulate(steps, goodput(fabric, steps))]
