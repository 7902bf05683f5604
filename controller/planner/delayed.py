"""Delayed light: how a demand is parted while some of its light is still on its way, so that all ends together.

The packets' side of `divert`, the policy of a forward pass's first all-to-all: what its circuits will be is known, what they are now is not that. Circuits
that stay carry from the start, the EPS does too, and new circuits carry from the instant on at which they are expected to be admitted.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.planner import water
from controller.planner.policy import counted
from controller.planner.water import Array, EpsLinks
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Share, Split
from moefabric.topology import Fabric

_NOTHING: Final = 1e-3
"""Fewer bytes than these are rounding."""


@dataclass(frozen=True)
class Delayed:
    """A demand parted in two: `now` over the light of `kept` and the EPS from the start, `later` over the light of `new` from `after_s` on.

    `seconds` is when all of it ends, counted from the start. Where light does not move now, all is in `now` and `new` is empty.
    """

    seconds: float
    after_s: float
    kept: CircuitSet
    new: CircuitSet
    now: Split
    later: Split

    @property
    def moves(self) -> bool:
        """Whether the light is moved at the start."""
        return bool(self.new)


def seconds(owed: Array, kept: Array, new: Array, after_s: float, eps: EpsLinks) -> float:
    """The least time in which `owed[from, to]` bytes are carried by light of `kept` and, from `after_s` on, `new` bytes a second, and by the EPS.

    Without new light it may be over before there is any. Else new light carries `new * (T - after_s)` of a pair, which is what light of its rate
    would have carried from the start, had the pair owed `new * after_s` bytes more: the water of `water.seconds`.
    """
    without = water.seconds(owed, kept, eps)
    if without <= after_s or not new.any():
        return without
    return water.seconds(owed + new * after_s, kept + new, eps)


def moved(
    fabric: Fabric, demand: DemandMatrix, lit: CircuitSet, target: CircuitSet, after_s: float
) -> Delayed:
    """The best split while light goes from `lit` to `target`, whose new circuits carry from `after_s` on (seconds). Needs an EPS."""
    change = lit.towards(target)
    owed, rate = water.off_diagonal(demand), water.circuit_rate(fabric)
    kept: Array = rate * counted(demand.servers, change.kept).astype(np.float64)
    new: Array = rate * counted(demand.servers, change.setup).astype(np.float64)
    end = seconds(owed, kept, new, after_s, EpsLinks.of(fabric, demand.servers))
    early = np.minimum(owed, kept * end)
    late = np.minimum(owed - early, new * max(0.0, end - after_s)) if end > after_s else np.zeros_like(owed)
    return Delayed(
        end,
        after_s,
        change.kept,
        change.setup,
        _split(demand.servers, early, owed - early - late),
        _split(demand.servers, late, np.zeros_like(owed)),
    )


def stayed(fabric: Fabric, demand: DemandMatrix, lit: CircuitSet) -> Delayed:
    """The best split over the light that is there. Needs an EPS."""
    return moved(fabric, demand, lit, lit, 0.0)


def soonest(
    fabric: Fabric, demand: DemandMatrix, lit: CircuitSet, target: CircuitSet, after_s: float
) -> Delayed:
    """Whichever ends sooner: with light that moves to `target` now, or over what is lit, which may move when the demand has been met."""
    stays = stayed(fabric, demand, lit)
    moves = moved(fabric, demand, lit, target, after_s)
    return moves if moves.seconds < stays.seconds * (1 - 1e-9) else stays


def _split(servers: tuple[str, ...], light: Array, eps: Array) -> Split:
    light, eps = (np.where(part > _NOTHING, part, 0.0) for part in (light, eps))
    rows, columns = np.nonzero(light + eps)
    return Split(
        tuple(
            Share(servers[i], servers[j], float(light[i, j]), float(eps[i, j]))
            for i, j in zip(rows.tolist(), columns.tolist(), strict=True)
        )
    )
