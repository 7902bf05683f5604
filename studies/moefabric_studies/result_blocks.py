"""Blocks of Markdown pages that show stored results, and the program that fills them.

A comment before a block says what it shows; a comment ends it. What is between is written anew::

    <!-- results: prototype, region (fabric, nics, iteration_s, vs_eps, verdict) -->
    a table of the fabrics of docs/results/prototype.json and region.json
    <!-- /results -->
    It takes <!-- result: prototype mixnet iteration_s -->3.42 s<!-- /result -->.

`*` instead of a fabric's name gives the range over all fabrics. Figures of an invalid fabric are
not shown: tables have dashes and the reason, and a sentence that names one is an error.
`moefabric_studies.bench_figures` has the blocks of benches.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from moefabric import SpecError, rate_text
from moefabric.api.charts import MISSING, counted, printable
from moefabric.api.results import (
    COLUMNS,
    FabricSummary,
    Manifest,
    RunResult,
    Verdict,
    read_run,
    summaries,
)
from moefabric_studies.bench_figures import BLOCK, block_text

_TABLE: Final = re.compile(
    r"(?P<head><!-- results: (?P<names>[\w, -]+?) \((?P<columns>[\w, ]+)\) -->\n)"
    r".*?(?P<end><!-- /results -->)",
    re.DOTALL,
)
_VALUE: Final = re.compile(
    r"(?P<head><!-- result: (?P<name>[\w-]+) (?P<fabric>[\w*-]+) (?P<column>\w+) -->)"
    r".*?(?P<end><!-- /result -->)",
    re.DOTALL,
)
_MARK: Final = re.compile(r"<!-- (results?|bench(es)?):")
_REASONS: Final = 2
"""Reasons of a verdict that a page shows."""

Row = tuple[RunResult, FabricSummary]


class StoredResults:
    """The stored results of a folder, which are read when a page names them.

    Args:
        folder: The folder, such as `docs/results`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[str, RunResult] = {}

    def __getitem__(self, name: str) -> RunResult:
        """Return the result in the file NAME.json.

        Raises:
            SpecError: If it can't be read.
        """
        if name not in self._runs:
            self._runs[name] = read_run(self.path(name))
        return self._runs[name]

    def path(self, name: str) -> Path:
        """Return the file of a result."""
        return self.folder / f"{name}.json"

    def existing(self, names: Sequence[str]) -> list[str]:
        """Return the names of those results that have a file."""
        return [name for name in names if self.path(name).exists()]


def filled(text: str, page: Path, results: StoredResults) -> str:
    """Return a page whose blocks show the stored results. Equal results give equal pages.

    Args:
        text: The page, with blocks of any content.
        page: Its file, where links to the results start.

    Raises:
        SpecError: If a block is broken, or names what no result has, or an invalid fabric.
    """
    text, tables = _TABLE.subn(partial(_table, page, results), text)
    text, values = _VALUE.subn(partial(_value, page, results), text)
    benches = results.path("benchmarks").with_suffix(".csv")
    text, figures = BLOCK.subn(partial(block_text, page, benches), text)
    if len(_MARK.findall(text)) != tables + values + figures:
        raise SpecError([(str(page), "a block of results has a wrong head, or no end")])
    return text


def _table(page: Path, results: StoredResults, match: re.Match[str]) -> str:
    names = [name.strip() for name in match["names"].split(",")]
    columns = [name.strip() for name in match["columns"].split(",")]
    rows = [(results[name], one) for name in names for one in summaries(results[name])]
    cells = [[_heading(name, page, rows) for name in columns], ["---"] * len(columns)]
    cells += [[_cell(row, name, page) for name in columns] for row in rows]
    table = [f"| {' | '.join(row)} |" for row in cells]
    notes = [*_reasons(rows), *_sources(names, page, results)]
    body = "\n".join([*table, "", *(f"* {note}" for note in notes)])
    return f"{match['head']}\n{body}\n\n{match['end']}"


def _value(page: Path, results: StoredResults, match: re.Match[str]) -> str:
    run, place = results[match["name"]], f"{page}: {match['name']} {match['fabric']}"
    fabrics = [one for one in summaries(run) if match["fabric"] in ("*", one.result.fabric)]
    if not fabrics:
        raise SpecError([(place, "the result has no such fabric")])
    text = _verdicts(fabrics) if match["column"] == "verdict" else ""
    if not text:
        for fabric in fabrics:
            if fabric.is_invalid:
                raise SpecError([(place, f"{fabric.name} is invalid: {fabric.reasons[0]}")])
        text = _range([_cell((run, one), match["column"], page, small=False) for one in fabrics])
    return f"{match['head']}{text}{match['end']}"


def _verdicts(fabrics: Sequence[FabricSummary]) -> str:
    """Return verdicts in words: "`pass`", or "3 `pass`, 1 `degraded`"."""
    counts = Counter(fabric.verdict for fabric in fabrics)
    if len(counts) == 1:
        return f"`{fabrics[0].verdict}`"
    return ", ".join(f"{counts[one]} `{one}`" for one in Verdict if counts[one])


def _range(texts: Sequence[str]) -> str:
    """Return the least and the largest of numbers with their unit, once if they are equal."""
    ordered = sorted(texts, key=lambda text: float(text.split()[0].rstrip("x")))
    low, high = ordered[0], ordered[-1]
    if low == high:
        return low
    return f"{low.removesuffix(high.lstrip('+-0123456789.,'))} to {high}"


_PLACES: Final[Mapping[str, tuple[str, Callable[[Row], str]]]] = {
    "experiment": ("experiment", lambda row: printable(row[0].experiment)),
    "fabric": ("fabric", lambda row: f"`{row[1].name}`"),
    "policy": ("policy", lambda row: printable(row[1].result.policy)),
    "nics": ("NICs", lambda row: _nics(row[1])),
    "rate": ("NIC rate", lambda row: _rate(row[1])),
    "verdict": ("verdict", lambda row: str(row[1].verdict)),
}
"""Columns that don't depend on the verdict: headings, and cells of a fabric."""
_RELATIVE: Final = {"iteration_vs_eps": "iteration vs EPS", "speed_up": "speed-up over EPS"}
"""Columns that compare iterations with those of the baseline, and their headings."""


def _heading(column: str, page: Path, rows: Sequence[Row] = ()) -> str:
    """Return the heading of a column, with that of its small figures if a row has any."""
    if column in _PLACES:
        return _PLACES[column][0]
    if column in _RELATIVE:
        return _RELATIVE[column]
    if column not in COLUMNS:
        known = ", ".join([*_PLACES, *_RELATIVE, *COLUMNS])
        raise SpecError([(str(page), f"{column} is no column of results: {known}")])
    heading, below = COLUMNS[column].heading.replace("\n", " "), COLUMNS[column].below
    has_small = below and any(fabric[below] is not None for _, fabric in rows)
    return f"{heading} ({COLUMNS[below].heading})" if has_small else heading


def _cell(row: Row, column: str, page: Path, *, small: bool = True) -> str:
    """Return a cell of a fabric's row; a dash for a figure that it lacks, or if it is invalid.

    Args:
        row: The run and the fabric.
        column: Name of the column.
        page: Page that names it.
        small: Whether the figure below it follows in brackets.
    """
    _heading(column, page)
    fabric = row[1]
    if column in _PLACES:
        return _PLACES[column][1](row)
    if fabric.is_invalid:
        return MISSING
    if column in _RELATIVE:
        relative = fabric.iteration_vs_eps
        if not relative:
            return MISSING
        return f"{relative:.3f}" if column == "iteration_vs_eps" else f"{1 / relative:.2f}"
    if column == "moves":
        return fabric.change_count
    below = COLUMNS[column].below
    text, bracket = fabric.text(column), fabric.text(below) if below and small else MISSING
    return text if MISSING in {text, bracket} else f"{text} ({bracket})"


def _nics(fabric: FabricSummary) -> str:
    """Return the NICs of a server: `7 + 1`, those with circuits first, or `8`."""
    wiring = fabric.result.wiring
    if not wiring.optical_nics:
        return str(wiring.electrical_nics)
    return f"{wiring.optical_nics} + {wiring.electrical_nics}"


def _rate(fabric: FabricSummary) -> str:
    rate = fabric.result.wiring.nic_rate_bps
    return rate_text(rate) if rate else MISSING


def _reasons(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the reasons of verdicts other than a pass, once for fabrics that share them."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for run, fabric in rows:
        if fabric.verdict is Verdict.PASS:
            continue
        shown = [printable(reason) for reason in fabric.reasons[:_REASONS]]
        more = len(fabric.reasons) - _REASONS
        shown += [f"and {counted(more, 'more reason')}"] * (more > 0)
        key = printable(run.experiment), str(fabric.verdict), "; ".join(shown)
        groups.setdefault(key, []).append(f"`{fabric.name}`")
    several = len({id(run) for run, _ in rows}) > 1
    for (experiment, verdict, reasons), names in groups.items():
        verb = "is" if len(names) == 1 else "are"
        subject = f"{experiment}: {', '.join(names)}" if several else ", ".join(names)
        yield f"{subject} {verb} {verdict}: {reasons}."


def _sources(names: Sequence[str], page: Path, results: StoredResults) -> Iterator[str]:
    """Yield lines on the origin of results with links to their files, one for equal origins."""
    groups: dict[str, list[str]] = {}
    for name in names:
        link = f"[{name}]({os.path.relpath(results.path(name), page.parent)})"
        groups.setdefault(_origin(results[name].manifest), []).append(link)
    for origin, links in groups.items():
        yield f"{', '.join(links)}: {origin}."


def _origin(manifest: Manifest) -> str:
    """Return commit, date and machine of a result in words."""
    if (source := manifest.provenance) is None:
        return "of unknown origin"
    changes = " with changes" if source.modified else ""
    cores = counted(manifest.cores, "core") if manifest.cores else ""
    parts = (
        f"commit {source.commit[:8]}{changes}" if source.commit else "no commit",
        (manifest.started or "").partition("T")[0],
        " of ".join(filter(None, (cores, source.cpu))),
        f"Linux {manifest.kernel}" if manifest.kernel else "",
    )
    origin = ", ".join(filter(None, parts))
    return f"{origin}; {source.remark}" if source.remark else origin
