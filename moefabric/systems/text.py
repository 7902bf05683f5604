"""Judged claims as cells of text, for the terminal and for pages."""

from collections.abc import Iterable, Sequence
from math import isinf

from rich.table import Table

from moefabric.systems.claims import JudgedClaim
from moefabric.systems.study import StudyResult

COLUMNS = ("id", "claim", "published", "band", "null", "measured", "how", "verdict")
_COUNTED = ("held", "null fits too", "missed", "invalid", "reported", "not tested")


def claim_cells(claim: JudgedClaim) -> tuple[str, ...]:
    """Return the cells of a claim's row, in the order of `COLUMNS`."""
    spec, measure = claim.spec, claim.measure
    measured = number_text(measure.value, spec.unit)
    if len(measure.samples) > 1:
        low, high = (number_text(f(measure.samples), spec.unit) for f in (min, max))
        measured += f" ({low} to {high}, n = {len(measure.samples)})"
    return (
        spec.id,
        spec.claim,
        spec.published or "—",
        _band_text(spec.band, spec.unit),
        number_text(spec.null_value, spec.unit),
        measured,
        spec.method,
        claim.verdict,
    )


def number_text(value: float | None, unit: str = "") -> str:
    """Return a number with four significant digits and its unit; a dash for None."""
    if value is None:
        return "—"
    number = f"{value:.4g}" if abs(value) < 1e4 or isinf(value) else f"{value:,.0f}"
    return f"{number}{unit}" if unit in {"x", "%"} else f"{number} {unit}".strip()


def _band_text(band: Sequence[float | None] | None, unit: str) -> str:
    if band is None:
        return "—"
    low, high = band
    if low is None:
        return f"at most {number_text(high, unit)}"
    if high is None:
        return f"at least {number_text(low, unit)}"
    return f"{number_text(low)} to {number_text(high, unit)}"


def counts_text(claims: Iterable[JudgedClaim]) -> str:
    """Return how many claims have each verdict, for example "3 held, 1 missed"."""
    verdicts = [claim.verdict for claim in claims]
    return ", ".join(f"{verdicts.count(name)} {name}" for name in _COUNTED if name in verdicts)


def claims_table(results: Sequence[StudyResult]) -> Table:
    """Return the table of all studies' claims for the terminal."""
    table = Table("system", *COLUMNS, title="Claims of other systems")
    for result in results:
        for number, claim in enumerate(result.claims):
            table.add_row("" if number else result.spec.system, *claim_cells(claim))
        table.add_section()
    return table
