"""Removal of all that a fabric has made, whatever its processes have come to."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from moefabric.core.errors import FabricError, UnsupportedError
from moefabric.emulator.fabric import management_uplink, process_logs, run_directories
from moefabric.emulator.fabric.daemon_protocol import SilentFabricError, connected
from moefabric.emulator.fabric.plugged_hosts import return_devices
from moefabric.emulator.fabric.server_containers import recorded_containers, remove_leftovers
from moefabric.emulator.linux.marked_processes import kill_marked
from moefabric.runtime.run_directory import RunDirectory

_STOP_S: Final = 60.0


@contextmanager
def sole_start(run_dir: RunDirectory) -> Iterator[None]:
    """Start a fabric from nothing; after a failure remove all of it but its logs.

    The caller holds the lock of the run directory.
    """
    clear(run_dir)
    try:
        yield
    except BaseException as error:
        logs = process_logs.keep_logs(run_dir) if isinstance(error, Exception) else None
        remove(run_dir)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise FabricError(
                f"{run_dir.path}: {error.strerror}; make room there, or set MOEFABRIC_RUN_DIR"
            ) from error
        if logs is not None and isinstance(error, FabricError):
            raise FabricError(f"{error}; its logs are in {logs}") from error
        raise


def remove_unfinished(run_dir: RunDirectory, identity: str) -> None:
    """Remove the remains of an `up` that died before the fabric process had its request.

    Args:
        run_dir: the fabric's run directory.
        identity: the fabric's identity; a fabric of the same name with another one stays.
    """
    with run_directories.lock(run_dir):
        if run_dir.read_identity() in {identity, ""}:
            remove(run_dir)


def remove(run_dir: RunDirectory, *, force: bool = True) -> None:
    """Remove a fabric with its run directory, whose lock the caller holds; raises as `clear`."""
    clear(run_dir, force=force)
    run_directories.remove(run_dir)


def remove_lost_containers(name: str) -> bool:
    """Remove ended containers of a fabric whose run directory is gone, after a restart perhaps."""
    try:
        return remove_leftovers(name, {})
    except UnsupportedError:  # this machine has no containers
        return False


def clear(run_dir: RunDirectory, *, force: bool = True) -> bool:
    """Remove everything of a fabric except the lock; return whether there was anything.

    Raises:
        SilentFabricError: without `force`, if the fabric process doesn't answer.
        FabricError: if the fabric process lives where this process can't end it.
    """
    name, containers = run_dir.name, recorded_containers(run_dir)
    stopped = _stop(run_dir, force=force)
    returned = return_devices(run_dir)
    killed = kill_marked(name)
    if run_dir.is_alive():
        raise FabricError(
            f"{name}: its process runs in another container; call `moefabric down {name}` there"
        )
    uplinks = management_uplink.remove_leftovers(name)
    removed = containers is not None and remove_leftovers(name, containers)
    cleared = run_directories.clear(run_dir)
    return bool(stopped or returned or killed or uplinks or removed or cleared)


def _stop(run_dir: RunDirectory, *, force: bool) -> bool:
    """Stop the fabric process and wait for its end; return False if there is none."""
    try:
        with connected(run_dir) as connection:
            connection.send({"do": "stop"})
            connection.wait_end(_STOP_S)
    except SilentFabricError:
        if not force:
            raise
    except FabricError:
        return False
    return True
