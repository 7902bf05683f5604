"""Notification log of a switch, and its standing alarms."""

import time
from collections import deque
from itertools import count
from typing import Any

from moefabric.emulator.ocs.events import PORT_TEXTS, OcsEvent, OcsEventKind

MAX_ENTRIES = 256
TYPES = {
    OcsEventKind.POWER_LOW: "NOTIF_PORT_POWER",
    OcsEventKind.POWER_CLEAR: "NOTIF_PORT_POWER",
    OcsEventKind.PORT_FAILED: "NOTIF_SYSTEM",
    OcsEventKind.PORT_RECOVERED: "NOTIF_SYSTEM",
    OcsEventKind.ENABLED: "NOTIF_ACTIVITY",
    OcsEventKind.DISABLED: "NOTIF_ACTIVITY",
}
"""Notification types of events."""
RAISED_BY = {
    OcsEventKind.POWER_CLEAR: OcsEventKind.POWER_LOW,
    OcsEventKind.PORT_RECOVERED: OcsEventKind.PORT_FAILED,
}
"""For each event that clears an alarm, the event that raises it."""


def format_date(wall_s: float) -> str:
    """Return a YANG date-and-time: `2026-01-01T00:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_s))


class NotificationLog:
    """The latest notifications, and the standing alarms."""

    def __init__(self) -> None:
        self.entries: deque[dict[str, Any]] = deque(maxlen=MAX_ENTRIES)
        """Entries of `notification-log`."""
        self.alarms: dict[tuple[OcsEventKind, int], dict[str, Any]] = {}
        """Entries of `system-alarms`, by event and port."""
        self._numbers = count(1)

    def add(self, event: OcsEvent, wall_s: float) -> None:
        """Add the notifications of an event, if it has any."""
        if event.kind not in TYPES:
            return
        kind, date = TYPES[event.kind], format_date(wall_s)
        for port in event.ports:
            text = PORT_TEXTS[event.kind].format(port)
            entry = {
                "notif-id": next(self._numbers),
                "notif-type": kind,
                "notif-time-first": date,
                "notif-time-last": date,
                "notif-message": text,
            }
            self.entries.append(entry)
            if event.kind in RAISED_BY:
                self.alarms.pop((RAISED_BY[event.kind], port), None)
            elif event.kind in RAISED_BY.values():
                alarm = {"alarm-time": date, "alarm-type": kind, "alarm-message": text}
                self.alarms[event.kind, port] = alarm

    def remove(self, numbers: set[int]) -> None:
        """Remove the notifications with these numbers, or all if there are no numbers."""
        remaining = [
            entry for entry in self.entries if numbers and entry["notif-id"] not in numbers
        ]
        self.entries = deque(remaining, maxlen=MAX_ENTRIES)
