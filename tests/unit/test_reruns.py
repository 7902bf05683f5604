"""A test that failed runs again with new fixtures, its whole time limit, and a visible failure."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.paths import REPOSITORY

BROKEN_FABRIC = """
import pytest

events = []

@pytest.fixture(scope="module")
def fabric():
    events.append("up")
    yield
    events.append("down")

def test_breaks_the_first_fabric(fabric):
    assert events == ["up", "down", "up"]

def test_has_the_second_fabric(fabric):
    assert events == ["up", "down", "up"]
"""
HANGS_AT_LAST = """
import time

attempts = []

def test_hangs():
    attempts.append(1)
    assert len(attempts) > 1, "the first attempt"
    time.sleep(60)
"""


def run_with_reruns(folder: Path, text: str) -> "subprocess.CompletedProcess[str]":
    """Run a file of tests with the hooks of all tests, and a time limit of one second."""
    (folder / "test_it.py").write_text(text)
    shutil.copy(REPOSITORY / "tests" / "conftest.py", folder)
    options = ["--reruns=2", "--rerun-show-tracebacks", "--timeout=1"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-c", os.devnull, "--rootdir=.", "test_it.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_rerun_has_new_module_fixtures_and_prints_the_failure(tmp_path: Path) -> None:
    result = run_with_reruns(tmp_path, BROKEN_FABRIC)
    assert result.returncode == 0, result.stdout
    assert "2 passed, 1 rerun in" in result.stdout
    assert "assert ['up'] == ['up', 'down', 'up']" in result.stdout


def test_each_attempt_has_the_time_limit(tmp_path: Path) -> None:
    result = run_with_reruns(tmp_path, HANGS_AT_LAST)
    assert "1 failed, 2 rerun in" in result.stdout
    assert result.stdout.count("Failed: Timeout (>1.0s)") >= 2
    assert "AssertionError: the first attempt" in result.stdout
