"""A control channel: how the experiment talks with one agent, over a unix socket or an SSH session alike."""

import json
import selectors
import socket
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from moefabric.errors import AgentError, LostError
from moefabric.units import NS_PER_S

Line = dict[str, Any]


class Stream(Protocol):
    """Bytes both ways: a connected socket, or a paramiko channel. `recv` gives b"" at the end, TimeoutError if nothing is there."""

    def fileno(self) -> int: ...
    def recv(self, nbytes: int, /) -> bytes: ...
    def sendall(self, data: bytes, /) -> object: ...
    def settimeout(self, timeout: float | None, /) -> None: ...
    def close(self) -> None: ...


class Channel:
    """One agent's control channel. Requests may overlap; replies and events are kept until somebody asks."""

    def __init__(self, name: str, stream: Stream, farewell: Callable[[], str] | None = None) -> None:
        """`farewell` tells why the channel ended, where more is known than that it did."""
        self.name, self.stream = name, stream
        self.replies: dict[int, Line] = {}
        self.events: list[Line] = []
        self.gone = ""
        self._farewell = farewell
        self._inbox = b""
        self._last = 0
        self._unwanted: set[int] = set()

    def post(self, op: str, **fields: Any) -> int:
        """Send a request without waiting; its number. LostError if the agent is gone."""
        self._last += 1
        try:
            self.stream.settimeout(10.0)
            self.stream.sendall(json.dumps({"id": self._last, "op": op, **fields}).encode() + b"\n")
        except OSError as error:
            self._end(f"its control channel broke: {error.strerror or error}")
        if self.gone:
            raise LostError(f"agent {self.name}: {self.gone}", [self.name])
        return self._last

    def read(self) -> None:
        """Take in what has come."""
        try:
            self.stream.settimeout(0.0)
            came = self.stream.recv(1 << 20)
        except (BlockingIOError, TimeoutError):
            return
        except OSError as error:
            self._end(f"its control channel broke: {error.strerror or error}")
            return
        if not came:
            self._end("its control channel closed" if self._farewell is None else self._farewell())
            return
        *lines, self._inbox = (self._inbox + came).split(b"\n")
        for line in lines:
            self._take(line)

    def forget(self, number: int) -> None:
        """Nobody will ask for the reply to this request any more, whether it has come or not."""
        if self.replies.pop(number, None) is None:
            self._unwanted.add(number)

    def close(self) -> None:
        """Close the channel; an agent over SSH ends with it, a local one lives on."""
        self.gone = self.gone or "its control channel was closed here"
        self.stream.close()

    def _take(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            self._end(f"it said something that is not of an agent: {line[:80].decode(errors='replace')}")
            return
        if "event" in said:
            self.events.append(said)
        elif said.get("id") in self._unwanted:
            self._unwanted.discard(said["id"])
        else:
            self.replies[said.get("id")] = said

    def _end(self, why: str) -> None:
        self.gone = self.gone or why


def local(name: str, socket_path: Path, deadline_s: float = 5.0) -> Channel:
    """The channel to the agent whose control socket this is, as soon as it listens. AgentError after `deadline_s`."""
    deadline = time.monotonic() + deadline_s
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(str(socket_path))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            sock.close()
            if time.monotonic() >= deadline:
                raise AgentError(
                    f"agent {name}: nobody listens at {socket_path} after {deadline_s:g} s; is the fabric up?"
                ) from error
            time.sleep(0.01)  # another process makes the socket, and tells nobody when
        except OSError as error:
            sock.close()
            raise AgentError(f"agent {name}: {socket_path}: {error.strerror}") from error
        else:
            return Channel(name, sock)


def wait(
    channels: Iterable[Channel],
    over: Callable[[Channel], bool],
    deadline_s: float,
    stop: Callable[[Channel], bool] = lambda _: False,
) -> list[Channel]:
    """Read from all until `over` says of each that it has said enough, or `stop` of one that nothing else counts.

    The channels that hadn't by then, or at the deadline.
    """
    deadline = time.monotonic() + deadline_s
    with selectors.DefaultSelector() as selector:
        waiting = {channel for channel in channels if not channel.gone and not over(channel)}
        for channel in waiting:
            selector.register(channel.stream, selectors.EVENT_READ, channel)
        stopped = any(map(stop, waiting))
        while waiting and not stopped and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                channel = key.data
                channel.read()
                stopped = stopped or stop(channel)
                if channel.gone or over(channel):
                    waiting.discard(channel)
                    selector.unregister(channel.stream)
        return sorted(waiting, key=lambda channel: channel.name)


class Bell:
    """Ends a wait for channels: one thread waits, any may ring."""

    def __init__(self) -> None:
        self._rope, self._clapper = socket.socketpair()
        for end in (self._rope, self._clapper):
            end.setblocking(False)

    def ring(self) -> None:
        """Let the wait that goes on, or the next one, end."""
        with suppress(BlockingIOError, OSError):  # it rings already, or nobody listens any more
            self._rope.send(b"!")

    def heard(self, channels: Iterable[Channel], timeout_s: float | None) -> bool:
        """Take in what comes by these channels, as soon as some does; whether the bell rang."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._clapper, selectors.EVENT_READ)
            for channel in channels:
                if not channel.gone:
                    selector.register(channel.stream, selectors.EVENT_READ, channel)
            ready = [key.data for key, _ in selector.select(timeout_s)]
        for channel in ready:
            if channel is not None:
                channel.read()
        if None not in ready:
            return False
        with suppress(BlockingIOError):
            self._clapper.recv(4096)
        return True

    def close(self) -> None:
        """It will not ring again."""
        self._rope.close()
        self._clapper.close()


def refuse_the_gone(channels: Collection[Channel]) -> None:
    """LostError that names every agent whose channel has ended."""
    if gone := [channel for channel in channels if channel.gone]:
        said = "; ".join(f"agent {channel.name}: {channel.gone}" for channel in gone)
        raise LostError(said, [channel.name for channel in gone])


def ask_all(requests: dict[Channel, tuple[str, Line]], deadline_s: float) -> dict[str, Line]:
    """One request to each channel, at once; the replies by agent.

    LostError names every agent that is gone or said nothing within `deadline_s`, AgentError those that refused.
    """
    numbers = {channel: channel.post(op, **fields) for channel, (op, fields) in requests.items()}
    silent = wait(numbers, lambda channel: numbers[channel] in channel.replies, deadline_s)
    refuse_the_gone(numbers)
    if silent:
        names = [channel.name for channel in silent]
        what = f"no answer to {requests[silent[0]][0]} within {deadline_s:g} s"
        raise LostError(f"agents {', '.join(names)}: {what}", names)
    replies = {channel.name: channel.replies.pop(number) for channel, number in numbers.items()}
    if refused := [reply["error"] for reply in replies.values() if not reply["ok"]]:
        raise AgentError("agent " + "; agent ".join(refused))
    return replies


def ns(seconds: float) -> int:
    """Nanoseconds of seconds."""
    return round(seconds * NS_PER_S)
