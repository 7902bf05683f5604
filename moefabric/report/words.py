"""Words: how times, bytes, shares and ratios are said, in table and page alike."""

import math

NOTHING = "\N{EN DASH}"
"""Said where a run has no such figure."""

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_THOUSANDS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def seconds(value: float | None, digits: int = 3) -> str:
    """A time with its unit, `digits` significant figures: `1.842 s`, `21.2 ms`, `310 µs`."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0 s"
    factor, unit = time_unit(abs(value))
    return f"{significant(value / factor, digits)} {unit}"


def time_unit(largest_s: float) -> tuple[float, str]:
    """The unit a person would use for times up to `largest_s`, as (seconds in one, name)."""
    return next((unit for unit in _TIME_UNITS if largest_s >= unit[0]), _TIME_UNITS[-1])


def milliseconds(value: float | None) -> str:
    """A time in milliseconds without its unit, for columns that name it: `25.0`, `0.31`."""
    if value is None:
        return NOTHING
    if value < 0.5e-5:
        return "0"
    return f"{value * 1e3:.2f}" if value < 1e-3 else f"{value * 1e3:.1f}"


def significant(value: float, digits: int) -> str:
    """`value` with so many significant figures and never an exponent: `0.412`, `21.2`, `1,842`."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def amount(count: float | None) -> str:
    """Bytes in decimal multiples: `1.34 GB`."""
    if count is None:
        return NOTHING
    factor, prefix = thousands(count)
    return f"{significant(count / factor, 3)} {prefix}B"


def thousands(largest: float) -> tuple[float, str]:
    """The decimal multiple for amounts up to `largest`, as (size of one, prefix)."""
    return next((step for step in _THOUSANDS if abs(largest) >= step[0]), _THOUSANDS[-1])


def share(value: float | None) -> str:
    """A part of a whole: `22.4 %`."""
    return NOTHING if value is None else f"{value * 100:.1f} %"


def error(value: float | None) -> str:
    """A deviation with its sign: `+1.1 %`; none is `+0.0 %`."""
    return NOTHING if value is None else f"{round(value * 100, 1) + 0.0:+.1f} %"


def ratio(value: float | None) -> str:
    """How many times as much: `1.41x`."""
    return NOTHING if value is None else f"{value:.2f}x"


def printable(text: object) -> str:
    """`text` on one line and without control characters, so that a run can't steer the terminal it is told on."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


def plain(value: float | None) -> str:
    """A number of three significant figures: `0.212`."""
    return NOTHING if value is None else significant(value, 3)


def usd(value: float | None) -> str:
    """A price in decimal multiples: `$ 317 k`, `$ 5.08 M`."""
    if value is None:
        return NOTHING
    factor, prefix = thousands(value)
    return f"$ {significant(value / factor, 3)} {prefix}".rstrip()


def counted(count: int, thing: str) -> str:
    """`1 server`, `4 servers`."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
