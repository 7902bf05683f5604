"""Run directories: one process at a time changes each, and some outlive their fabric.

`up` and `down` hold the lock of a run directory. The fabric process holds another one until its
end, so that any process that sees the folder knows whether the fabric lives, also one in another
container.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO

from moefabric.core.errors import FabricError
from moefabric.runtime.failure_log import FAILURE_LOG
from moefabric.runtime.run_directory import RunDirectory, give_to_user, is_locked, run_root
from moefabric.runtime.waiting import Deadline

_LOCK: Final = "lock"
_HOLDER: Final = "holder"
_CHECK: Final = "check"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LOCK_S: Final = 60.0


def named_run_directory(name: str) -> RunDirectory:
    """Return the run directory of a fabric.

    Raises:
        FabricError: if the name contains characters that could lead to another directory.
    """
    if not _NAME.fullmatch(name):
        raise FabricError(
            f"{name!r} can't be a fabric's name: letters, digits, `.`, `_` and `-`, "
            "the first a letter or digit"
        )
    return RunDirectory.of_fabric(name)


@contextmanager
def lock(run_dir: RunDirectory) -> Iterator[None]:
    """Create the run directory if necessary and hold its lock.

    Raises:
        FabricError: if another process holds the lock for a minute.
    """
    what = f"{run_dir.path}: another `up` or `down` holds it, and it"
    with ExitStack() as held:
        Deadline.after(_LOCK_S).wait_for(lambda: _try_lock(run_dir, held), what)
        yield


def _try_lock(run_dir: RunDirectory, held: ExitStack) -> bool:
    """Hold the lock and return True if no other process holds it."""
    path = run_dir.path / _LOCK
    try:
        run_dir.path.mkdir(parents=True, exist_ok=True)
        names = [file.name for file in run_dir.path.iterdir()]  # one look: others make the lock
        if names and _LOCK not in names:
            raise FabricError(
                f"{run_dir.path}: not a fabric's, and not empty; "
                "another name, or another MOEFABRIC_RUN_DIR"
            )
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # the holder of the lock has removed the directory
        return False
    except OSError as error:
        exists = os.path.exists(run_dir.path)  # noqa: PTH110 - Path's raises PermissionError
        if isinstance(error, PermissionError) and exists:
            raise run_dir.of_another_user() from error
        raise FabricError(
            f"{run_dir.path}: {error.strerror}; set MOEFABRIC_RUN_DIR to a directory of yours"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(fd).st_ino:
            held.callback(os.close, fd)
            return True
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return False


def check_access(run_dir: RunDirectory) -> None:
    """Check that this user may ask a running fabric.

    Raises:
        UnsupportedError: if the fabric belongs to another user.
    """
    if not os.access(run_dir.control_socket, os.W_OK, effective_ids=True):
        raise run_dir.of_another_user()


def _opened(path: Path) -> TextIO:
    """Open a file of a fabric for writing and locking."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except PermissionError as error:
        raise RunDirectory(path.parent).of_another_user() from error
    give_to_user(descriptor)
    return os.fdopen(descriptor, "w")


@contextmanager
def hold(run_dir: RunDirectory) -> Iterator[None]:
    """Mark a running fabric as used by the calling process, which will take it down.

    Raises:
        UnsupportedError: if the fabric belongs to another user.
    """
    with _opened(run_dir.path / _HOLDER) as file:
        file.write(str(os.getpid()))
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def holder_pid(run_dir: RunDirectory) -> int | None:
    """Return the process that uses a fabric; None if the fabric stays until `down`.

    Of another user's fabric nobody can tell.
    """
    file = run_dir.path / _HOLDER
    with suppress(PermissionError):
        return int(file.read_text()) if is_locked(file) else None
    return None


@contextmanager
def sole_check(run_dir: RunDirectory) -> Iterator[None]:
    """Keep other checks away from a running fabric, whose light a check moves.

    Raises:
        FabricError: if another process checks the fabric, or it doesn't run.
        UnsupportedError: if the fabric belongs to another user.
    """
    try:
        file = _opened(run_dir.path / _CHECK)
    except FileNotFoundError as error:
        raise FabricError(f"{run_dir.name}: no fabric of this name runs") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FabricError(
                f"{run_dir.name}: another process checks this fabric; try again when it has ended"
            ) from error
        yield


def claim_life(run_dir: RunDirectory) -> None:
    """Lock the life file of a fabric for the rest of the calling process."""
    fd = os.open(run_dir.life_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    give_to_user(fd)
    fcntl.flock(fd, fcntl.LOCK_EX)  # waits for those who only look whether the fabric lives


def run_directories() -> list[RunDirectory]:
    """Return the run directories of all fabrics, whether they live or not."""
    if not run_root().exists():
        return []
    return [RunDirectory(path) for path in sorted(run_root().iterdir()) if (path / _LOCK).exists()]


def running_fabrics() -> list[str]:
    """Return the names of the fabrics that run, also of those whose process doesn't answer."""
    return [run.name for run in run_directories() if run.control_socket.exists() and run.is_alive()]


def fabrics_in_use() -> dict[str, int]:
    """Return the running fabrics that a process (a run) uses, with the pid of the process."""
    holders = {name: holder_pid(named_run_directory(name)) for name in running_fabrics()}
    return {name: pid for name, pid in holders.items() if pid is not None}


@contextmanager
def locked_remains(run_dir: RunDirectory) -> Iterator[bool]:
    """Hold the lock of a run directory if its fabric is dead.

    Yields:
        Whether the fabric is dead, and no other process brings it up or takes it down.
    """
    with ExitStack() as held:
        is_dead = run_dir.path.exists() and not run_dir.is_alive() and _try_lock(run_dir, held)
        yield is_dead and not run_dir.is_alive()  # it may have come up before we had the lock


def prepare(run_dir: RunDirectory, token: str = "") -> str:
    """Make the folders, the token and the identity of a new fabric; return the public identity.

    What controllers write belongs to the fabric's user: in containers, they are that user.

    Args:
        run_dir: its run directory.
        token: its token; default: a new random one.
    """
    controllers, failure_log = run_dir.controller_pid_file(None).parent, run_dir.path / FAILURE_LOG
    for folder in (run_dir.log_folder, controllers, run_dir.agent_socket("any").parent):
        folder.mkdir(exist_ok=True)
    failure_log.touch(0o600)
    for path in (run_dir.log_folder, controllers, failure_log):
        give_to_user(path)
    run_dir.write_version()
    run_dir.make_token(token)
    run_dir.make_identity()
    return run_dir.public_identity()


def clear(run_dir: RunDirectory) -> bool:
    """Remove everything in a run directory except the lock; return whether there was anything."""
    paths = [path for path in run_dir.path.glob("*") if path.name != _LOCK]
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return bool(paths)


def remove(run_dir: RunDirectory) -> None:
    """Remove a run directory; the caller holds its lock."""
    shutil.rmtree(run_dir.path, ignore_errors=True)


def abandon(run_dir: RunDirectory) -> None:
    """Remove a run directory, unless another process holds its lock, which then removes it.

    Such an `up` keeps the logs of its failure before.
    """
    with ExitStack() as held:
        if run_dir.path.exists() and _try_lock(run_dir, held):
            remove(run_dir)
