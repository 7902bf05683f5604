"""A line to a device: one TCP connection, opened when it is needed and closed after any fault, with a deadline on every answer."""

import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from moefabric.errors import ControlError

Dial = Callable[[tuple[str, int], float], socket.socket]
"""Opens a connection to an address within some seconds: that of a program with another idea of waiting, where it has one."""

_MOST_BYTES: Final = 1 << 20


class LostError(ControlError):
    """The device didn't answer, or no longer does. What it was told last may be done or not."""


class SilenceError(LostError):
    """The device is there and said nothing in time."""


@dataclass(frozen=True)
class Patience:
    """So many seconds, counted from when it was made."""

    seconds: float
    ends: float

    @classmethod
    def of(cls, seconds: float) -> "Patience":
        """From now on."""
        return cls(seconds, time.monotonic() + seconds)

    @property
    def left_s(self) -> float:
        """What is left of it; never quite nothing, since a socket takes 0 for no waiting at all."""
        return max(1e-4, self.ends - time.monotonic())


class Line:
    """Bytes to a device and bytes from it. Whatever fails is a LostError that names the device."""

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        timeout_s: float = 2.0,
        dial: Dial = socket.create_connection,
    ) -> None:
        self.name, self.address, self.timeout_s, self._dial = name, address, timeout_s, dial
        self._socket: socket.socket | None = None
        self._heard = b""

    @property
    def is_open(self) -> bool:
        """Whether a connection is there, as far as is known: who hung up is noticed at the next word."""
        return self._socket is not None

    def open(self) -> None:
        """Call the device, if it isn't on the line."""
        if self._socket is not None:
            return
        try:
            self._socket = self._dial(self.address, self.timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as fault:
            raise self._lost(str(fault)) from fault

    def send(self, said: bytes) -> None:
        """Say something."""
        self.open()
        assert self._socket is not None
        try:
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(said)
        except OSError as fault:
            raise self._lost(str(fault)) from fault

    def hear(self, complete: re.Pattern[bytes], what: str, patience: Patience | None = None) -> bytes:
        """All up to and with the first match of `complete`, within `patience`. `what` was asked."""
        waiting = patience or Patience.of(self.timeout_s)
        while not (found := complete.search(self._heard)):
            self._heard += self._part(what, waiting)
        answer, self._heard = self._heard[: found.end()], self._heard[found.end() :]
        return answer

    def _part(self, what: str, patience: Patience) -> bytes:
        if self._socket is None:
            raise self._lost("not connected")
        try:
            self._socket.settimeout(patience.left_s)
            part = self._socket.recv(65536)
        except TimeoutError as fault:
            silence = self._lost(f"no answer to {what} within {patience.seconds:g} s")
            raise SilenceError(str(silence)) from fault
        except OSError as fault:
            raise self._lost(str(fault)) from fault
        if not part:
            raise self._lost("it hung up")
        if len(self._heard) > _MOST_BYTES:
            raise self._lost(f"an answer of more than {_MOST_BYTES} bytes")
        return part

    def _lost(self, why: str) -> LostError:
        self.close()
        return LostError(f"{self.name} at {self.address[0]}:{self.address[1]}: {why}")

    def close(self) -> None:
        """Hang up; half-heard answers are forgotten, so that a late one is never taken for the next."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._heard = None, b""
