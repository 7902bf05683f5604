"""One training iteration as data: computation, reconfigurations and the four all-to-alls of every MoE layer, in order.

Paper section 5.1 and appendix B.2: forward dispatch and combine, backward combine and dispatch; the light is moved once a layer and pass.
The forward pass waits for it after the gate (`block`, the paper's default); the backward one's demand is known, so it moves behind
attention. EP groups are independent of each other; here they go through their layers side by side, so that the EPS sees the all-to-alls of
all regions at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moefabric.demand import DemandMatrix, Placement
from moefabric.model import BACKWARD, Model, Training


@dataclass(frozen=True)
class Compute:
    """GPUs at work, no traffic: model seconds for each server, in server order. `meanwhile` is a reconfiguration that hides behind it."""

    kind: str
    direction: str
    layer: int
    seconds: tuple[float, ...]
    meanwhile: "Reconfigure | None" = None

    @property
    def slowest_s(self) -> float:
        """When the last server is done."""
        return max(self.seconds)


@dataclass(frozen=True)
class Reconfigure:
    """Light for a layer's demand, in one pass; every region for its own servers'."""

    direction: str
    layer: int
    demand: DemandMatrix


@dataclass(frozen=True)
class Collective:
    """One all-to-all, of every EP group at once: `demand` is of all servers, and nothing is owed from group to group."""

    kind: str
    direction: str
    layer: int
    demand: DemandMatrix


Operation = Compute | Reconfigure | Collective


@dataclass(frozen=True)
class Layer:
    """One MoE layer of one iteration: who owes whom in its dispatch, and the tokens that each server's busiest expert gets."""

    demand: DemandMatrix
    busiest_tokens: tuple[float, ...]


def layer(model: Model, training: Training, placement: Placement, gating: NDArray[np.int64]) -> Layer:
    """The layer that a gating matrix [rank, expert] makes. Its rows are shares: each rank sends all of its tokens, top_k times."""
    rows = gating.sum(axis=1, keepdims=True)
    tokens = gating / np.maximum(rows, 1) * training.rank_tokens * model.top_k
    n = len(placement.servers)
    ranks, experts = placement.ranks // n, placement.experts // n
    folded = tokens.reshape(n, ranks, n, experts).sum(axis=(1, 3))
    busiest = _rank_tokens(tokens, placement).reshape(n, -1).max(axis=1)
    return Layer(DemandMatrix(placement.servers, folded * model.token_bytes), tuple(map(float, busiest)))


def together(layers: Sequence[Layer]) -> Layer:
    """The same MoE layer of several EP groups, one after the other."""
    if len(layers) == 1:
        return layers[0]
    busiest = tuple(tokens for each in layers for tokens in each.busiest_tokens)
    return Layer(DemandMatrix.apart([each.demand for each in layers]), busiest)


def _rank_tokens(tokens: NDArray[np.float64], placement: Placement) -> NDArray[np.float64]:
    """Tokens that each rank's experts get; a rank holds experts/ranks of them, on its own GPUs."""
    got: NDArray[np.float64] = tokens.sum(axis=0).reshape(placement.ranks, -1).sum(axis=1)
    return got


def operations(model: Model, training: Training, layers: Sequence[Layer]) -> Iterator[Operation]:
    """Everything that one iteration of these layers does, in order."""
    attention = training.attention_s(model)
    for number, now in enumerate(layers):
        servers = len(now.busiest_tokens)
        expert = tuple(training.expert_s(model, tokens) for tokens in now.busiest_tokens)
        yield Compute("attention", "forward", number, (attention,) * servers)
        yield Reconfigure("forward", number, now.demand)
        yield Collective("dispatch", "forward", number, now.demand)
        yield Compute("expert", "forward", number, expert)
        yield Collective("combine", "forward", number, now.demand.combine())
    for number in reversed(range(len(layers))):
        now = layers[number]
        servers = len(now.busiest_tokens)
        expert = tuple(BACKWARD * training.expert_s(model, tokens) for tokens in now.busiest_tokens)
        yield Collective("combine", "backward", number, now.demand)
        yield Compute("expert", "backward", number, expert)
        yield Collective("dispatch", "backward", number, now.demand.combine())
        following = Reconfigure("backward", number - 1, layers[number - 1].demand) if number else None
        yield Compute("attention", "backward", number, (BACKWARD * attention,) * servers, following)
