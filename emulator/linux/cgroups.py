"""Control groups: give a process the limits of another one."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from moefabric.core.errors import FabricError

_LIMITS: Final = frozenset({"cpu", "cpuacct", "cpuset", "memory", "freezer"})
"""Controllers of version 1 that processes share; version 2 has one group for all controllers."""


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
    """Yield the folders of the groups that limit a process (cgroups(7))."""
    mounts = dict(_mounts())
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        controllers = frozenset(names.split(",")) if names else frozenset({"cgroup2"})
        if names and not controllers & _LIMITS:
            continue
        for controller in controllers & mounts.keys():
            root, mount_point = mounts[controller]
            group = PurePosixPath(path)
            if not group.is_relative_to(root):
                raise FabricError(f"control group {path}: not below {root} of {mount_point}")
            yield mount_point / group.relative_to(root)
            break


def _mounts() -> Iterator[tuple[str, tuple[PurePosixPath, Path]]]:
    """Yield controllers, `cgroup2` for version 2, with root and place of their hierarchy."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        place = PurePosixPath(mount.split()[3]), Path(mount.split()[4])
        if kind == "cgroup2":
            yield "cgroup2", place
        elif kind == "cgroup":
            yield from ((option, place) for option in options.split(","))
