"""Control groups: give a process the limits of another one."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from moefabric.core.errors import FabricError

_LIMITS: Final = frozenset({"cpu", "cpuacct", "cpuset", "memory", "freezer"})
"""Controllers of version 1 that processes share; version 2 has one group for all controllers."""
_UNIFIED: Final = frozenset({"cgroup2"})


def join(pid: int, member: int) -> None:
    """Move a process into the control groups of another process.

    Args:
        pid: the process that moves.
        member: the process whose limits of CPU and memory it shall share.

    Raises:
        FabricError: if a group can't be found or written.
    """
    try:
        for group in limiting_groups(member):
            (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise FabricError(f"control group {error.filename}: {error.strerror}") from error


def limiting_groups(pid: int) -> Iterator[Path]:
    """Yield the folders of the groups that limit a process (cgroups(7)).

    Raises:
        FabricError: if this machine doesn't show a group of the process.
    """
    mounts = list(_mounts())
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        controllers = frozenset(names.split(",")) & _LIMITS if names else _UNIFIED
        here = [(root, point) for mounted, root, point in mounts if controllers & mounted]
        if not here:  # a hierarchy without limits, or one that is mounted nowhere
            continue
        group = PurePosixPath(path)
        folders = [point / group.relative_to(r) for r, point in here if group.is_relative_to(r)]
        if not folders:
            raise FabricError(f"control group {path}: not visible here")
        yield folders[0]


def _mounts() -> Iterator[tuple[frozenset[str], PurePosixPath, Path]]:
    """Yield controllers, `cgroup2` for version 2, root and place of each mounted hierarchy."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        if kind in {"cgroup", "cgroup2"}:
            controllers = frozenset(options.split(",")) if kind == "cgroup" else _UNIFIED
            yield controllers, PurePosixPath(mount.split()[3]), Path(mount.split()[4])
