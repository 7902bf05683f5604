"""Select groups by which switches spread flows over several ports (OpenFlow 1.3.5, 5.6)."""

from collections.abc import Iterable

Buckets = tuple[tuple[int, int], ...]
"""Ports with their weights."""


class SpreadGroups:
    """Which groups the switches have. A number always stands for the same buckets."""

    def __init__(self) -> None:
        self._numbers: dict[Buckets, int] = {}
        self._present: dict[str, set[Buckets]] = {}

    def number(self, buckets: Buckets) -> int:
        """Return the number of the group with these buckets."""
        return self._numbers.setdefault(buckets, len(self._numbers) + 1)

    def forget(self, switch: str) -> None:
        """Start anew with a switch that has no groups."""
        self._present.pop(switch, None)

    def has_any(self, switch: str) -> bool:
        """Whether a switch has groups."""
        return bool(self._present.get(switch))

    def add_missing(self, switch: str, needed: Iterable[Buckets]) -> list[Buckets]:
        """Record that a switch gets the groups that it needs, and return those it doesn't have."""
        present = self._present.setdefault(switch, set())
        missing = sorted(set(needed) - present)
        present.update(missing)
        return missing

    def remove_unneeded(self, switch: str, needed: Iterable[Buckets]) -> list[Buckets]:
        """Record that a switch loses the groups that it doesn't need, and return these."""
        present = self._present.get(switch, set())
        unneeded = sorted(present - set(needed))
        present.difference_update(unneeded)
        return unneeded
