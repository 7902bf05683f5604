"""Quantities as people write them (`100Gb/s`, `25ms`) and as programs count them."""

import re
from collections.abc import Mapping
from typing import Final

_QUANTITY: Final = re.compile(
    r"\s*([+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)\s*([A-Za-zµμ/]*)\s*", re.ASCII
)
_PREFIXES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
# A capital B would be bytes, of which a rate in bits has eight: only prefixes may be written either way.
_RATES: Final = {"": 1.0} | {
    f"{written}{unit}": size
    for prefix, size in _PREFIXES.items()
    for written in (prefix, prefix.upper())
    for unit in ("b/s", "bps", "bit", "bit/s")
}
_TIMES: Final = {"": 1e9, "ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9}
NS_PER_S: Final = 1_000_000_000


def _quantity(text: str, units: Mapping[str, float], example: str) -> float:
    number, unit = match.groups() if (match := _QUANTITY.fullmatch(text)) else ("", "?")
    if unit not in units:
        raise ValueError(f"{text!r} is not a quantity such as {example}")
    return float(number) * units[unit]


def rate_bps(text: str | float) -> float:
    """Bits per second of `100Gb/s`, `50Mbit`, or a bare number of bits per second. ValueError where it is none."""
    return _quantity(text, _RATES, "100Gb/s") if isinstance(text, str) else float(text)


def duration_ns(text: str | float) -> int:
    """Nanoseconds of `25ms`, `10us`, or a bare number of seconds. ValueError where it is none."""
    return round(_quantity(text, _TIMES, "25ms") if isinstance(text, str) else text * NS_PER_S)


def rate_text(bps: float) -> str:
    """The shortest usual way to write a rate: 1e11 is `100Gb/s`."""
    for unit, size in (("Tb/s", 1e12), ("Gb/s", 1e9), ("Mb/s", 1e6), ("kb/s", 1e3)):
        if bps >= size:
            return f"{bps / size:.4g}{unit}"
    return f"{bps:.4g}b/s"


def duration_text(ns: float) -> str:
    """The shortest usual way to write a duration: 25_000_000 is `25ms`."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.4g}{unit}"
    return f"{ns:.4g}ns"
