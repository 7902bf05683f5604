"""Progress and files of commands."""

from pathlib import Path

import click
import pytest

from moefabric.api.commands import STANDARD_OUTPUT, check_writable, progress_reporter, write_output


def test_progress_reporter_prints_messages_only_without_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress_reporter(total=2) as reporter:
        reporter.show_message("eps: bringing it up")
        reporter.advance("forward dispatch of layer 0")
        reporter.show_message("eps: 0.2 s an iteration")
    captured = capsys.readouterr()
    assert captured.err == "eps: bringing it up\neps: 0.2 s an iteration\n"
    assert captured.out == ""


def test_check_writable_creates_the_folder_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "out" / "it.json"
    check_writable(file, None)
    write_output(file, "{}")
    assert file.read_text() == "{}"


def test_check_writable_keeps_contents(tmp_path: Path) -> None:
    file = tmp_path / "it.json"
    file.write_text("before")
    check_writable(file)
    assert file.read_text() == "before"


def test_check_writable_names_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(click.UsageError, match=r"file/it\.json: (Not a directory|File exists)"):
        check_writable(tmp_path / "file" / "it.json")


def test_dash_is_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    check_writable(STANDARD_OUTPUT)
    write_output(STANDARD_OUTPUT, "{}\n")
    assert capsys.readouterr().out == "{}\n"
    assert list(tmp_path.iterdir()) == []
