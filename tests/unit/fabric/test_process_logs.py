"""Logs of what processes print stay small, and failed starts keep the newest logs."""

from pathlib import Path

import pytest

from moefabric.emulator.fabric import process_logs
from moefabric.emulator.fabric.process_logs import KEPT_BYTES, MOST_BYTES, CapturedLogs
from moefabric.emulator.linux.processes import last_line
from moefabric.runtime.run_directory import RunDirectory


def test_large_log_keeps_its_end_while_its_process_appends(tmp_path: Path) -> None:
    log = tmp_path / "agent-s0.log"
    with log.open("ab", buffering=0) as output:
        output.write(b"a line of the log\n" * (MOST_BYTES // 18 + 1))
        CapturedLogs(tmp_path).trim()
        output.write(b"after\n")
    first, *lines = log.read_text().splitlines()
    assert first.endswith("bytes of this log were removed)")
    assert set(lines) == {"a line of the log", "after"}
    assert KEPT_BYTES - 100 < log.stat().st_size < KEPT_BYTES + 100
    assert last_line(log) == "after"


def test_small_log_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "ocs0.log").write_text("short\n")
    CapturedLogs(tmp_path).trim()
    assert (tmp_path / "ocs0.log").read_text() == "short\n"


def test_process_logs_keep_the_newest_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEFABRIC_RUN_DIR", str(tmp_path))
    for number in range(6):
        run_dir = RunDirectory.of_fabric(f"f{number}")
        run_dir.log_file("fabric").parent.mkdir(parents=True)
        run_dir.log_file("fabric").write_text(f"failure {number}")
        kept = process_logs.keep_logs(run_dir)
        assert kept is not None
        assert (kept / "fabric.log").read_text() == f"failure {number}"
    folder = tmp_path / ".failed"
    assert len(list(folder.iterdir())) == 4
    assert (folder / "f5").exists()
    for number in range(6):
        process_logs.forget(f"f{number}")
    assert not folder.exists()
