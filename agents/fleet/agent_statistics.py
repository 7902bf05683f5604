"""Counters of running agents, each asked once over a control channel of its own."""

import json
import selectors
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

_REQUEST: Final = b'{"id": 1, "op": "stats"}\n'
_MOST_READ: Final = 1 << 16


def read_statistics(paths: Mapping[str, Path], timeout_s: float) -> dict[str, dict[str, Any]]:
    """Return the reply to `stats` of each agent that answers in time.

    Args:
        paths: Control sockets of the agents, by server.
        timeout_s: Time for all of them together.
    """
    replies: dict[str, dict[str, Any]] = {}
    received: dict[str, bytes] = {}
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector, ExitStack() as sockets:
        for server, path in paths.items():
            channel = sockets.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            channel.setblocking(False)
            try:
                channel.connect(str(path))
                channel.send(_REQUEST)
            except OSError:  # it has ended, or too many others wait for it
                continue
            selector.register(channel, selectors.EVENT_READ, server)
            received[server] = b""
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                server, ready = key.data, key.fileobj
                assert isinstance(ready, socket.socket)
                data = _read(ready)
                received[server] += data
                if data and b"\n" not in received[server]:
                    continue
                selector.unregister(ready)
                if (reply := _reply(received[server])) is not None:
                    replies[server] = reply
    return replies


def _read(channel: socket.socket) -> bytes:
    try:
        return channel.recv(_MOST_READ)
    except OSError:
        return b""


def _reply(line: bytes) -> dict[str, Any] | None:
    try:
        reply = json.loads(line)
    except ValueError:
        return None
    return reply if isinstance(reply, dict) and reply.get("ok") is True else None
