"""Commands of the studies outside moefabric's repository."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from moefabric.ui.cli.main import main


@pytest.mark.parametrize(
    ("command", "folder"),
    [("oracle", "examples"), ("paper", "examples/paper"), ("frontier", "examples/paper")],
)
def test_study_outside_the_repository_says_where_it_works(
    command: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, [command])
    assert result.exit_code == 2
    remedy = "run this in moefabric's repository, or give the path of its folder"
    assert f"Error: {folder}: no such folder: {remedy}\n" in result.output


def test_help_lists_the_studies_last() -> None:
    _, text = (
        CliRunner().invoke(main, ["--help"]).output.split("Studies, in moefabric's repository:")
    )
    assert [line.split()[0] for line in text.splitlines() if line.startswith("  ")] == [
        "frontier",
        "oracle",
        "paper",
        "system",
    ]
