"""Messages: bytes from a rank's buffer to another's, which steps of a program send and receive.

A message leaves when its sender's step is ready and its receiver has granted it, so that all that
arrives has its place in memory. A connection carries the messages of many ranks one after another;
none of them waits in it for a receiver that isn't ready. A message whose place is free from the
start is granted beforehand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from moefabric.agents.engine.memory import add
from moefabric.agents.engine.transfers import Receive, Send, TransferKey


class MessageTarget:
    """The place of a message that is received.

    Args:
        place: Its place in the receiver's buffer; None to discard the message.
        element: Bytes of a number if the message is added to what is there; 0 if it replaces it.
        length: Bytes of the message, if they have no place.
    """

    checksum = 0

    def __init__(self, place: memoryview | None, element: int = 0, length: int = 0) -> None:
        self.place, self.element = place, element
        self.length = length if place is None else len(place)
        self.position = 0
        self.rest = b""  # the first bytes of a number whose others have not arrived

    @property
    def remaining(self) -> int:
        """Number of bytes after the position."""
        return self.length - self.position

    def accept(self, buffer: bytearray, offset: int, count: int) -> None:
        """Store or add `count` received bytes, which begin at `offset` of the buffer."""
        if self.place is not None and self.element:
            numbers = self.rest + buffer[offset : offset + count]
            begin = self.position - len(self.rest)
            size = len(numbers)
            if self.position + count < self.length:
                size -= size % self.element
            add(self.place[begin : begin + size], numbers[:size], self.element)
            self.rest = bytes(numbers[size:])
        elif self.place is not None:
            with memoryview(buffer) as view:
                self.place[self.position : self.position + count] = view[offset : offset + count]
        self.position += count


class MessageSend(Send):
    """A message to a rank on another server."""

    def __init__(self, key: TransferKey, content: memoryview, rate_bps: float | None) -> None:
        super().__init__(key, len(content), rate_bps)
        self.content = content


class MessageReceive(Receive):
    """A message from a rank on another server."""

    def __init__(self, key: TransferKey, target: MessageTarget) -> None:
        super().__init__(key, target.length)
        self.target = target


class MessageHandler(ABC):
    """Handles the reports of connections to the run of a program."""

    @abstractmethod
    def expected(self, number: int) -> MessageReceive | None:
        """Return the message with a number that is to arrive; None if there is none."""

    @abstractmethod
    def granted(self, number: int) -> None:
        """Send a message as soon as its step is ready."""

    @abstractmethod
    def connection_lost(self, peer: str, path: str, why: str) -> None:
        """Fail if messages were to arrive by a connection that is lost."""


class Messages:
    """The runs of programs that expect messages, by number."""

    def __init__(self, counters: dict[str, int]) -> None:
        self.counters = counters
        self.runs: dict[int, MessageHandler] = {}

    def begin(self, run: int, number: int, route: tuple[str, str], length: int) -> MessageReceive:
        """Return the message that a header announces; one that nobody expects is discarded."""
        handler = self.runs.get(run)
        receive = None if handler is None else handler.expected(number)
        key = TransferKey(run, *route, number)
        if receive is None or receive.key != key or receive.first_ns is not None:
            self.counters["strays"] += 1
            return MessageReceive(key, MessageTarget(None, length=length))
        if receive.bytes != length:
            receive.target = MessageTarget(None, length=length)
            receive.why = f"{length} bytes were sent where {receive.bytes} are expected"
        return receive

    def granted(self, run: int, number: int) -> None:
        """Pass on a receiver's grant; one for a run that has ended is ignored."""
        if run in self.runs:
            self.runs[run].granted(number)

    def lost(self, route: tuple[str, str], why: str) -> None:
        """Tell all runs that an incoming connection is lost."""
        for handler in list(self.runs.values()):
            handler.connection_lost(*route, why)
