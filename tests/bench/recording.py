"""Figures that benches hand over, and the table in which `--store FILE` keeps them.

`pytest tests/bench --store docs/results/benchmarks.csv` replaces the rows of each test that ran.
A test that passes has the rows that it recorded. One that fails keeps the names of its figures, but
no values: what misses its bound, or wasn't measured to the end, is no figure.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

import pytest
from moefabric_studies.bench_figures import Figure, figures_text, read_figures

from moefabric.api.provenance import MEASURED, commit_of, provenance_of
from tests.support.paths import REPOSITORY

PER_BASE_UNIT: Final = {"ms": 1e3, "µs": 1e6, "%": 1e2, "Gb/s": 1e-9}
"""Numbers of these units in a base unit: seconds, shares, b/s. Other units are as they are."""
_RECORDED: Final[dict[str, Figure]] = {}
"""Figures of the test that runs."""
_EMPTY: Final = Figure(*[""] * len(Figure._fields))
_ORIGIN: Final = pytest.StashKey[Figure]()
_OUTCOMES: Final = pytest.StashKey[set[str]]()


def record(
    figure: str,
    unit: str,
    value: float | None = None,
    *,
    samples: Sequence[float] = (),
    n: int = 1,
    at_most: float | None = None,
    at_least: float | None = None,
) -> None:
    """Hand over a figure of the bench that runs.

    Args:
        figure: Its name. Pages show names that are alike up to a colon on one line.
        unit: Unit in which it is kept; empty for a ratio or a count.
        value: Its value in the base unit: seconds for `ms`, a share for `%`, b/s for `Gb/s`.
            The median of the samples by default.
        samples: What the value sums up.
        n: Number of samples, where the bench has only their summary.
        at_most: Bound that the bench asserts.
        at_least: The same, where more is better.

    Raises:
        ValueError: If the name can't stand in a block of a page, or the test has recorded it.
    """
    if any(mark in figure for mark in ";|>\n") or figure in _RECORDED:
        raise ValueError(f"{figure!r}: a figure's name is new in its test and has none of ; | >")
    factor = PER_BASE_UNIT.get(unit, 1.0)

    def text(number: float) -> str:
        return f"{round(factor * number, 9) + 0.0:.5g}"  # what arithmetic leaves of 0 is 0

    relation, bound = ("<=", at_most) if at_least is None else (">=", at_least)
    _RECORDED[figure] = _EMPTY._replace(
        figure=figure,
        value=text(median(samples) if value is None else value),
        least=text(min(samples)) if samples else "",
        greatest=text(max(samples)) if samples else "",
        n=str(len(samples) or n),
        unit=unit,
        bound="" if bound is None else f"{relation} {text(bound)}",
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the table."""
    parser.addoption("--store", type=Path, metavar="FILE", help="keep figures of benches in FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Note commit, date and machine once, before any bench runs."""
    if not config.option.store:
        return
    if getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("--store: benches run one after the other; leave -n out")
    commit, modified = commit_of(REPOSITORY, (*MEASURED, "tests", "studies"))
    cpu = provenance_of(REPOSITORY / "pyproject.toml", (), "").cpu
    config.stash[_ORIGIN] = _EMPTY._replace(
        commit=(commit or "none")[:8],
        modified="yes" if modified else "",
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=f"{os.cpu_count()} cores of {cpu}, Linux {platform.release()}",
    )


def pytest_runtest_setup() -> None:
    """Forget what the last test has recorded."""
    _RECORDED.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Store the figures of a test that has ended, unless it was skipped."""
    report = yield
    outcomes = item.stash.setdefault(_OUTCOMES, set())
    outcomes.add(report.outcome)
    file = item.config.option.store
    if file and report.when == "teardown" and "skipped" not in outcomes:
        bench, test = item.path.stem, item.name
        origin = item.config.stash[_ORIGIN]._replace(bench=bench, test=test)
        store(file, origin, list(_RECORDED.values()), failed="failed" in outcomes)
    return report


def store(file: Path, origin: Figure, figures: Sequence[Figure], *, failed: bool) -> None:
    """Replace the rows of a test in a table.

    Args:
        file: The table, which may not exist.
        origin: Bench, test, commit, date and machine.
        figures: What the test recorded, without these.
        failed: Whether it failed: its rows, old and new ones, then keep no value.
    """
    rows, test = read_figures(file), (origin.bench, origin.test)
    others = [one for one in rows if (one.bench, one.test) != test]
    if failed:
        named = [one for one in rows if (one.bench, one.test) == test] + [*figures]
        figures = [one.of_failed_test() for one in {one.figure: one for one in named}.values()]
    known = {name: text for name, text in origin._asdict().items() if text}
    file.write_text(figures_text([*others, *(one._replace(**known) for one in figures)]))
