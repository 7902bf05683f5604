"""Northbound: a controller as programs reach it, JSON over HTTP/1.1 on a connection that stays open.

    GET  /health /circuits /rules /counters /relays
    GET  /failures, or /failures?after=VERSION[&wait=SECONDS]: once there is a later version, 30 s at most
    POST /demand {"demand": [[bytes]], "policy": "mixnet", "servers": [...]}
    POST /light  {"circuits": ["s0/o0~s3/o2"]} or as /demand
    POST /relay  {"region": "r0", "relays": {"s0": "s1"}}, told to the EPS's controller by a region's

What goes wrong is {"error": one line}: 400 for what was asked, 404 and 405 for where, 503 for a device that doesn't do its part.
"""

import json
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl

from controller.control import Control
from moefabric.errors import ControlError, MoefabricError, SpecError

MOST_BYTES: Final = 64 << 20
LONGEST_WAIT_S: Final = 30.0

log = logging.getLogger(__name__)

Answer = tuple[HTTPStatus, Mapping[str, Any]]


def answer(control: Control, method: str, path: str, body: bytes, started_s: float) -> Answer:
    """The status and the JSON that a request is answered with. Nothing but a fault of our own escapes."""
    place, _, query = path.partition("?")
    asked: dict[str, Callable[[], dict[str, Any]]] = {
        "/health": control.health,
        "/circuits": control.circuits,
        "/rules": control.rules,
        "/counters": control.counters,
        "/relays": control.relays,
        "/failures": lambda: control.failures(*_patience(query)),
    }
    told: dict[str, Callable[[Mapping[str, Any], float], dict[str, Any]]] = {
        "/demand": control.demand,
        "/light": control.light,
        "/relay": control.relay,
    }
    if place not in asked and place not in told:
        return HTTPStatus.NOT_FOUND, {"error": f"{place}: there are {' '.join([*asked, *told])}"}
    if method != ("GET" if place in asked else "POST"):
        return HTTPStatus.METHOD_NOT_ALLOWED, {
            "error": f"{place} is for {'GET' if place in asked else 'POST'}"
        }
    try:
        return HTTPStatus.OK, asked[place]() if place in asked else told[place](_object(body), started_s)
    except SpecError as fault:
        return HTTPStatus.BAD_REQUEST, _error(fault)
    except ControlError as fault:
        return HTTPStatus.SERVICE_UNAVAILABLE, _error(fault)
    except MoefabricError as fault:
        return HTTPStatus.INTERNAL_SERVER_ERROR, _error(fault)


def _patience(query: str) -> tuple[int | None, float]:
    """The version to wait beyond, and how long to; SpecError for words that are no numbers."""
    words = dict(parse_qsl(query))
    try:
        after = int(words["after"]) if "after" in words else None
        return after, min(float(words.get("wait", LONGEST_WAIT_S)), LONGEST_WAIT_S)
    except ValueError as fault:
        raise SpecError([("failures", f"after and wait are numbers: {fault}")]) from fault


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except ValueError as fault:
        raise SpecError([("", f"not JSON: {fault}")]) from fault
    if not isinstance(value, dict):
        raise SpecError([("", "a JSON object is needed")])
    return value


def _error(fault: MoefabricError) -> dict[str, str]:
    return {"error": "; ".join(str(fault).splitlines())}


class Handler(BaseHTTPRequestHandler):
    """One connection, request after request. Make a subclass with the `control` that answers."""

    control: ClassVar[Control]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # an answer leaves in one piece
    timeout = None  # between two demands, whoever asks may compute for minutes

    def do_GET(self) -> None:
        """Look."""
        self._answer(b"", self.control.clock())

    def do_POST(self) -> None:
        """Tell."""
        started_s = self.control.clock()
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MOST_BYTES:
            self.close_connection = True
            self._say(
                HTTPStatus.BAD_REQUEST, {"error": f"a Content-Length of at most {MOST_BYTES} bytes is needed"}
            )
            return
        self._answer(self.rfile.read(int(length)), started_s)

    def _answer(self, body: bytes, started_s: float) -> None:
        try:
            status, said = answer(self.control, self.command, self.path, body, started_s)
        except Exception:  # a fault of ours costs one answer, and not the controller
            log.exception("%s %s failed", self.command, self.path)
            status, said = (
                HTTPStatus.INTERNAL_SERVER_ERROR,
                {"error": "the controller failed; its log says where"},
            )
        self._say(status, said)

    def _say(self, status: HTTPStatus, said: Mapping[str, Any]) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name for it
        """To the log, not to the terminal."""
        log.debug(format, *args)
