"""Copies of tokens: whether a token travels to each of its experts, ranks or servers, and how many.

Copies are exact, since they are counted from the routes of single tokens. If a token goes to a rank
or server once, that rank or server also sums up what its experts yield for the token, weighted by
the gate, and returns one sum: as many copies come back as went there (Occult, arXiv 2505.13345).
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from moefabric.core.demand import Placement
from moefabric.workload.gating.token_routes import LayerRoutes
from moefabric.workload.iterations.iteration import Array, Layer, placed_layer
from moefabric.workload.models.model import Model, Training

Numbers = NDArray[np.int64]

CopyUnit = Literal["expert", "rank", "server"]
"""Unit that receives one copy of a token: an expert, a rank, or a server."""


@dataclass(frozen=True)
class CopyRule:
    """The number of copies of a token that travel.

    Attributes:
        unit: Unit that receives one copy of a token.
        limit: The most units to which a token goes; 0 for all that have one of its experts. Units
            with the largest sums of scores are kept. Others of their experts compute the token
            instead of its experts elsewhere (Occult's collaboration pruning), so that the result
            differs from the gate's. Which ones do is not modelled: they have the same ranks.
    """

    unit: CopyUnit = "expert"
    limit: int = 0

    @property
    def is_default(self) -> bool:
        """True if each token goes to each of its experts, so that counts by expert suffice."""
        return self.unit == "expert" and not self.limit


EACH_EXPERT: Final = CopyRule()
"""A copy for each expert of a token."""


@dataclass(frozen=True)
class RoutedTokens:
    """Tokens of one layer.

    Attributes:
        computed: Tokens [source rank, expert] that experts compute, experts in the order of ranks.
        copies: Copies [source rank, server] of tokens that go to a server.
    """

    computed: Array
    copies: Array


def routed_tokens(
    routes: LayerRoutes, placement: Placement, slots: Numbers, rule: CopyRule
) -> RoutedTokens:
    """Return the tokens that experts compute, and the copies that go to servers.

    Args:
        routes: Routes of a layer.
        placement: The servers of ranks and experts.
        slots: Position [expert] of each expert in the order of their ranks.
        rule: The number of copies of a token that travel.
    """
    chosen = slots[routes.experts]
    homes = np.array([placement.home(rank) for rank in range(placement.ranks)])
    ranks = np.arange(placement.experts) * placement.ranks // placement.experts
    units, servers = {
        "expert": (chosen, homes[ranks]),
        "rank": (ranks[chosen], homes),
        "server": (homes[ranks][chosen], np.arange(len(placement.servers))),
    }[rule.unit]
    weights = _unit_weights(units, routes.scores, len(servers))
    touched = weights > 0
    if rule.limit:
        # The units of largest weight; the lower number wins a tie.
        order = np.argsort(-weights, axis=-1, kind="stable")
        touched &= np.argsort(order, axis=-1) < rule.limit
    kept = np.take_along_axis(touched, units, axis=-1).astype(np.float64)
    at_hand = touched.sum(axis=-1, keepdims=True) * (placement.experts // len(servers))
    kept *= np.minimum(chosen.shape[-1], at_hand) / kept.sum(axis=-1, keepdims=True)
    source = np.arange(placement.ranks)[:, None, None]
    cells = (source * placement.experts + chosen).ravel()
    shape = placement.ranks, placement.experts
    computed = np.bincount(cells, kept.ravel(), shape[0] * shape[1]).astype(np.float64)
    copies = np.zeros((placement.ranks, len(placement.servers)))
    np.add.at(copies.T, servers, touched.sum(axis=1).T)
    return RoutedTokens(computed.reshape(shape), copies)


def _unit_weights(units: Numbers, scores: NDArray[Any] | None, count: int) -> Array:
    """Return the sum of scores [rank, token, unit]; each choice has 1 without scores.

    A choice has a little more than its score: an expert whose score is rounded to 0 is chosen too.
    """
    own = np.ones(units.shape) if scores is None else scores + 1e-6
    ranks, tokens, _ = units.shape
    row = np.arange(ranks * tokens).reshape(ranks, tokens, 1)
    cells = (row * count + units).ravel()
    sums = np.bincount(cells, own.ravel(), ranks * tokens * count).astype(np.float64)
    return sums.reshape(ranks, tokens, count)


def routed_layer(
    model: Model,
    training: Training,
    placement: Placement,
    routes: LayerRoutes,
    slots: Numbers,
    rule: CopyRule,
) -> Layer:
    """Return the MoE layer for the routes of tokens.

    Args:
        training: How the model is trained.
        placement: The servers of ranks and experts.
        routes: Routes of the layer, as a sample: each rank has `rank_tokens` tokens like them.
        slots: Position [expert] of each expert in the order of their ranks.
        rule: The number of copies of a token that travel.
    """
    tokens = routed_tokens(routes, placement, slots, rule)
    scale = training.rank_tokens / routes.experts.shape[1]
    return placed_layer(model, training, placement, tokens.computed * scale, tokens.copies * scale)
