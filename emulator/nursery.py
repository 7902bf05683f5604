"""The nursery: a process that loads a program once and forks it as often as it is told, where a start each would take 100 times as long.

`python emulator/nursery.py MODULE` imports MODULE and calls its `prepare()`, if it has one; each line on standard input is a birth
(JSON: `name`, `words`, `env`, `log`, `place`), and the pid of each is said on standard output. What is born runs `MODULE.main(words)`
in a session of its own, at its place: the network namespace at a path, or the network and mount namespace of a pid. When the input
ends the nursery ends, and its children go to whoever adopts orphans (emulator.processes).
"""

import ctypes
import gc
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_PR_SET_NAME = 15
_LIBC = ctypes.CDLL(None, use_errno=True)

if (
    not __package__
):  # run by its path: Python shall look for `emulator` and `agents`, and not for what is in here
    sys.path = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]


def main(words: list[str]) -> int:
    """Fork until standard input ends: 0. In a fork, the status that the program ends with."""
    program = importlib.import_module(words[0])
    getattr(program, "prepare", lambda: None)()
    gc.collect()
    gc.freeze()  # what is loaded stays shared: the forks' collectors don't write into it
    for line in sys.stdin:
        birth = json.loads(line)
        pid = os.fork()
        if pid == 0:
            return _live(program, birth)
        os.write(1, f"{pid}\n".encode())
    return 0


def _live(program: Any, birth: dict[str, Any]) -> int:
    """The life of a fork."""
    os.setsid()
    _speak_to(birth["log"])
    _LIBC.prctl(_PR_SET_NAME, birth["name"].encode()[:15], 0, 0, 0)
    os.environ.update(birth["env"])
    try:
        _go_to(birth["place"])
    except OSError as refused:
        sys.stderr.write(f"{birth['name']}: can't go to {birth['place']}: {refused.strerror}\n")
        return 1
    try:
        return int(program.main(birth["words"]))
    except Exception:  # noqa: BLE001 - the last place that can tell the log
        traceback.print_exc()
        return 1


def _speak_to(log: str) -> None:
    """Have nothing on standard input, and the log for what is said."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for fd, source in ((0, nothing), (1, out), (2, out)):
        os.dup2(source, fd)
    os.close(nothing)
    os.close(out)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as it lives; the old one has births yet unread


def _go_to(place: str | int) -> None:
    """Enter namespaces: the network at a path, or the network and mounts of a process. OSError where that can't be."""
    here = Path.cwd()
    fd = os.open(place, os.O_RDONLY) if isinstance(place, str) else os.pidfd_open(place)
    kinds = _CLONE_NEWNET if isinstance(place, str) else _CLONE_NEWNET | _CLONE_NEWNS
    try:
        if _LIBC.setns(fd, kinds) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)
    os.chdir(here)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
