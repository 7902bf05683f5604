"""Judged claims as text, for the terminal, and pages of studies as Markdown with their pictures."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isinf
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table

from moefabric_studies import markdown
from moefabric_studies.systems.study import LEAST_SAMPLES, JudgedClaim, StudyResult

COLUMNS = ("id", "claim", "published", "band", "null", "measured", "how", "verdict")
_NARROW_COLUMNS = ("id", "claim", "band", "measured", "verdict")
_WIDE = 140
"""Columns of a terminal that shows the whole table."""
_COUNTED = (
    "held", "not enough samples", "too much spread", "null fits too", "missed", "invalid",
    "reported", "not tested",
)  # fmt: skip


def claim_cells(claim: JudgedClaim) -> tuple[str, ...]:
    """Return the cells of a claim's row, in the order of `COLUMNS`."""
    spec, measure = claim.spec, claim.measure
    measured = number_text(claim.value, spec.unit)
    if claim.value is not None and len(measure.samples) > 1:
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
        claim.verdict_text,
    )


def now_text(claim: JudgedClaim) -> str:
    """Return a claim's value and verdict: `5.71x: reported`."""
    return f"{number_text(claim.value, claim.spec.unit)}: {claim.verdict}"


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


@dataclass(frozen=True)
class ClaimsTable:
    """The table of all studies' claims, for a terminal of any width from 80 columns."""

    results: Sequence[StudyResult]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        shown = COLUMNS if options.max_width >= _WIDE else _NARROW_COLUMNS
        table = Table("system", *shown, title="Claims of other systems")
        for result in self.results:
            for number, claim in enumerate(result.claims):
                cells = dict(zip(COLUMNS, claim_cells(claim), strict=True))
                name = "" if number else result.spec.system
                table.add_row(name, *(cells[column] for column in shown))
            table.add_section()
        yield table
        for result in self.results:
            yield f"{result.spec.system}: {counts_text(result.claims)}"


def page_text(result: StudyResult, file: Path) -> str:
    """Return the page of a study.

    Args:
        result: The study's result.
        file: The study's file, as the page names it.
    """
    text = markdown.page_of(
        "systems/page.md.j2",
        spec=result.spec,
        file=file,
        seconds=result.seconds,
        outcome=result.outcome,
        claims=result.claims,
        counts=counts_text(result.claims),
        columns=COLUMNS,
        rows=[[_cell(cell) for cell in claim_cells(claim)] for claim in result.claims],
        now={claim.spec.id: now_text(claim) for claim in result.claims},
        runs=[(one.name, str(one.verdict), one.reasons) for one in result.run_verdicts],
        least=LEAST_SAMPLES,
        origins=result.origins,
    )
    return text.rstrip() + "\n"


def write_page(result: StudyResult, file: Path, page: Path) -> None:
    """Write the page of a study, and its pictures into the page's folder."""
    pictures = {f"{name}.svg": picture for name, picture in result.outcome.pictures.items()}
    markdown.write_page(page, page_text(result, file), pictures)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
