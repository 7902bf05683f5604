"""Unix sockets at which an agent listens."""

import os
import socket
from pathlib import Path

import pytest

from moefabric.agents.engine.requests import RefusedError
from moefabric.agents.engine.sockets import listen_unix

KIND = socket.SOCK_SEQPACKET


def test_path_is_open_to_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    with listen_unix(str(path), KIND):
        assert path.stat().st_mode & 0o777 == 0o600


def test_name_takes_no_file_and_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"moefabric-test-{os.getpid()}"
    with listen_unix(f"@{name}", KIND), socket.socket(socket.AF_UNIX, KIND) as client:
        client.connect(f"\0{name}")
        assert list(tmp_path.iterdir()) == []


def test_path_and_name_of_a_running_agent_are_refused(tmp_path: Path) -> None:
    path, name = str(tmp_path / "ranks"), f"@moefabric-test-{os.getpid()}"
    with listen_unix(path, KIND), listen_unix(name, KIND):
        for taken in (path, name):
            with pytest.raises(RefusedError, match="an agent answers there already"):
                listen_unix(taken, KIND)
