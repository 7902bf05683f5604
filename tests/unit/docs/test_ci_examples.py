"""Every command of the examples for CI is valid here: programs, options and files."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from moefabric.ui.cli.main import main
from tests.support.ci_examples import FILES, ci_commands
from tests.support.command_syntax import check_moefabric
from tests.support.paths import EXAMPLES, REPOSITORY

APT_OPTIONS = ["--yes", "--no-install-recommends"]


def lines(name: str) -> set[str]:
    text = (REPOSITORY / "packaging" / name).read_text()
    return {line for line in text.splitlines() if not line.startswith("#")}


@cache
def collected(*arguments: str) -> str:
    """Return what pytest collects; every test has the same files."""
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments]
    environment = {**os.environ, "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    run = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def check(command: list[str]) -> None:
    """Raise an error if a command can't work in the current folder; make the files it writes."""
    program, *arguments = command
    if program == "apt-get":
        assert arguments == ["update"] or set(arguments[3:]) == lines("debian-run.txt")
        assert arguments == ["update"] or arguments[:3] == ["install", *APT_OPTIONS]
    elif program == "python3":
        assert arguments == ["-m", "venv", ".venv"]
    elif program == "pip":
        assert arguments[:2] == ["install", ".[fabric]"]
        assert set(arguments[2:]) <= lines("requirements-test.txt")
    elif program == "pytest":
        assert "test_iperf.py" in collected(*arguments)
    else:
        assert program == "moefabric"
        check_moefabric(arguments)


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with a copy of the examples."""
    skipped = shutil.ignore_patterns("moefabric-artefacts", "__pycache__", "data")
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=skipped)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_commands_are_valid(file: Path) -> None:
    commands = ci_commands(file)
    assert len(commands) == 8
    for command in commands:
        check(command)


def test_actions_are_named_by_commit_with_the_version_beside() -> None:
    used = re.findall(r"uses: (.*)", FILES[0].read_text())
    assert len(used) == 2
    for action in used:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action), action


def test_both_systems_run_the_same_commands() -> None:
    assert ci_commands(FILES[0]) == ci_commands(FILES[1])


@pytest.mark.parametrize(
    "command",
    [
        "moefabric run examples/ci/nowhere.yaml",
        "moefabric run examples/ci/experiment.yaml --jsn run.json",
        "moefabric compare examples/ci/before.json nowhere.json",
        "pytest --moefabrics examples/pytest",
        "pytest examples/nowhere",
        "pip install .[fabrics]",
        "apt-get install --yes --no-install-recommends mininet",
        "make",
    ],
)
def test_faults_of_commands_are_found(command: str) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        check(command.split())


@pytest.mark.parametrize(("slower", "status"), [(1.0, 0), (1.2, 4)])
def test_comparison_ends_with_the_status_of_a_regression(slower: float, status: int) -> None:
    run = json.loads((EXAMPLES / "ci/before.json").read_text())
    for iteration in run["results"][0]["iterations"]:
        iteration["measured_s"] *= slower
    Path("run.json").write_text(json.dumps(run))
    (compare,) = [c for c in ci_commands(FILES[0]) if c[:2] == ["moefabric", "compare"]]
    result = CliRunner().invoke(main, compare[1:])
    assert result.exit_code == status, result.output
