"""The agent as one file: whole, always the same, and nothing but Python."""

import ast
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agents import ssh
from agents.bundle import PACKAGE, bundle
from tests.agents_lab import bundled

MODULES = sorted(PACKAGE.glob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_each_module_is_written_in_the_words_of_python_3_8(module: Path) -> None:
    ast.parse(module.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_no_module_has_the_name_of_a_part_of_python(module: Path) -> None:
    """For a moment of its start Python looks here first."""
    assert module.stem not in sys.stdlib_module_names


def test_equal_source_gives_equal_bytes_with_no_trace_of_when_or_where() -> None:
    assert bundle() == bundle()
    with zipfile.ZipFile(io.BytesIO(bundle())) as archive:
        told = {(entry.date_time, entry.compress_type, entry.create_system) for entry in archive.infolist()}
        assert told == {((1980, 1, 1, 0, 0, 0), zipfile.ZIP_STORED, 3)}
        names = [f"agents/engine/{module.name}" for module in MODULES]
        assert archive.namelist() == ["__main__.py", "agents/__init__.py", *names]


def test_it_runs_as_one_file_in_a_folder_of_its_own(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-S", str(bundled(tmp_path)), "--name", "s3", "--stdio"]
    done = subprocess.run(
        argv, input=b'{"id": 1, "op": "hello"}\n', capture_output=True, cwd="/", timeout=10, check=True
    )
    assert json.loads(done.stdout)["name"] == "s3"
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("kept", "status", "says"),
    [
        pytest.param(None, 0, "", id="whole"),
        pytest.param(-1, 1, "the agent came cut short\n", id="cut-short"),
    ],
)
def test_it_comes_over_the_session_that_it_then_talks_over(kept: int | None, status: int, says: str) -> None:
    came = bundle()
    argv = [sys.executable, "-I", "-S", "-c", ssh._BOOT, str(len(came)), "--name", "s3", "--stdio"]
    done = subprocess.run(argv, input=came[:kept], capture_output=True, timeout=10, check=False)
    assert (done.returncode, done.stderr.decode()) == (status, says)
