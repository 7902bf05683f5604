"""Access to the dashboard: checks of Host, Origin and token, and the headers of every reply."""

import hmac
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGE_POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content Security Policy of the page: nothing from elsewhere, no inline code or style."""
REPORT_POLICY: Final = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
)
"""Content Security Policy of a report in its frame: it runs no code, and loads nothing."""
_HEADERS: Final = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def refusal(headers: Mapping[str, str], listen_host: str) -> str | None:
    """Return why a request may not be answered to anybody, or None.

    A page of another site can make a browser send requests here. Its name is in `Origin`, or, if it
    has let its own name lead here (DNS rebinding), in `Host`.

    Args:
        headers: Headers of the request, by names in lower case.
        listen_host: Host that the server listens on, which may be a name.
    """
    host = headers.get("host", "")
    name = _hostname(host)
    if parsed_address(name) is None and name not in ("localhost", listen_host):
        return f"Host: {host!r} is not an address of this server"
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        return f"Origin: {origin!r} is another site"
    if headers.get("sec-fetch-site") == "cross-site":
        return "Sec-Fetch-Site: the request comes from another site"
    return None


def _hostname(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] or host


def parsed_address(name: str) -> IPv4Address | IPv6Address | None:
    """Return an IP address; None for the name of a host."""
    try:
        return ip_address(name)
    except ValueError:
        return None


def has_token(headers: Mapping[str, str], token: str) -> bool:
    """Return whether a request carries the token (RFC 6750, section 2.1)."""
    scheme, _, presented = headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(presented.encode(), token.encode())


class Guard:
    """Refuses requests of other sites, and without the token, before anything else is done.

    Args:
        app: What answers the other requests.
        listen_host: Host that the server listens on.
        needs_token: Whether a path needs the token.
    """

    def __init__(
        self, app: ASGIApp, token: str, listen_host: str, needs_token: Callable[[str], bool]
    ) -> None:
        self._app, self._token = app, token
        self._listen_host, self._needs_token = listen_host, needs_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI 3)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers, reply = Headers(scope=scope), self._app
        if reason := refusal(headers, self._listen_host):
            reply = JSONResponse({"error": reason}, 403)
        elif self._needs_token(scope["path"]) and not has_token(headers, self._token):
            challenge = {"WWW-Authenticate": "Bearer"}
            reply = JSONResponse({"error": "the token is missing or wrong"}, 401, challenge)
        await reply(scope, receive, send_guarded)
