"""Figures that benches measured: their table, and the blocks of Markdown pages that show them.

A row is a figure of a test. A page shows all figures of benches, those that are alike up to a colon
on one line, or a few of them in a sentence, separated by `;`. Before these, `range of` asks for the
least and the greatest sample, and `bound of` for the bounds::

    <!-- benches: bench_ocs, bench_crossbar -->
    a table of their figures, and where these come from
    <!-- /benches -->
    It takes <!-- bench: bench_ocs command to reply: 64 circuits, p50 -->0.8 ms<!-- /bench -->.

Tables say which test failed and has no value, and which bench has no rows. A sentence that names
such a figure is an error.
"""

import csv
import io
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from moefabric import SpecError
from moefabric.api.charts import MISSING, formatting

HEADINGS: Final = "figure", "bound", "measured", "least to greatest", "n", "bench"
BLOCK: Final = re.compile(
    r"(?P<head><!-- (?:(?P<table>benches)|bench): (?P<bench>\w+(?:, \w+)*)"
    r"(?(table)| (?:(?P<part>range|bound) of )?(?P<figures>[^|>\n]+?)) -->)"
    r".*?(?P<end><!-- /bench(?(table)es) -->)",
    re.DOTALL,
)


class Figure(NamedTuple):
    """Row of the table. Numbers are in the row's unit, and empty if the test failed."""

    bench: str
    test: str
    figure: str
    value: str
    least: str
    """Least of the samples that the value sums up; empty without any."""
    greatest: str
    n: str
    unit: str
    bound: str
    """Such as `<= 10`, of what the test asserts; empty without one."""
    commit: str
    modified: str
    """`yes` if the source differed from the commit."""
    date: str
    machine: str

    def of_failed_test(self) -> "Figure":
        """Return the row without what a failed test must not claim."""
        return self._replace(value="", least="", greatest="", n="")


def read_figures(file: Path) -> list[Figure]:
    """Return the rows of a table; none if there is no such file."""
    if not file.exists():
        return []
    with file.open(newline="") as lines:
        return [Figure(**row) for row in csv.DictReader(lines)]


def figures_text(figures: Sequence[Figure]) -> str:
    """Return rows as CSV, sorted by bench and test, those of a test in the order given.

    Raises:
        SpecError: If a bench has two figures of one name.
    """
    seen = set[tuple[str, str]]()
    for one in figures:
        if (one.bench, one.figure) in seen:
            raise SpecError([(f"{one.bench}: {one.figure}", "two tests have this figure")])
        seen.add((one.bench, one.figure))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([Figure._fields, *sorted(figures, key=_place)])
    return file.getvalue()


def _place(figure: Figure) -> tuple[str, list[str | int]]:
    """Return the key of the order of rows, in which `[8]` comes before `[16]`."""
    words = re.split(r"(\d+)", figure.test)
    return figure.bench, [int(word) if word.isdigit() else word for word in words]


def block_text(page: Path, file: Path, match: re.Match[str]) -> str:
    """Return a block of a page anew.

    Args:
        page: The page, where links start.
        file: The table.
        match: The block, which `BLOCK` found.

    Raises:
        SpecError: If it names what the table lacks, or a figure of a failed test in a sentence.
    """
    stored = read_figures(file)
    if match["table"]:
        names = match["bench"].split(", ")
        rows = [one for name in names for one in stored if one.bench == name]
        absent = [f"`{name}`" for name in names if name not in {one.bench for one in rows}]
        notes = [*_origins(rows, page, file)]
        notes += [f"* Not measured yet: {', '.join(absent)}."] if absent else []
        body = "\n".join([*_table(rows), "", *notes])
        return f"{match['head']}\n{body}\n\n{match['end']}"
    asked = [name.strip() for name in match["figures"].split(";")]
    figures = [_found(stored, match["bench"], name, page, file) for name in asked]
    return match["head"] + _part(match["part"], figures) + match["end"]


def _found(stored: Sequence[Figure], bench: str, name: str, page: Path, file: Path) -> Figure:
    for one in stored:
        if (one.bench, one.figure) == (bench, name):
            if not one.value:
                raise SpecError([(str(page), f"{bench}: {name}: the test of this figure failed")])
            return one
    remedy = f"pytest tests/bench/{bench}.py --store {file.name} measures it"
    raise SpecError([(str(page), f"{bench}: {name} is not in {file.name}; {remedy}")])


def _shown(figure: Figure, number: str) -> str:
    return f"{formatting.count(float(number))} {figure.unit}".rstrip()


def _value(figure: Figure) -> str:
    return _shown(figure, figure.value) if figure.value else "failed"


def _range(figure: Figure) -> str:
    """Return the least and the greatest sample without unit; empty for fewer than two."""
    if figure.n == "1" or not figure.least:
        return ""
    ends = [formatting.count(float(end)) for end in (figure.least, figure.greatest)]
    return " to ".join(dict.fromkeys(ends))


def _bound(figure: Figure) -> str:
    if not figure.bound:
        return ""
    relation, number = figure.bound.split()
    more = " or more" * (relation == ">=")
    return f"{float(number):,g} {figure.unit}".rstrip() + more


def _joined(texts: Sequence[str], *, once: bool = False) -> str:
    """Join texts by semicolons: a unit that all have at the end, and equal ones `once` if asked."""
    if not any(texts) or (once and len(set(texts)) == 1):
        return texts[0]
    units = {text.partition(" ")[2] for text in texts}
    if len(units) == 1:
        texts = [*(text.partition(" ")[0] for text in texts[:-1]), texts[-1]]
    return "; ".join(text or MISSING for text in texts)


def _part(part: str | None, figures: Sequence[Figure]) -> str:
    """Return what a block asks for of figures."""
    if part == "bound":
        return _joined([_bound(one) for one in figures], once=True)
    if part == "range":
        return _joined([f"{_range(one)} {one.unit}".rstrip() for one in figures])
    return _joined([_value(one) for one in figures], once=not any(one.value for one in figures))


def _table(figures: Sequence[Figure]) -> Iterator[str]:
    """Yield the lines of a table; figures that are alike up to a colon share one."""
    groups: dict[tuple[str, str], list[Figure]] = {}
    for one in figures:
        head, _, variant = one.figure.rpartition(": ")
        groups.setdefault((one.bench, head or variant), []).append(one)
    yield f"| {' | '.join(HEADINGS)} |"
    yield "|---" * len(HEADINGS) + "|"
    for (bench, head), rows in groups.items():
        variants = [one.figure.rpartition(": ")[2] for one in rows if ": " in one.figure]
        cells = (
            ": ".join(filter(None, (head, "; ".join(variants)))),
            _part("bound", rows),
            _part(None, rows),
            "; ".join(filter(None, map(_range, rows))),
            _joined([f"{int(one.n):,}" if one.n else "" for one in rows], once=True),
            f"`{bench}`",
        )
        yield f"| {' | '.join(cells)} |"


def _origins(figures: Sequence[Figure], page: Path, file: Path) -> Iterator[str]:
    """Yield commit, date and machine of figures, and of which benches if these differ."""
    groups: dict[str, dict[str, None]] = {}
    for one in figures:
        changes = " with changes" if one.modified else ""
        origin = f"commit {one.commit}{changes}, {one.date}, {one.machine}"
        groups.setdefault(origin, {})[f"`{one.bench}`"] = None
    link = f"[{file.stem}]({os.path.relpath(file, page.parent)})"
    for origin, benches in groups.items():
        of = f" ({', '.join(benches)})" if len(groups) > 1 else ""
        yield f"* {link}{of}: {origin}."
