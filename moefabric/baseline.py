"""The baseline: which fabric of a run the others are measured against."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

Entry = TypeVar("Entry", bound=Mapping[str, Any])


def baseline(entries: Sequence[Entry]) -> Entry | None:
    """Of the fabrics without light (`policy` eps), the one whose packet switches block least, the first of several alike; None where there is none."""
    without = [entry for entry in entries if entry["policy"] == "eps"]
    return min(without, key=lambda entry: blocking(entry.get("wiring") or {}), default=None)


def blocking(wiring: Mapping[str, Any]) -> float:
    """How many times less a leaf's uplinks carry than its servers' NICs, by what a run says of a fabric's wiring; 1 where it says nothing."""
    eps = wiring.get("eps")
    said = eps.get("oversubscription") if isinstance(eps, Mapping) else None
    return float(said) if isinstance(said, int | float) else 1.0
