"""A job's iteration as tasks: micro-batches through pipeline stages (1F1B), replicas' gradients summed layer by layer beside the last backward pass."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from moefabric.iteration import Collective, Compute, Operation, Reconfigure
from moefabric.schedule.pipeline import BACKWARD, FORWARD, Pass, one_forward_one_backward
from moefabric.schedule.shape import Job
from moefabric.schedule.tasks import AllReduce, Pair, Task, Transfer, Work
from moefabric.topology import Region

Passes = Callable[[Region, int, str], Sequence[Operation]]
"""What a region does with a micro-batch on its way `forward` or `backward`, in order; demand is of the region's own servers."""

Place = tuple[int, int]
"""A replica and a stage."""


@dataclass(frozen=True)
class Volumes:
    """What a server sends besides the all-to-alls: a micro-batch's activations, and a layer's gradients in all."""

    activation_bytes: float
    gradient_bytes: float


def iteration(job: Job, passes: Passes, volumes: Volumes) -> tuple[Task, ...]:
    """All that a job does in one iteration, each task after those it waits for."""
    return _Building(job, passes, volumes).tasks()


@dataclass
class _Stage:
    """How far a stage has come: its last task, its last change of light, the transfers that it has sent, and the pass before."""

    region: Region
    left: list[Pass]
    tail: tuple[int, ...] = ()
    light: tuple[int, ...] = ()
    before: Pass | None = None
    sent: dict[str, int] = field(default_factory=dict)


class _Building:
    def __init__(self, job: Job, passes: Passes, volumes: Volumes) -> None:
        self.job, self.passes, self.volumes = job, passes, volumes
        shape = job.shape
        self.stages: dict[Place, _Stage] = {
            (replica, stage): _Stage(
                job.at(replica, stage), list(one_forward_one_backward(shape.pp, stage, shape.micro_batches))
            )
            for replica in range(shape.dp)
            for stage in range(shape.pp)
        }
        self.made: list[Task] = []
        self.handed: dict[tuple[Place, Pass], int] = {}
        """The task that brings a stage what it needs for a pass."""
        self.done: set[tuple[Place, Pass]] = set()
        self.reduced: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        """The last backward task of a layer, in each replica, by stage and layer."""

    def tasks(self) -> tuple[Task, ...]:
        while any(stage.left for stage in self.stages.values()):
            ready = [place for place, stage in self.stages.items() if self._ready(place, stage)]
            if not ready:
                raise AssertionError("every stage waits for another one")
            for place in ready:
                stage = self.stages[place]
                now = stage.left.pop(0)
                self._pass(place, stage, now)
                self.done.add((place, now))
        self._all_reduces()
        return tuple(self.made)

    def _ready(self, place: Place, stage: _Stage) -> bool:
        if not stage.left:
            return False
        source = self._source(place, stage.left[0])
        return source is None or (source, stage.left[0]) in self.done

    def _source(self, place: Place, each: Pass) -> Place | None:
        """The stage that hands over what a pass starts from."""
        replica, stage = place
        other = stage - 1 if each.direction == FORWARD else stage + 1
        return (replica, other) if 0 <= other < self.job.shape.pp else None

    def _pass(self, place: Place, stage: _Stage, now: Pass) -> None:
        operations = list(self.passes(stage.region, now.micro_batch, now.direction))
        if now.direction == BACKWARD and stage.before != Pass(FORWARD, now.micro_batch):
            operations = [*_relit(operations), *operations]
        handed = self.handed.get((place, now))
        needs = () if handed is None else (handed,)
        for at, operation in enumerate(operations):
            if not isinstance(operation, Reconfigure):
                # What comes from another stage is waited for by the first work that needs it; light is moved meanwhile.
                stage.tail, needs = (*stage.tail, *needs), ()
            self._operation(stage, now.micro_batch, operation)
            ends = at + 1 == len(operations) or operations[at + 1].layer != operation.layer
            if ends and self._last(now):
                self.reduced[place[1], operation.layer] += stage.tail
        stage.before = now
        self._hand_over(place, stage, now)

    def _last(self, now: Pass) -> bool:
        return now == Pass(BACKWARD, self.job.shape.micro_batches - 1)

    def _operation(self, stage: _Stage, micro_batch: int, operation: Operation) -> None:
        """Its tasks: computing waits for what was computed and sent before, sending for light too, and light for all that was sent."""
        match operation:
            case Compute(meanwhile=meanwhile):
                before = stage.tail
                stage.tail = self._chained(stage, micro_batch, replace(operation, meanwhile=None), before)
                if meanwhile is not None:
                    stage.light = self._chained(stage, micro_batch, meanwhile, before + stage.light)
            case Reconfigure():
                stage.light = self._chained(stage, micro_batch, operation, stage.tail + stage.light)
            case Collective(meanwhile=meanwhile):
                stage.tail = self._chained(stage, micro_batch, operation, stage.tail + stage.light)
                if meanwhile is not None:
                    # Where light moved while the collective went on, there is nothing left to do.
                    stage.light = self._chained(stage, micro_batch, meanwhile, stage.tail)

    def _chained(self, stage: _Stage, micro_batch: int, work: Work, after: tuple[int, ...]) -> tuple[int]:
        return (self._add((stage.region,), micro_batch, work, after),)

    def _hand_over(self, place: Place, stage: _Stage, now: Pass) -> None:
        replica, number = place
        other = number + 1 if now.direction == FORWARD else number - 1
        if not 0 <= other < self.job.shape.pp:
            return
        there = self.stages[replica, other].region
        work = Transfer(now.direction, counterparts(stage.region, there), self.volumes.activation_bytes)
        # One after the other: they go by the same connections.
        before = (stage.sent[now.direction],) if now.direction in stage.sent else ()
        sent = self._add((stage.region, there), now.micro_batch, work, (*stage.tail, *before))
        stage.sent[now.direction] = sent
        self.handed[(replica, other), now] = sent

    def _all_reduces(self) -> None:
        shape = self.job.shape
        if shape.dp == 1:
            return
        last = shape.micro_batches - 1
        for stage in range(shape.pp):
            ring = [self.job.at(replica, stage) for replica in range(shape.dp)]
            pairs = tuple(
                pair
                for here, there in zip(ring, [*ring[1:], ring[0]], strict=True)
                for pair in counterparts(here, there)
            )
            before: tuple[int, ...] = ()
            for layer in sorted({of for at, of in self.reduced if at == stage}, reverse=True):
                work = AllReduce(layer, pairs, self.volumes.gradient_bytes)
                before = (self._add(ring, last, work, (*self.reduced[stage, layer], *before)),)

    def _add(self, regions: Sequence[Region], micro_batch: int, work: Work, after: tuple[int, ...]) -> int:
        names = tuple(region.name for region in regions)
        self.made.append(Task(names, micro_batch, work, tuple(sorted(set(after)))))
        return len(self.made) - 1


def counterparts(here: Region, there: Region) -> tuple[Pair, ...]:
    """Each server of a region, and the one that does the same in another."""
    return tuple(zip(here.servers, there.servers, strict=True))


def _relit(operations: Sequence[Operation]) -> list[Operation]:
    """Light for the pass's first all-to-all, which a pass of another micro-batch has moved meanwhile; its demand is known since the way forward."""
    first = next((each for each in operations if isinstance(each, Collective)), None)
    if first is None or (operations and isinstance(operations[0], Reconfigure)):
        return []
    return [Reconfigure(BACKWARD, first.layer, first.demand)]
