"""HTTP/1.1 of the dashboard and the exporter: places by trust, a time limit, one reading for all.

uvicorn alone would wait without end for the first request of a connection.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from moefabric.runtime.connection_limit import FIRST_REQUEST_S, ConnectionLimit
from moefabric.ui.dashboard.access import has_token

MOST_STRANGERS: Final = 64
MOST_TRUSTED: Final = 128


class LimitedProtocol(H11Protocol):
    """A connection that holds a place of its listener's limit; subclasses have limit and token.

    A client is trusted from its first request with the token. All others share their places: a new
    one takes that of the one whose request is awaited for longest.

    Attributes:
        limit: The connections of the listener.
        token: The token; empty if there is none.
    """

    limit: ConnectionLimit["LimitedProtocol"]
    token: str
    _deadline: asyncio.TimerHandle | None = None
    _has_asked = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, or hang up."""
        super().connection_made(transport)
        if self.limit.add(self, self.client[0] if self.client else ""):
            self._expect_request()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self.limit.remove(self)
        self._forget_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Note the begin of a request, or how long its rest may take."""
        before = self.scope
        super().data_received(data)
        if self.scope is not before:
            self._request_began()
        elif not self._has_asked or self.cycle.response_complete:
            self._expect_request()

    def on_response_complete(self) -> None:
        """Regard the client as idle."""
        self.limit.end_request(self)
        super().on_response_complete()

    def _request_began(self) -> None:
        self._has_asked = True
        self._forget_deadline()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}
        trusted = bool(self.token) and has_token(headers, self.token)
        if not self.cycle.response_complete and not self.limit.begin_request(self, trusted=trusted):
            self.transport.abort()

    def _expect_request(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(FIRST_REQUEST_S, self.transport.abort)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def server_config(app: ASGIApp, token: str, *, keep_alive_s: int) -> uvicorn.Config:
    """Return the configuration of a server without a log, whose replies don't name its software.

    Args:
        app: What answers.
        token: The token of trusted clients; empty if there is none.
        keep_alive_s: How long a connection may be idle between requests.
    """
    limit = ConnectionLimit[LimitedProtocol](
        lambda one: one.transport.abort(), MOST_STRANGERS, MOST_STRANGERS, MOST_TRUSTED
    )
    protocol = type("Protocol", (LimitedProtocol,), {"limit": limit, "token": token})
    return uvicorn.Config(
        app,
        http=cast("Any", protocol),
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=1 << 14,
        ws="none",
    )


class SharedReading:
    """Reads something for requests, one reading at a time; those that wait share the next one.

    Args:
        read: Reads it, in a thread.
    """

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read, self._lock = read, asyncio.Lock()
        self._requested = self._begun = 0
        self._value = b""

    async def value(self) -> bytes:
        """Return what a reading that began after this call yields."""
        self._requested += 1
        number = self._requested
        async with self._lock:
            if self._begun < number:
                self._begun = self._requested
                self._value = await asyncio.to_thread(self._read)
            return self._value
