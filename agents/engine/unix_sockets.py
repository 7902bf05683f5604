"""Unix sockets at which an agent listens."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from moefabric.agents.engine.requests import RefusedError


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
