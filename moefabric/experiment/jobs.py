"""Jobs: an experiment's workload as the tasks of each job, iteration after iteration, and what the fluid simulation says of them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from moefabric.circuits import CircuitSet
from moefabric.experiment.course import Programme
from moefabric.experiment.diverting import light_after_s
from moefabric.experiment.forecast import Parting, Sending, foreseen, parting, sending
from moefabric.experiment.sending import Policy
from moefabric.experiment.walk import FirstSeen, Walk
from moefabric.experiment.workload import Workload
from moefabric.iteration import Collective, Compute, Operation, Reconfigure, backward, forward
from moefabric.schedule.job import Volumes, counterparts, iteration
from moefabric.schedule.pipeline import FORWARD
from moefabric.schedule.shape import Job, Shape, activation_bytes, gradient_bytes, jobs
from moefabric.schedule.simulate import Lasted, Step
from moefabric.schedule.tasks import Pair, Task, hides_in
from moefabric.topology import Fabric, Region


@dataclass(frozen=True)
class Jobs:
    """The jobs that a fabric's regions run side by side, all of one shape and model.

    What `work` foresees of a layer is foreseen of each of its micro-batches.
    """

    fabric: Fabric
    work: Workload
    shape: Shape

    @property
    def regions(self) -> tuple[Region, ...]:
        """Those that train: all but the backup servers' one."""
        return tuple(region for region in self.fabric.regions if not region.backup)

    @property
    def all(self) -> tuple[Job, ...]:
        """Every job."""
        return jobs(self.shape, self.regions)

    @property
    def programmes(self) -> dict[Job, Programme]:
        """What each does in each iteration."""
        return {job: partial(self.tasks, job) for job in self.all}

    def tasks(self, job: Job, number: int) -> tuple[Task, ...]:
        """One iteration of one job."""
        return iteration(job, partial(self._pass, number), self.volumes)

    @property
    def volumes(self) -> Volumes:
        """What a server sends besides the all-to-alls."""
        model, training = self.work.model, self.work.training
        servers = len(self.regions[0].servers)
        return Volumes(
            activation_bytes(model, training, servers), gradient_bytes(model, servers, self.shape.dp)
        )

    @property
    def beyond(self) -> tuple[Pair, ...]:
        """Pairs of servers of different regions that send each other something."""
        found: dict[Pair, None] = {}
        for job in self.all:
            for replica in range(self.shape.dp):
                for stage in range(self.shape.pp):
                    here = job.at(replica, stage)
                    there = [
                        job.at(replica, other)
                        for other in (stage - 1, stage + 1)
                        if 0 <= other < self.shape.pp
                    ]
                    if self.shape.dp > 1:
                        there.append(job.at((replica + 1) % self.shape.dp, stage))
                    found |= dict.fromkeys(pair for region in there for pair in counterparts(here, region))
        return tuple(found)

    def _pass(self, number: int, region: Region, micro_batch: int, direction: str) -> Sequence[Operation]:
        """What a region does with one micro-batch one way, layer after layer of its stage."""
        model, training, work = self.work.model, self.work.training, self.work
        index = self.regions.index(region)
        numbers = work.own(index)
        layers = {n: work.layer_of(number, n, index, micro_batch) for n in numbers}
        if direction == FORWARD:
            guesses = {n: guess.of(region.servers) for n, guess in enumerate(work.foreseen(number)) if guess}
            passed = [forward(model, training, n, layers[n], work.first, guesses.get(n)) for n in numbers]
        else:
            passed = [backward(model, training, n, layers[n], layers.get(n - 1)) for n in reversed(numbers)]
        return [operation for each in passed for operation in each]


@dataclass(frozen=True)
class Planned:
    """A task as it would go: its step in the simulation, what it sends, and whether light moves in it."""

    task: Task
    step: Step
    sending: Sending | None = None
    moved: bool = False


def planned(
    fabric: Fabric, policy: Policy, iterations: Sequence[Sequence[Task]], lit: CircuitSet, *, moves: bool
) -> list[list[Planned]]:
    """A job's tasks, one iteration after the other, under a policy whose light is at first `lit`, and moves or doesn't."""
    regions = {region.name: region for region in fabric.regions}
    now = {
        name: CircuitSet(frozenset(c for c in lit if c.a.server in region.servers))
        for name, region in regions.items()
    }

    known: dict[Hashable, Sending | None] = {}
    after_s = light_after_s(fabric) if moves else {}

    def one(task: Task, before_it: Sequence[Planned]) -> Planned:
        match task.work:
            case Compute(slowest_s=seconds):
                return Planned(task, Step(task.after, seconds))
            case Reconfigure() if any(each.moved and hides_in(task, each.task) for each in before_it):
                return Planned(task, Step(task.after))
            case Reconfigure(demand=demand):
                region, before = regions[task.region], now[task.region]
                if moves and region.ocs is not None:
                    now[task.region] = policy.circuits(fabric, region, demand, before)
                moved = now[task.region] != before
                return Planned(task, Step(task.after, after_s.get(region.name, 0.0) * moved), moved=moved)
            case Collective(meanwhile=Reconfigure()) if task.region in after_s:
                parted = _parted(fabric, policy, task, now[task.region], after_s[task.region])
                if parted is None:
                    return Planned(task, Step(task.after))
                if parted.moves:
                    now[task.region] = parted.target
                whole = parted.whole(fabric)
                return Planned(task, Step(task.after, streams=whole.streams()), whole, parted.moves)
            case _:
                sent = _sent(known, fabric, policy, task, now[task.region])
                return Planned(task, Step(task.after, streams=sent.streams() if sent else ()), sent)

    made: list[list[Planned]] = []
    for tasks in iterations:
        made.append([])
        for task in tasks:
            made[-1].append(one(task, [made[-1][number] for number in task.after]))
    return made


def _parted(fabric: Fabric, policy: Policy, task: Task, lit: CircuitSet, after_s: float) -> Parting | None:
    assert isinstance(task.work, Collective)
    return parting(fabric, policy, task.region, task.work.demand, lit, after_s)


def _sent(
    known: dict[Hashable, Sending | None], fabric: Fabric, policy: Policy, task: Task, circuits: CircuitSet
) -> Sending | None:
    """What a task sends; what is owed one way in the forward pass is owed the same way in the backward pass again."""
    match task.work:
        case Collective(demand=demand):
            key: Hashable = task.region, demand, circuits
        case work:
            key = getattr(work, "pairs", ()), getattr(work, "bytes", 0.0)
    if key not in known:
        known[key] = sending(fabric, policy, task, circuits)
    return known[key]


@dataclass(frozen=True)
class Forecast:
    """One iteration of one job, foreseen: model seconds, and its tasks with how long each lasts beside all others."""

    seconds: float
    compute_s: float
    tasks: tuple[tuple[Planned, float], ...]
    firsts: tuple[FirstSeen, ...] = ()

    @property
    def all_to_alls(self) -> list[tuple[Sending, float]]:
        """What is sent between the servers of a region, and how long that lasts."""
        return [
            (each.sending, seconds)
            for each, seconds in self.tasks
            if each.sending is not None and isinstance(each.task.work, Collective)
        ]

    @property
    def moves(self) -> int:
        """How many times light moves."""
        return sum(each.moved for each, _ in self.tasks)


def predicted(jobs: Jobs, policy: Policy, lit: CircuitSet, iterations: int, *, moves: bool) -> list[Forecast]:
    """Each iteration of each job, by the simulation."""
    walk = Walk(jobs.fabric, policy, lit, moves=moves)
    rows = [
        planned(jobs.fabric, policy, [jobs.tasks(job, n) for n in range(iterations)], lit, moves=moves)
        for job in jobs.all
    ]
    courses = [[[(each.task, each.step) for each in iteration] for iteration in job] for job in rows]
    return [
        Forecast(
            seen.seconds,
            seen.compute_s,
            tuple((each, lasted.seconds) for each, lasted in zip(iteration, seen.tasks, strict=True)),
            _firsts(walk, iteration, seen.tasks),
        )
        for job, said in zip(rows, foreseen(jobs.fabric, courses), strict=True)
        for iteration, seen in zip(job, said, strict=True)
    ]


def _firsts(walk: Walk, iteration: Sequence[Planned], lasted: Sequence[Lasted]) -> tuple[FirstSeen, ...]:
    """The first all-to-alls: how long each waited for light alone, and how long it would have lasted, alone on the fabric, with the light that it deserves."""
    seen = []
    for each, took in zip(iteration, lasted, strict=True):
        task = each.task
        if each.sending is None or not isinstance(task.work, Collective) or not task.work.first:
            continue
        could_s = max(
            (lasted[n].end_s for n in task.after if not isinstance(iteration[n].task.work, Reconfigure)),
            default=took.start_s,
        )
        ideal_s = walk.ideal(task.work)[task.region]
        seen.append(FirstSeen(task.region, task.work.layer, took.start_s - could_s, took.seconds, ideal_s))
    return tuple(seen)
