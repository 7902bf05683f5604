"""A job's iteration as tasks: micro-batches through pipeline stages, then all-reduces of gradients.

Stages work in the order one forward, one backward (1F1B; PipeDream-flush, Megatron-LM): a stage
runs as many forward passes ahead as there are stages after it, then one forward and one backward in
turn, then the remaining backward passes. So no stage holds the activations of more micro-batches
than there are stages from it to the end. Replicas' gradients are summed layer by layer during the
last backward pass.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from moefabric.core.demand import DemandMatrix
from moefabric.core.topology import Region
from moefabric.workload.iterations.iteration import (
    AllReduce,
    Collective,
    Compute,
    Operation,
    Pair,
    Reconfigure,
    Transfer,
)
from moefabric.workload.iterations.job import Job, JobShape
from moefabric.workload.iterations.tasks import Task, Work

FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True)
class StagePass:
    """The pass of a micro-batch through a stage in one direction."""

    direction: str
    micro_batch: int


def one_forward_one_backward(stages: int, stage: int, micro_batches: int) -> tuple[StagePass, ...]:
    """Return the passes of a stage in an iteration, in order.

    Args:
        stages: Number of pipeline stages.
        stage: Number of the stage, from 0.
        micro_batches: Micro-batches of an iteration.
    """
    ahead = min(stages - 1 - stage, micro_batches)
    order = [StagePass(FORWARD, number) for number in range(ahead)]
    for number in range(micro_batches - ahead):
        order += [StagePass(FORWARD, ahead + number), StagePass(BACKWARD, number)]
    order += [StagePass(BACKWARD, number) for number in range(micro_batches - ahead, micro_batches)]
    return tuple(order)


Passes = Callable[[Region, int, str], Sequence[Operation]]
"""Returns the operations of a region for a micro-batch and a direction ("forward", "backward").

Demand is between the region's own servers.
"""

Place = tuple[int, int]
"""A replica and a stage."""


@dataclass(frozen=True)
class PipelineTraffic:
    """Bytes that a server sends besides all-to-alls.

    Attributes:
        activation_bytes: Bytes to the next stage for one micro-batch.
        gradient_bytes: Bytes for one layer in the all-reduce of an iteration; 0 if gradients aren't
            summed.
        outer_bytes: More bytes of some layers, for weights outside of MoE layers.
    """

    activation_bytes: float
    gradient_bytes: float
    outer_bytes: Mapping[int, float] = field(default_factory=dict)

    def summed_bytes(self, layer: int) -> float:
        """Return the bytes that are summed with the gradients of a layer."""
        return self.gradient_bytes + self.outer_bytes.get(layer, 0.0)


def iteration_tasks(job: Job, passes: Passes, traffic: PipelineTraffic) -> tuple[Task, ...]:
    """Return all tasks of a job in one iteration.

    Args:
        passes: Returns the operations of each pass.
        traffic: What servers send besides all-to-alls.

    Returns:
        The tasks, each after those for which it waits.
    """
    return _TaskBuilder(job, passes, traffic).build()


def lockstep_tasks(operations: Sequence[Operation], regions: Sequence[str]) -> tuple[Task, ...]:
    """Return operations as a chain of tasks, which are barriers for all regions.

    Transfers and all-reduces are no barriers.

    Args:
        operations: Operations of all regions side by side, with the demand and the computation of
            all their servers.
        regions: Names of all regions that train.

    Returns:
        The tasks, each of all regions.
    """
    group = Job(0, JobShape(), (Region("all", 0, (), None),))
    traffic = PipelineTraffic(0.0, 0.0)
    tasks = iteration_tasks(group, lambda _, __, way: operations if way == FORWARD else (), traffic)
    names, beside = tuple(regions), Transfer | AllReduce
    return tuple(
        replace(task, regions=names, barrier=not isinstance(task.work, beside)) for task in tasks
    )


@dataclass
class _Stage:
    """The progress of a stage while its tasks are listed.

    `tail` is the last task, `light` the last reconfiguration, `sent` the last transfer in each
    direction, `sums` the sums of gradients, each as the position of a task. `optimiser` follows all
    of them.
    """

    region: Region
    passes: list[StagePass]
    tail: tuple[int, ...] = ()
    light: tuple[int, ...] = ()
    previous: StagePass | None = None
    sent: dict[str, int] = field(default_factory=dict)
    sums: tuple[int, ...] = ()
    optimiser: Compute | None = None


class _TaskBuilder:
    """Lists the tasks of an iteration, pass by pass, so that none waits for a later one."""

    def __init__(self, job: Job, passes: Passes, traffic: PipelineTraffic) -> None:
        self.job, self.passes, self.traffic = job, passes, traffic
        shape, self.stages = job.shape, dict[Place, _Stage]()
        for replica, stage in itertools.product(range(shape.dp), range(shape.pp)):
            passes_of_stage = one_forward_one_backward(shape.pp, stage, shape.micro_batches)
            self.stages[replica, stage] = _Stage(job.at(replica, stage), list(passes_of_stage))
        self.tasks: list[Task] = []
        self.received: dict[tuple[Place, StagePass], int] = {}
        """Position of the transfer that brings a stage the input of a pass."""
        self.last_backward: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        """The last backward task of each replica, by stage and layer."""

    def build(self) -> tuple[Task, ...]:
        while any(stage.passes for stage in self.stages.values()):
            ready = [place for place, stage in self.stages.items() if self._is_ready(place, stage)]
            if not ready:
                raise AssertionError("every stage waits for another one")
            for place in ready:
                current = self.stages[place].passes.pop(0)
                self._add_pass(place, self.stages[place], current)
        self._add_all_reduces()
        last = self.job.shape.micro_batches - 1
        for stage in self.stages.values():
            if stage.optimiser is not None:
                self._add((stage.region,), last, stage.optimiser, stage.tail + stage.sums)
        return tuple(self.tasks)

    def _is_ready(self, place: Place, stage: _Stage) -> bool:
        if not stage.passes:
            return False
        is_first = self._neighbour(place, stage.passes[0], downstream=False) is None
        return is_first or (place, stage.passes[0]) in self.received

    def _neighbour(self, place: Place, one: StagePass, *, downstream: bool) -> Place | None:
        """Return the stage to which a pass continues, or from which it comes."""
        replica, stage = place
        other = stage + (1 if (one.direction == FORWARD) == downstream else -1)
        return (replica, other) if 0 <= other < self.job.shape.pp else None

    def _add_pass(self, place: Place, stage: _Stage, current: StagePass) -> None:
        operations = list(self.passes(stage.region, current.micro_batch, current.direction))
        was_forward = stage.previous == StagePass(FORWARD, current.micro_batch)
        if current.direction == BACKWARD and not was_forward:
            operations = [*_reconfiguration_before(operations), *operations]
        received = self.received.get((place, current))
        needs = () if received is None else (received,)
        is_last = current == StagePass(BACKWARD, self.job.shape.micro_batches - 1)
        for position, operation in enumerate(operations):
            if not isinstance(operation, Reconfigure):
                # The first work that needs the other stage's data waits for it; a reconfiguration
                # doesn't.
                stage.tail, needs = (*stage.tail, *needs), ()
            self._add_operation(stage, current.micro_batch, operation)
            following = operations[position + 1 : position + 2]
            ends_layer = not following or following[0].layer != operation.layer
            if is_last and ends_layer:
                self.last_backward[place[1], operation.layer] += stage.tail
        stage.previous = current
        self._add_transfer(place, stage, current)

    def _add_operation(self, stage: _Stage, micro_batch: int, operation: Operation) -> None:
        """Add the tasks of an operation.

        Computation waits for earlier computation and collectives, collectives for reconfigurations
        too, and reconfigurations for all earlier collectives.
        """

        def add(work: Work, after: tuple[int, ...], during: int | None = None) -> tuple[int, ...]:
            return (self._add((stage.region,), micro_batch, work, after, during),)

        match operation:
            case Compute(kind="optimiser"):
                stage.optimiser = operation
            case Compute(concurrent=light, transfer=transfer):
                before = stage.tail
                stage.tail = add(replace(operation, concurrent=None, transfer=None), before)
                if transfer is not None:
                    stage.tail += add(transfer, before)
                if light is not None:
                    stage.light = add(light, before + stage.light)
            case Reconfigure():
                stage.light = add(operation, stage.tail + stage.light)
            case AllReduce():
                stage.sums += add(operation, stage.tail)
            case Collective(concurrent=light):
                stage.tail = add(operation, stage.tail + stage.light)
                if light is not None:
                    stage.light = add(light, stage.tail, stage.tail[0])

    def _add_transfer(self, place: Place, stage: _Stage, current: StagePass) -> None:
        """Add the transfer of a pass's result to the neighbouring stage, if there is one."""
        other = self._neighbour(place, current, downstream=True)
        if other is None:
            return
        region, direction = self.stages[other].region, current.direction
        pairs = counterparts(stage.region, region)
        work = Transfer(direction, pairs, self.traffic.activation_bytes)
        # Transfers of one direction share their connections: one after the other.
        before = (stage.sent[direction],) if direction in stage.sent else ()
        after = (*stage.tail, *before)
        task = self._add((stage.region, region), current.micro_batch, work, after)
        stage.sent[direction] = self.received[other, current] = task

    def _add_all_reduces(self) -> None:
        """Add the sums of gradients over replicas; those of one replica are operations."""
        shape = self.job.shape
        if shape.dp == 1 or not self.traffic.gradient_bytes:
            return
        for stage in range(shape.pp):
            members = [self.job.at(replica, stage) for replica in range(shape.dp)]
            links = itertools.pairwise([*members, members[0]])
            pairs = tuple(itertools.chain.from_iterable(counterparts(*link) for link in links))
            layers = {layer for other, layer in self.last_backward if other == stage}
            before: tuple[int, ...] = ()
            for layer in sorted(layers, reverse=True):
                work = AllReduce(layer, pairs, self.traffic.summed_bytes(layer))
                after = (*self.last_backward[stage, layer], *before)
                before = (self._add(members, shape.micro_batches - 1, work, after),)
            for replica in range(shape.dp):
                self.stages[replica, stage].sums += before

    def _add(
        self,
        regions: Sequence[Region],
        micro_batch: int,
        work: Work,
        after: tuple[int, ...],
        during: int | None = None,
    ) -> int:
        names, before = tuple(region.name for region in regions), tuple(sorted(set(after)))
        self.tasks.append(Task(names, micro_batch, work, before, during=during))
        return len(self.tasks) - 1


def counterparts(region: Region, other: Region) -> tuple[Pair, ...]:
    """Pair each server of a region with the server that does the same in another region."""
    return tuple(zip(region.servers, other.servers, strict=True))


def ring(servers: Sequence[str]) -> tuple[Pair, ...]:
    """Pair each server with the next one, and the last with the first."""
    return tuple(itertools.pairwise([*servers, servers[0]])) if len(servers) > 1 else ()


def with_gradient_sums(
    operations: Iterable[Operation], groups: Iterable[Sequence[str]], traffic: PipelineTraffic
) -> Iterator[Operation]:
    """Add the sums of gradients of weights that the servers of a group replicate.

    The sum of a layer begins with the next computation of experts or of layers without experts, so
    that it delays all-to-alls only if it lasts longer. If nothing but the optimiser follows the
    layer that comes last, its sum is exposed.

    Args:
        operations: Operations of the groups, side by side.
        groups: The servers of each group.
        traffic: The bytes that a server sends for each layer.
    """
    sums = bool(traffic.gradient_bytes)
    pairs = tuple(itertools.chain.from_iterable(map(ring, groups))) if sums else ()
    owed: AllReduce | None = None
    for operation in operations:
        match operation:
            case Compute("expert" | "dense", "backward", transfer=None) if owed is not None:
                yield replace(operation, transfer=owed)
                owed = None
            case Compute(kind="optimiser") if owed is not None:
                yield from (owed, operation)
                owed = None
            case Compute(kind="attention", direction="backward", layer=layer) if pairs:
                if owed is not None:
                    yield owed
                yield operation
                owed = AllReduce(layer, pairs, traffic.summed_bytes(layer), is_timed=False)
            case _:
                yield operation
    if owed is not None:
        yield owed


def _reconfiguration_before(operations: Sequence[Operation]) -> list[Operation]:
    """Return a reconfiguration for the first all-to-all of a backward pass.

    A pass of another micro-batch has changed the circuits meanwhile; the demand is known since the
    forward pass.
    """
    collectives = [one for one in operations if isinstance(one, Collective)]
    if not collectives or isinstance(operations[0], Reconfigure):
        return []
    first = collectives[0]
    phases = [one.demand for one in collectives[: first.phases]]
    return [Reconfigure(BACKWARD, first.layer, DemandMatrix.sum_of(phases))]
