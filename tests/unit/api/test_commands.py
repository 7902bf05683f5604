"""Progress and files of commands."""

import re
from functools import partial
from io import StringIO
from pathlib import Path

import click
import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from moefabric.api.commands import (
    STANDARD_OUTPUT,
    BarReporter,
    check_writable,
    progress_reporter,
    write_output,
)


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


def test_bar_says_what_happens_now_and_how_much_is_done() -> None:
    console = Console(file=StringIO(), force_terminal=True, width=120)
    with Progress(
        TextColumn("{task.percentage:.0f} %  {task.description}"), console=console
    ) as bar:
        reporter = BarReporter(bar, 4)
        [task] = bar.tasks
        reporter.advance("eps: backward dispatch of layer 0")
        assert (task.percentage, task.description) == (25, "eps: backward dispatch of layer 0")
        reporter.show_message("mixnet: bringing lab up")
        assert (task.percentage, task.description) == (25, "mixnet: bringing lab up")


def test_bar_shows_percentage_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = StringIO()
    console = partial(Console, file=shown, force_terminal=True, width=120)
    monkeypatch.setattr("rich.console.Console", lambda **_: console())
    with progress_reporter(total=2) as reporter:
        reporter.advance("eps: forward dispatch")
        assert isinstance(reporter, BarReporter)
        reporter._progress.refresh()
    assert re.search(r"50 %.*[-0-9]:[-0-9]+:[-0-9]+.*eps: forward dispatch", shown.getvalue())


def test_check_writable_refuses_to_make_several_folders(tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "dir" / "x.json"
    remedy = f"there is no folder {tmp_path}/nowhere: make it by `mkdir -p {file.parent}`"
    with pytest.raises(click.UsageError) as error:
        check_writable(file)
    assert error.value.message == f"{file}: {remedy}"
    assert list(tmp_path.iterdir()) == []


def test_check_writable_makes_no_folder_outside_the_current_one(tmp_path: Path) -> None:
    file = tmp_path / "typo" / "it.html"
    with pytest.raises(click.UsageError, match=f"there is no folder {tmp_path}/typo: make it by"):
        check_writable(file)
    assert list(tmp_path.iterdir()) == []


def test_check_writable_creates_the_folder_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
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
    with pytest.raises(click.UsageError, match=r"file/it\.json: .*/file is no folder$"):
        check_writable(tmp_path / "file" / "it.json")


def test_check_writable_names_folder_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match=r": is a folder; name a file$"):
        check_writable(tmp_path)


def test_dash_is_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    check_writable(STANDARD_OUTPUT)
    write_output(STANDARD_OUTPUT, "{}\n")
    assert capsys.readouterr().out == "{}\n"
    assert list(tmp_path.iterdir()) == []
