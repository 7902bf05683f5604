"""Processes that carry the mark of a fabric in their environment: how they are found and killed.

The mark has the fabric's name, its folder of run directories and its random identity. Processes
with another identity, such as those of a fabric of the same name in a container, are left alone.

`python -m moefabric.emulator.linux.marked_processes NAME VALUE` guards a job. It waits for the end
of its standard input, which is the end of the process that holds the other end of the pipe, however
that ended. Then it kills every process that has the variable NAME=VALUE in its environment.
Children of a job's processes inherit the variable, so they end as well, also as orphans.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from moefabric.core.closing import Closing
from moefabric.runtime.processes import end_processes
from moefabric.runtime.run_directory import (
    FABRIC_VARIABLE,
    IDENTITY_VARIABLE,
    RunDirectory,
    run_root,
)
from moefabric.runtime.waiting import Deadline

log = logging.getLogger(__name__)

RUN_DIR_VARIABLE: Final = "MOEFABRIC_RUN_DIR"
_ENV_END_FIELD: Final = 48
"""Index of `env_end` in /proc/PID/stat behind the command's name (field 51 of proc(5))."""
_KILL_S: Final = 5.0
"""Limit of killing processes that start others as fast."""
_SHOWN: Final = 5
"""Pids that a warning names."""
_EXEC_S: Final = 2.0
"""Limit of the wait for a process inside execve(2)."""
Variables = Sequence[bytes]
"""Environment of a process: `NAME=value` each."""
Choice = Callable[[int, Variables], bool]
"""Function that chooses processes by pid and environment."""


def mark_environment(fabric: str) -> dict[str, str]:
    """Return the environment variables that mark a process as the fabric's."""
    return {
        FABRIC_VARIABLE: fabric,
        RUN_DIR_VARIABLE: str(run_root()),
        IDENTITY_VARIABLE: RunDirectory.of_fabric(fabric).read_identity(),
    }


def marked_pids(fabric: str) -> list[int]:
    """Return the pids of all processes that carry the mark of a fabric, except the caller's.

    Without a run directory the identity is unknown. Then processes count that have any identity,
    the fabric's name, the caller's PID namespace and the caller's folder of run directories. A
    user's shell that names the fabric in its environment has no identity.
    """
    return _pids(_mark_of(fabric))


def is_marked(fabric: str, pid: int) -> bool:
    """Return whether a process or a thread carries the mark of a fabric."""
    return _mark_of(fabric)(pid, _variables(pid))


def kill_marked(fabric: str) -> int:
    """Kill every process that `marked_pids` finds, for 5 s at most; return their number."""
    return _kill(_mark_of(fabric), Deadline.after(_KILL_S))


class ProcessGuard(Closing):
    """Guard of the processes with a variable in their environment. Closing it kills them."""

    def __init__(self, name: str, value: str) -> None:
        """Start the guard; later processes with the variable belong to the job."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moefabric.emulator.linux.marked_processes", name, value],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # With PYTHONSAFEPATH `python -m` doesn't import from the caller's folder.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # Ctrl-C on a terminal is for the caller, which then closes
        )

    def close(self) -> None:
        """Kill the processes of the job that are left, and wait for their end."""
        self._process.communicate()


def _mark_of(fabric: str) -> Choice:
    mark = mark_environment(fabric)
    if identity := mark.pop(IDENTITY_VARIABLE):
        line = f"{IDENTITY_VARIABLE}={identity}".encode()
        return lambda _pid, variables: line in variables
    lines = {f"{key}={value}".encode() for key, value in mark.items()}
    any_identity, root = f"{IDENTITY_VARIABLE}=".encode(), run_root()
    return lambda pid, variables: (
        lines <= set(variables)
        and any(variable.startswith(any_identity) for variable in variables)
        and _has_our_view(pid, root)
    )


def _has_our_view(pid: int, folder: Path) -> bool:
    """Return whether a process has the caller's PID namespace and sees the same folder.

    Nodes of a fabric have mount namespaces of their own, in which the folder is the same.
    """
    process = Path(f"/proc/{pid}")
    there = process / "root" / folder.relative_to("/")
    try:
        if (process / "ns/pid").readlink() != Path("/proc/self/ns/pid").readlink():
            return False
        return there.samefile(folder) if folder.exists() else not there.exists()
    except OSError:
        return False


def _pids(is_chosen: Choice) -> list[int]:
    """Return the pids of chosen processes, except the caller's."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return sorted(pid for pid in pids if pid != os.getpid() and is_chosen(pid, _variables(pid)))


def _variables(pid: int) -> Variables:
    """Return the environment of a process; wait while the process is inside execve(2).

    Returns:
        The variables; nothing for kernel threads, for processes that have ended and for those of
        other users.
    """
    process, deadline = Path(f"/proc/{pid}"), Deadline.after(_EXEC_S)
    with suppress(OSError):
        while not (variables := (process / "environ").read_bytes()):
            (process / "exe").readlink()  # raises OSError for kernel threads and ended processes
            fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[_ENV_END_FIELD]) or not deadline.remaining_s:
                variables = (process / "environ").read_bytes()
                break
        return variables.split(b"\0")
    return ()


def _kill(is_chosen: Choice, deadline: Deadline) -> int:
    """Kill every chosen process, except the caller; return their number.

    The search is repeated until it finds none: a process may start another before its end. Whoever
    copies the mark and starts processes without end is left alone at the deadline.
    """
    killed = 0
    while True:
        with ExitStack() as pidfds:
            chosen = list(_open(is_chosen, pidfds))
            if not chosen:
                return killed
            if not deadline.remaining_s:
                text = "%d processes with the mark start again and again; left alone: pids %s"
                log.warning(text, len(chosen), " ".join(map(str, _pids(is_chosen)[:_SHOWN])))
                return killed
            end_processes(chosen, grace_s=0)
            killed += len(chosen)


def _open(is_chosen: Choice, undo: ExitStack) -> Iterator[int]:
    """Yield a pidfd, which `undo` closes, of each chosen process that still runs."""
    for pid in _pids(is_chosen):
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            undo.callback(os.close, pidfd)
            if is_chosen(pid, _variables(pid)):  # another process may have got the pid
                yield pidfd


if __name__ == "__main__":
    sys.stdin.buffer.read()
    mark = "=".join(sys.argv[1:]).encode()
    _kill(lambda _pid, variables: mark in variables, Deadline.after(_KILL_S))
