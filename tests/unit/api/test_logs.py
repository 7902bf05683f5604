"""Logs of many processes as one: order, filters, output of programs, rotation, following."""

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from moefabric.api.logs import LogFolder, LogLine, line_filter, parse_line
from moefabric.core.errors import SpecError


def entry(second: int, message: str, process: str = "ocs0", level: str = "info", **ids: str) -> str:
    time = f"2026-01-01T00:00:{second:02}.000000+00:00"
    line = {"time": time, "level": level, "process": process, "message": message, **ids}
    return json.dumps(line) + "\n"


def messages(lines: list[LogLine]) -> list[str]:
    return [line.message for line in lines]


def test_lines_of_all_processes_are_in_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "ocs0.jsonl").write_text(entry(1, "a") + entry(4, "d"))
    (tmp_path / "agent-s0.jsonl").write_text(entry(2, "b") + entry(5, "e"))
    (tmp_path / "agent-s0.jsonl.1").write_text(entry(0, "first"))
    assert messages(LogFolder(tmp_path).new_lines()) == ["first", "a", "b", "d", "e"]


def test_output_of_a_program_counts_as_a_warning(tmp_path: Path) -> None:
    output = tmp_path / "agent-s0.log"
    output.write_bytes(b'Traceback:\n[1, 2]\n{"time": 3}\n\xff' + b"[" * 50_000 + b"\n")
    os.utime(output, (1_767_225_603, 1_767_225_603))
    (tmp_path / "ocs0.jsonl").write_text(entry(2, "before") + entry(4, "after"))
    lines = LogFolder(tmp_path).new_lines()
    assert messages(lines)[:4] == ["before", "Traceback:", "[1, 2]", '{"time": 3}']
    assert messages(lines)[-1] == "after"
    assert {(line.process, line.level) for line in lines[1:5]} == {("agent-s0", "warning")}


def test_new_lines_are_read_once_and_whole(tmp_path: Path) -> None:
    file, folder = tmp_path / "run.jsonl", LogFolder(tmp_path)
    half = entry(2, "b")
    file.write_text(entry(1, "a") + half[:9])
    assert messages(folder.new_lines()) == ["a"]
    with file.open("a") as log:
        log.write(half[9:])
    file.rename(tmp_path / "run.jsonl.1")
    file.write_text(entry(3, "c"))
    assert messages(folder.new_lines()) == ["b", "c"]
    assert folder.new_lines() == []
    file.write_text(entry(4, "d")[:-2] + '"}\n')
    (tmp_path / "agent.log").write_text("long output\n")
    (tmp_path / "agent.log").write_text("cut\n")
    assert "cut" in messages(folder.new_lines())


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ({"process": "ocs0"}, ["a"]),
        ({"process": "agent-*"}, ["b", "c"]),
        ({"level": "warning"}, ["b"]),
        ({"ids": {"run": "r1"}}, ["c"]),
        ({"ids": {"collective": "7"}}, ["b"]),
        ({}, ["a", "b", "c"]),
    ],
)
def test_filters(wanted: dict[str, object], kept: list[str]) -> None:
    texts = (
        entry(1, "a"),
        entry(2, "b", "agent-s0", "warning").replace("}", ', "collective": 7}'),
        entry(3, "c", "agent-s1", run="r1"),
    )
    lines = [parse_line(text.encode(), "p", "") for text in texts]
    assert messages(list(filter(line_filter(**wanted), lines))) == kept  # type: ignore[arg-type] # cases differ


def test_text_for_people_has_ids_and_no_control_characters() -> None:
    line = entry(1, "red \x1b[31m", "ocs0", collective="7", exception="1\n2")
    assert parse_line(line.encode(), "p", "").text().splitlines() == [
        "00:00:01.000 info    ocs0           red \N{REPLACEMENT CHARACTER}[31m  [collective=7]",
        "    1",
        "    2",
    ]


def test_following_ends_with_the_fabric(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "run.jsonl").write_text(entry(1, "a"))
    lines = LogFolder(folder).follow()
    assert next(lines).message == "a"

    def go_on() -> None:
        with (folder / "run.jsonl").open("a") as file:
            file.write(entry(2, "b"))

    writer = threading.Timer(0.05, go_on)
    writer.start()
    assert next(lines).message == "b"
    writer.join()
    shutil.rmtree(folder)
    assert list(lines) == []


def test_id_that_no_line_has_is_refused_with_those_that_are_there(tmp_path: Path) -> None:
    lines = [entry(second, "a", reconfiguration=one) for second, one in enumerate("abab")]
    (tmp_path / "ocs0.jsonl").write_text("".join(lines))
    folder = LogFolder(tmp_path)
    folder.check_ids({"reconfiguration": "a"})
    with pytest.raises(SpecError, match=r"^--reconfiguration: nosuch is none of b, a$"):
        folder.check_ids({"reconfiguration": "nosuch"})
    with pytest.raises(SpecError, match=r"^--run: r1: no line has one$"):
        folder.check_ids({"run": "r1"})
    assert len(folder.new_lines()) == 4, "the check leaves the lines to be read"


def test_process_that_has_not_logged_is_refused_with_those_that_have(tmp_path: Path) -> None:
    (tmp_path / "controllers.jsonl").write_text(entry(1, "a", process="controller-r0"))
    (tmp_path / "agents-0.log").write_text("printed\n")
    folder = LogFolder(tmp_path)
    for name in ("controller-r0", "controllers", "agents-*", "agents-0"):
        folder.check_process(name)
    with pytest.raises(SpecError) as error:
        folder.check_process("foo")
    assert str(error.value) == "--process: foo is none of agents-0, controller-r0, controllers"
    assert len(folder.new_lines()) == 2, "the check leaves the lines to be read"
