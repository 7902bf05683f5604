"""Placements: which rank hosts which expert, chosen from the tokens that experts received."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from moefabric.workload.gating.token_routes import Pairs

Tokens = NDArray[np.int64]
"""Tokens [rank, expert] of one layer."""


class ExpertPlacement(Protocol):
    """Chooses the ranks of a layer's experts. Each rank hosts equally many.

    A placement is pure: equal arguments give equal orders.
    """

    @property
    def name(self) -> str:
        """The name that specifications use."""

    def experts_in_order(self, tokens: Tokens, seed: int) -> Sequence[int]:
        """Return the experts in the order of the ranks that host them.

        Args:
            tokens: Tokens [rank, expert] that the layer's experts received so far.
            seed: Seed of random numbers.

        Returns:
            Each expert once. With k experts a rank, the first k are those of rank 0.
        """


@runtime_checkable
class CoactivationPlacement(ExpertPlacement, Protocol):
    """A placement that also needs to know which experts tokens have in common."""

    def experts_by_coactivation(self, pairs: Pairs, ranks: int, servers: int) -> Sequence[int]:
        """Return the experts in the order of the ranks that host them.

        Args:
            pairs: Tokens [expert, expert] that have both experts, so far.
            ranks: Number of ranks.
            servers: Number of servers, which the ranks fill in order.
        """


@runtime_checkable
class RatedPlacement(ExpertPlacement, Protocol):
    """A placement that also needs to know how fast ranks are."""

    def experts_by_rate(self, tokens: Tokens, rates: Sequence[float]) -> Sequence[int]:
        """Return the experts in the order of the ranks that host them.

        Args:
            tokens: Tokens [rank, expert] that the layer's experts received so far.
            rates: Rate of a NIC of each rank's server, in any unit.
        """


@dataclass(frozen=True)
class Contiguous:
    """Experts in the order of their numbers, as Megatron-LM places them."""

    name: str = "contiguous"

    def experts_in_order(self, tokens: Tokens, seed: int) -> Sequence[int]:  # noqa: ARG002
        """Return the experts in the order of their numbers."""
        return range(tokens.shape[1])


@dataclass(frozen=True)
class Balanced:
    """The experts of most tokens first, each to the rank with the least load that has room.

    This is the packing of DeepSeek's EPLB (`balanced_packing`), without copies of experts.
    """

    name: str = "balanced"

    def experts_in_order(self, tokens: Tokens, seed: int) -> Sequence[int]:  # noqa: ARG002
        """Return the experts so that ranks compute about equally many tokens."""
        ranks, experts = tokens.shape
        room = experts // ranks
        load = tokens.sum(axis=0).tolist()
        hosted: list[list[int]] = [[] for _ in range(ranks)]
        carried = [0] * ranks
        for expert in sorted(range(experts), key=lambda e: (-load[e], e)):
            free = (rank for rank in range(ranks) if len(hosted[rank]) < room)
            rank = min(free, key=lambda r: (carried[r], r))
            hosted[rank].append(expert)
            carried[rank] += load[expert]
        return [expert for experts_of_rank in hosted for expert in experts_of_rank]


@dataclass(frozen=True)
class Random:
    """Experts in random order, another one for each seed and each draw.

    Attributes:
        name: The name that specifications use.
        draw: Number of the order among those of one seed.
        together: Whether experts that share a rank by their numbers share one here, too.
    """

    name: str = "random"
    draw: int = 0
    together: bool = False

    def experts_in_order(self, tokens: Tokens, seed: int) -> Sequence[int]:
        """Return the experts in random order."""
        ranks, experts = tokens.shape
        rng = np.random.default_rng((seed, self.draw) if self.draw else seed)
        if self.together:
            return _in_groups(rng.permutation(ranks).tolist(), experts // ranks)
        order: list[int] = rng.permutation(experts).tolist()
        return order


@dataclass(frozen=True)
class ByRate:
    """The experts of most tokens on the fastest servers (Aurora, arXiv 2410.17043, theorem 5.1).

    The paper has one expert a GPU. Experts that share a rank by their numbers stay together here
    and count as one.
    """

    name: str = "aurora"

    def experts_in_order(self, tokens: Tokens, seed: int) -> Sequence[int]:  # noqa: ARG002
        """Return the experts for ranks of one rate: those of most tokens first."""
        return self.experts_by_rate(tokens, [1.0] * len(tokens))

    def experts_by_rate(self, tokens: Tokens, rates: Sequence[float]) -> Sequence[int]:
        """Return the experts so that the order of ranks by rate is that of groups by tokens."""
        ranks, experts = tokens.shape
        load = tokens.sum(axis=0).reshape(ranks, -1).sum(axis=1)
        groups = groups_by_load(load, np.asarray(rates, dtype=np.float64))
        return _in_groups(groups.tolist(), experts // ranks)


def groups_by_load(load: NDArray[Any], rates: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return which group of experts each GPU gets: those of most load the fastest GPUs.

    Args:
        load: Load of each group.
        rates: Rate of each GPU; of equal ones, the first gets more.
    """
    order = np.empty(len(rates), dtype=np.int64)
    order[np.argsort(-rates, kind="stable")] = np.argsort(-load, kind="stable")
    return order


def _in_groups(groups: Sequence[int], size: int) -> list[int]:
    """Return the experts of groups of neighbouring numbers."""
    return [group * size + member for group in groups for member in range(size)]


def expert_order(
    placement: ExpertPlacement,
    tokens: Tokens,
    seed: int,
    pairs: Pairs | None = None,
    servers: int = 1,
    rates: Sequence[float] = (),
) -> tuple[int, ...]:
    """Return the experts of a layer in the order of their ranks.

    Args:
        tokens: Tokens [rank, expert] from which the placement is chosen.
        seed: Seed of random numbers.
        pairs: Tokens [expert, expert] that have both experts; None if routes are unknown.
        servers: Number of servers, which the ranks fill in order.
        rates: Rate of a NIC of each rank's server; empty if they are alike.

    Raises:
        ValueError: If the placement doesn't return each expert once, or needs to know pairs.
    """
    ranks, experts = tokens.shape
    if pairs is not None and isinstance(placement, CoactivationPlacement):
        chosen = placement.experts_by_coactivation(pairs, ranks, servers)
    elif rates and isinstance(placement, RatedPlacement):
        chosen = placement.experts_by_rate(tokens, rates)
    else:
        chosen = placement.experts_in_order(tokens, seed)
    order = tuple(map(int, chosen))
    if sorted(order) != list(range(experts)):
        raise ValueError(f"{placement.name} doesn't return each of {experts} experts once")
    return order
