"""Placement of experts by co-activation: those that tokens have in common share a rank.

The greedy algorithm is that of Occult (arXiv 2505.13345, algorithm 1). Swaps are an addition.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from moefabric.api.workloads import Pairs

Groups = list[list[int]]
"""Experts of each rank."""


def greedy_groups(pairs: Pairs, groups: int) -> Groups:
    """Fill one group after another with experts that have most tokens in common with its members.

    A group starts with the expert that has most tokens in common with all others.

    Args:
        pairs: Tokens [expert, expert] of each pair.
        groups: Number of groups, which divides the number of experts.
    """
    size, degrees = len(pairs) // groups, pairs.sum(axis=1)
    is_free = np.ones(len(pairs), dtype=bool)
    filled: Groups = []
    for _ in range(groups):
        members: list[int] = []
        ties = degrees
        while len(members) < size:
            chosen = int(np.where(is_free, ties, -1).argmax())
            is_free[chosen] = False
            members.append(chosen)
            ties = pairs[members].sum(axis=0)
        filled.append(members)
    return filled


def balancing_pairs(pairs: Pairs, weight: float) -> Pairs:
    """Return pairs less those of independent choices, which popular experts have with each other.

    The sum over a group then falls with the square of its load: with a weight of 1 it is the
    group's modularity (Newman, PNAS 2006), and larger weights balance loads more.

    Args:
        pairs: Tokens [expert, expert] of each pair.
        weight: Weight of the independent choices; 0 returns the pairs.
    """
    degrees = pairs.sum(axis=1)
    expected = np.outer(degrees, degrees) / max(1, degrees.sum())
    less: Pairs = np.rint(pairs - weight * expected).astype(np.int64)
    np.fill_diagonal(less, 0)
    return less


def swapped_groups(pairs: Pairs, groups: Groups) -> Groups:
    """Swap the two experts whose swap adds most common tokens, until no swap adds any.

    Args:
        pairs: Tokens [expert, expert] of each pair.
        groups: The groups to begin with; they keep their sizes.
    """
    group_of = np.empty(len(pairs), dtype=np.int64)
    for number, group in enumerate(groups):
        group_of[group] = number
    member = np.eye(len(groups), dtype=np.int64)[group_of]
    while True:
        ties = pairs @ member  # [expert, group]
        change = ties - ties[np.arange(len(pairs)), group_of][:, None]
        moved = change[:, group_of]  # [a, b]: a goes to the group of b
        gain = moved + moved.T - 2 * pairs
        gain[group_of[:, None] == group_of] = 0
        a, b = divmod(int(gain.argmax()), len(pairs))
        if gain[a, b] <= 0:
            return [np.flatnonzero(group_of == n).tolist() for n in range(len(groups))]
        group_of[[a, b]] = group_of[[b, a]]
        member[[a, b]] = member[[b, a]]


@dataclass(frozen=True)
class Occult:
    """Experts that tokens have in common on the same rank or server.

    Attributes:
        refine: What improves the greedy groups: `none`, or `swap` for swaps of two experts.
        group: What a group shares: a `rank`, as Occult has it, or a `server`, whose ranks then
            share the group in the same way.
        balance: With swaps, weight of even loads of the groups; 0 for common tokens alone.

    Raises:
        ValueError: If an argument has another value.
    """

    refine: Literal["none", "swap"] = "none"
    group: Literal["rank", "server"] = "rank"
    balance: float = 0.0
    name: str = "occult"

    def __post_init__(self) -> None:
        if self.refine not in {"none", "swap"}:
            raise ValueError(f"refine: {self.refine!r} is not one of none, swap")
        if self.group not in {"rank", "server"}:
            raise ValueError(f"group: {self.group!r} is not one of rank, server")
        if self.balance < 0 or (self.balance and self.refine != "swap"):
            raise ValueError(f"balance: {self.balance:g} needs refine=swap, and is at least 0")

    def experts_in_order(self, tokens: Pairs, seed: int) -> Sequence[int]:  # noqa: ARG002
        """Refuse counts: they don't tell which experts a token has in common.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"{self.name} needs routes of single tokens, the gating has counts by expert: give "
            "gating.trace a file of routes (JSON lines, Parquet, or NumPy with `routes`)"
        )

    def experts_by_coactivation(self, pairs: Pairs, ranks: int, servers: int) -> Sequence[int]:
        """Return the experts in the order of the ranks that host them.

        Args:
            pairs: Tokens [expert, expert] that have both experts.
            ranks: Number of ranks.
            servers: Number of servers, which the ranks fill in order.
        """
        if self.group == "rank":
            return [expert for group in self._groups(pairs, ranks) for expert in group]
        return [
            group[member]
            for group in self._groups(pairs, servers)
            for part in self._groups(pairs[np.ix_(group, group)], ranks // servers)
            for member in part
        ]

    def _groups(self, pairs: Pairs, groups: int) -> Groups:
        greedy = greedy_groups(pairs, groups)
        if self.refine == "none":
            return greedy
        return swapped_groups(balancing_pairs(pairs, self.balance), greedy)
