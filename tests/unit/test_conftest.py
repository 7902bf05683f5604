"""After a failed test, the next one has new fixtures; a work tree in /tmp is refused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

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


def run_tests(file: Path, text: str) -> str:
    """Return what pytest prints of a file of tests in a tree that has the project's conftest."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    tree = file.parents[2]
    shutil.copy(REPOSITORY / "tests" / "conftest.py", tree / "tests")
    words = ("-m", "pytest", "-rs", "-c", os.devnull, "--rootdir=.", str(file))
    return subprocess.run(
        [sys.executable, *words], cwd=tree, capture_output=True, text=True, timeout=60, check=False
    ).stdout


def test_failure_tears_fixtures_of_the_module_down(tmp_path: Path) -> None:
    printed = run_tests(tmp_path / "tests/unit/test_it.py", BROKEN_FABRIC)
    assert "1 failed, 2 passed in" in printed, printed
    assert "AssertionError: as planned" in printed


def test_work_tree_in_tmp_is_refused_with_the_remedy() -> None:
    with TemporaryDirectory(dir="/tmp") as tree:
        file = Path(tree, "tests/kernel/test_it.py")
        printed = run_tests(file, "def test_namespaces():\n    pass\n")
    assert f"tests mount a /tmp of their own, which hides {tree}: move it elsewhere" in printed
