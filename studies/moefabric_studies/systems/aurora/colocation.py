"""Time of an MoE layer's inference, and experts of two models on the GPUs of one cluster.

After Aurora (arXiv 2410.17043): every GPU has one port to a big switch and hosts one expert of each
model. A layer is a gate, an all-to-all, the experts, an all-to-all back, and an aggregation. All
are synchronous, so that each takes as long as the slowest GPU. An all-to-all takes the time of its
busiest port (theorems 4.2 and 5.2). Co-located models take turns: one computes while the other
communicates (table 2).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from moefabric.api.workloads import Bytes, groups_by_load

Rates = NDArray[np.float64]
"""Rate of each GPU's port and of its computation, relative to the fastest GPU's."""


@dataclass(frozen=True, eq=False)
class ExpertLayer:
    """A layer of a model, spread over GPUs.

    Attributes:
        tokens: Tokens [from, to] between GPUs in the first all-to-all, own ones on the diagonal. A
            token takes a unit of time on the fastest port.
        expert: Time of a token in an expert on the fastest GPU.
        gate: Time of a token in the gate, and in the aggregation.
    """

    tokens: Bytes
    expert: float = 1.0
    gate: float = 0.1

    def ordered(self, order: Sequence[int] | NDArray[np.int64]) -> "ExpertLayer":
        """Return the layer with expert `order[i]`, and the tokens of its GPU, on GPU i."""
        return replace(self, tokens=self.tokens[list(order), :][:, list(order)])

    def joined(self, groups: Sequence[Sequence[int]]) -> "ExpertLayer":
        """Return the layer with each group of experts on one GPU."""
        member = np.zeros((len(groups), len(self.tokens)))
        for gpu, experts in enumerate(groups):
            member[gpu, list(experts)] = 1.0
        return replace(self, tokens=member @ self.tokens @ member.T)

    def gate_s(self, rates: Rates) -> float:
        """Return the time of the gate, or of the aggregation."""
        return float((self.gate * self.tokens.sum(axis=1) / rates).max())

    def expert_s(self, rates: Rates) -> float:
        """Return the time of the experts."""
        return float((self.expert * self.tokens.sum(axis=0) / rates).max())

    def seconds(self, rates: Rates) -> float:
        """Return the time of the layer if its model has the GPUs for itself."""
        exchanges_s = 2 * port_s(self.tokens, rates)
        return 2 * self.gate_s(rates) + self.expert_s(rates) + exchanges_s


@dataclass(frozen=True, eq=False)
class HostedLayer:
    """A layer of a model, and the GPU of each of its rows of tokens."""

    layer: ExpertLayer
    gpus: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Deployment:
    """Layers on GPUs: of one model, of two on the same GPUs, or of several on GPUs of their own.

    Attributes:
        rates: Rates of all GPUs.
    """

    hosted: tuple[HostedLayer, ...]
    rates: Rates

    @classmethod
    def of(cls, layers: Sequence[ExpertLayer], rates: Rates) -> Self:
        """Return the deployment of each layer on all GPUs, in their order."""
        gpus = tuple(range(len(rates)))
        return cls(tuple(HostedLayer(layer, gpus) for layer in layers), rates)

    def seconds(self) -> float:
        """Return the time of all layers."""
        gpus = {hosted.gpus for hosted in self.hosted}
        if len(gpus) == 1 and len(self.hosted) == 2:
            first, second = (hosted.layer for hosted in self.hosted)
            return colocated_s(first, second, self.rates[list(gpus.pop())])
        return max(hosted.layer.seconds(self.rates[list(hosted.gpus)]) for hosted in self.hosted)


def moving(tokens: Bytes) -> Bytes:
    """Return the tokens or bytes that leave their GPU or server."""
    return tokens - np.diag(np.diag(tokens))


def port_s(tokens: Bytes, rates: Rates) -> float:
    """Return the time of an all-to-all: that of its busiest port (theorem 5.2)."""
    sent = moving(tokens)
    return float(max((sent.sum(axis=0) / rates).max(), (sent.sum(axis=1) / rates).max()))


def colocated_s(one: ExpertLayer, other: ExpertLayer, rates: Rates) -> float:
    """Return the time of two layers whose experts share GPUs, in turns (table 2)."""
    gate, gate_other = one.gate_s(rates), other.gate_s(rates)
    sent, sent_other = port_s(one.tokens, rates), port_s(other.tokens, rates)
    both = port_s(one.tokens + other.tokens, rates)
    # The all-to-alls of both models share ports: together they take at least `both`.
    first_sent, all_sent = sent, max(both, gate_other + sent_other)
    experts = max(gate_other, first_sent) + one.expert_s(rates)
    experts_other = max(experts, all_sent) + other.expert_s(rates)
    returned = max(experts, all_sent) + sent
    returned_other = max(returned, experts_other) + max(both - sent, 0.0)
    aggregated = max(experts_other, returned) + gate
    return max(aggregated, returned_other) + gate_other + gate


def paired_experts(one: ExpertLayer, other: ExpertLayer) -> NDArray[np.int64]:
    """Return, for each expert of a model, the expert of the other on the same GPU.

    The busiest port has as few tokens as possible: a perfect matching whose largest weight is
    least, by bisection over weights (Aurora, section 6; matching by Hopcroft and Karp).
    """
    sums = [(t.sum(axis=1), t.sum(axis=0)) for t in (moving(one.tokens), moving(other.tokens))]
    weights = np.max([np.add.outer(a, b) for a, b in zip(*sums, strict=True)], axis=0)
    levels = np.unique(weights)
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        if (_matching(weights <= levels[middle]) >= 0).all():
            high = middle
        else:
            low = middle + 1
    return _matching(weights <= levels[low])


def _matching(allowed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the column of each row in a largest matching, -1 without one."""
    matching: NDArray[np.int64] = maximum_bipartite_matching(
        csr_matrix(allowed.astype(np.int8)), perm_type="column"
    ).astype(np.int64)
    return matching


def gpus_by_load(layers: Sequence[ExpertLayer], rates: Rates) -> NDArray[np.int64]:
    """Return the order of experts that gives those of most tokens the fastest GPUs (theorem 5.1).

    Args:
        layers: One model, or several whose experts are already paired.
        rates: Rates of the GPUs.
    """
    load = np.sum([layer.tokens.sum(axis=0) for layer in layers], axis=0)
    return groups_by_load(load, rates)


def popular_with_unpopular(layer: ExpertLayer) -> list[tuple[int, int]]:
    """Return pairs of one model's experts for one GPU each: most with fewest tokens (Lina)."""
    order = np.argsort(-layer.tokens.sum(axis=0), kind="stable").tolist()
    return [(order[n], order[-1 - n]) for n in range(len(order) // 2)]
