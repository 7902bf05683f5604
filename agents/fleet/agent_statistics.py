"""Counters of running agents, each asked once over a control channel of its own."""

import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from moefabric.agents.fleet.channel import Channel, wait
from moefabric.core.errors import ServerLossError


def read_statistics(paths: Mapping[str, Path], timeout_s: float) -> dict[str, dict[str, Any]]:
    """Return the reply to `stats` of each agent that answers in time.

    Args:
        paths: Control sockets of the agents, by server.
        timeout_s: Time for all of them together.
    """
    numbers: dict[Channel, int] = {}
    with ExitStack() as sockets:
        for server, path in paths.items():
            stream = sockets.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            stream.setblocking(False)
            # An agent that has ended, or for which too many others wait, is left out.
            with suppress(OSError, ServerLossError):
                stream.connect(str(path))
                channel = Channel(server, stream)
                numbers[channel] = channel.post("stats")
        wait(numbers, lambda channel: numbers[channel] in channel.replies, timeout_s)
        replies = {channel.name: channel.replies.get(n) for channel, n in numbers.items()}
    return {server: reply for server, reply in replies.items() if reply and reply["ok"]}
