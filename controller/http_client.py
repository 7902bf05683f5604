"""JSON over a persistent HTTP/1.1 connection, for the controller client and RESTCONF."""

import json
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import errorcode
from http.client import HTTPConnection, HTTPException
from typing import Any

from moefabric.core.errors import ControlError, MisconfiguredError

Dial = Callable[[tuple[str, int], float], socket.socket]
"""Opens a TCP connection, given address and timeout in s, as `socket.create_connection` does."""


class NoResponseError(ControlError):
    """The peer is unreachable or has hung up. It may or may not have executed the last command."""


class ResponseTimeoutError(NoResponseError):
    """The peer is connected but did not answer in time."""


def reason(error: Exception) -> str:
    """Return an error's text without its number, or its type if it has no text."""
    text = error.strerror if isinstance(error, OSError) else ""
    if isinstance(error, OSError) and error.errno and text == errorcode.get(error.errno):
        text = os.strerror(error.errno)  # Eventlet's have ECONNREFUSED and the like as text
    return text or str(error) or type(error).__name__


def no_response(place: str, error: Exception) -> ControlError:
    """Return the error of a peer that isn't reached: a lasting one if its host has no address."""
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME:
        remedy = "give an address, or a name that this machine knows"
        return MisconfiguredError(f"{place}: {reason(error)}: {remedy}")
    return NoResponseError(f"{place}: {reason(error)}")


class HttpClient(HTTPConnection):
    """An HTTP connection that opens on demand, closes after any fault and names its peer in errors.

    Args:
        name: The peer's name in errors.
        timeout_s: How long connecting or one response may take.
        dial: Opens the TCP connection; in a process that runs on Eventlet, one of Eventlet's.
    """

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        timeout_s: float,
        dial: Dial = socket.create_connection,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(*address, timeout=timeout_s)
        self._address, self._timeout_s, self._dial = address, timeout_s, dial
        self.place = f"{name} at {address[0]}:{address[1]}"
        self._headers = headers or {}
        self._request_bytes = bytearray()

    def connect(self) -> None:
        """Open the TCP connection."""
        self.sock = self._dial(self._address, self._timeout_s)
        self.sock.settimeout(self._timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: Any) -> None:
        """Keep a part of a request: its headers and body are sent together, to be read at once."""
        self._request_bytes += data

    def exchange(
        self, method: str, path: str, document: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send a request and return the status and body of the response.

        Args:
            document: Value that the body encodes as JSON; None for no body.
            headers: Headers of this request, beside those of every request.

        Raises:
            ResponseTimeoutError: if the peer does not answer within the timeout.
            NoResponseError: if the peer is unreachable or hangs up.
            MisconfiguredError: if there is no such host.
        """
        body = None if document is None else json.dumps(document).encode()
        try:
            self._request_bytes.clear()
            self.request(method, path, body, {**self._headers, **(headers or {})})
            super().send(bytes(self._request_bytes))
            response = self.getresponse()
            return response.status, response.read()
        except TimeoutError as error:
            self.close()
            raise ResponseTimeoutError(
                f"{self.place}: no answer to {method} {path} within {self._timeout_s:g} s"
            ) from error
        except (OSError, HTTPException) as error:
            self.close()
            raise no_response(self.place, error) from error

    def shut_down(self) -> None:
        """Make a pending `exchange` of another thread raise NoResponseError."""
        if (sock := self.sock) is not None:
            with suppress(OSError):  # the connection has ended already
                sock.shutdown(socket.SHUT_RDWR)
