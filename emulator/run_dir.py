"""The run directory as something that one process at a time may change: `up` and `down` hold its lock."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from emulator.waiting import Deadline
from moefabric.errors import FabricError
from moefabric.management import RunDir

_LOCK: Final = "lock"
_HOLDER: Final = "holder"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LOCK_S: Final = 60.0


@contextmanager
def locked(run_dir: RunDir, seconds: float = _LOCK_S) -> Iterator[None]:
    """The run directory, there and nobody else's, for as long as this lasts. FabricError if it isn't free in time."""
    held: list[int] = []
    what = f"{run_dir.path}: another `up` or `down` holds it, and it"
    Deadline.after(seconds).until(lambda: _try_lock(run_dir, held), what)
    try:
        yield
    finally:
        os.close(held[0])


def named(name: str) -> RunDir:
    """The run directory of the fabric of that name. FabricError for a name that could lead anywhere else."""
    if not _NAME.fullmatch(name):
        raise FabricError(
            f"{name!r} can't be a fabric's name: letters, digits, `.`, `_` and `-`, the first a letter or digit"
        )
    return RunDir.named(name)


def _try_lock(run_dir: RunDir, held: list[int]) -> bool:
    path = run_dir.path / _LOCK
    try:
        run_dir.path.mkdir(parents=True, exist_ok=True)
        if not path.exists() and any(run_dir.path.iterdir()):
            raise FabricError(
                f"{run_dir.path}: not a fabric's, and not empty; another name, or another MOEFABRIC_RUN_DIR"
            )
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # the one who held it took the directory away
        return False
    except OSError as refused:
        raise FabricError(
            f"{run_dir.path}: {refused.strerror}; set MOEFABRIC_RUN_DIR to a directory of yours"
        ) from refused
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(fd).st_ino:
            held.append(fd)
            return True
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return False


@contextmanager
def held(run_dir: RunDir) -> Iterator[None]:
    """A running fabric serves the calling process, and goes with it, for as long as this lasts or the process lives."""
    with (run_dir.path / _HOLDER).open("w") as file:
        file.write(str(os.getpid()))
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def holder(run_dir: RunDir) -> int | None:
    """The process that a fabric serves; None where it stays until somebody takes it down."""
    try:
        with (run_dir.path / _HOLDER).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int((run_dir.path / _HOLDER).read_text())
    except OSError:  # nobody has held it
        return None
    return None


def empty(run_dir: RunDir) -> bool:
    """Take away all that is in it but the lock; whether there was anything."""
    things = (
        [entry for entry in run_dir.path.iterdir() if entry.name != _LOCK] if run_dir.path.exists() else []
    )
    for thing in things:
        if thing.is_dir():
            shutil.rmtree(thing, ignore_errors=True)
        else:
            thing.unlink(missing_ok=True)
    return bool(things)


def remove(run_dir: RunDir) -> None:
    """Take it away whole; by whoever holds its lock."""
    shutil.rmtree(run_dir.path, ignore_errors=True)


def abandon(run_dir: RunDir) -> None:
    """Take it away, but leave the lock to whoever holds it."""
    empty(run_dir)
    held: list[int] = []
    if run_dir.path.exists() and _try_lock(run_dir, held):
        remove(run_dir)
        os.close(held[0])
