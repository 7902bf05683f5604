"""Files that commands write."""

from pathlib import Path

import click
import pytest

from moefabric.commands.files import STANDARD_OUTPUT, writable, write


def test_a_folder_that_is_missing_is_made(tmp_path: Path) -> None:
    file = tmp_path / "out" / "of" / "it.json"
    writable(file, None)
    write(file, "{}")
    assert file.read_text() == "{}"


def test_what_is_there_stays_until_there_is_something_to_write(tmp_path: Path) -> None:
    file = tmp_path / "it.json"
    file.write_text("before")
    writable(file)
    assert file.read_text() == "before"


def test_a_file_that_can_t_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(click.UsageError, match=r"file/it\.json: (Not a directory|File exists)"):
        writable(tmp_path / "file" / "it.json")


def test_a_dash_is_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    writable(STANDARD_OUTPUT)
    write(STANDARD_OUTPUT, "{}\n")
    assert capsys.readouterr().out == "{}\n"
    assert list(tmp_path.iterdir()) == []
