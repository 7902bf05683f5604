"""Commands of other distributions: listed, run, and reported if they can't be used."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from moefabric.ui.cli.main import main

MODULE = """
import click

from moefabric.api.commands import FILE, write_output


@click.command(short_help="Count the words of a file.")
@click.argument("file", type=FILE)
@click.option("--output", type=FILE)
def count(file, output):
    write_output(output, f"{len(file.read_text().split())} words")
"""
Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a distribution with the module and an entry point."""

    def written(entry: str) -> None:
        (tmp_path / "word_counter.py").write_text(MODULE)
        folder = tmp_path / "word_counter-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Name: word-counter\nVersion: 1\n")
        (folder / "entry_points.txt").write_text(f"[moefabric.commands]\n{entry}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return written


def moefabric(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_command_of_another_distribution_is_listed_and_runs(
    install: Install, tmp_path: Path
) -> None:
    install("count = word_counter:count")
    assert "Count the words of a file." in moefabric("--help").output
    text, counted = tmp_path / "text.txt", tmp_path / "counted.txt"
    text.write_text("circuits settle slowly")
    assert moefabric("count", text, "--output", counted).exit_code == 0
    assert counted.read_text() == "3 words"


def test_own_command_wins(install: Install) -> None:
    install("doctor = word_counter:count")
    assert "Count the words" not in moefabric("--help").output


def test_command_that_fails_to_import_names_its_reason_and_spares_the_others(
    install: Install,
) -> None:
    install("count = word_counter:total")
    listed = moefabric("--help")
    assert listed.exit_code == 0
    assert "Can't be used." in listed.output
    result = moefabric("count", "text.txt", "--output", "counted.txt")
    assert result.exit_code == 1
    reason = "AttributeError: module 'word_counter' has no attribute 'total'"
    assert f"moefabric: count: word_counter:total fails: {reason}" in result.output


@pytest.mark.parametrize("name", ["paper", "frontier", "system", "oracle"])
def test_command_of_the_studies_names_the_remedy_without_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])  # where distributions are looked up
    result = moefabric(name, "examples")
    assert result.exit_code == 2
    remedy = "it comes with the studies: pip install ./studies"
    assert f"Error: no such command '{name}': {remedy}" in result.output


def test_unknown_command_is_wrong_usage() -> None:
    result = moefabric("papers")
    assert result.exit_code == 2
    assert "No such command 'papers'" in result.output
    result = moefabric("predct")
    assert result.exit_code == 2
    assert "No such command 'predct'. Did you mean 'predict'" in result.output
