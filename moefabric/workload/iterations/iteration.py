"""Training iterations as data: the operations of every MoE layer, in order.

The operations follow section 5.1 and appendix B.2 of the paper: computation, reconfigurations and
four all-to-alls for each layer (forward dispatch and combine, backward combine and dispatch), with
one reconfiguration for each layer and pass. The demand of the backward pass is known, so that its
reconfiguration overlaps attention. The demand of the forward dispatch is known only after the gate:
`DispatchLight` says what that first all-to-all does. EP groups are independent of each other; here
they execute each layer at the same time, so that the EPS carries the all-to-alls of all regions at
once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from moefabric.core.demand import DemandMatrix, Placement
from moefabric.workload.models.model import CountExchange, Model, Training

DispatchLight = Literal["block", "reuse", "predict", "divert"]
"""The circuits of a layer's first all-to-all, whose demand is known only when it could start.

* `block` waits for the reconfiguration (the paper's default).
* `reuse` takes the circuits that are lit.
* `predict` reconfigures for the demand that Copilot predicts, while attention computes.
* `divert` starts at once over the EPS and lit circuits, and adds new circuits once they are lit.

For all but `block`, circuits that don't fit the demand yet are reconfigured while experts compute,
in time for the combine.
"""


PAUSE: Final = "pause"
"""Kind of the time before a phase of an all-to-all, which counts as communication."""


Pair = tuple[str, str]
"""A sending and a receiving server."""


@dataclass(frozen=True)
class Transfer:
    """Bytes of an equal size between pairs of servers, by the EPS.

    Attributes:
        direction: "forward" or "backward".
        bytes: Bytes of each pair.
        kind: "pipeline" for a micro-batch's activations to the next stage, or gradients to the
            stage before; "experts" for experts to the servers that compute them, too.
        layer: Number of the layer; None if it belongs to none.
    """

    direction: str
    pairs: tuple[Pair, ...]
    bytes: float
    kind: str = "pipeline"
    layer: int | None = None


@dataclass(frozen=True)
class AllReduce:
    """The sum of a layer's gradients over servers, in rings over the EPS.

    Attributes:
        layer: Number of the layer.
        pairs: Each server and the next one in its ring.
        bytes: Bytes of each pair.
        least_s: Model seconds that other pairs, which aren't listed, give it at least.
        is_timed: Whether its own duration is judged, and a scale long enough for that. Sums within
            a region are short against all-to-alls: their bytes and the iteration are judged.
        kind: "all-reduce".
        direction: "backward".
    """

    layer: int
    pairs: tuple[Pair, ...]
    bytes: float
    least_s: float = 0.0
    is_timed: bool = True
    kind: str = "all-reduce"
    direction: str = "backward"


@dataclass(frozen=True)
class Compute:
    """Computation without traffic.

    Attributes:
        kind: "attention", with all that a token's own rank computes, "expert", "dense" for layers
            without experts, "head", "optimiser", or `PAUSE`.
        direction: "forward" or "backward".
        layer: Number of the layer.
        seconds: Model seconds of each server, in server order.
        concurrent: A reconfiguration during the computation.
        transfer: A transfer during the computation. All that follows waits for it.
    """

    kind: str
    direction: str
    layer: int
    seconds: tuple[float, ...]
    concurrent: "Reconfigure | None" = None
    transfer: Transfer | AllReduce | None = None

    @property
    def slowest_s(self) -> float:
        """Seconds of the slowest server."""
        return max(self.seconds)


@dataclass(frozen=True)
class Reconfigure:
    """A reconfiguration for a layer's demand; each region is planned for its own servers.

    Attributes:
        direction: "forward" or "backward".
        layer: Number of the layer.
        demand: Bytes between all servers.
        predicted: Whether the demand is a prediction.
    """

    direction: str
    layer: int
    demand: DemandMatrix
    predicted: bool = False


@dataclass(frozen=True)
class Collective:
    """An all-to-all of every EP group at once.

    Attributes:
        kind: "dispatch", "combine" or "tensor".
        direction: "forward" or "backward".
        layer: Number of the layer.
        demand: Bytes between all servers; groups owe each other nothing.
        concurrent: A reconfiguration for this demand. It starts with the collective if the
            collective then ends sooner, and after the collective otherwise. The next collective
            waits for it.
        split_demands: The demands for which its split is computed; empty for its own.
        phase: Number of this phase of an all-to-all in phases, from 0.
        phases: Number of its phases.
        pause_s: Model seconds of the pause before it, which is an operation of its own.
        counts: The exchange of token counts, which precedes its first byte; None without one.
    """

    kind: str
    direction: str
    layer: int
    demand: DemandMatrix
    concurrent: Reconfigure | None = None
    split_demands: tuple[DemandMatrix, ...] = ()
    phase: int = 0
    phases: int = 1
    pause_s: float = 0.0
    counts: CountExchange | None = None

    @property
    def is_forward_dispatch(self) -> bool:
        """True if it is a whole all-to-all whose demand is known only when it could start."""
        return (self.kind, self.direction, self.phases) == ("dispatch", "forward", 1)


Operation = Compute | Reconfigure | Collective | AllReduce

Array = NDArray[np.float64]
Tokens = NDArray[np.int64] | Array
"""Tokens [rank, expert], counted or predicted."""


@dataclass(frozen=True)
class Layer:
    """An MoE layer of an iteration.

    Attributes:
        demand: Bytes of its dispatch.
        busiest_tokens: Tokens of the busiest rank's experts on each server.
        split_demands: The demands for which the split of its forward dispatch is computed; empty
            for `demand`. Other all-to-alls follow the gate, and their demand is known.
    """

    demand: DemandMatrix
    busiest_tokens: tuple[float, ...]
    split_demands: tuple[DemandMatrix, ...] = ()


def moe_layer(model: Model, training: Training, placement: Placement, gating: Tokens) -> Layer:
    """Return the MoE layer for a gating matrix.

    Args:
        training: How the model is trained.
        placement: The servers of ranks and experts.
        gating: Tokens [rank, expert]. Only shares of rows count: each rank sends all of its tokens
            `top_k` times.
    """
    sums = gating.sum(axis=1, keepdims=True)
    tokens = gating / np.maximum(sums, 1) * training.rank_tokens * model.top_k
    copies = placement.by_destination(tokens)
    if model.node_limit:
        # A token goes to M nodes with a share of `top_k` / M experts at each (so it is chosen: by
        # the sum of its `top_k` / M best scores on a node; DeepSeek-V3, arXiv 2412.19437, section
        # 2.1.2), and no token goes to a server twice.
        copies = copies * min(1.0, model.node_limit / model.top_k)
        copies = np.minimum(copies, training.rank_tokens)
    return placed_layer(model, training, placement, tokens, copies)


def placed_layer(
    model: Model, training: Training, placement: Placement, tokens: Array, copies: Array
) -> Layer:
    """Return the MoE layer for tokens and their copies.

    Args:
        training: How the model is trained.
        placement: The servers of ranks and experts.
        tokens: Tokens [source rank, expert] that experts compute.
        copies: Copies [source rank, server] of tokens that go to a server.
    """
    # A rank computes all of its experts on its own GPUs.
    rank_tokens = tokens.sum(axis=0).reshape(placement.ranks, -1).sum(axis=1)
    owed = placement.by_source(copies) * training.dispatch_token_bytes(model)
    demand = DemandMatrix(placement.servers, owed, placement.by_rank(tokens, copies))
    return Layer(demand, placement.max_by_server(rank_tokens))


def merge_layers(layers: Sequence[Layer]) -> Layer:
    """Join the same MoE layer of several EP groups."""
    if len(layers) == 1:
        return layers[0]
    demand = DemandMatrix.block_diagonal([layer.demand for layer in layers])
    busiest = tuple(tokens for layer in layers for tokens in layer.busiest_tokens)
    assumed = zip(*(layer.split_demands for layer in layers), strict=True)
    return Layer(demand, busiest, tuple(map(DemandMatrix.block_diagonal, assumed)))


def iteration_operations(
    model: Model,
    training: Training,
    layers: Sequence[Layer],
    dispatch_light: DispatchLight = "block",
    predicted: Sequence[DemandMatrix | None] = (),
) -> Iterator[Operation]:
    """Yield the operations of one iteration, in order.

    Args:
        training: How the model is trained.
        layers: The MoE layers.
        dispatch_light: The circuits of forward dispatches.
        predicted: Predicted demand of each layer's dispatch, for `predict`.
    """
    for number, layer in enumerate(layers):
        demand = predicted[number] if number < len(predicted) else None
        yield from forward_pass(model, training, number, layer, dispatch_light, demand)
    for number in reversed(range(len(layers))):
        following = layers[number - 1] if number else None
        yield from backward_pass(model, training, number, layers[number], following)


def forward_pass(
    model: Model,
    training: Training,
    number: int,
    layer: Layer,
    dispatch_light: DispatchLight = "block",
    predicted: DemandMatrix | None = None,
) -> tuple[Operation, ...]:
    """Return the forward pass of a layer: attention, dispatch, experts, combine.

    Args:
        training: How the model is trained.
        number: Number of the layer.
        layer: Its demand and computation.
        dispatch_light: The circuits of the dispatch.
        predicted: Predicted demand of the dispatch, for `predict`.
    """
    exact = Reconfigure("forward", number, layer.demand)
    during_attention = during_dispatch = None
    if dispatch_light == "predict" and predicted is not None:
        during_attention = Reconfigure("forward", number, predicted, predicted=True)
    elif dispatch_light == "divert":
        during_dispatch = exact
    during_experts = exact if dispatch_light in {"reuse", "predict"} else None
    attention = (training.attention_s(model),) * len(layer.busiest_tokens)
    experts = tuple(training.expert_s(model, tokens) for tokens in layer.busiest_tokens)
    back, place = layer.demand.combine(training.combine_ratio(model)), ("forward", number)
    return (
        Compute("attention", *place, attention, during_attention),
        *((exact,) if dispatch_light == "block" else ()),
        Collective(
            "dispatch",
            *place,
            layer.demand,
            during_dispatch,
            layer.split_demands,
            counts=training.token_counts(model),
        ),
        Compute("expert", *place, experts, during_experts),
        Collective("combine", *place, back),
    )


def backward_pass(
    model: Model, training: Training, number: int, layer: Layer, following: Layer | None
) -> tuple[Operation, ...]:
    """Return the backward pass of a layer: combine, experts, dispatch, attention.

    Args:
        training: How the model is trained.
        number: Number of the layer.
        layer: Its demand and computation.
        following: The next layer of the pass (the one before in the model), whose circuits are set
            up during attention.
    """
    busiest = layer.busiest_tokens
    experts = tuple(training.expert_s(model, tokens, "backward") for tokens in busiest)
    attention = (training.attention_s(model, "backward"),) * len(busiest)
    light = None if following is None else Reconfigure("backward", number - 1, following.demand)
    back, place = layer.demand.combine(training.combine_ratio(model)), ("backward", number)
    return (
        Collective("combine", *place, layer.demand),
        Compute("expert", *place, experts),
        Collective("dispatch", *place, back),
        Compute("attention", *place, attention, light),
    )
