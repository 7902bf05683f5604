"""Unix sockets at which an agent listens."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from moefabric.agents.engine.requests import RefusedError

_FOLDER: Final = "moefabric-"
"""Prefix of the names of folders for sockets."""
_START_S: Final = 60.0
"""Age from which a socket without a listener is one that was left, and not one that starts."""


@contextmanager
def socket_folder(name: str) -> Iterator[str]:
    """Yield the path of a socket in a folder of its own, which only its owner may enter.

    Folders of agents that were killed are removed first.

    Args:
        name: name of the socket in the folder.
    """
    with suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
            facts = folder.lstat()
            is_old = time.time() - facts.st_mtime > _START_S
            if facts.st_uid == os.getuid() and is_old and _is_dead(folder / name):
                (folder / name).unlink(missing_ok=True)
                folder.rmdir()
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as own:
        yield f"{own}/{name}"


def _is_dead(path: Path) -> bool:
    """Whether there is a Unix socket at which no process listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def listen_unix(path: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Return a listening socket that only its owner may open.

    Args:
        path: Where it listens; the socket of an agent that has ended is replaced. With `@` in
            front it is a name in the network namespace, whose programs may all connect.
        kind: `SOCK_STREAM` or `SOCK_SEQPACKET`.

    Raises:
        RefusedError: if another agent listens there.
    """
    is_name = path.startswith("@")
    address = f"\0{path[1:]}" if is_name else path
    probe = socket.socket(socket.AF_UNIX, kind)
    try:
        probe.connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        if not is_name:
            Path(path).unlink(missing_ok=True)
    else:
        raise RefusedError(
            f"{path}: an agent answers there already; stop it, or choose another path"
        )
    finally:
        probe.close()
    sock = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    umask = os.umask(0o177)
    try:
        sock.bind(address)
    finally:
        os.umask(umask)
    sock.listen(64)
    return sock
