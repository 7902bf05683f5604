"""Control channels: JSON lines between the experiment and one agent each.

A channel runs over a Unix socket or an SSH session. `moefabric.agents.engine` documents the lines.
"""

import json
import selectors
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

from moefabric.agents.fleet.messages import EXCHANGE_EVENTS, Message, parse_message
from moefabric.core.errors import AgentError, ServerLossError


class Stream(Protocol):
    """A byte stream: a connected socket or an SSH session.

    `recv` returns b"" at the end and raises TimeoutError where nothing has arrived.
    """

    def fileno(self) -> int:
        """Return the descriptor to wait for."""

    def recv(self, nbytes: int, /) -> bytes:
        """Return received bytes."""

    def sendall(self, data: bytes, /) -> object:
        """Send all of `data`."""

    def settimeout(self, timeout: float | None, /) -> None:
        """Set the timeout of the other methods in seconds; 0 for not waiting, None for ever."""

    def close(self) -> None:
        """Close the stream."""


class Channel:
    """The control channel of one agent. Requests may overlap.

    Args:
        name: The agent's server.
        stream: Connection to the agent.
        end_reason: Returns why the stream ended; None if the reason can't be known.

    Attributes:
        replies: Replies by request number, until a caller removes them.
        reports: Reports on ended collectives by number, until a caller removes them.
        rank_events: Deaths and returns of ranks in order, until a caller removes them.
        exchange_events: What ranks ask for, and losses of ranks, in order, until removed.
        gone: Why the channel has ended; empty while it is open.
    """

    def __init__(
        self, name: str, stream: Stream, end_reason: Callable[[], str] | None = None
    ) -> None:
        self.name, self.stream = name, stream
        self.replies: dict[int, Message] = {}
        self.reports: dict[int, Message] = {}
        self.rank_events: list[Message] = []
        self.exchange_events: list[Message] = []
        self.gone = ""
        self._end_reason = end_reason
        self._inbox = b""
        self._last_number = 0
        self._forgotten: set[int] = set()

    def post(self, op: str, **fields: Any) -> int:
        """Send a request without waiting for the reply; return its number.

        Raises:
            ServerLossError: if the agent is gone.
        """
        self._last_number += 1
        request = {"id": self._last_number, "op": op, **fields}
        try:
            self.stream.settimeout(10.0)
            self.stream.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            self._end_by(f"its control channel broke: {error.strerror or error}")
        check_open([self])
        return self._last_number

    def read(self) -> None:
        """Read and store all lines that have arrived."""
        try:
            self.stream.settimeout(0.0)
            data = self.stream.recv(1 << 16)
        except (BlockingIOError, TimeoutError):
            return
        except OSError as error:
            self._end_by(f"its control channel broke: {error.strerror or error}")
            return
        if not data:
            self._end_by("its control channel closed")
            return
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            self._take(line)

    def forget(self, number: int) -> None:
        """Drop the reply to a request, even if it arrives later."""
        if self.replies.pop(number, None) is None:
            self._forgotten.add(number)

    def close(self) -> None:
        """Close the channel. This ends an agent over SSH but not a local one."""
        self._end("its control channel was closed here")
        self.stream.close()

    def _take(self, line: bytes) -> None:
        try:
            message = parse_message(line)
        except ValueError as error:
            self._end(str(error))
            return
        event = message.get("event")
        if event == "done":
            self.reports[message["collective"]] = message
        elif event == "rank":
            self.rank_events.append(message)
        elif event in EXCHANGE_EVENTS:
            self.exchange_events.append(message)
        elif event is None and message["id"] in self._forgotten:
            self._forgotten.discard(message["id"])
        elif event is None:
            self.replies[message["id"]] = message

    def _end_by(self, symptom: str) -> None:
        """End the channel for the reason that its stream knows, or else for the symptom."""
        self._end(self.gone or (self._end_reason() if self._end_reason else symptom))

    def _end(self, why: str) -> None:
        self.gone = self.gone or why


def connect_local(
    name: str,
    socket_path: Path,
    deadline_s: float = 5.0,
    end_reason: Callable[[], str] | None = None,
) -> Channel:
    """Return a channel to the agent at a Unix socket, as soon as it listens.

    Args:
        deadline_s: How long the agent may take to listen.
        end_reason: As for `Channel`.

    Raises:
        AgentError: after `deadline_s`, or if the socket can't be used.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(str(socket_path))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            sock.close()
            if time.monotonic() >= deadline:
                raise AgentError(
                    f"agent {name}: nobody listens at {socket_path} after {deadline_s:g} s; "
                    "is the fabric up?"
                ) from error
            time.sleep(0.01)  # no event announces the socket of a starting agent
        except OSError as error:
            sock.close()
            raise AgentError(f"agent {name}: {socket_path}: {error.strerror}") from error
        else:
            return Channel(name, sock, end_reason)


def wait(
    channels: Iterable[Channel], is_done: Callable[[Channel], bool], deadline_s: float
) -> list[Channel]:
    """Read from channels until each is done or gone, or the deadline passes.

    Args:
        is_done: Returns whether a channel needs no more reading.

    Returns:
        The channels that are neither done nor gone.
    """
    deadline = time.monotonic() + deadline_s
    with selectors.DefaultSelector() as selector:
        waiting = {channel for channel in channels if not channel.gone and not is_done(channel)}
        for channel in waiting:
            selector.register(channel.stream, selectors.EVENT_READ, channel)
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                channel = key.data
                channel.read()
                if channel.gone or is_done(channel):
                    waiting.discard(channel)
                    selector.unregister(channel.stream)
        return sorted(waiting, key=lambda channel: channel.name)


def check_open(channels: Collection[Channel]) -> None:
    """Raise ServerLossError, with all channels that have ended, if there are any."""
    if gone := [channel for channel in channels if channel.gone]:
        reasons = "; ".join(f"agent {channel.name}: {channel.gone}" for channel in gone)
        raise ServerLossError(reasons, [channel.name for channel in gone])


def ask_all(
    requests: Mapping[Channel, tuple[str, Message]], deadline_s: float
) -> dict[Channel, Message]:
    """Send a request to each channel at the same time; return the replies of those that answer.

    Args:
        requests: Operation and fields for each channel.
        deadline_s: How long the replies may take; later ones are dropped.
    """
    numbers = dict[Channel, int]()
    for channel, (op, fields) in requests.items():
        with suppress(ServerLossError):
            numbers[channel] = channel.post(op, **fields)
    silent = wait(numbers, lambda channel: numbers[channel] in channel.replies, deadline_s)
    for channel in silent:
        channel.forget(numbers.pop(channel))
    answered = [channel for channel, number in numbers.items() if number in channel.replies]
    return {channel: channel.replies.pop(numbers[channel]) for channel in answered}


def request_all(
    requests: Mapping[Channel, tuple[str, Message]], deadline_s: float
) -> dict[str, Message]:
    """Send a request to each channel at the same time; return the replies by agent.

    Raises:
        ServerLossError: if agents are gone or silent; names them all.
        AgentError: if agents refuse; names them all.
    """
    replies = ask_all(requests, deadline_s)
    check_open(requests)
    if silent := sorted(requests.keys() - replies, key=lambda channel: channel.name):
        names = [channel.name for channel in silent]
        what = f"no answer to {requests[silent[0]][0]} within {deadline_s:g} s"
        raise ServerLossError(f"agents {', '.join(names)}: {what}", names)
    if refusals := [reply["error"] for reply in replies.values() if not reply["ok"]]:
        raise AgentError("agent " + "; agent ".join(refusals))
    return {channel.name: reply for channel, reply in replies.items()}


def read_statistics(paths: Mapping[str, Path], timeout_s: float) -> dict[str, dict[str, Any]]:
    """Return the reply to `stats` of each agent that answers in time.

    Args:
        paths: Control sockets of the agents, by server.
        timeout_s: Time for all of them together.
    """
    requests: dict[Channel, tuple[str, Message]] = {}
    with ExitStack() as sockets:
        for server, path in paths.items():
            stream = sockets.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            stream.setblocking(False)
            # An agent that has ended, or for which too many others wait, is left out.
            with suppress(OSError):
                stream.connect(str(path))
                requests[Channel(server, stream)] = "stats", {}
        replies = ask_all(requests, timeout_s)
    return {channel.name: reply for channel, reply in replies.items() if reply["ok"]}
