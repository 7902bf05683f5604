"""Temporary folders: they end with their process, and with the next one if it was killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moefabric.runtime.scratch_folder import scratch_folder

KILLED = """
import os, signal, sys
from pathlib import Path
from moefabric.runtime.scratch_folder import scratch_folder
with scratch_folder("scratch-", Path(sys.argv[1])) as folder:
    (folder / "file").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


STARTED = """
import sys
from pathlib import Path
from moefabric.runtime.scratch_folder import scratch_folder
with scratch_folder("scratch-", Path(sys.argv[1])):
    pass
"""
NOBODY = 65534


def test_folder_ends_with_the_block_and_leaves_others(tmp_path: Path) -> None:
    with scratch_folder("scratch-", tmp_path) as first, scratch_folder("scratch-", tmp_path):
        assert len(list(tmp_path.iterdir())) == 2
        assert first.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_folder_of_a_killed_process_ends_with_the_next_one(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert (left / "file").exists()
    (tmp_path / "scratch-other").mkdir()  # without a lock: nobody knows whose it is
    with scratch_folder("scratch-", tmp_path):
        assert not left.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["scratch-other"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")
def test_what_other_users_put_there_neither_waits_nor_is_opened(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for name in ("of-others", "own"):
        folder = tmp_path / f"scratch-{name}"
        folder.mkdir()
        os.mkfifo(folder / "lock")
    (tmp_path / "scratch-of-others/file").touch()
    os.mkfifo(tmp_path / "scratch-fifo")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/lock").touch()
    (tmp_path / "scratch-link").symlink_to(tmp_path / "kept")
    for path in (tmp_path / "scratch-of-others", tmp_path / "scratch-of-others/lock"):
        os.chown(path, NOBODY, NOBODY)
    argv = [sys.executable, "-c", STARTED, str(tmp_path)]
    subprocess.run(argv, check=True, timeout=20)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"scratch-of-others", "scratch-fifo", "scratch-link", "kept"}
    assert (tmp_path / "scratch-of-others/file").exists()
    assert (tmp_path / "kept/lock").exists()
