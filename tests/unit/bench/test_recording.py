"""Benches keep their figures: rows of a test are replaced, and a failed one claims nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
from moefabric_studies.bench_figures import Figure, read_figures

from tests.bench.recording import record, store
from tests.support.paths import REPOSITORY

BENCH = """\
from tests.bench.recording import record


def test_one() -> None:
    record("time: p50", "ms", samples=[0.001, 0.003, 0.004], at_most=0.01)


def test_two() -> None:
    record("ratio", "", 0.5, at_least=1)
    assert False
"""
CONFTEST = "from tests.bench.conftest import pytest_addoption  # noqa: F401\n"
ORIGIN = "c0ffee00", "", "2026-12-02", "2 cores"
NEW = Figure._make(["bench_a", "test_one", *[""] * 7, *ORIGIN])


def figure(name: str, value: str) -> Figure:
    """Return a figure as a bench hands it over."""
    return Figure("", "", name, value, "1", "4", "3", "ms", "<= 10", "", "", "", "")


def test_run_stores_samples_bounds_and_origin_of_tests_that_pass(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "bench_a.py").write_text(BENCH)
    file, settings = tmp_path / "table.csv", REPOSITORY / "pyproject.toml"
    command = [sys.executable, "-m", "pytest", "-n0", "-c", str(settings), "--store", str(file)]
    words = [*command, str(tmp_path / "bench_a.py")]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    time, ratio = read_figures(file)
    assert time[:9] == ("bench_a", "test_one", "time: p50", "3", "1", "4", "3", "ms", "<= 10")
    assert ratio[:9] == ("bench_a", "test_two", "ratio", "", "", "", "", "", ">= 1")
    head = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=False).stdout.strip()
    assert time.commit == (commit[:8] or "none")
    assert time.machine.partition(" ")[2].startswith("cores of ")


def test_rows_of_a_test_are_replaced_and_those_of_others_stay(tmp_path: Path) -> None:
    file, other = tmp_path / "table.csv", NEW._replace(bench="bench_b")
    store(file, NEW, [figure("a", "1"), figure("b", "2")], failed=False)
    store(file, other, [figure("a", "3")], failed=False)
    store(file, NEW, [figure("a", "4")], failed=False)
    rows = read_figures(file)
    assert [(one.bench, one.figure, one.value) for one in rows] == [
        *(("bench_a", "a", "4"), ("bench_b", "a", "3"))
    ]
    assert {one[9:] for one in rows} == {ORIGIN}


def test_failed_test_keeps_names_old_and_new_without_values(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    store(file, NEW._replace(commit="0ld"), [figure("a", "1"), figure("b", "2")], failed=False)
    store(file, NEW, [figure("b", "30"), figure("c", "40")], failed=True)
    rows = read_figures(file)
    assert [(one.figure, one.value, one.n, one.commit) for one in rows] == [
        (name, "", "", "c0ffee00") for name in "abc"
    ]
    assert {one.bound for one in rows} == {"<= 10"}


def test_name_that_no_block_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="has none of"):
        record("a; b", "ms", 0.1)
