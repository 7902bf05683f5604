"""Processes of a fabric: how they enter namespaces, carry a mark, and end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moefabric.core.errors import FabricError
from moefabric.emulator.linux.marked_processes import kill_marked, mark_environment, marked_pids
from moefabric.emulator.linux.processes import ChildProcesses, nsenter_argv
from moefabric.runtime.run_directory import RunDirectory
from moefabric.runtime.waiting import Deadline


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[RunDirectory]:
    directory = RunDirectory(tmp_path / f"test-{os.getpid()}")
    directory.log_folder.mkdir(parents=True)
    yield directory
    kill_marked(directory.name)


def test_nsenter_argv_takes_path_or_pid() -> None:
    assert nsenter_argv("/proc/7/fd/3", ["x"]) == ["nsenter", "--net=/proc/7/fd/3", "--", "x"]
    folder = f"--wdns={Path.cwd()}"
    expected = ["nsenter", "-t", "7", "-n", "-m", "-u", folder, "--", "x", "y"]
    assert nsenter_argv(7, ["x", "y"]) == expected


def test_mark_finds_only_the_fabrics_own_processes(run_dir: RunDirectory) -> None:
    own = ChildProcesses(run_dir).start("own", ["sleep", "60"])
    other = subprocess.Popen(
        ["sleep", "60"],
        env={**os.environ, **mark_environment(run_dir.name), "MOEFABRIC_RUN_DIR": "/another"},
    )
    try:
        assert marked_pids(run_dir.name) == [own.pid]
        assert kill_marked(run_dir.name) == 1
        assert own.popen.wait(30) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_kill_marked_ends_processes_that_start_others(run_dir: RunDirectory) -> None:
    # Shells that start programs one after the other: some are inside execve(2) at any time.
    script = "i=0; while [ $i -lt 200 ]; do i=$((i+1)); sleep 60 & done; exec sleep 60"
    processes = ChildProcesses(run_dir)
    for number in range(4):
        processes.start(f"shell{number}", ["sh", "-c", script])
    assert kill_marked(run_dir.name) >= 4
    assert not any(marked_pids(run_dir.name) for _ in range(5))
    processes.stop(grace_s=0)


def test_check_alive_reports_exit_status_and_last_line(run_dir: RunDirectory) -> None:
    processes = ChildProcesses(run_dir)
    assert processes.check_alive()
    script = "print('one'); print('two'); raise SystemExit(3)"
    processes.start("talker", [sys.executable, "-S", "-c", script]).popen.wait(10)
    with pytest.raises(FabricError, match="talker exited 3, saying: two"):
        processes.check_alive()
    processes.stop(grace_s=0)


def test_stop_kills_process_that_ignores_sigterm(run_dir: RunDirectory) -> None:
    processes = ChildProcesses(run_dir)
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('deaf', flush=True); time.sleep(60)"
    )
    processes.start("deaf", [sys.executable, "-S", "-c", script])
    Deadline.after(10).wait_for(lambda: "deaf" in run_dir.log_file("deaf").read_text(), "deaf")
    start_s = time.monotonic()
    processes.stop(grace_s=0.1)
    assert time.monotonic() - start_s < 5
    assert marked_pids(run_dir.name) == []


def test_start_names_missing_program(run_dir: RunDirectory) -> None:
    with pytest.raises(
        FabricError, match="x: can't run no-such-program: No such file or directory"
    ):
        ChildProcesses(run_dir).start("x", ["no-such-program"])
