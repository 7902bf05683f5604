"""Quantities as fields of a spec: `100Gb/s`, `25ms`."""

from math import inf, isfinite
from typing import Annotated

from pydantic import BeforeValidator

from moefabric import units


def _rate(value: object) -> float:
    rate = units.rate_bps(_written(value, "a rate such as 100Gb/s"))
    if not 0 < rate < inf:
        raise ValueError(f"{value!r} is not a rate above zero")
    return rate


def _duration(value: object) -> int:
    seconds = _written(value, "a duration such as 25ms")
    if isinstance(seconds, float) and not isfinite(seconds):
        raise ValueError(f"{value!r} is not a duration such as 25ms")
    duration = units.duration_ns(seconds)
    if duration < 0:
        raise ValueError(f"{value!r} is less than no time")
    return duration


def _written(value: object, example: str) -> str | float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not {example}")  # noqa: TRY004 - pydantic tells ValueErrors only
    return value


Rate = Annotated[float, BeforeValidator(_rate)]
"""Bits per second."""
DurationNs = Annotated[int, BeforeValidator(_duration)]
"""Nanoseconds."""
