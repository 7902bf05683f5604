"""Temporary folders: they end with their process, and with the next one if it was killed."""

import signal
import subprocess
import sys
from pathlib import Path

from moefabric.runtime.scratch_folder import scratch_folder

KILLED = """
import os, signal, sys
from pathlib import Path
from moefabric.runtime.scratch_folder import scratch_folder
with scratch_folder("scratch-", Path(sys.argv[1])) as folder:
    (folder / "file").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


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
