"""Optical switches in other containers serve the fabrics whose process lives."""

import fcntl
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moefabric.emulator.ocs import __main__ as ocs_process
from moefabric.emulator.ocs.__main__ import handoff_sockets, serve_all
from moefabric.runtime.run_directory import RunDirectory


@contextmanager
def living_fabric(run_dir: RunDirectory) -> Iterator[Path]:
    """Yield the handoff socket of a fabric whose process lives until the block ends."""
    run_dir.path.mkdir()
    path = run_dir.path / "ocs0.handoff"
    with socket.socket(socket.AF_UNIX) as listener, run_dir.life_file.open("w") as life:
        listener.bind(str(path))
        fcntl.flock(life, fcntl.LOCK_EX)
        yield path


def test_socket_of_a_fabric_whose_process_was_killed_is_not_served(tmp_path: Path) -> None:
    run_dir = RunDirectory(tmp_path / "f")
    with living_fabric(run_dir) as path:
        assert handoff_sockets(tmp_path) == handoff_sockets(path) == [path]
    assert path.is_socket()
    assert handoff_sockets(tmp_path) == handoff_sockets(run_dir.life_file) == []


def test_processes_of_switches_end_with_the_one_that_has_started_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[subprocess.Popen[bytes]]()

    def start(_path: Path) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[-1]

    monkeypatch.setattr(ocs_process, "_start_process", start)
    stop, stopper = socket.socketpair()
    with living_fabric(RunDirectory(tmp_path / "f")), stop, stopper:
        stopper.send(b".")
        try:
            serve_all(tmp_path, stop)
            assert [process.poll() for process in started] == [-signal.SIGTERM]
        finally:
            for process in started:
                process.kill()
