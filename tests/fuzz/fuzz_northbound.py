"""What a controller reads from a client of its northbound interface, and what a client reads."""

import io
import json
import logging
import socket
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast
from unittest import mock

from moefabric.config import guarded_policy
from moefabric.controller.client import ControllerClient
from moefabric.controller.reconfiguration import Reconciler
from moefabric.controller.recovery.failure_history import FailureHistory
from moefabric.controller.recovery.region_recovery import RegionRecovery
from moefabric.controller.service.controller import Controller
from moefabric.controller.service.http_handler import HttpAccess, NorthboundService
from moefabric.controller.service.northbound import respond
from moefabric.core.errors import ControlError
from moefabric.core.forwarding import circuit_rules
from moefabric.core.topology import Fabric
from tests.support.background import call_at_once
from tests.support.fabrics import fabric
from tests.support.fuzzing import FuzzTarget
from tests.support.memory_ocs import MemoryOcs
from tests.support.recovery_bench import ObservedSwitches

_ADDRESS = "127.0.0.1", 8081
_TOKEN = "t"
_NO_LIMIT = mock.patch.object(guarded_policy, "time_limit", nullcontext)
"""The signal of the limit is the fuzzer's own."""


class FaultyResponseError(Exception):
    """A request made the controller fail, or its response is no JSON."""


class Connection:
    """A connection in memory: what its peer has sent, and what it is sent."""

    def __init__(self, received: bytes) -> None:
        self._received, self.sent = io.BytesIO(received), io.BytesIO()
        self.sent.close = lambda: None  # type: ignore[method-assign]  # its reader comes later

    def makefile(self, mode: str, _size: int = -1) -> io.BytesIO:
        """Return what the peer has sent, or what it is sent."""
        return self.sent if "w" in mode else io.BytesIO(self._received.getvalue())

    def recv_into(self, buffer: memoryview) -> int:
        """Read what the peer has sent."""
        return self._received.readinto(buffer)

    def sendall(self, data: bytes) -> None:
        """Drop a request."""

    def settimeout(self, seconds: float | None) -> None:
        """Do nothing: nothing here waits."""

    def setsockopt(self, *_option: int) -> None:
        """Do nothing: there is no socket."""

    def shutdown(self, _how: int) -> None:
        """Do nothing: there is no peer."""

    def close(self) -> None:
        """Do nothing: there is no socket."""


class PastEvent:
    """An event for which nobody waits."""

    def set(self) -> None:
        """Do nothing."""

    def wait(self, seconds: float) -> bool:
        """Return at once, if a wait of so many seconds is possible."""
        assert 0 <= seconds <= 30
        return True


def _controller(wired: Fabric) -> Controller:
    region, switches = wired.regions[0], ObservedSwitches(wired)
    ocs = MemoryOcs(wired, region)
    reconciler = Reconciler(
        ocs, switches, call_at_once, ocs.clock.now_s, rules=partial(circuit_rules, wired)
    )
    history = FailureHistory(event=PastEvent)
    recovery = RegionRecovery(wired, region, switches, reconciler, None, history)
    return Controller(recovery, switches)


logging.getLogger("moefabric.controller").disabled = True
_SERVICE = NorthboundService(_controller(fabric(1, 1)), HttpAccess(_TOKEN, _ADDRESS, Path("token")))


def serve(data: bytes) -> None:
    """Serve the input as what a client sends on a connection."""
    connection = Connection(data)
    with _NO_LIMIT:
        _SERVICE.serve(cast(socket.socket, connection), _ADDRESS)
    assert len(_SERVICE.connections) == 0
    if b"HTTP/1.1 500 " in connection.sent.getvalue():
        raise FaultyResponseError(connection.sent.getvalue())


def serve_body(data: bytes) -> None:
    """Serve the input as the target and body of a request: its first line and the rest."""
    target, _, body = data.partition(b"\n")
    text = target.decode("latin-1")
    for method in ("GET", "POST"):
        with _NO_LIMIT:
            status, document = respond(_SERVICE.controller, method, text, body, 0.0)
        json.dumps(document, allow_nan=False)
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            raise FaultyResponseError(document)


def read_reply(data: bytes) -> None:
    """Read the input as a controller's replies to all kinds of requests."""
    for request in _REQUESTS:

        def dial(_address: tuple[str, int], _timeout_s: float) -> socket.socket:
            return cast(socket.socket, Connection(data))

        client = ControllerClient(_ADDRESS, _TOKEN, dial=dial)
        try:
            request(client)
        except ControlError:
            pass  # what the client documents
        finally:
            client.close()


_REQUESTS: tuple[Callable[[ControllerClient], Any], ...] = (
    ControllerClient.health,
    ControllerClient.circuits,
    ControllerClient.relays,
)

TARGETS = (
    FuzzTarget("northbound", serve),
    FuzzTarget("northbound-bodies", serve_body),
    FuzzTarget("northbound-replies", read_reply),
)
