"""The forecast of tasks: what each of them sends over which light, and when each would start and end were bytes water."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from moefabric.circuits import CircuitSet
from moefabric.experiment.sending import Policy, planned_flows
from moefabric.flows import Flow, Share, flows
from moefabric.fluid import Link, Prediction, goodput_bps, predict_routed, route
from moefabric.iteration import Collective, Compute
from moefabric.schedule.simulate import Lasted, Step, Stream, side_by_side, simulate
from moefabric.schedule.tasks import AllReduce, Task, Transfer
from moefabric.topology import Fabric


@dataclass(frozen=True)
class Sending:
    """What a task sends, and how long it would take, alone on the fabric; the pace of its flows is that at which they would end together."""

    flows: tuple[Flow, ...]
    ways: tuple[tuple[Link, ...], ...]
    alone: Prediction

    def streams(self, *, greedily: bool = False) -> tuple[Stream, ...]:
        """The same as water."""
        return tuple(
            Stream(flow.bytes, way, inf if greedily else pace)
            for flow, way, pace in zip(self.flows, self.ways, self.alone.rates_bps, strict=True)
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
