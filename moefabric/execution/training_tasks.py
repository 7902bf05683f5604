"""The tasks of a program that trains: planned as far as its gates have run.

An iteration has four all-to-alls a layer: dispatch and combine forward, layer after layer, then the
gradients of combine and dispatch backward. The program's calls are taken in this order.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moefabric.core.demand import DemandMatrix
from moefabric.core.exchange import Exchange
from moefabric.prediction.jobs import Jobs, Programme
from moefabric.workload.gating.job_gating import RecordedGating
from moefabric.workload.iterations.iteration import (
    Compute,
    Layer,
    Operation,
    backward_pass,
    forward_pass,
)
from moefabric.workload.iterations.job import Job
from moefabric.workload.iterations.pipeline import BACKWARD, FORWARD, lockstep_tasks
from moefabric.workload.iterations.tasks import Task


@dataclass(frozen=True)
class Call:
    """A call of an iteration: the all-to-all of a layer's dispatch or combine, or its gradient."""

    layer: int
    kind: str
    direction: str

    @property
    def goes_to_experts(self) -> bool:
        """Whether the bytes go from the tokens' ranks to the experts'."""
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
        regions = [region.name for region in self.jobs.regions]
        return lockstep_tasks(tuple(self._operations(number)), regions)

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
    each, rest = np.divmod(by_rank, experts // len(sends))
    tokens = np.repeat(each, experts // len(sends), axis=1)
    tokens[:, :: experts // len(sends)] += rest
    return tokens
