"""Optical switches in other containers serve the fabrics whose process lives."""

import fcntl
import socket
from pathlib import Path

from moefabric.emulator.ocs.__main__ import handoff_sockets
from moefabric.runtime.run_directory import RunDirectory


def test_socket_of_a_fabric_whose_process_was_killed_is_not_served(tmp_path: Path) -> None:
    run_dir = RunDirectory(tmp_path / "f")
    run_dir.path.mkdir()
    path = run_dir.path / "ocs0.handoff"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        with run_dir.life_file.open("w") as life:
            fcntl.flock(life, fcntl.LOCK_EX)
            assert handoff_sockets(tmp_path) == handoff_sockets(path) == [path]
        assert handoff_sockets(tmp_path) == handoff_sockets(run_dir.life_file) == []
