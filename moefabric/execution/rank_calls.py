"""All-to-alls that the ranks of a training program ask for, as tasks of its iterations.

An iteration has four all-to-alls a layer: dispatch and combine forward, layer after layer, then the
gradients of combine and dispatch backward. A program makes its calls in this order. The call of a
forward dispatch says what the gate has chosen: from then on, the demand of all tasks of the layer
is known.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import TrainingProgramError
from moefabric.core.exchange import Exchange
from moefabric.core.units import NS_PER_S
from moefabric.execution.iteration_state import IterationState
from moefabric.prediction.jobs import Jobs, Programme
from moefabric.workload.gating.job_gating import RecordedGating
from moefabric.workload.iterations.iteration import (
    Collective,
    Compute,
    Layer,
    Operation,
    Reconfigure,
    backward_pass,
    forward_pass,
)
from moefabric.workload.iterations.job import Job
from moefabric.workload.iterations.pipeline import BACKWARD, FORWARD, lockstep_tasks
from moefabric.workload.iterations.tasks import Task

CallKey = tuple[int, int]
"""An iteration and the position of a call in it."""


@dataclass(frozen=True)
class Call:
    """A call of an iteration: the all-to-all of a layer's dispatch or combine, or its gradient."""

    layer: int
    kind: str
    direction: str

    @property
    def goes_to_experts(self) -> bool:
        """True if the bytes go from the tokens' ranks to the experts'."""
        return (self.kind == "dispatch") == (self.direction == FORWARD)

    def __str__(self) -> str:
        return f"{self.direction} {self.kind} of layer {self.layer}"


def iteration_calls(layers: int) -> tuple[Call, ...]:
    """Return the calls of an iteration in the order in which a program makes them."""
    forward = [Call(n, kind, FORWARD) for n in range(layers) for kind in ("dispatch", "combine")]
    backward = [
        Call(n, kind, BACKWARD) for n in reversed(range(layers)) for kind in ("combine", "dispatch")
    ]
    return (*forward, *backward)


@dataclass(frozen=True)
class TrainingTasks:
    """Tasks of the iterations of a program that trains in one region.

    Attributes:
        jobs: The job, with the gating that is recorded.
        gating: This gating.
        wall: Whether computation takes as long as the program needs. Then what the program computes
            between its forward and backward pass is a task, too.
    """

    jobs: Jobs
    gating: RecordedGating
    wall: bool = False

    def tasks(self, number: int) -> tuple[Task, ...]:
        """Return the tasks of an iteration.

        Layers whose gates haven't run have a demand of zero bytes. The number and the order of
        tasks don't depend on demand.
        """
        jobs = self.jobs
        groups = [placement.servers for placement in jobs.work.placements]
        operations = jobs.whole(self._operations(number), groups, outer=not self.wall)
        return lockstep_tasks(operations, [region.name for region in jobs.regions])

    @property
    def programmes(self) -> dict[Job, Programme]:
        """The tasks of the only job's iterations, as lists that later knowledge replaces."""
        [job] = self.jobs.all
        return {job: lambda number, _substitutions: list(self.tasks(number))}

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of an iteration."""
        return iteration_calls(self.jobs.work.model.layers)

    def _operations(self, number: int) -> Iterator[Operation]:
        work = self.jobs.work
        layers = [self._layer(number, n) for n in range(work.model.layers)]
        for n, layer in enumerate(layers):
            predicted = self._predicted(number, n)
            yield from forward_pass(
                work.model, work.training, n, layer, work.dispatch_light, predicted
            )
        if self.wall:
            last = len(layers) - 1
            yield Compute("head", FORWARD, last, (0.0,) * len(work.placements[0].servers))
        for n in reversed(range(len(layers))):
            following = layers[n - 1] if n else None
            yield from backward_pass(work.model, work.training, n, layers[n], following)

    def _layer(self, number: int, layer: int) -> Layer:
        work = self.jobs.work
        if self.gating.knows(number, layer):
            return work.layer_of(number, layer, 0)
        placement = work.placements[0]
        count = len(placement.servers)
        return Layer(DemandMatrix(placement.servers, np.zeros((count, count))), (0.0,) * count)

    def _predicted(self, number: int, layer: int) -> DemandMatrix | None:
        """Return the predicted demand of a layer; zero bytes as long as it depends on a gate."""
        work = self.jobs.work
        predicts = work.dispatch_light == "predict" and work.predictor is not None
        if not predicts or number <= work.gating.first:
            return None
        if layer and not self.gating.knows(number, layer - 1):
            return self._layer(-1, layer).demand
        return work.predicted_demand(number, layer)


def gate_tokens(
    exchange: Exchange, experts: int, token_bytes: int, row_tokens: int
) -> NDArray[np.int64]:
    """Return the tokens [rank, expert] of a forward dispatch.

    If the program didn't exchange numbers of tokens by expert, the experts of a rank have equal
    shares of its tokens.

    Args:
        exchange: The dispatch.
        experts: Experts of a layer.
        token_bytes: Bytes of a token.
        row_tokens: Tokens that each rank sends, a token once for each of its experts.

    Raises:
        ValueError: If the sizes don't fit; names the rank.
    """
    sends = np.array(exchange.sends, np.int64)
    for rank, total in zip(exchange.group, sends.sum(axis=1), strict=True):
        if total != row_tokens * token_bytes:
            raise ValueError(
                f"rank {rank} dispatches {total:,} bytes, and {row_tokens:,} tokens of "
                f"{token_bytes:,} bytes have {row_tokens * token_bytes:,}"
            )
    if exchange.tokens is not None and len(exchange.tokens[0]) == experts:
        return np.array(exchange.tokens, np.int64)
    by_rank = sends // token_bytes
    quotient, rest = np.divmod(by_rank, experts // len(sends))
    tokens = np.repeat(quotient, experts // len(sends), axis=1)
    tokens[:, :: experts // len(sends)] += rest
    return tokens


def _computed_s(state: IterationState, number: int) -> float:
    """Return the model seconds of computation since the collectives before a task."""
    works = ((n, state.tasks[n].work) for n in state.tasks[number].after)
    computed = ((n, work.slowest_s) for n, work in works if isinstance(work, Compute))
    return sum(seconds + _computed_s(state, n) for n, seconds in computed)


@dataclass(frozen=True)
class RankWork:
    """Real computation of a rank between two calls.

    Attributes:
        iteration: Number of the iteration.
        call: Position of the call that ended it.
        rank: The slowest rank.
        took_s: Its wall seconds.
        modelled_s: Model seconds of the computation that it stands for.
    """

    iteration: int
    call: int
    rank: int
    took_s: float
    modelled_s: float = 0.0


class Calls:
    """Calls of ranks whose bytes the collectives of iterations carry.

    A subclass overrides the methods that concern it. Here, no task waits for a call, and
    collectives carry bytes of the agents' own.
    """

    @property
    def pending(self) -> bool:
        """True if tasks wait for calls."""
        return False

    def check(self) -> None:
        """Raise RanksLostError if a process of the ranks has failed."""

    def waits(self, state: IterationState, number: int, action: Callable[[], None]) -> bool:  # noqa: ARG002
        """Return whether a task has to wait for a call; if so, take an action when it is made."""
        return False

    def measured(self, state: IterationState, number: int) -> Compute:
        """Return a task's computation, with the measured time of the ranks if the run uses it."""
        work = state.tasks[number].work
        assert isinstance(work, Compute)
        return work

    def receive(self, exchange: Exchange) -> None:
        """Take the next exchange that all of its ranks have asked for."""

    def exchange(self, state: IterationState, work: Collective) -> Exchange | None:
        """Return the exchange of a collective; None for bytes of the agents' own."""

    def released(self, instant_ns: int) -> None:
        """Note when ranks went on, on the wall clock."""


class RankCalls(Calls):
    """Connects the calls of a training program with the tasks of an iteration.

    Args:
        tasks: The tasks of iterations, which depend on what gates choose.
        token_bytes: Bytes of a token in the program.
        row_tokens: Tokens that a rank sends in a dispatch, a token once for each of its experts.
        check: Raises RanksLostError if a process of the ranks has failed.
    """

    def __init__(
        self,
        tasks: TrainingTasks,
        token_bytes: int,
        row_tokens: int,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._check_ranks = check
        self._tasks, self._token_bytes, self._row_tokens = tasks, token_bytes, row_tokens
        self._calls = tasks.calls
        self._position = {call: index for index, call in enumerate(self._calls)}
        self._next = 0
        self._exchanges: dict[CallKey, Exchange] = {}
        self._actions: defaultdict[CallKey, list[Callable[[], None]]] = defaultdict(list)
        self._released_ns = 0
        self._states: dict[int, IterationState] = {}
        self._work: list[RankWork] = []
        self._took_s: dict[CallKey, float] = {}
        self._modelled_s: dict[CallKey, float] = {}

    @property
    def work(self) -> list[RankWork]:
        """The slowest rank's computation before each call, except those that began a program."""
        return [
            replace(one, modelled_s=self._modelled_s.get((one.iteration, one.call), 0.0))
            for one in self._work
        ]

    @property
    def pending(self) -> bool:
        """True if tasks wait for calls."""
        return any(self._actions.values())

    def check(self) -> None:
        """Raise RanksLostError if a process of the ranks has failed."""
        self._check_ranks()

    def restart(self, iteration: int) -> None:
        """Expect the calls of an iteration next; forget those that were not answered."""
        self._next = iteration * len(self._calls)
        self._exchanges.clear()
        self._actions.clear()
        self._released_ns = 0

    def waits(self, state: IterationState, number: int, action: Callable[[], None]) -> bool:
        """Return whether a task has to wait for a call; if so, take an action when it is made."""
        self._states[state.run.number] = state
        work = state.tasks[number].work
        key: CallKey | None
        match work:
            case Collective():
                key = self.key(state, work)
                self._modelled_s[key] = _computed_s(state, number)
            case Compute() if self._tasks.wall:
                key = self._following(state, number)
            case Reconfigure(layer=layer) if not work.demand.total_bytes:
                key = state.run.number, self._dispatch(layer)
            case _:
                key = None
        if key is None or key in self._exchanges:
            return False
        self._actions[key].append(action)
        return True

    def key(self, state: IterationState, work: Collective) -> CallKey:
        """Return the call of a collective."""
        return state.run.number, self._position[Call(work.layer, work.kind, work.direction)]

    def measured(self, state: IterationState, number: int) -> Compute:
        """Return a task's computation, with the measured time of the ranks if the run uses it."""
        work = super().measured(state, number)
        if not self._tasks.wall:
            return work
        key = self._following(state, number)
        dilation = self._tasks.jobs.fabric.scale.dilation
        seconds = 0.0 if key is None else self._took_s.get(key, 0.0) / dilation
        return replace(work, seconds=(seconds,) * len(work.seconds))

    def _following(self, state: IterationState, number: int) -> CallKey | None:
        """Return the call after a computation; None at the end of an iteration."""
        later = (task.work for task in state.tasks[number:])
        following = next((work for work in later if isinstance(work, Collective)), None)
        return None if following is None else self.key(state, following)

    def receive(self, exchange: Exchange) -> None:
        """Take the next call of the program.

        Raises:
            TrainingProgramError: If the program doesn't call as a program of this model does.
        """
        iteration, position = divmod(self._next, len(self._calls))
        self._next += 1
        if not position:
            self._forget_before(iteration)
        self._note_work(iteration, position, exchange)
        self._check(iteration, position, exchange)
        self._exchanges[iteration, position] = exchange
        call, state = self._calls[position], self._states.get(iteration)
        if call.kind == "dispatch" and call.direction == FORWARD:
            self._record_gate(iteration, position, exchange)
            if state is not None and not state.cancelled:
                state.replace_tasks(self._tasks.tasks(iteration), keep_computation=self._tasks.wall)
        for action in self._actions.pop((iteration, position), []):
            action()

    def exchange(self, state: IterationState, work: Collective) -> Exchange:
        """Return the exchange of a collective."""
        return self._exchanges[self.key(state, work)]

    def released(self, instant_ns: int) -> None:
        """Note when ranks went on, on the wall clock."""
        self._released_ns = instant_ns

    def _forget_before(self, iteration: int) -> None:
        """Forget the calls of earlier iterations, all of which have been answered."""
        self._exchanges = {key: x for key, x in self._exchanges.items() if key[0] >= iteration}
        self._states = {number: s for number, s in self._states.items() if number >= iteration}

    def _dispatch(self, layer: int | None) -> int:
        return 2 * (layer or 0)

    def _record_gate(self, iteration: int, position: int, exchange: Exchange) -> None:
        try:
            tokens = gate_tokens(
                exchange, self._tasks.jobs.work.model.experts, self._token_bytes, self._row_tokens
            )
        except ValueError as error:
            message = f"{self._place(iteration, position)}: {error}: check train.hidden, "
            raise TrainingProgramError(
                f"{message}train.sequence, train.batch and train.dtype"
            ) from error
        self._tasks.gating.record(iteration, self._calls[position].layer, tokens)

    def _check(self, iteration: int, position: int, exchange: Exchange) -> None:
        """Raise TrainingProgramError unless a layer's calls carry the bytes of its dispatch."""
        call = self._calls[position]
        dispatch = self._exchanges.get((iteration, self._dispatch(call.layer)))
        if dispatch is None:
            return
        expected, sent = np.array(dispatch.sends), np.array(exchange.sends)
        if not call.goes_to_experts:
            expected = expected.T
        if expected.shape != sent.shape or (expected != sent).any():
            raise TrainingProgramError(
                f"{self._place(iteration, position)}: its bytes are not those of the layer's "
                "dispatch. A training iteration has four all-to-alls of tokens for each layer: "
                "dispatch and combine, and their gradients; check train.layers"
            )

    def _note_work(self, iteration: int, position: int, exchange: Exchange) -> None:
        if not self._released_ns or not exchange.asked_ns:
            return
        last_ns = max(exchange.asked_ns)
        rank = exchange.group[exchange.asked_ns.index(last_ns)]
        seconds = max(0, last_ns - self._released_ns) / NS_PER_S
        self._work.append(RankWork(iteration, position, rank, seconds))
        self._took_s[iteration, position] = seconds

    def _place(self, iteration: int, position: int) -> str:
        return f"iteration {iteration}, {self._calls[position]}"
