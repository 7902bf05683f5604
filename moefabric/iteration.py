"""One training iteration as data: computation, reconfigurations and the four all-to-alls of every MoE layer, in order.

Paper section 5.1 and appendix B.2: forward dispatch and combine, backward combine and dispatch; the light is moved once a layer and pass. The
backward pass's demand is known, so its light moves behind attention. The demand of the forward dispatch is known after the gate alone: what that
first all-to-all does about its light is `FIRST`. EP groups are independent of each other; here they go through their layers side by side, so that
the EPS sees the all-to-alls of all regions at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from moefabric.demand import DemandMatrix, Placement
from moefabric.model import BACKWARD, Model, Training

First = Literal["block", "reuse", "predict", "divert"]
FIRST: Final[tuple[First, ...]] = ("block", "reuse", "predict", "divert")
"""What the first forward all-to-all of a layer does about its light, since its demand is known only when it could start.

`block`: it waits until the light has moved (the paper's default). `reuse`: it takes the light that is there. `predict`: while attention computes, light
moves for the demand that Copilot foresees. `divert`: it starts at once over the EPS and what is lit, and takes new light as soon as there is any. But
for `block`, light that isn't yet as the demand deserves moves behind the experts, in time for the combine.
"""


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
    """One all-to-all, of every EP group at once: `demand` is of all servers, and nothing is owed from group to group.

    `meanwhile` is a reconfiguration for its own demand that starts when it starts, where that makes it end sooner, or else when it has ended; the next
    collective waits for it.
    """

    kind: str
    direction: str
    layer: int
    demand: DemandMatrix
    meanwhile: Reconfigure | None = None

    @property
    def first(self) -> bool:
        """Whether it is a forward dispatch: its demand is known only when it could start."""
        return (self.kind, self.direction) == ("dispatch", "forward")


Operation = Compute | Reconfigure | Collective

Tokens = NDArray[np.int64] | NDArray[np.float64]
"""Tokens [rank, expert], counted or foreseen."""


@dataclass(frozen=True)
class Layer:
    """One MoE layer of one iteration: who owes whom in its dispatch, and the tokens that each server's busiest expert gets."""

    demand: DemandMatrix
    busiest_tokens: tuple[float, ...]


def layer(model: Model, training: Training, placement: Placement, gating: Tokens) -> Layer:
    """The layer that a gating matrix [rank, expert] makes. Its rows are shares: each rank sends all of its tokens, top_k times."""
    rows = gating.sum(axis=1, keepdims=True)
    tokens = gating / np.maximum(rows, 1) * training.rank_tokens * model.top_k
    busiest = placement.largest(_rank_tokens(tokens, placement))
    return Layer(DemandMatrix(placement.servers, placement.folded(tokens) * model.token_bytes), busiest)


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


def operations(
    model: Model,
    training: Training,
    layers: Sequence[Layer],
    first: First = "block",
    guesses: Sequence[DemandMatrix | None] = (),
) -> Iterator[Operation]:
    """Everything that one iteration of these layers does, in order; `guesses` are the demands foreseen of their dispatches, for `predict`."""
    for number, now in enumerate(layers):
        guess = guesses[number] if number < len(guesses) else None
        yield from forward(model, training, number, now, first, guess)
    for number in reversed(range(len(layers))):
        yield from backward(model, training, number, layers[number], layers[number - 1] if number else None)


def forward(
    model: Model,
    training: Training,
    number: int,
    now: Layer,
    first: First = "block",
    guess: DemandMatrix | None = None,
) -> tuple[Operation, ...]:
    """The forward pass of layer `number`: attention, dispatch, experts, combine. `guess` is what is foreseen of its dispatch; None is nothing."""
    exact = Reconfigure("forward", number, now.demand)
    foreseen = None if guess is None else Reconfigure("forward", number, guess)
    attention = (training.attention_s(model),) * len(now.busiest_tokens)
    experts = tuple(training.expert_s(model, tokens) for tokens in now.busiest_tokens)
    behind = exact if first in ("reuse", "predict") else None
    return (
        Compute("attention", "forward", number, attention, foreseen if first == "predict" else None),
        *((exact,) if first == "block" else ()),
        Collective("dispatch", "forward", number, now.demand, exact if first == "divert" else None),
        Compute("expert", "forward", number, experts, behind),
        Collective("combine", "forward", number, now.demand.combine()),
    )


def backward(
    model: Model, training: Training, number: int, now: Layer, following: Layer | None
) -> tuple[Operation, ...]:
    """The backward pass of layer `number`; behind its attention, light moves for the layer that comes next in it, the one before in the model."""
    servers = len(now.busiest_tokens)
    experts = tuple(BACKWARD * training.expert_s(model, tokens) for tokens in now.busiest_tokens)
    attention = (BACKWARD * training.attention_s(model),) * servers
    light = None if following is None else Reconfigure("backward", number - 1, following.demand)
    return (
        Collective("combine", "backward", number, now.demand),
        Compute("expert", "backward", number, experts),
        Collective("dispatch", "backward", number, now.demand.combine()),
        Compute("attention", "backward", number, attention, light),
    )
