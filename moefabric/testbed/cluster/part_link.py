"""The head's connection to one part: ordered requests, heartbeats, and the machine's clock."""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from moefabric.core.machines import LEASE_S
from moefabric.testbed.cluster.greeting import Connection, read_message, write_message

_HEARTBEAT_S: Final = 2.0
_HEARTBEAT_REPLY_S: Final = 4.0
REPLY_S: Final = 15.0
"""A busy machine may take seconds to read all counters of its part."""

Message = dict[str, Any]


@dataclass(frozen=True)
class MachineClock:
    """A machine's CLOCK_MONOTONIC minus the head's.

    Attributes:
        offset_ns: The difference.
        uncertainty_ns: The largest error of the difference: half the round trip of the request.
        at_ns: When it was measured, by the head's clock.
    """

    offset_ns: int
    uncertainty_ns: int
    at_ns: int


class PartLink:
    """A connection to a part, on which replies have the order of requests.

    Attributes:
        lost: Why the part is lost; empty while it is up.
        clock: The machine's clock, as measured last; None before.
        removed: Set when the part is removed by a command on its machine.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lease_s: float = LEASE_S
    ) -> None:
        self._reader, self._writer, self._lease_s = reader, writer, lease_s
        self._waiting = deque[asyncio.Future[Message]]()
        self._streams = set[asyncio.StreamWriter]()
        self._last_message_s = time.monotonic()
        self._replies = asyncio.create_task(self._read_replies())
        self.lost = ""
        self.clock: MachineClock | None = None
        self.removed = asyncio.Event()

    async def ask(self, message: Message, timeout_s: float = REPLY_S) -> Message:
        """Send a request and return the reply, or an `error` without one."""
        if self.lost:
            return {"error": self.lost}
        reply = asyncio.get_running_loop().create_future()
        self._waiting.append(reply)
        write_message(self._writer, message)
        try:
            return dict(await asyncio.wait_for(asyncio.shield(reply), timeout_s))
        except TimeoutError:
            return {"error": f"no answer within {timeout_s:g} s"}

    async def watch(self) -> None:
        """Send heartbeats until the part is lost or removed."""
        while not self.lost:
            await self._check()
            await asyncio.sleep(_HEARTBEAT_S)

    async def _check(self) -> None:
        """Send a heartbeat, measure the clock, and notice the end of the part."""
        sent_ns = time.monotonic_ns()
        reply = await self.ask({"do": "alive"}, min(_HEARTBEAT_REPLY_S, self._lease_s))
        received_ns = time.monotonic_ns()
        if "now_ns" in reply:
            middle_ns = (sent_ns + received_ns) // 2
            half_ns = -(-(received_ns - sent_ns) // 2)
            self.clock = MachineClock(reply["now_ns"] - middle_ns, half_ns, received_ns)
            if not reply["runs"]:
                self.lose("its part has ended")
                if not reply["exists"]:
                    self.removed.set()
        elif time.monotonic() - self._last_message_s > self._lease_s:
            self.lose(f"silent for {self._lease_s:g} s")

    @contextmanager
    def stream(self, connection: Connection) -> Iterator[None]:
        """Register a stream of the machine, which ends with the part."""
        self._streams.add(connection[1])
        try:
            yield
        finally:
            self._streams.discard(connection[1])

    def lose(self, reason: str) -> None:
        """Record the loss of the part, and end its streams and pending requests."""
        self.lost = self.lost or reason
        for writer in (self._writer, *self._streams):
            writer.transport.abort()
        while self._waiting:
            reply = self._waiting.popleft()
            if not reply.done():
                reply.set_result({"error": self.lost})

    async def _read_replies(self) -> None:
        with suppress(OSError, EOFError, ValueError):
            while True:
                message = await read_message(self._reader)
                self._last_message_s = time.monotonic()
                if self._waiting and not (reply := self._waiting.popleft()).done():
                    reply.set_result(message)
        self.lose("its connection has ended")
