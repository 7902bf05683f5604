"""A training job of the paper: its model, how it is spread over servers, and what each server owes the others."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from moefabric.model import BACKWARD, Model, Training
from moefabric.schedule.shape import activation_bytes, gradient_bytes

Array = NDArray[np.float64]

GPUS = 8
"""GPUs of a server, each with a NIC."""


@dataclass(frozen=True)
class Job:
    """`training.ep` expert-parallel ranks of `training.tp` GPUs to an EP group, `pp` pipeline stages, `dp` replicas.

    `gating[rank, expert]` counts tokens; its rows are shares. Every layer and micro-batch sees it, as in the paper's simulator.
    """

    name: str
    model: Model
    training: Training
    pp: int
    dp: int
    micro_batches: int
    gating: NDArray[np.int64]

    @property
    def servers(self) -> int:
        """Servers of a region: one EP group of one pipeline stage."""
        return self.training.ep * self.training.tp // GPUS

    @property
    def gpus(self) -> int:
        """GPUs of the whole job."""
        return self.servers * GPUS * self.pp * self.dp

    @property
    def stage_layers(self) -> float:
        """MoE layers of a pipeline stage."""
        return self.model.layers / self.pp

    @cached_property
    def tokens(self) -> Array:
        """Tokens [rank, rank] from each rank to the experts of each, in one dispatch."""
        ep, experts = self.training.ep, self.model.experts
        shares = self.gating / self.gating.sum(axis=1, keepdims=True)
        by_rank: Array = shares.reshape(ep, ep, experts // ep).sum(axis=2)
        return by_rank * self.training.rank_tokens * self.model.top_k

    @cached_property
    def owed(self) -> Array:
        """Bytes [server, server] of one dispatch, diagonal empty; its transpose is the combine."""
        ranks = self.training.ep // self.servers
        folded = self.tokens.reshape(self.servers, ranks, self.servers, ranks).sum(axis=(1, 3))
        np.fill_diagonal(folded, 0.0)
        made: Array = folded * self.model.token_bytes
        return made

    @cached_property
    def layer_compute_s(self) -> float:
        """Seconds that one MoE layer computes for one micro-batch, forward and backward, until the busiest expert is done."""
        busiest = float(self.tokens.sum(axis=0).max())
        forward = self.training.attention_s(self.model) + self.training.expert_s(self.model, busiest)
        return forward * (1 + BACKWARD)

    @property
    def stage_bytes(self) -> float:
        """Bytes that a server hands to the next pipeline stage for one micro-batch: its ranks' activations."""
        return activation_bytes(self.model, self.training, self.servers)

    @property
    def gradient_bytes(self) -> float:
        """Bytes that a server sends in the data-parallel all-reduce of an iteration: hierarchical, a ring of servers (paper section 5.3).

        Its experts are shared with the `dp` replicas, attention with every server of the stage.
        """
        return self.stage_layers * gradient_bytes(self.model, self.servers, self.dp)

    def computing(self, utilisation: float) -> Self:
        """The same job on GPUs that reach this share of their FLOPs."""
        return replace(self, training=replace(self.training, utilisation=utilisation))
