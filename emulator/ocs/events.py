"""Events of an optical switch, and their distribution to front ends and fabric."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class OcsEventKind(StrEnum):
    """Kinds of events. The event stream calls a failure `fault`, as `moefabric fault` does."""

    CHANGED = "changed"
    """Cross-connects were removed (`parted`) and made (`made`)."""
    SETTLED = "settled"
    """The cross-connects in `made` are lit."""
    REFUSED = "refused"
    """A command was refused, for the reason in `words`."""
    ENABLED = "enabled"
    DISABLED = "disabled"
    SETTINGS = "settings"
    """A client wrote settings of `ports`, or of the system (no ports)."""
    PORT_FAILED = "port-failed"
    PORT_RECOVERED = "port-recovered"
    POWER_LOW = "power-low"
    """Alarm: a failure or a shutter takes the light of connected, enabled outputs (`ports`)."""
    POWER_CLEAR = "power-clear"
    FAILURE = "fault"
    """A failure was injected."""
    FAILURE_SHOWN = "fault-shown"
    """A failure affected a client."""
    FAILURE_CLEARED = "fault-cleared"
    REBOOT = "reboot"
    """The switch goes down and closes all connections."""
    STARTED = "started"
    """The switch is up, after a start of its process or a reboot."""


PORT_TEXTS = {
    OcsEventKind.PORT_FAILED: "Port {} failed",
    OcsEventKind.PORT_RECOVERED: "Port {} works again",
    OcsEventKind.POWER_LOW: "Port {} has no light",
    OcsEventKind.POWER_CLEAR: "Port {} has light again",
    OcsEventKind.ENABLED: "Port {} enabled",
    OcsEventKind.DISABLED: "Port {} disabled",
}
"""Texts for the events of ports, in alarms and notifications."""


@dataclass(frozen=True)
class OcsEvent:
    """An event and its time (CLOCK_MONOTONIC, ns)."""

    at_ns: int
    kind: OcsEventKind
    ports: tuple[int, ...] = ()
    made: tuple[tuple[int, int], ...] = ()
    parted: tuple[tuple[int, int], ...] = ()
    words: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the line of the event stream as a JSON object, without empty fields."""
        fields = {**vars(self), "kind": self.kind.value}
        return {name: value for name, value in fields.items() if value not in ((), "")}


class EventBus:
    """Distributes events to subscribers, before the command that caused them returns."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._subscribers: list[Callable[[OcsEvent], None]] = []

    def subscribe(self, subscriber: Callable[[OcsEvent], None]) -> None:
        """Call `subscriber` with each event from now on."""
        self._subscribers.append(subscriber)

    def publish(self, kind: OcsEventKind, **fields: Any) -> None:
        """Publish an event that happens now."""
        event = OcsEvent(self._now_ns(), kind, **fields)
        for subscriber in self._subscribers:
            subscriber(event)
