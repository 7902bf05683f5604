"""Quantities as text (`100Gb/s`, `25ms`), and the scale of an emulation."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final

_QUANTITY: Final = re.compile(
    r"\s*([+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)\s*([A-Za-zµμ/]*)\s*", re.ASCII
)
_PREFIXES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
# Only prefixes may be of either case: a capital B would mean bytes.
_RATES: Final = {
    f"{cased}{unit}": size
    for prefix, size in _PREFIXES.items()
    for cased in (prefix, prefix.upper())
    for unit in ("b/s", "bps", "bit", "bit/s")
}
_TIMES: Final = {"ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9}
_QUEUES: Final = {"packet": 1.0, "packets": 1.0, "bytes": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6}
_SIZES: Final = {"": 1.0, "B": 1.0} | {
    f"{prefix}{unit}": base ** (exponent + 1)
    for exponent, prefix in enumerate("kMGT")
    for unit, base in (("B", 1e3), ("iB", 1024.0))
}
NS_PER_S: Final = 1_000_000_000
LONGEST_NS: Final = 1440 * 60 * NS_PER_S
DURATIONS: Final = "0 to 1440min"
"""Durations that settings may have; LONGEST_NS is a day."""


def _quantity(
    text: str, units: Mapping[str, float], example: str, bare: Callable[[float], str] | None = None
) -> float:
    """Parse a quantity; `bare` says what is wrong with a number that lacks a unit, but for 0."""
    number, unit = match.groups() if (match := _QUANTITY.fullmatch(text)) else ("", "?")
    if bare is not None and not unit:
        if float(number):
            raise ValueError(bare(float(number)))
        return 0.0
    if unit not in units:
        raise ValueError(f"{text!r} is not a quantity such as {example}")
    return float(number) * units[unit]


def bare_rate(number: float) -> str:
    """Return the error of a rate without a unit, with the remedy: `100Gb/s` for 1e11 and 100."""
    remedy = rate_text(number) if number >= 1e6 else f"{number:g}Gb/s"
    return f"{number:g}: a rate needs a unit: {remedy}"


def bare_duration(number: float) -> str:
    """Return the error of a duration without a unit, with the remedy: `25ms` for 0.025."""
    remedy = duration_text(number * NS_PER_S) if number < 1 else f"{number:g}ms or {number:g}s"
    return f"{number:g}: a time needs a unit: {remedy}"


def rate_bps(text: str | float) -> float:
    """Parse a rate.

    Args:
        text: `100Gb/s`, `50Mbit`, or a number of bits per second, which is no text.

    Returns:
        Bits per second.

    Raises:
        ValueError: If the text is no rate, or has no unit.
    """
    return _quantity(text, _RATES, "100Gb/s", bare_rate) if isinstance(text, str) else float(text)


def duration_ns(text: str | float) -> int:
    """Parse a duration.

    Args:
        text: `25ms`, `10us`, `0`, or a number of seconds, which is no text.

    Returns:
        Nanoseconds.

    Raises:
        ValueError: If the text is no duration, or has no unit.
    """
    if isinstance(text, str):
        return round(_quantity(text, _TIMES, "25ms", bare_duration))
    return round(text * NS_PER_S)


def size_bytes(text: str | float) -> int:
    """Parse a size.

    Args:
        text: `2GB`, `512MiB`, or a bare number of bytes.

    Returns:
        Bytes.

    Raises:
        ValueError: If the text is no size.
    """
    return round(_quantity(text, _SIZES, "2GB") if isinstance(text, str) else text)


def rate_text(bps: float) -> str:
    """Write a rate in the usual unit: 1e11 is `100Gb/s`."""
    return _text(bps, (("Tb/s", 1e12), ("Gb/s", 1e9), ("Mb/s", 1e6), ("kb/s", 1e3)), "b/s")


def duration_text(ns: float) -> str:
    """Write a duration in nanoseconds in the usual unit: 25_000_000 is `25ms`."""
    return _text(ns, (("s", 1e9), ("ms", 1e6), ("us", 1e3)), "ns")


def size_text(size_bytes: float) -> str:
    """Write a number of bytes in the usual unit: 26_500_000 is `26.5MB`."""
    return _text(size_bytes, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)), "B")


def _text(value: float, units: tuple[tuple[str, float], ...], smallest: str) -> str:
    unit, size = next((unit for unit in units if value >= unit[1]), (smallest, 1.0))
    return f"{value / size:.4g}{unit}"


@dataclass(frozen=True)
class QueueLimit:
    """Room of a port's queue in packets or in bytes. A packet that finds no room is dropped."""

    size: int
    in_bytes: bool = False

    def __str__(self) -> str:
        """Return the limit as users write it: `100 packets` or `400000 bytes`."""
        return f"{self.size} {'bytes' if self.in_bytes else 'packets'}"


def queue_limit(text: str) -> QueueLimit:
    """Parse the room of a queue.

    Args:
        text: `100 packets`, `400 kB` or `400000 bytes`.

    Raises:
        ValueError: If the text is no quantity of packets or bytes, or is less than 1.
    """
    size = round(_quantity(text, _QUEUES, "100 packets or 400 kB"))
    if size < 1:
        raise ValueError(f"{text!r} has no room for a packet")
    return QueueLimit(size, in_bytes="packet" not in text)


@dataclass(frozen=True)
class Scale:
    """The scale between the model's rates, bytes and times and the emulation's.

    Byte scaling divides rates and bytes by `bytes`, so that times stay. Time dilation multiplies
    times by `dilation` and divides rates by it. Packets are not scaled: hosts send large frames,
    which pass a link in `frame_s` of wall time where they have more than eight packets.

    Example:
        >>> scale = Scale(bytes=100, dilation=2)
        >>> scale.rate_bps(100e9), scale.size_bytes(1e9), scale.wall_ns(1_000_000)
        (500000000.0, 10000000, 2000000)

    Raises:
        ValueError: If a factor isn't positive.
    """

    bytes: float = 1.0
    dilation: float = 1.0
    frame_s: float = 0.01

    def __post_init__(self) -> None:
        """Check the factors."""
        if not (self.bytes > 0 and self.dilation > 0 and self.frame_s > 0):
            raise ValueError(f"a scale of {self.bytes:g} bytes and {self.dilation:g} dilation")

    def rate_bps(self, model_bps: float) -> float:
        """Return the emulated rate of a link that runs at `model_bps` in the model."""
        return model_bps / (self.bytes * self.dilation)

    def size_bytes(self, model_bytes: float) -> int:
        """Return the bytes that are sent for `model_bytes`: one at least, if there are any."""
        return max(1, round(model_bytes / self.bytes)) if model_bytes > 0 else 0

    def wall_ns(self, model_ns: float) -> int:
        """Return the duration of `model_ns` of model time on the emulation's clock."""
        return round(model_ns * self.dilation)


def round_up(factor: float) -> float:
    """Return a factor rounded up to two digits."""
    step = 10.0 ** (max(0, floor(log10(factor) + 1e-12)) - 1)
    return round(ceil(factor / step * (1 - 1e-9)) * step, 1)
