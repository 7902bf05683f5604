"""Cores of a machine that are reserved for one run."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from moefabric.core.errors import UnsupportedError
from moefabric.runtime.run_directory import run_root

_FOLDER: Final = ".cores"


@contextmanager
def reserved_cores(count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Reserve `count` cores against other runs on this machine, once they are free.

    A core is a file that is locked (flock(2)). Processes that inherit the descriptors keep the
    cores until they end, also if this process is killed.

    Yields:
        Numbers of the cores, and descriptors of their files.

    Raises:
        UnsupportedError: If this process may not use so many cores.
    """
    usable = sorted(os.sched_getaffinity(0))
    if count > len(usable):
        raise UnsupportedError(f"{count} cores are needed, and this machine has {len(usable)}")
    folder = run_root() / _FOLDER
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    with ExitStack() as undo:
        with _opened(folder / "queue") as queue:  # one run at a time waits for cores
            fcntl.flock(queue, fcntl.LOCK_EX)
            while len(locked := _lock_free(folder, usable, count)) < count:
                busy = next(core for core in usable if core not in locked)
                for descriptor in locked.values():
                    os.close(descriptor)
                with _opened(folder / str(busy)) as descriptor:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
        for descriptor in locked.values():
            undo.callback(os.close, descriptor)
        yield list(locked), list(locked.values())


def _lock_free(folder: Path, cores: list[int], count: int) -> dict[int, int]:
    """Lock up to `count` cores that are free, and return descriptors by core."""
    locked: dict[int, int] = {}
    for core in cores:
        if len(locked) == count:
            break
        descriptor = os.open(folder / str(core), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            locked[core] = descriptor
    return locked


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
