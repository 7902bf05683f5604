"""What commands write: never over a file of the same command line, and errors in one line."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from moefabric.core.errors import OutputError
from moefabric.ui.cli.main import main
from moefabric.ui.cli.observe import print_lines
from tests.support.paths import EXAMPLES, GOLDEN


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("run it.yaml --json it.yaml", "EXPERIMENT and --json"),
        ("run it.yaml --report it.yaml", "EXPERIMENT and --report"),
        ("run it.yaml --store it.yaml", "EXPERIMENT and --store"),
        ("run it.yaml --json it.yaml.html --report it.yaml.html", "--json and --report"),
        ("run it.yaml --json ./folder/../it.yaml", "EXPERIMENT and --json"),
        ("predict it.yaml --json=it.yaml", "EXPERIMENT and --json"),
        ("report it.json --html it.json", "RUN and --html"),
        ("compare it.json other.json --json=other.json", "AFTER and --json"),
    ],
)
def test_file_that_a_command_line_names_twice_is_refused_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, options: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    shutil.copy(EXAMPLES / "prototype.yaml", "it.yaml")
    for name in ("it.json", "other.json"):
        shutil.copy(GOLDEN / "report" / "sample.json", name)
    before = {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    result = CliRunner().invoke(main, words.split())
    assert result.exit_code == 2
    assert f"{options} name it; give another file" in result.output
    assert {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before


@pytest.mark.parametrize(
    "words", [f"predict {EXAMPLES / 'prototype.yaml'}", "perf alltoall", "replay it.et"]
)
def test_folder_in_the_current_one_is_made_for_a_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    fault = "/nonexistent/x.json: there is no folder /nonexistent: make it by `mkdir -p"
    refused = CliRunner().invoke(main, [*words.split(), "--json=/nonexistent/x.json"])
    assert (refused.exit_code, fault in refused.output) == (2, True), refused.output
    accepted = CliRunner().invoke(main, [*words.split(), "--json=folder/x.json"])
    assert "no folder" not in accepted.output
    assert Path("folder").is_dir()


def test_full_standard_output_is_an_error_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        report = subprocess.run(
            [sys.executable, "-m", "moefabric", "report", GOLDEN / "report" / "sample.json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert report.returncode == 1
    assert report.stderr == "moefabric: standard output: No space left on device\n"


def test_full_file_of_lines_is_named() -> None:
    with pytest.raises(OutputError, match=r"^/dev/full: No space left on device; free some room"):
        print_lines(["an event"], Path("/dev/full"))


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        (
            ["light", "s0~s1", "--policy", "joint", "--name", "lab"],
            {},
            "--policy chooses circuits for a --demand: give one",
        ),
        (
            ["dashboard", "--results", "/nonexistent"],
            {},
            "--results: there is no folder /nonexistent: name that of results",
        ),
        (
            ["list"],
            {"MOEFABRIC_LOG": "loud"},
            "MOEFABRIC_LOG: 'loud' is not one of debug, info, warning, error",
        ),
    ],
    ids=["policy", "results", "level"],
)
def test_word_without_effect_is_refused(
    words: list[str], environment: dict[str, str], message: str
) -> None:
    result = CliRunner().invoke(main, words, env=environment)
    assert result.exit_code == 2
    assert message in result.stderr
