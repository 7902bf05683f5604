"""Northbound: a controller as programs reach it, JSON over HTTP/1.1 on a connection that stays open.

    GET  /health /circuits /rules /counters
    POST /demand {"demand": [[bytes]], "policy": "mixnet", "servers": [...]}
    POST /light  {"circuits": ["s0/o0~s3/o2"]} or as /demand

What goes wrong is {"error": one line}: 400 for what was asked, 404 and 405 for where, 503 for a device that doesn't do its part.
"""

import json
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar, Final

from controller.control import Control
from moefabric.errors import ControlError, MoefabricError, SpecError

MOST_BYTES: Final = 64 << 20

log = logging.getLogger(__name__)

Answer = tuple[HTTPStatus, Mapping[str, Any]]


def answer(control: Control, method: str, path: str, body: bytes, started_s: float) -> Answer:
    """The status and the JSON that a request is answered with. Nothing but a fault of our own escapes."""
    asked: dict[str, Callable[[], dict[str, Any]]] = {
        "/health": control.health,
        "/circuits": control.circuits,
        "/rules": control.rules,
        "/counters": control.counters,
    }
    told: dict[str, Callable[[Mapping[str, Any], float], dict[str, Any]]] = {
        "/demand": control.demand,
        "/light": control.light,
    }
    if path not in asked and path not in told:
        return HTTPStatus.NOT_FOUND, {"error": f"{path}: there are {' '.join([*asked, *told])}"}
    if method != ("GET" if path in asked else "POST"):
        return HTTPStatus.METHOD_NOT_ALLOWED, {"error": f"{path} is for {'GET' if path in asked else 'POST'}"}
    try:
        return HTTPStatus.OK, asked[path]() if path in asked else told[path](_object(body), started_s)
    except SpecError as fault:
        return HTTPStatus.BAD_REQUEST, _error(fault)
    except ControlError as fault:
        return HTTPStatus.SERVICE_UNAVAILABLE, _error(fault)
    except MoefabricError as fault:
        return HTTPStatus.INTERNAL_SERVER_ERROR, _error(fault)


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
        except Exception:
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
