"""Benches keep their figures: rows of a test are replaced, and a failed one claims nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
from moefabric_studies.bench_figures import Figure, figures_text, read_figures

from tests.bench.recording import record
from tests.support.paths import REPOSITORY

BENCH = """\
from tests.bench.recording import record


def test_one() -> None:
    record("time: p50", "ms", samples=[0.001, 0.003, {value}], at_most=0.01)
    assert {value} <= 0.01


def test_two() -> None:
    record("ratio", "", 1.5, at_least=1)
"""
CONFTEST = "from tests.bench.conftest import pytest_addoption  # noqa: F401\n"


def stored(folder: Path, value: float, *options: str) -> dict[str, Figure]:
    """Run a bench whose third sample has this value, and return the table's figures by name."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "bench_a.py").write_text(BENCH.format(value=value))
    file, settings = folder / "table.csv", REPOSITORY / "pyproject.toml"
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-c", str(settings)]
    done = subprocess.run(
        [*command, str(folder / "bench_a.py"), "--store", str(file), *options],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return {one.figure: one for one in read_figures(file) if one.bench == "bench_a"}


def test_run_replaces_rows_of_its_tests_and_leaves_others(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    first = stored(tmp_path, 0.002)
    other = first["ratio"]._replace(bench="bench_b")
    file.write_text(figures_text([*first.values(), other]))
    second = stored(tmp_path, 0.004, "-k", "one")
    time = second["time: p50"]
    assert first["time: p50"].value == "2"
    assert [time.bench, time.test, time.value, time.least, time.greatest, time.n] == [
        *("bench_a", "test_one", "3", "1", "4", "3")
    ]
    assert [time.unit, time.bound] == ["ms", "<= 10"]
    assert second["ratio"] == first["ratio"]
    assert second["ratio"].bound == ">= 1"
    assert other in read_figures(file)


def test_failed_test_keeps_names_without_values(tmp_path: Path) -> None:
    stored(tmp_path, 0.002)
    figures = stored(tmp_path, 0.02)
    assert figures["time: p50"].value == figures["time: p50"].n == ""
    assert figures["time: p50"].bound == "<= 10"
    assert figures["ratio"].value == "1.5"


def test_row_has_commit_date_and_machine(tmp_path: Path) -> None:
    head = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=False).stdout.strip()
    ratio = stored(tmp_path, 0.002)["ratio"]
    assert ratio.commit == (commit[:8] or "none")
    assert ratio.machine.partition(" ")[2].startswith("cores of ")
    assert len(ratio.date) == len("2026-12-01")


def test_name_that_no_block_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="has none of"):
        record("a; b", "ms", 0.1)
