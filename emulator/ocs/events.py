"""Events: what happened to an optical switch, as its front-ends and the fabric hear of it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """Kinds of events."""

    CHANGED = "changed"
    """Cross-connects were parted (`parted`) and made (`made`)."""
    SETTLED = "settled"
    """The cross-connects in `made` have light."""
    REFUSED = "refused"
    """A command was refused; `words` say why."""
    ENABLED = "enabled"
    DISABLED = "disabled"
    SETTINGS = "settings"
    """Somebody wrote settings of `ports`, or of the system (no ports)."""
    PORT_FAILED = "port-failed"
    PORT_RECOVERED = "port-recovered"
    POWER_LOW = "power-low"
    """Outputs `ports` are joined and enabled, and have lost their light to a fault or to a shutter at the input: an alarm."""
    POWER_CLEAR = "power-clear"
    FAULT = "fault"
    """A fault was injected."""
    FAULT_SHOWN = "fault-shown"
    """A fault has shown itself to a client."""
    FAULT_CLEARED = "fault-cleared"
    REBOOT = "reboot"
    """The switch goes down; all its clients are hung up on."""
    STARTED = "started"
    """The switch is there, after a start of its process or a reboot."""


@dataclass(frozen=True)
class Event:
    """Something that happened at an instant (CLOCK_MONOTONIC)."""

    at_ns: int
    kind: Kind
    ports: tuple[int, ...] = ()
    made: tuple[tuple[int, int], ...] = ()
    parted: tuple[tuple[int, int], ...] = ()
    words: str = ""

    def as_json(self) -> dict[str, Any]:
        """As a line of the event stream has it; what is empty is left out."""
        told = {"at_ns": self.at_ns, "kind": self.kind.value, **vars(self)}
        return {key: value for key, value in told.items() if value not in ((), "")} | {
            "kind": self.kind.value
        }
