"""Check of HTTP requests: they must carry the fabric's token and come from no web page.

A browser sends requests of any web page to any address. It adds `Origin`, can't set `Authorization`
without a preflight request, and a page whose host name was rebound to this address (DNS rebinding)
has that name in `Host`.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from typing import Any

Response = tuple[HTTPStatus, Mapping[str, Any]]
"""Status and JSON document."""


@dataclass(frozen=True)
class HttpAccess:
    """The requests that a listener accepts.

    Attributes:
        token: The fabric's token.
        address: Host and TCP port of the listener.
    """

    token: str = field(repr=False)
    address: tuple[str, int]

    def refusal(self, method: str, headers: Message) -> Response | None:
        """Return the response to a request that is refused, or None if it is accepted.

        Args:
            method: HTTP method.
            headers: The request's headers.
        """
        host = f"{self.address[0]}:{self.address[1]}"
        if headers.get("Host", "") != host:
            error = f"Host is not {host}: use the address that `moefabric inspect` shows"
            return HTTPStatus.MISDIRECTED_REQUEST, {"error": error}
        if headers.get("Origin") is not None:
            return HTTPStatus.FORBIDDEN, {"error": "requests of web pages (Origin) are refused"}
        if not self._has_token(headers.get("Authorization", "")):
            error = (
                "Authorization: Bearer TOKEN is needed, with the token in the run directory of the "
                "fabric: /run/moefabric/FABRIC/token"
            )
            return HTTPStatus.UNAUTHORIZED, {"error": error}
        media_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if method == "POST" and media_type != "application/json":
            error = "Content-Type: application/json is needed"
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, {"error": error}
        return None

    def _has_token(self, authorization: str) -> bool:
        scheme, _, credentials = authorization.partition(" ")
        expected, presented = self.token.encode(), credentials.strip().encode(errors="replace")
        return hmac.compare_digest(expected, presented) and scheme.lower() == "bearer"
