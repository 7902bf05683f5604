"""Horizons: the number of all-to-alls that circuits will serve, and whether moving them pays."""

from dataclasses import dataclass
from typing import Final, Literal

ALL_TO_ALLS: Final = 4
"""All-to-alls of a layer, forward and backward, which circuits serve (paper section 5.1)."""
_ROUNDING: Final = 1e-9

Choice = Literal["lit", "even", "best"]
"""The circuits that stay lit, evenly spread ones, or the best for the present demand."""


@dataclass(frozen=True)
class Horizon:
    """The number of all-to-alls that circuits will serve.

    Attributes:
        alike: All-to-alls of the present demand until circuits may move for another one.
        left: All-to-alls left in the job, these included.
    """

    alike: int = ALL_TO_ALLS
    left: int = ALL_TO_ALLS

    def stays(self, lit_s: float, bound_s: float, moving_s: float) -> bool:
        """Return whether no other circuits can repay a reconfiguration.

        Args:
            lit_s: Seconds of an all-to-all over the circuits that are lit.
            bound_s: Seconds below which no circuits end.
            moving_s: Seconds of a reconfiguration.
        """
        left = max(self.left, self.alike, 1)
        return left * lit_s <= (left * bound_s + moving_s) * (1 + _ROUNDING)

    def choice(
        self, lit_s: float, even_s: float, best_s: float, moving_s: float, *, lit: bool = True
    ) -> Choice:
        """Choose circuits for the rest of the job, as if all its demands were like the present one.

        The best circuits for a demand serve that demand only and move for the next. Circuits that
        are lit now, or even ones, may stay to the end.

        Args:
            lit_s: Seconds of an all-to-all over the circuits that are lit.
            even_s: Seconds over circuits that are spread evenly.
            best_s: Seconds over the best circuits for the present demand.
            moving_s: Seconds of a reconfiguration.
            lit: Whether any circuits are lit; no circuits are no choice.

        Returns:
            The circuits that take least time in total; of equal ones, those that move least.
        """
        left = max(self.left, self.alike, 1)
        requests = left / max(self.alike, 1)
        totals: dict[Choice, float] = {
            **({"lit": left * lit_s} if lit else {}),
            "even": left * even_s + moving_s,
            "best": left * best_s + requests * moving_s,
        }
        least = min(totals.values())
        return next(name for name, total in totals.items() if total <= least * (1 + _ROUNDING))


UNKNOWN: Final = Horizon()
"""A job that ends with the present layer."""
ENDLESS: Final = Horizon(10**9, 10**9)
"""A demand that never changes: a reconfiguration costs nothing beside what it saves."""
