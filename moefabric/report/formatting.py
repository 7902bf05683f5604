"""Formatting of times, sizes, shares and ratios for the table and the page."""

import math
from collections.abc import Collection, Sequence
from textwrap import fill

MISSING = "\N{EN DASH}"
"""Text for a figure that a run lacks."""

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def seconds(value: float | None, digits: int = 3) -> str:
    """Format a time with its unit and `digits` significant figures: `1.842 s`, `21.2 ms`."""
    if not value:
        return MISSING if value is None else "0 s"
    factor, unit = time_unit(_rounded(abs(value), digits))  # 999.96 ms is 1.000 s
    return f"{significant(value / factor, digits)} {unit}"


def time_unit(largest_s: float) -> tuple[float, str]:
    """Return the unit for times up to `largest_s`, as (seconds, name)."""
    return next((unit for unit in _TIME_UNITS if largest_s >= unit[0]), _TIME_UNITS[-1])


def milliseconds(value: float | None) -> str:
    """Format a time in milliseconds without its unit: `25.0`, `0.31`."""
    if value is None:
        return MISSING
    if value < 0.5e-5:
        return "0"
    return f"{value * 1e3:.2f}" if value < 1e-3 else f"{value * 1e3:.1f}"


def significant(value: float, digits: int) -> str:
    """Format a number with `digits` significant figures and without exponent: `0.412`, `1,842`."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(_rounded(value, digits)))))
    return f"{value:,.{decimals}f}"


def _rounded(value: float, digits: int) -> float:
    """Return a number with that many significant figures."""
    return float(f"{value:.{digits - 1}e}")


def data_size(count: float | None) -> str:
    """Format a number of bytes in decimal multiples: `1.34 GB`."""
    if count is None:
        return MISSING
    factor, prefix = decimal_prefix(_rounded(count, 3))
    return f"{significant(count / factor, 3)} {prefix}B"


def decimal_prefix(largest: float) -> tuple[float, str]:
    """Return the decimal prefix for numbers up to `largest`, as (factor, prefix)."""
    return next((step for step in _PREFIXES if abs(largest) >= step[0]), _PREFIXES[-1])


def percentage(share: float | None) -> str:
    """Format a share of a whole: `22.4 %`."""
    return MISSING if share is None else f"{share * 100:.1f} %"


def deviation(value: float | None) -> str:
    """Format a relative deviation with its sign: `+1.1 %`; zero is `+0.0 %`."""
    return MISSING if value is None else f"{round(value * 100, 1) + 0.0:+.1f} %"


def ratio(value: float | None) -> str:
    """Format a ratio: `1.41x`."""
    return MISSING if value is None else f"{value:.2f}x"


def number(value: float | None) -> str:
    """Format a number with three significant figures: `0.212`."""
    return MISSING if value is None else significant(value, 3)


def count(value: float | None) -> str:
    """Format a count, or a mean of counts with three significant figures: `42`, `1.33`."""
    return f"{value:,.0f}" if value is not None and value == int(value) else number(value)


def usd(value: float | None) -> str:
    """Format a price in decimal multiples: `$ 317 k`, `$ 5.08 M`."""
    if value is None:
        return MISSING
    factor, prefix = decimal_prefix(value)
    return f"$ {significant(value / factor, 3)} {prefix}".rstrip()


def counted(count: int, noun: str) -> str:
    """Format a count with its noun: `1 server`, `4 servers`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def printable(text: object) -> str:
    """Return `text` on one line without control characters, so that it can't steer a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


def wrapped(text: str, indent: int = 0, width: int = 80) -> str:
    """Return text with line breaks that follows a head of `indent` columns; no word is cut."""
    margin = " " * indent
    return fill(
        text, width, initial_indent=margin, subsequent_indent=margin,
        break_long_words=False, break_on_hyphens=False,
    )[indent:]  # fmt: skip


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return the rows of a table as lines with columns of one width.

    Args:
        rows: Cells of each row, as many in each.
        right: Columns whose cells end at the same place.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
