"""Structured logs: fields and ids of lines, files and their rotation, ids in HTTP headers."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from moefabric.runtime import structured_log
from moefabric.runtime.structured_log import (
    JsonFormatter,
    baggage,
    ids_of_baggage,
    log_context,
    logged,
)

log = logging.getLogger("moefabric.test")


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def folder_of(tmp_path: Path) -> Path:
    folder = tmp_path / "lab" / "log"
    folder.mkdir(parents=True)
    return folder


def test_line_has_time_level_process_message_and_ids(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    with log_context(run="ab12"), logged("controller-r0", folder, region="r0"):
        with log_context(reconfiguration="cd34"):
            log.info("lit: %s", "s0/o0~s1/o0", extra={"collective": 3})
        try:
            int("wrong")
        except ValueError:
            log.exception("failed")
    first, second = lines(folder / "controller-r0.jsonl")
    assert str(first.pop("time"))[-13:-9].startswith(".")
    assert first.pop("pid")
    assert first == {
        "level": "info",
        "process": "controller-r0",
        "logger": "moefabric.test",
        "message": "lit: s0/o0~s1/o0",
        "fabric": "lab",
        "run": "ab12",
        "region": "r0",
        "reconfiguration": "cd34",
        "collective": 3,
    }
    assert "reconfiguration" not in second
    assert str(second["exception"]).endswith("'wrong'")


def test_message_stays_one_line() -> None:
    record = logging.makeLogRecord({"msg": "two\nlines\x1b", "args": (), "odd": object()})
    assert "\n" not in JsonFormatter("p").format(record)
    assert json.loads(JsonFormatter("p").format(record))["message"] == "two\nlines\x1b"


@pytest.mark.parametrize(("level", "messages"), [("", 2), ("debug", 3), ("error", 0), ("x", 2)])
def test_variable_sets_the_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, messages: int
) -> None:
    monkeypatch.setenv(structured_log.LEVEL_VARIABLE, level)
    folder = folder_of(tmp_path)
    with logged("run", folder):
        for call in (log.debug, log.info, log.warning):
            call("something")
    assert len(lines(folder / "run.jsonl")) == messages


def test_log_takes_bounded_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structured_log, "MOST_BYTES", 10_000)
    folder = folder_of(tmp_path)
    with logged("run", folder):
        for number in range(500):
            log.info("line %d", number)
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["run.jsonl", "run.jsonl.1"]
    assert all(file.stat().st_size <= 10_000 for file in files)
    assert lines(folder / "run.jsonl")[-1]["message"] == "line 499"


PARTS = """
import logging
from contextvars import copy_context
from pathlib import Path
from moefabric.runtime import structured_log
folder, contexts = Path({folder!r}), []
structured_log.start("all", folder)
for name in ("a", "b"):
    with structured_log.part(name, folder, region="of " + name):
        logging.info("in the block")
        contexts.append(copy_context())
for context in contexts:
    context.run(logging.info, "later")
logging.info("outside")
"""
PROGRAM = """
import logging, pathlib
from moefabric.runtime import structured_log
structured_log.start("p", pathlib.Path({folder!r}))
logging.getLogger("x").info("hello")
raise RuntimeError("the end")
"""


def test_process_logs_why_it_ends(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    program = PROGRAM.format(folder=str(folder))
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    first, last = lines(folder / "p.jsonl")
    assert first["message"] == "hello"
    assert (last["level"], "RuntimeError: the end" in str(last["exception"])) == ("error", True)
    assert result.stderr.rstrip().endswith(b"RuntimeError: the end")


def test_lines_without_a_folder_go_to_standard_error(tmp_path: Path) -> None:
    program = PROGRAM.format(folder=str(tmp_path / "none"))
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert json.loads(result.stderr.splitlines()[0])["message"] == "hello"


def test_full_disk_does_not_reach_the_caller(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path)
    (folder / "run.jsonl").symlink_to("/dev/full")
    with logged("run", folder):
        log.info("lost")
    assert capfd.readouterr().err == ""


def test_part_of_a_process_logs_like_a_process_of_its_own(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    program = PARTS.format(folder=str(folder))
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert result.stderr == b""
    for name in ("a", "b"):
        assert [
            (line["process"], line["region"], line["message"])
            for line in lines(folder / f"{name}.jsonl")
        ] == [(name, f"of {name}", "in the block"), (name, f"of {name}", "later")]
    assert [line["message"] for line in lines(folder / "all.jsonl")] == ["outside"]


def test_ids_travel_in_a_header() -> None:
    with log_context(run="ab12", iteration=3):
        header = baggage(reconfiguration="cd34")
    assert header == "run=ab12,iteration=3,reconfiguration=cd34"
    assert ids_of_baggage(header) == {"run": "ab12", "iteration": "3", "reconfiguration": "cd34"}


@pytest.mark.parametrize(
    "header", [None, "", ",", "=", "password=x", 'run="\n"', f"run={'a' * 65}", "run=é"]
)
def test_header_adds_known_ids_of_harmless_characters_only(header: str | None) -> None:
    assert ids_of_baggage(header) == {}
