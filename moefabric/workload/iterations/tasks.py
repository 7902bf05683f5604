"""Tasks of an iteration: the work of regions, and the tasks for which it waits.

The work of a region is sequential, as its GPUs and its OCS do one thing at a time. Regions exchange
nothing but bytes: a micro-batch's activations and gradients between pipeline stages, and gradients
of weights between replicas.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from moefabric.core.flows import Flow
from moefabric.workload.iterations.iteration import (
    AllReduce,
    Collective,
    Compute,
    Reconfigure,
    Transfer,
)

START = -1
"""Stands for the start of the iteration among the positions of tasks."""


@dataclass(frozen=True)
class Lag:
    """Seconds on the longest path of modelled tasks, and on the longest of their computation."""

    seconds: float = 0.0
    compute_s: float = 0.0

    def then(self, seconds: float, compute_s: float) -> "Lag":
        """Return the lag after another modelled task."""
        return Lag(self.seconds + seconds, self.compute_s + compute_s)


Lags = Mapping[int, Lag]
"""Lag after the end of each executed task, by its position or `START`."""


@dataclass(frozen=True)
class TaskPart:
    """A task with its executed part, its modelled part, or both.

    Attributes:
        after: Positions of the tasks for which it waits, all of them earlier.
        executed: Whether it, or a part of it, is executed.
        modelled_s: Duration of its modelled part; None if all of it is executed.
        compute_s: Duration of the modelled part's computation.
    """

    after: tuple[int, ...]
    executed: bool
    modelled_s: float | None = None
    compute_s: float = 0.0


def task_lags(parts: Sequence[TaskPart]) -> tuple[list[Lags], Lags]:
    """Return the lags of tasks.

    In a hybrid run, some tasks are executed and others have the durations of a model. Executed
    tasks wait for modelled ones, and these for earlier executed ones. The longest path of modelled
    durations from each executed task replaces the modelled tasks between: a task may start `lag`
    after the end of each of these (max-plus algebra). That is exact: a late executed task delays
    others as much as if they waited for each modelled task.

    Args:
        parts: The tasks of an iteration.

    Returns:
        For each task, the lags after which it may start; and those after which all have ended.
    """
    starts, ends = list[Lags](), list[Lags]()
    for position, part in enumerate(parts):
        start = latest(ends[before] for before in part.after)
        starts.append(start)
        own: dict[int, Lag] = {}
        if part.modelled_s is not None:
            own = {e: lag.then(part.modelled_s, part.compute_s) for e, lag in start.items()}
        if part.executed:
            own[position] = Lag()
        ends.append(own)
    return starts, latest(ends)


def latest(lags_of_tasks: Iterable[Lags]) -> Lags:
    """Return the lags of a task that waits for several tasks; without any, that of the start."""
    merged: dict[int, Lag] = {}
    for lags in lags_of_tasks:
        for executed, lag in lags.items():
            previous = merged.get(executed, lag)
            seconds = max(previous.seconds, lag.seconds)
            merged[executed] = Lag(seconds, max(previous.compute_s, lag.compute_s))
    return merged or {START: Lag()}


@dataclass(frozen=True)
class BackgroundTransfer:
    """Flows of regions that exist in a model only, over links that emulated regions use.

    Attributes:
        flows: The flows, in bytes of the model.
        seconds: Model seconds that the model says they take.
        direction: That of the work for which they stand.
        layer: Its layer; None if it belongs to none.
        kind: "background".
    """

    flows: tuple[Flow, ...]
    seconds: float
    direction: str = "forward"
    layer: int | None = None
    kind: str = "background"


@dataclass(frozen=True)
class Elsewhere:
    """Time that regions which exist in a model only take until other work may follow.

    Attributes:
        seconds: Model seconds.
        compute_s: Model seconds without transfers.
        direction: As that of other work.
        layer: None, as it belongs to none.
    """

    seconds: float
    compute_s: float = 0.0
    direction: str = "forward"
    layer: int | None = None


Sent = Collective | Transfer | AllReduce | BackgroundTransfer
"""Work that sends bytes."""
Work = Compute | Reconfigure | Elsewhere | Sent


def owed_bytes(work: Sent) -> Iterator[tuple[str, str, float]]:
    """Yield who owes whom how many bytes of the model, whatever the way; a pair may come again."""
    match work:
        case Collective(demand=demand):
            yield from demand.pairs()
        case BackgroundTransfer(flows=planned):
            yield from ((flow.src, flow.dst, flow.bytes) for flow in planned)
        case Transfer(pairs=pairs, bytes=size) | AllReduce(pairs=pairs, bytes=size):
            yield from ((src, dst, size) for src, dst in pairs)


@dataclass(frozen=True)
class Task:
    """Work of regions in one micro-batch.

    Attributes:
        regions: The regions that work; records name the first one.
        micro_batch: Number of the micro-batch.
        work: What they do.
        after: Positions of the tasks for which it waits, all of them earlier.
        barrier: Whether it covers all regions of the fabric, with no transfer beside it.
        during: Position of the collective during which a reconfiguration may run. If it did, the
            task has nothing left to do.
    """

    regions: tuple[str, ...]
    micro_batch: int
    work: Work
    after: tuple[int, ...]
    barrier: bool = False
    during: int | None = None

    @property
    def region(self) -> str:
        """The region that records name."""
        return self.regions[0]
