"""Splits a demand while some of its circuits are being set up, so that all bytes end together.

`dispatch_light: divert` uses this split for the first all-to-all of a layer's forward pass, whose
demand, and therefore circuits, are known only when it starts. Circuits that stay and the EPS carry
bytes from the start. New circuits carry bytes from the instant at which they are expected to be
admitted.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Split
from moefabric.core.topology import Fabric
from moefabric.planner import waterfill
from moefabric.planner.arrays import Array
from moefabric.planner.waterfill import EpsLinks

_ROUNDING_BYTES: Final = 1e-3
"""Fewer bytes than these are rounding errors."""


@dataclass(frozen=True)
class DelayedSplit:
    """A demand in two parts: one that starts at once and one that waits for new circuits.

    Attributes:
        seconds: End of both parts, counted from the start.
        after_s: When new circuits carry bytes, counted from the start.
        kept: Circuits that carry bytes from the start.
        new: Circuits that carry bytes from `after_s` on; empty if nothing is reconfigured now.
        now: Bytes over `kept` and the EPS, from the start.
        later: Bytes over `new`.
    """

    seconds: float
    after_s: float
    kept: CircuitSet
    new: CircuitSet
    now: Split
    later: Split

    @property
    def moves(self) -> bool:
        """True if circuits are reconfigured at the start."""
        return bool(self.new)


def split_during_move(
    fabric: Fabric, demand: DemandMatrix, current: CircuitSet, target: CircuitSet, after_s: float
) -> DelayedSplit:
    """Return the best split while circuits are reconfigured at the start.

    The demand may be met before the new circuits are lit. Otherwise they carry
    `rate * (T - after_s)` bytes of a pair by the end T. Circuits of the same rate that were lit
    from the start would end at the same T if the pair owed `rate * after_s` bytes more. The time is
    therefore the `waterfill.completion_s` of this increased demand.

    Args:
        fabric: The wired fabric; it needs an EPS.
        current: Circuits that are lit.
        target: Circuits after the reconfiguration.
        after_s: When new circuits carry bytes, in seconds from the start.

    Returns:
        The two parts, and when they end.
    """
    change, servers = current.transition_to(target), demand.servers
    owed = waterfill.off_diagonal(demand)
    kept_rates = waterfill.circuit_rates(fabric, servers, change.kept)
    new_rates = waterfill.circuit_rates(fabric, servers, change.setup)
    eps = EpsLinks.of(fabric, servers)
    end = waterfill.completion_s(owed, kept_rates, eps)
    if end > after_s and new_rates.any():
        later = owed + new_rates * after_s
        end = waterfill.completion_s(later, kept_rates + new_rates, eps)
    none = np.zeros_like(owed)
    early = np.minimum(owed, kept_rates * end)
    late = np.minimum(owed - early, new_rates * (end - after_s)) if end > after_s else none
    now = _split(servers, early, owed - early - late)
    return DelayedSplit(end, after_s, change.kept, change.setup, now, _split(servers, late, none))


def split_without_move(fabric: Fabric, demand: DemandMatrix, current: CircuitSet) -> DelayedSplit:
    """Return the best split over the circuits that are lit; the fabric needs an EPS."""
    return split_during_move(fabric, demand, current, current, 0.0)


def best_split(
    fabric: Fabric, demand: DemandMatrix, current: CircuitSet, target: CircuitSet, after_s: float
) -> DelayedSplit:
    """Return the split that ends sooner: with a reconfiguration at the start, or without.

    The arguments are those of `split_during_move`. Without a reconfiguration at the start, circuits
    may be reconfigured once the demand has been met.
    """
    stays = split_without_move(fabric, demand, current)
    if target == current:
        return stays
    moves = split_during_move(fabric, demand, current, target, after_s)
    return moves if moves.seconds < stays.seconds * (1 - 1e-9) else stays


def _split(servers: tuple[str, ...], light: Array, eps: Array) -> Split:
    light, eps = (np.where(part > _ROUNDING_BYTES, part, 0.0) for part in (light, eps))
    return waterfill.matrix_split(servers, light, eps)
