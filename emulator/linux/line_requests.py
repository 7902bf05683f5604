"""Requests that are a line each: to programs by pipes, to sockets as JSON, and who asks there."""

import json
import select
import socket
import struct
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from moefabric.core.errors import FabricError
from moefabric.runtime.environment import fabric_user
from moefabric.runtime.processes import wait_or_kill

_CREDENTIALS: Final = struct.Struct("3i")


def ask_program(popen: subprocess.Popen[bytes], line: str, timeout_s: float, name: str) -> str:
    """Write a line to a program's standard input, and return the line that answers it.

    Raises:
        FabricError: if the program, which the error calls `name`, has ended or doesn't answer.
    """
    requests, replies = popen.stdin, popen.stdout
    if requests is None or replies is None:
        raise FabricError(f"{name} has ended")
    with suppress(BrokenPipeError):
        requests.write(line.encode() + b"\n")
        requests.flush()
    waiting = select.poll()
    waiting.register(replies, select.POLLIN)
    if not waiting.poll(timeout_s * 1e3):
        raise FabricError(f"{name} doesn't answer within {timeout_s:g} s")
    if not (reply := replies.readline()):
        raise FabricError(f"{name} has ended with status {popen.wait()}; see its messages")
    return reply.decode().strip()


def end_program(popen: subprocess.Popen[bytes], timeout_s: float) -> None:
    """End a program by the end of its standard input; kill it if it runs on."""
    for pipe in (popen.stdin, popen.stdout):
        if pipe is not None:
            pipe.close()
    wait_or_kill(popen, timeout_s)


def ask_socket(connection: socket.socket, message: Mapping[str, Any]) -> dict[str, Any]:
    """Send a JSON object as a line, and return that of the line that answers it.

    Raises:
        OSError: if the connection ends, or its time-out passes.
        ValueError: if the reply isn't a JSON object.
    """
    connection.sendall(json.dumps(message).encode() + b"\n")
    return read_reply(connection)


def read_reply(connection: socket.socket) -> dict[str, Any]:
    """Return the JSON object of the next line; raise as `ask_socket`."""
    with connection.makefile() as lines:
        return dict(json.loads(lines.readline()))


def peer(connection: socket.socket) -> tuple[int, bool]:
    """Return the pid of the peer, and whether it runs as root or as the fabric's user.

    The kernel knows both since the peer has connected (SO_PEERCRED, unix(7)).
    """
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return pid, uid in {0, fabric_user()}
