"""Bytes of requests from a connection, each with a deadline and a limit."""

import io
import socket
from collections.abc import Callable
from math import inf
from typing import Any


class RequestStream(io.RawIOBase):
    """Reads a connection whose peer must send a request in time.

    Args:
        connection: The connection.
        clock: Returns the seconds of a monotonic clock.
    """

    def __init__(self, connection: socket.socket, clock: Callable[[], float]) -> None:
        self._connection, self._clock = connection, clock
        self._deadline, self._bytes_left = inf, 0

    def expect(self, most_bytes: int, seconds: float = inf) -> None:
        """Expect at most so many further bytes, within so many seconds."""
        self._deadline, self._bytes_left = self._clock() + seconds, most_bytes

    def readable(self) -> bool:
        """Return True: bytes can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes and read them into a buffer; return their number.

        Raises:
            TimeoutError: if the deadline passes first.
            ConnectionAbortedError: if the peer has sent more than was expected.
        """
        if self._bytes_left <= 0:
            raise ConnectionAbortedError("a request is too large")
        count = self._receive(memoryview(buffer)[: self._bytes_left])
        self._bytes_left -= count
        return count

    def _receive(self, view: memoryview) -> int:
        if self._deadline == inf:
            self._connection.settimeout(None)
            return self._connection.recv_into(view)
        self._connection.settimeout(max(self._deadline - self._clock(), 1e-3))
        try:
            return self._connection.recv_into(view)
        except TimeoutError:
            # The deadline is the peer's: what has arrived while this process was busy counts.
            self._connection.settimeout(0)
            try:
                return self._connection.recv_into(view)
            except BlockingIOError:
                raise TimeoutError("the request did not arrive in time") from None
