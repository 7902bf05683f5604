"""HTTP/1.1 connections to a controller: deadlines, limits and refusals around each request.

A browser sends requests of any web page to any address. It adds `Origin`, can't set `Authorization`
without a preflight request, and a page whose host name was rebound to this address (DNS rebinding)
has that name in `Host`.
"""

import hmac
import io
import json
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from math import inf
from pathlib import Path
from socketserver import BaseServer
from typing import Any, Final, cast

from moefabric.controller.service.controller import Controller
from moefabric.controller.service.northbound import respond
from moefabric.runtime.connection_limit import FIRST_REQUEST_S, ConnectionLimit
from moefabric.runtime.structured_log import ids_of_baggage, log_context

MOST_BODY_BYTES: Final = 1 << 21
"""A region has at most 256 servers, and a number of their demand takes at most 26 characters with
its comma: 1.7 MB."""
_MOST_HEAD_BYTES: Final = 32 << 10
_REQUEST_S: Final = FIRST_REQUEST_S
"""Time for a request to arrive. A client sends it in one piece."""
_RESPONSE_S: Final = 30.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HttpAccess:
    """The requests that a listener accepts: those with the fabric's token, and of no web page.

    Attributes:
        address: Host and TCP port of the listener.
        token_file: The file with the token, which refusals name.
    """

    token: str = field(repr=False)
    address: tuple[str, int]
    token_file: Path

    def refusals(self, method: str, headers: Message) -> Iterator[tuple[HTTPStatus, str]]:
        """Yield status and reason of each refusal; none if a request is accepted."""
        host = f"{self.address[0]}:{self.address[1]}"
        if headers.get("Host") != host:
            error = f"Host is not {host}: use the address that `moefabric inspect` shows"
            yield HTTPStatus.MISDIRECTED_REQUEST, error
        if "Origin" in headers:
            yield HTTPStatus.FORBIDDEN, "requests of web pages (Origin) are refused"
        scheme, _, credentials = headers.get("Authorization", "").partition(" ")
        presented = credentials.strip().encode(errors="replace")
        if not hmac.compare_digest(self.token.encode(), presented) or scheme.lower() != "bearer":
            error = f"Authorization: Bearer TOKEN is needed, with the token in {self.token_file}"
            yield HTTPStatus.UNAUTHORIZED, error
        media_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if method == "POST" and media_type != "application/json":
            yield HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type: application/json is needed"
        length = headers.get("Content-Length", "0" if method == "GET" else "")
        if not length.isdecimal() or "Transfer-Encoding" in headers:
            yield HTTPStatus.LENGTH_REQUIRED, "a Content-Length is needed"
        elif len(length) > len(str(MOST_BODY_BYTES)) or int(length) > MOST_BODY_BYTES:
            error = f"Content-Length: at most {MOST_BODY_BYTES} bytes are accepted"
            yield HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error


def hang_up(connection: socket.socket) -> None:
    """Close a connection, and wake the thread that reads it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        log.debug("the connection has ended already: %s", error)


class RequestStream(io.RawIOBase):
    """Reads a connection whose peer must send a request in time.

    Args:
        clock: Returns the seconds of a monotonic clock.
    """

    def __init__(self, connection: socket.socket, clock: Callable[[], float]) -> None:
        self._connection, self._clock = connection, clock
        self._deadline, self._bytes_left = inf, 0

    def expect(self, most_bytes: int, seconds: float = inf) -> None:
        """Set the limit of further bytes, and the seconds within which they have to arrive."""
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
        view, left_s = memoryview(buffer)[: self._bytes_left], self._deadline - self._clock()
        self._connection.settimeout(None if left_s == inf else max(left_s, 1e-3))
        try:
            count = self._connection.recv_into(view)
        except TimeoutError:
            # The deadline is the peer's: what has arrived while this process was busy counts.
            self._connection.settimeout(0)
            try:
                count = self._connection.recv_into(view)
            except BlockingIOError:
                raise TimeoutError("the request did not arrive in time") from None
        self._bytes_left -= count
        return count


@dataclass
class NorthboundService:
    """A controller's northbound interface, for all connections.

    Attributes:
        access: Which requests are accepted.
    """

    controller: Controller
    access: HttpAccess
    connections: ConnectionLimit[socket.socket] = field(
        default_factory=lambda: ConnectionLimit(hang_up)
    )

    def serve(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        """Serve the requests of a connection until it ends, if there is a place for it."""
        if self.connections.add(connection, peer[0]):
            _Handler(connection, peer, self)


class _Handler(BaseHTTPRequestHandler):
    """Serves the requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # a response is sent in one piece

    def __init__(
        self, connection: socket.socket, peer: tuple[str, int], service: NorthboundService
    ) -> None:
        self.service = service
        super().__init__(connection, peer, cast("BaseServer", None))  # handlers don't use it

    def setup(self) -> None:
        """Prepare to read the connection."""
        super().setup()
        self.rfile.close()
        self._stream = RequestStream(self.connection, self.service.controller.clock)
        self.rfile = self._buffer = io.BufferedReader(self._stream)
        self._is_trusted = False

    def finish(self) -> None:
        """Forget the connection."""
        self.service.connections.remove(self.connection)
        super().finish()

    def handle_one_request(self) -> None:
        """Wait for a request, which may then take only so long to arrive, and serve it."""
        try:
            # A client may compute for minutes between two requests.
            self._stream.expect(_MOST_HEAD_BYTES, inf if self._is_trusted else _REQUEST_S)
            if not self._buffer.peek(1):
                self.close_connection = True
                return
            self._stream.expect(_MOST_HEAD_BYTES, _REQUEST_S)
            super().handle_one_request()
        except OSError as error:
            self.log_message("connection lost: %s", error)
            self.close_connection = True
        finally:
            self.service.connections.end_request(self.connection)

    def do_GET(self) -> None:
        """Serve a query or a command."""
        service, started_s = self.service, self.service.controller.clock()
        for refusal in service.access.refusals(self.command, self.headers):
            self._refuse(*refusal)
            return
        if not service.connections.begin_request(self.connection):
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at a time")
            return
        self._is_trusted = True
        length = int(self.headers.get("Content-Length", "0"))
        self._stream.expect(length, _REQUEST_S)
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionAbortedError("the request ends early")
        with log_context(**ids_of_baggage(self.headers.get("baggage"))):
            response = respond(service.controller, self.command, self.path, body, started_s)
        self._send(*response)

    do_POST = do_GET  # noqa: N815 - http.server's name

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Respond to a request that can't be parsed, and close the connection."""
        status = HTTPStatus(code)
        self._refuse(status, message or explain or status.phrase)

    def _refuse(self, status: HTTPStatus, error: str) -> None:
        self.close_connection = True  # the rest of the request is not read
        self.service.controller.statistics.count_request("refused", status)
        self._send(status, {"error": error})

    def _send(self, status: HTTPStatus, document: Mapping[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.connection.settimeout(_RESPONSE_S)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Log instead of printing."""
        log.debug(format, *args)
