"""After a failed test, the next one has new fixtures."""

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

def test_has_a_fabric(fabric):
    assert events == ["up"]

def test_breaks_the_fabric(fabric):
    assert events == [], "as planned"

def test_has_the_second_fabric(fabric):
    assert events == ["up", "down", "up"]
"""


def test_failure_tears_fixtures_of_the_module_down(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(BROKEN_FABRIC)
    shutil.copy(REPOSITORY / "tests" / "conftest.py", tmp_path)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir=.", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 failed, 2 passed in" in result.stdout, result.stdout
    assert "AssertionError: as planned" in result.stdout
