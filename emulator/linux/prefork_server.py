"""Prefork server: loads a program once and forks it on request, 100 times faster than starting it.

`python emulator/linux/prefork_server.py MODULE` imports MODULE and calls its `prepare()`, if there
is one. Each line of standard input is a JSON request (`name`, `arguments`, `env`, `log`,
`namespaces`), answered by the pid of a fork on standard output. A fork leads a session of its own,
enters its namespaces (the network namespace at a path, or the network and mount namespace of a pid)
and runs `MODULE.main(arguments)`. At the end of its input the server ends and its forks become
children of the nearest subreaper (`moefabric.runtime.processes.adopt_orphans`).
"""

import ctypes
import gc
import importlib
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run by its path: import from the repository, not from this folder
    sys.path = [*sys.path[1:], str(Path(__file__).absolute().parents[3])]

from moefabric.runtime.forking import fork

_LIBC = ctypes.CDLL(None, use_errno=True)


def main(module: str) -> int:
    """Serve requests until standard input ends."""
    program = importlib.import_module(module)
    getattr(program, "prepare", lambda: None)()
    gc.collect()
    gc.freeze()  # keeps loaded objects in shared pages: the garbage collectors of forks ignore them
    for line in sys.stdin:
        request = json.loads(line)
        pid = fork(request["name"], partial(_run, program, request))
        os.write(1, f"{pid}\n".encode())
    return 0


def _run(program: Any, request: dict[str, Any]) -> int:
    """Run the program in the fork and return its exit status."""
    os.setsid()
    _redirect_output(request["log"])
    os.environ.update(request["env"])
    try:
        _enter(request["namespaces"])
    except OSError as error:
        place = f"{request['name']}: can't enter {request['namespaces']}"
        sys.stderr.write(f"{place}: {error.strerror}\n")
        return 1
    return int(program.main(request["arguments"]))


def _redirect_output(log: str) -> None:
    """Connect standard input to /dev/null, standard output and standard error to the log."""
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for fd, source in ((0, null), (1, out), (2, out)):
        os.dup2(source, fd)
    os.close(null)
    os.close(out)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the old object buffers further requests


def _enter(namespaces: str | int) -> None:
    """Enter the network namespace at a path, or the network and mount namespace of a process."""
    folder, paths = Path.cwd(), [f"/proc/{namespaces}/ns/{kind}" for kind in ("net", "mnt")]
    if isinstance(namespaces, str):
        paths = [namespaces]
    opened = [os.open(path, os.O_RDONLY) for path in paths]
    for fd in opened:
        if _LIBC.setns(fd, 0) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        os.close(fd)
    os.chdir(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
