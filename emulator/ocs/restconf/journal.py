"""What has happened to the switch, as the notification log has it, and the alarms that stand."""

import time
from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import Any

from emulator.ocs.events import Event, Kind

KEPT = 256
TOLD = {
    Kind.POWER_LOW: ("NOTIF_PORT_POWER", "Port {} has no light"),
    Kind.POWER_CLEAR: ("NOTIF_PORT_POWER", "Port {} has light again"),
    Kind.PORT_FAILED: ("NOTIF_SYSTEM", "Port {} failed"),
    Kind.PORT_RECOVERED: ("NOTIF_SYSTEM", "Port {} works again"),
    Kind.ENABLED: ("NOTIF_ACTIVITY", "Port {} enabled"),
    Kind.DISABLED: ("NOTIF_ACTIVITY", "Port {} disabled"),
}
STANDS = {Kind.POWER_CLEAR: Kind.POWER_LOW, Kind.PORT_RECOVERED: Kind.PORT_FAILED}


def date(wall_s: float) -> str:
    """`2026-01-01T00:00:00Z`: a YANG date-and-time."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_s))


@dataclass(frozen=True)
class Entry:
    """Something that happened to a port."""

    number: int
    kind: Kind
    port: int
    wall_s: float

    def as_alarm(self) -> dict[str, Any]:
        """As `system-alarms` has it."""
        what, text = TOLD[self.kind]
        return {"alarm-time": date(self.wall_s), "alarm-type": what, "alarm-message": text.format(self.port)}

    def as_log(self) -> dict[str, Any]:
        """As `notification-log` has it."""
        what, text = TOLD[self.kind]
        when = date(self.wall_s)
        return {
            "notif-id": self.number,
            "notif-type": what,
            "notif-time-first": when,
            "notif-time-last": when,
            "notif-message": text.format(self.port),
        }


class Journal:
    """The last of what has happened."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque(maxlen=KEPT)
        self.standing: dict[tuple[Kind, int], Entry] = {}
        self._numbers = count(1)

    def heard(self, event: Event, wall_s: float) -> None:
        """Note it, if it is one of those that are noted."""
        if event.kind not in TOLD:
            return
        for port in event.ports:
            entry = Entry(next(self._numbers), event.kind, port, wall_s)
            self.entries.append(entry)
            if event.kind in STANDS:
                self.standing.pop((STANDS[event.kind], port), None)
            elif event.kind in STANDS.values():
                self.standing[event.kind, port] = entry

    def forget(self, numbers: set[int]) -> None:
        """Without these entries, or without any."""
        kept = [entry for entry in self.entries if numbers and entry.number not in numbers]
        self.entries = deque(kept, maxlen=KEPT)
