"""Alarms of an optical switch, and autonomous messages about its events.

The layout follows GR-833-CORE. The text of shutter messages, such as `Port 1 disabled`, follows
public tests of Polatis switches.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from moefabric.emulator.ocs.events import PORT_TEXTS, OcsEvent, OcsEventKind
from moefabric.emulator.ocs.tl1.frames import Message, format_time, quote


@dataclass(frozen=True)
class Alarm:
    """A condition of a port, and the time of day at which it started."""

    port: int
    severity: str
    condition: str
    text: str
    wall_s: float

    def line(self) -> str:
        """Return `17:MJ,LOS,SA,01-01,00-00-00,,:"Port 17 has no light"`, quoted."""
        severity, time = self.severity, format_time(self.wall_s)
        return quote(f'{self.port}:{severity},{self.condition},SA,{time},,:"{self.text}"')


ALARMS = {
    OcsEventKind.PORT_FAILED: ("CR", "PORT-FAIL"),
    OcsEventKind.PORT_RECOVERED: ("CL", "PORT-FAIL"),
    OcsEventKind.POWER_LOW: ("MJ", "LOS"),
    OcsEventKind.POWER_CLEAR: ("CL", "LOS"),
}
"""Severity and condition of events; severity `CL` clears the alarm of the condition."""
REPORTED = {OcsEventKind.ENABLED: "ENABLED", OcsEventKind.DISABLED: "DISABLED"}
ALARM_CODES = {"CR": "*C", "MJ": "**", "MN": "* ", "CL": "A "}


class StandingAlarms:
    """The standing alarms in the order of their ports."""

    def __init__(self) -> None:
        self._alarms: dict[tuple[int, str], Alarm] = {}

    def __iter__(self) -> Iterator[Alarm]:
        return iter([self._alarms[key] for key in sorted(self._alarms)])

    def clear(self) -> None:
        """Forget all alarms."""
        self._alarms.clear()

    def update(self, event: OcsEvent, wall_s: float) -> Message | None:
        """Apply an event, and return its autonomous message, if it has one."""
        text = PORT_TEXTS.get(event.kind, "")
        if event.kind in ALARMS:
            severity, condition = ALARMS[event.kind]
            alarms = [
                Alarm(port, severity, condition, text.format(port), wall_s) for port in event.ports
            ]
            for alarm in alarms:
                self._alarms.pop((alarm.port, condition), None)
                if severity != "CL":
                    self._alarms[alarm.port, condition] = alarm
            lines = tuple(alarm.line() for alarm in alarms)
            return Message(ALARM_CODES[severity], "REPT ALM EQPT", lines)
        if event.kind in REPORTED:
            condition, time = REPORTED[event.kind], format_time(wall_s)
            lines = tuple(
                quote(f'{port}:{condition},TC,{time},,,,:"{text.format(port)}"')
                for port in event.ports
            )
            return Message("A ", "REPT EVT EQPT", lines)
        return None
