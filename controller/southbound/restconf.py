"""RESTCONF (RFC 8040) on HTTP, as Polatis devices speak it: cross-connects are a list of pairs, each with its input as the key.

An answer doesn't say whether light has settled already, so the settle time that is known of the device is waited out from the command on.
"""

import base64
import json
import socket
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from typing import Any, Final

from controller.southbound.crossconnects import CrossConnect, Moves
from controller.southbound.line import Dial, LostError, SilenceError
from moefabric.errors import ControlError

FACTORY: Final = ("admin", "root")
"""User and password that a Polatis leaves the factory with."""

_ALL: Final = "/api/data/optical-switch:cross-connects"
_PAIR: Final = "/api/data/cross-connects/pair"
_MEDIA: Final = "application/yang-data+json"
_ABSENT: Final = 404
_WRONG: Final = 400


class DialledConnection(HTTPConnection):
    """HTTP over a connection that one's own way of calling makes."""

    def __init__(self, address: tuple[str, int], timeout_s: float, dial: Dial) -> None:
        super().__init__(*address, timeout=timeout_s)
        self._address, self._seconds, self._dial = address, timeout_s, dial

    def connect(self) -> None:
        """Call."""
        self.sock = self._dial(self._address, self._seconds)
        self.sock.settimeout(self._seconds)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # head and body leave apart


class RestconfDevice:
    """A device that speaks RESTCONF at an address."""

    def __init__(
        self,
        name: str,
        http: HTTPConnection,
        settle_s: float,
        user: str | None = None,
        password: str | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """`settle_s` after a command all has light. Without user and password, those of the factory."""
        self.name, self._http, self._settle_s, self._sleep = name, http, settle_s, sleep
        known = f"{user or FACTORY[0]}:{FACTORY[1] if password is None else password}".encode()
        self._headers = {
            "Authorization": "Basic " + base64.b64encode(known).decode("ascii"),
            "Accept": _MEDIA,
            "Content-Type": _MEDIA,
        }
        self._settled_at = 0.0

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    def joined(self) -> tuple[CrossConnect, ...]:
        """The list of pairs. ControlError for an answer that is none."""
        status, body = self._ask("GET", _ALL)
        if status == _ABSENT:  # a device may have no list where it has no pairs
            return ()
        if status >= _WRONG:
            raise ControlError(f"{self.name}: GET {_ALL}: {_why(status, body)}")
        try:
            return parsed_pairs(json.loads(body))
        except (ValueError, LookupError, TypeError, AttributeError) as fault:
            raise ControlError(f"{self.name}: GET {_ALL} says {body[:80]!r}, which lists no pairs") from fault

    def move(self, moves: Moves) -> str | None:
        """DELETE each pair that goes, then PATCH those that come in one piece; the first thing the device has against it."""
        for port, _ in moves.out:
            status, body = self._ask("DELETE", f"{_PAIR}={port}")
            if status >= _WRONG:
                return f"DELETE of {port}: {_why(status, body)}"
        if not moves.into:
            return None
        before, self._settled_at = self._settled_at, time.monotonic() + self._settle_s
        pairs = [{"ingress": p, "egress": q} for p, q in moves.into]
        status, body = self._ask("PATCH", _PAIR, {"pair": pairs})
        if status < _WRONG:
            return None
        self._settled_at = before
        return f"PATCH: {_why(status, body)}"

    def settled(self, deadline_s: float) -> None:
        """Return once the settle time is over. ControlError if that is later than `deadline_s`."""
        left = self._settled_at - time.monotonic()
        if left > deadline_s:
            raise ControlError(f"{self.name}: not settled within {deadline_s:g} s")
        if left > 0:
            self._sleep(left)

    def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and body. LostError where there is no answer."""
        place = f"{self.name} at {self._http.host}:{self._http.port}"
        try:
            self._http.request(method, path, None if body is None else json.dumps(body), self._headers)
            answer = self._http.getresponse()
            return answer.status, answer.read()
        except TimeoutError as fault:
            self.close()
            raise SilenceError(
                f"{place}: no answer to {method} {path} within {self._http.timeout:g} s"
            ) from fault
        except (OSError, HTTPException) as fault:
            self.close()
            raise LostError(f"{place}: {str(fault) or type(fault).__name__}") from fault


def parsed_pairs(said: Any) -> tuple[CrossConnect, ...]:
    """The pairs that a device lists, under either name of the list (`pairs` before revision 2017-08-04 of its YANG)."""
    inside = next(
        (value for name, value in said.items() if name.rpartition(":")[2] == "cross-connects"), said
    )
    listed: Any = next(
        (value for name, value in inside.items() if name.rpartition(":")[2] in {"pair", "pairs"}), []
    )
    return tuple(sorted((int(pair["ingress"]), int(pair["egress"])) for pair in listed))


def _why(status: int, body: bytes) -> str:
    """What an error says: its message as RFC 8040 (7.1) has it, else what there is."""
    try:
        said = json.loads(body)
        errors = said.get("ietf-restconf:errors", said.get("errors"))["error"]
        told = "; ".join(one.get("error-message") or one["error-tag"] for one in errors)
    except (ValueError, LookupError, TypeError, AttributeError):
        told = " ".join(body.decode("utf-8", "replace").split())[:200]
    return f"{status} {told}".strip()
