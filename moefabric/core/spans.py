"""Spans of time: their union."""

from collections.abc import Iterable

Span = tuple[float, float]
"""Start and end."""


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the union of spans as spans that are apart, in order of time."""
    union = list[Span]()
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((start, end))
    return union
