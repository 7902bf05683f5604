"""What a fabric may leave on its machine: processes, links, mounts, sockets and files."""

import os
from contextlib import suppress
from pathlib import Path

from moefabric.runtime.run_directory import run_root
from tests.kernel.fabric_lab import Machine


def traces(machine: Machine) -> set[str]:
    """Return what exists on a machine, besides the logs of failed starts.

    BPF objects need no look of their own: none is pinned, so they end with their processes and
    links.
    """
    root = run_root()
    sockets = machine.run(Path("/proc/thread-self/net/unix").read_text).splitlines()
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        *(f"process {pid}" for pid in _processes(root)),
        *(f"link {name}" for name in machine.links()),
        *(f"mount {line}" for line in mounts if str(root) in line),
        *(f"socket {line.split()[-1]}" for line in sockets if str(root) in line),
        *(f"file {path}" for path in root.glob("[!.]*")),
    }


def _processes(root: Path) -> list[int]:
    """Return the pids of living processes, but the caller, that use these run directories."""
    variable, found = f"MOEFABRIC_RUN_DIR={root}".encode(), []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            with suppress(OSError):
                if variable in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
    return found
