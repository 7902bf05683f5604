"""Link from a switch's process to the fabric: reports, events, and answers to requests."""

import json
import logging
import socket
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import asdict
from typing import Any, Final, Literal

from moefabric.core.errors import FabricError
from moefabric.emulator.linux.line_connection import LineConnection
from moefabric.emulator.ocs.cross_connects import RefusedError
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.device_failures import OcsFailure
from moefabric.emulator.ocs.device_spec import DeviceHost, LinkTimes
from moefabric.emulator.ocs.events import EventBus, OcsEvent, OcsEventKind
from moefabric.emulator.ocs.port_settings import Admin
from moefabric.runtime.event_loop import EventLoop


class OcsStatistics:
    """Counts since the start of the switch's process.

    Attributes:
        changes: Commands that changed cross-connects.
        refusals: Commands that were refused.
        dark_ns: Time from the change to the light, summed over cross-connects.
    """

    def __init__(self, events: EventBus) -> None:
        self.changes = self.refusals = self.dark_ns = 0
        self._changed_ns: dict[tuple[int, int], int] = {}
        events.subscribe(self._count)

    def _count(self, event: OcsEvent) -> None:
        match event.kind:
            case OcsEventKind.CHANGED:
                self.changes += 1
                for pair in event.parted:
                    self._changed_ns.pop(pair, None)
                self._changed_ns |= dict.fromkeys(event.made, event.at_ns)
            case OcsEventKind.SETTLED:
                for pair in event.made:
                    self.dark_ns += event.at_ns - self._changed_ns.pop(pair, event.at_ns)
            case OcsEventKind.REFUSED:
                self.refusals += 1


log = logging.getLogger(__name__)

_LEVELS: Final = {
    OcsEventKind.REFUSED: logging.WARNING,
    OcsEventKind.FAILURE: logging.WARNING,
    OcsEventKind.PORT_FAILED: logging.WARNING,
    OcsEventKind.POWER_LOW: logging.WARNING,
    OcsEventKind.SETTINGS: logging.DEBUG,
}
"""Levels of events in the log; `info` for the others."""


class FabricLink(DeviceHost):
    """The fabric as the host of a switch: lines of JSON over the handoff socket."""

    def __init__(
        self, sock: socket.socket, loop: EventLoop, on_close: Callable[[], None] | None = None
    ) -> None:
        """Use a connected handoff socket.

        Args:
            on_close: Is called when the fabric closes the socket. Default: the loop stops.
        """
        self._device: OcsDevice
        self._loop, self._context = loop, copy_context()
        self._lines = LineConnection(sock, loop, self._on_line, on_close or loop.stop)

    def set_links(self, links: LinkTimes) -> None:
        """Ask the fabric to take links down, and to bring them up at their times."""
        self._lines.send({"links": list(links.items())})

    def save(self, memory: Mapping[str, Any]) -> None:
        """Ask the fabric to keep the state for the next process."""
        self._lines.send({"save": memory})

    def start(self, device: OcsDevice) -> None:
        """Report that the switch is ready, then report events and answer requests."""
        self._device = device
        device.events.subscribe(self._on_event)
        self._statistics = OcsStatistics(device.events)
        self._lines.send({"ready": True})
        self._lines.start()

    def _on_event(self, event: OcsEvent) -> None:
        """Report an event after the more urgent reply to the client that caused it."""

        def send() -> None:
            fields = event.as_json()
            self._lines.send({"event": fields})
            level, kind = _LEVELS.get(event.kind, logging.INFO), fields.pop("kind")
            self._context.run(log.log, level, "%s", kind, extra=fields)

        self._loop.call_at(self._loop.now_ns(), send)

    def _on_line(self, line: bytes) -> None:
        request = json.loads(line)
        try:
            reply = self._answer(request)
        except (FabricError, RefusedError) as error:
            reply = {"error": str(error)}
        self._lines.send({"request": request["request"], "reply": reply})

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        device, at_ns = self._device, self._loop.now_ns()
        match request["do"]:
            case "inject":
                device.inject(OcsFailure.from_json(request["fault"]))
            case "clear":
                device.clear_failures(request.get("number"))
            case "reboot":
                device.reboot()
            case "show":
                return device_status(device, self._statistics)
            case "list":
                pass
            case other:
                raise FabricError(f"{other!r} is not one of inject, clear, reboot, show, list")
        return {"at_ns": at_ns, "faults": [asdict(failure) for failure in device.failures]}


def device_status(device: OcsDevice, statistics: OcsStatistics) -> dict[str, Any]:
    """Return identity, start-up mode, ports, failures and counts of a switch as a JSON object."""
    powers = device.light.read_dbm(device.ports.all)
    return {
        "identity": vars(device.identity),
        "startup": device.system.startup,
        "ports": [
            {
                "port": port,
                "admin": device.ports.admin(port).value,
                "state": optical_state(device, port),
                "partner": device.connects.partner(port),
                "power_dbm": round(powers[port], 2) if port in powers else None,
                "label": device.ports.settings(port).label,
            }
            for port in device.ports.all
        ],
        "faults": [asdict(failure) for failure in device.failures],
        "changes": statistics.changes,
        "refusals": statistics.refusals,
        "dark_s": statistics.dark_ns / 1e9,
    }


def optical_state(device: OcsDevice, port: int) -> Literal["blocked", "tuning", "tuned", "failed"]:
    """Return the state of a port as the device believes it to be; the states are SONiC-OCS's.

    A port is blocked without a cross-connect or behind a shutter, and tuning while light settles.
    """
    admin, pair = device.ports.admin(port), device.connects.pair_of(port)
    if admin is Admin.FAILED:
        return "failed"
    if admin is Admin.DISABLED or pair is None:
        return "blocked"
    return "tuned" if device.light.is_lit(pair) else "tuning"
