"""Memory, descriptors and CPU time of processes (proc(5))."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessUsage:
    """What a process uses.

    Attributes:
        resident_bytes: Resident memory.
        descriptors: Open file descriptors.
        cpu_s: CPU time so far.
    """

    resident_bytes: int
    descriptors: int
    cpu_s: float


def process_usage(pid: int) -> ProcessUsage | None:
    """Return what a process uses; None if it has ended, or belongs to another user."""
    folder = Path(f"/proc/{pid}")
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        descriptors = len(os.listdir(folder / "fd"))  # noqa: PTH208 - the names suffice
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])  # utime and stime, fields 14 and 15
    return ProcessUsage(int(fields[21]) * _PAGE_BYTES, descriptors, ticks / _TICKS_PER_S)


def usage_of(pids: Mapping[str, int]) -> dict[str, ProcessUsage]:
    """Return what the processes of these names and pids use, without those that have ended."""
    usage = {name: process_usage(pid) for name, pid in pids.items()}
    return {name: used for name, used in usage.items() if used is not None}
