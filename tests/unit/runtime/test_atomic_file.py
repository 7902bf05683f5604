"""Files of results appear whole: an error or a crash leaves what was there."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moefabric.core.errors import OutputError
from moefabric.runtime.atomic_file import replaced_file, write_whole


def names(folder: Path) -> list[str]:
    """Return the names of the files in a folder."""
    return [file.name for file in folder.iterdir()]


def test_file_is_replaced_with_its_mode_and_nothing_else_is_left(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("old")
    file.chmod(0o640)
    write_whole(file, "new")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o640)
    assert names(tmp_path) == ["run.json"]


def test_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_exception_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("old")

    def write_half() -> None:
        with replaced_file(file) as temporary:
            temporary.write(b"ne")
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half"):
        write_half()
    assert file.read_text() == "old"
    assert names(tmp_path) == ["run.json"]


def test_full_file_system_leaves_the_old_file_and_names_the_remedy(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full file system: both fail in write(2)."""
    file = tmp_path / "run.json"
    file.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"run\.json: File too large; free some room"):
            write_whole(file, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert file.read_text() == "old"
    assert names(tmp_path) == ["run.json"]


def test_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("old")
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from moefabric.runtime.atomic_file import replaced_file\n"
        "with replaced_file(Path(sys.argv[1])) as file:\n"
        "    file.write(b'x' * 100_000); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, file], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert file.read_text() == "old"


def test_missing_folder_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"there is no folder .*nowhere: make it by"):
        write_whole(tmp_path / "nowhere" / "run.json", "{}")


def test_pipe_is_written_in_place(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
