"""TCP connections to devices: opened on demand, closed after errors, with a deadline per answer.

Logins that a device refuses are repeated rarely.
"""

import errno
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from random import sample
from typing import Final, Self

from moefabric.controller.http_client import (
    Dial,
    NoResponseError,
    ResponseTimeoutError,
    no_response,
    reason,
)
from moefabric.core.errors import ControlError, MisconfiguredError
from moefabric.core.ocs_dialect import DriverSettings
from moefabric.runtime.waiting import Deadline

_MOST_BYTES: Final = 1 << 20
_RESERVED_PORTS: Final = range(666, 1024)
"""Ports for privileged processes that few services listen at (bindresvport(3) uses them, too)."""
_RESERVED_ATTEMPTS: Final = 8


class LoginRefusedError(MisconfiguredError):
    """The device refuses the account. Frequent attempts may lock it."""

    def __init__(self, message: str, password_env: str | None = None) -> None:
        given = f"ocs.user, or the password in {password_env}"
        remedy = given if password_env else "ocs.user and ocs.password_env"
        super().__init__(f"{message}: set {remedy}")


def from_reserved_port(dial: Callable[..., socket.socket]) -> Dial:
    """Return a function that opens connections from a port that only privileged processes may use.

    The emulated OCS keeps places for such clients, as NFS servers do. A process without the
    privilege, and one whose attempts all fail, gets an ordinary port.

    Args:
        dial: Opens a TCP connection, given address, timeout and source address.
    """

    def open_connection(address: tuple[str, int], timeout_s: float) -> socket.socket:
        for port in sample(_RESERVED_PORTS, _RESERVED_ATTEMPTS):
            try:
                return dial(address, timeout_s, ("", port))
            except OSError as error:
                if error.errno not in {errno.EADDRINUSE, errno.EADDRNOTAVAIL}:
                    if error.errno in {errno.EACCES, errno.EPERM}:
                        break
                    raise
        return dial(address, timeout_s)

    return open_connection


@dataclass(frozen=True)
class RetryDelays:
    """Delays between attempts to reach a device, in s.

    Attributes:
        lost: First and longest delay after any other error.
        refused: First and longest delay after a refused login. Devices lock accounts for minutes
            after 3 to 5 refusals within minutes.
    """

    lost: tuple[float, float] = (0.05, 5.0)
    refused: tuple[float, float] = (300.0, 3600.0)

    def after(self, error: ControlError | None, previous_s: float) -> float:
        """Return the next delay.

        Args:
            error: Why the attempt failed or the session ended.
            previous_s: The delay before it; 0 if the device had been reached.
        """
        first, longest = self.refused if isinstance(error, LoginRefusedError) else self.lost
        return min(max(first, 2 * previous_s), longest)


@dataclass(eq=False)
class DeviceConnection:
    """Sends bytes to a device and reads its answers.

    Every failure is a NoResponseError that names the device, or a MisconfiguredError if there is no
    such host.

    Attributes:
        name: The device's name in errors.
        timeout_s: How long connecting, sending or an answer may take.
    """

    name: str
    address: tuple[str, int]
    timeout_s: float = 2.0
    dial: Dial = socket.create_connection
    _socket: socket.socket | None = field(default=None, init=False)
    _inbox: bytes = field(default=b"", init=False)

    @classmethod
    def of(cls, settings: DriverSettings) -> Self:
        """Return the connection that the settings of a driver describe."""
        return cls(settings.ocs.name, settings.address, settings.timeout_s, settings.dial)

    @property
    def place(self) -> str:
        """The device's name and address, for errors."""
        return f"{self.name} at {self.address[0]}:{self.address[1]}"

    @property
    def is_open(self) -> bool:
        """True if the connection is open; a hang-up of the peer shows at the next send or read."""
        return self._socket is not None

    def send(self, data: bytes) -> None:
        """Send all of `data`; connect first if the connection isn't open."""
        try:
            if self._socket is None:
                self._socket = self.dial(self.address, self.timeout_s)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(data)
        except OSError as error:
            self.close()
            raise no_response(self.place, error) from error

    def keep_alive(self, seconds: int) -> None:
        """Probe an idle peer after some seconds, at this interval, as many times (tcp(7))."""
        if self._socket is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
                self._socket.setsockopt(socket.IPPROTO_TCP, option, seconds)

    def read_until(
        self, end: re.Pattern[bytes], request: str, deadline: Deadline | None = None
    ) -> bytes:
        """Return the received bytes up to and including the first match of `end`.

        Args:
            end: Pattern that an answer ends with.
            request: The request that is answered, for errors.
            deadline: When the answer is due; None for the connection's timeout.

        Raises:
            ResponseTimeoutError: if the answer is not complete by the deadline.
            NoResponseError: if the device hangs up.
        """
        deadline = deadline or Deadline.after(self.timeout_s)
        while not (match := end.search(self._inbox)):
            self._inbox += self._receive(request, deadline)
        answer, self._inbox = self._inbox[: match.end()], self._inbox[match.end() :]
        return answer

    def _receive(self, request: str, deadline: Deadline) -> bytes:
        if self._socket is None:
            raise self._closed("not connected")
        left_s = max(1e-4, deadline.remaining_s)  # a socket with timeout 0 doesn't wait at all
        try:
            self._socket.settimeout(None if left_s == inf else left_s)
            data = self._socket.recv(65536)
        except TimeoutError as error:
            why = f"no answer to {request} within {deadline.wait_s:g} s"
            late = self._closed(reason(error) if left_s == inf else why)
            raise ResponseTimeoutError(str(late)) from error
        except OSError as error:
            raise self._closed(reason(error)) from error
        if not data:
            raise self._closed("it hung up")
        if len(self._inbox) > _MOST_BYTES:
            raise self._closed(f"an answer of more than {_MOST_BYTES} bytes")
        return data

    def _closed(self, why: str) -> NoResponseError:
        self.close()
        return NoResponseError(f"{self.place}: {why}")

    def close(self) -> None:
        """Close the connection and drop unread bytes, so that no late answer counts as the next."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._inbox = None, b""
