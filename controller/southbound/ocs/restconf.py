"""RESTCONF (RFC 8040) over HTTP as Polatis devices implement it.

Cross-connects are a YANG list of pairs whose key is the input port. A response doesn't tell whether
light has settled, so the driver waits for the device's known settling time after each command.
"""

import base64
import json
import time
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from moefabric.controller.http_client import HttpClient
from moefabric.controller.southbound.ocs.connection import LoginRefusedError
from moefabric.controller.southbound.ocs.cross_connects import CrossConnect, CrossConnectChange
from moefabric.core.errors import ControlError
from moefabric.core.ocs_dialect import DriverSettings

_ALL: Final = "/api/data/optical-switch:cross-connects"
_PAIR: Final = "/api/data/cross-connects/pair"
_PORTS: Final = "/api/data/port-config", "/api/data/ports"
"""Lists of all ports: since revision 2017-08-04 of the YANG module, and before."""
_MEDIA_TYPE: Final = "application/yang-data+json"


class RestconfDriver:
    """A `DeviceDriver` that speaks RESTCONF."""

    def __init__(self, settings: DriverSettings) -> None:
        self.name, self._sleep = settings.ocs.name, settings.sleep
        self._settle_s = settings.ocs.settle_ns / 1e9
        account = f"{settings.user}:{settings.password}"
        credentials = base64.b64encode(account.encode()).decode("ascii")
        headers = {
            "Authorization": f"Basic {credentials}",
            "Accept": _MEDIA_TYPE,
            "Content-Type": _MEDIA_TYPE,
        }
        # Some devices respond only after light has settled.
        timeout_s = settings.timeout_s + self._settle_s
        self._http = HttpClient(self.name, settings.address, timeout_s, settings.dial, headers)
        self._settled_at_s = 0.0
        self._password_env = settings.ocs.control.password_env

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def cross_connects(self) -> tuple[CrossConnect, ...]:
        """Return the list of pairs; raise ControlError for a malformed answer."""
        status, body = self._get(_ALL)
        if status == HTTPStatus.NOT_FOUND:  # a device without pairs may have no list
            return ()
        if status >= HTTPStatus.BAD_REQUEST:
            raise ControlError(f"{self.name}: GET {_ALL}: {_error_text(status, body)}")
        try:
            return parse_pairs(json.loads(body))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ControlError(
                f"{self.name}: GET {_ALL} says {body[:80]!r}, which lists no pairs"
            ) from error

    def size(self) -> tuple[int, int] | None:
        """Return inputs and outputs, each half of the listed ports; None if none are listed."""
        for path in _PORTS:
            status, body = self._get(path)
            with suppress(ValueError, LookupError, TypeError, AttributeError):
                [container] = json.loads(body).values()
                if status < HTTPStatus.BAD_REQUEST and (count := len(container["port"])):
                    return count // 2, count - count // 2
        return None

    def _get(self, path: str) -> tuple[int, bytes]:
        """Return status and body; raise LoginRefusedError if the account is refused."""
        status, body = self._http.exchange("GET", path)
        if status == HTTPStatus.UNAUTHORIZED:
            refusal = f"{self.name}: GET {path}: {_error_text(status, body)}"
            raise LoginRefusedError(refusal, self._password_env)
        return status, body

    def apply(self, change: CrossConnectChange) -> str | None:
        """Remove pairs by a DELETE each, add all others by one PATCH; return the first error."""
        for port, _ in change.remove:
            status, body = self._http.exchange("DELETE", f"{_PAIR}={port}")
            if status >= HTTPStatus.BAD_REQUEST:
                return f"DELETE of {port}: {_error_text(status, body)}"
        if not change.add:
            return None
        earlier_s, self._settled_at_s = self._settled_at_s, time.monotonic() + self._settle_s
        pairs = [{"ingress": p, "egress": q} for p, q in change.add]
        status, body = self._http.exchange("PATCH", _PAIR, {"pair": pairs})
        if status < HTTPStatus.BAD_REQUEST:
            return None
        self._settled_at_s = earlier_s
        return f"PATCH: {_error_text(status, body)}"

    def wait_settled(self, deadline_s: float) -> None:
        """Wait for the settling time; raise ControlError if it is longer than `deadline_s`."""
        remaining_s = self._settled_at_s - time.monotonic()
        if remaining_s > deadline_s:
            raise ControlError(f"{self.name}: not settled within {deadline_s:g} s")
        if remaining_s > 0:
            self._sleep(remaining_s)


def parse_pairs(document: Any) -> tuple[CrossConnect, ...]:
    """Return the pairs of a cross-connects document.

    The list is called `pairs` before revision 2017-08-04 of the YANG module, and `pair` since.
    """
    container = _member(document, {"cross-connects"}, document)
    pairs = _member(container, {"pair", "pairs"}, [])
    return tuple(sorted((int(pair["ingress"]), int(pair["egress"])) for pair in pairs))


def _member(document: Any, names: set[str], default: Any) -> Any:
    """Return a member of a JSON object, named without the YANG module's prefix."""
    values = (value for name, value in document.items() if name.rpartition(":")[2] in names)
    return next(values, default)


def _error_text(status: int, body: bytes) -> str:
    """Return the status and the error messages (RFC 8040, section 7.1), else the body."""
    try:
        document = json.loads(body)
        errors = document.get("ietf-restconf:errors", document.get("errors"))["error"]
        text = "; ".join(error.get("error-message") or error["error-tag"] for error in errors)
    except (ValueError, LookupError, TypeError, AttributeError):
        text = " ".join(body.decode("utf-8", "replace").split())[:200]
    return f"{status} {text}".strip()


class Restconf:
    """RESTCONF over HTTP."""

    default_port: int = 8008
    factory_account: tuple[str, str] = ("admin", "root")
    """User and password of a Polatis device as delivered."""

    def open(self, settings: DriverSettings) -> RestconfDriver:
        """Return a driver that speaks RESTCONF."""
        return RestconfDriver(settings)
