"""Shares of time that the paper measured in production (section 3, appendix A).

A profiler sees an all-to-all from a rank's call to its end. A rank that has computed its experts
calls the combine and waits there until the busiest rank has computed its own. So what a profiler
counts as all-to-all is all the time of a layer in which a rank doesn't compute: the transfers, and
the time by which the busiest experts outlast the rank's own.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moefabric import Model, Training
from moefabric.api.workloads import DIRECTIONS, Direction

Tokens = NDArray[np.int64] | NDArray[np.float64]


def rank_expert_tokens(model: Model, training: Training, gating: Tokens) -> NDArray[np.float64]:
    """Return the tokens that the experts of each rank compute in one micro-batch.

    Args:
        training: How it is trained.
        gating: Tokens [rank, expert], of which only shares of rows count.
    """
    shares = gating / np.maximum(gating.sum(axis=1, keepdims=True), 1)
    by_rank = shares.sum(axis=0).reshape(training.ep, -1).sum(axis=1)
    tokens: NDArray[np.float64] = by_rank * training.rank_tokens * model.top_k
    return tokens


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of an MoE layer for one micro-batch.

    Attributes:
        attention_s: What a rank computes of its own tokens, with shared expert and router.
        expert_s: What the experts of a rank compute, in the mean over ranks.
        busiest_expert_s: What the experts of the busiest rank compute.
        all_to_all_s: Transfers of all-to-alls.
    """

    attention_s: float
    expert_s: float
    busiest_expert_s: float
    all_to_all_s: float

    @property
    def seconds(self) -> float:
        """Duration of the layer: computation at the busiest rank, and transfers."""
        return self.attention_s + self.busiest_expert_s + self.all_to_all_s

    @property
    def straggler_s(self) -> float:
        """Time in which a rank waits for the busiest one's experts, in the mean over ranks."""
        return self.busiest_expert_s - self.expert_s

    @property
    def transfer_share(self) -> float:
        """Part of the layer in which bytes of all-to-alls move."""
        return self.all_to_all_s / self.seconds

    @property
    def call_share(self) -> float:
        """Part of the layer that ranks spend in calls of all-to-alls, in the mean over ranks."""
        return (self.all_to_all_s + self.straggler_s) / self.seconds


def layer_times(
    model: Model,
    training: Training,
    gating: Tokens,
    all_to_all_s: float,
    directions: tuple[Direction, ...] = DIRECTIONS,
) -> LayerTimes:
    """Return the times of an MoE layer.

    Args:
        training: How it is trained.
        gating: Tokens [rank, expert].
        all_to_all_s: Seconds of its all-to-alls in these directions.
        directions: Passes that count: both, or one of them.
    """
    tokens = rank_expert_tokens(model, training, gating)
    mean_s, busiest_s = (
        sum(training.expert_s(model, float(count), direction) for direction in directions)
        for count in (tokens.mean(), tokens.max())
    )
    attention_s = sum(training.attention_s(model, direction) for direction in directions)
    return LayerTimes(attention_s, mean_s, busiest_s, all_to_all_s)
