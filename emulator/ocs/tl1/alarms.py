"""Alarms of an optical switch, and autonomous messages about its events.

The layout follows GR-833-CORE. The text of shutter messages, such as `Port 1 disabled`, follows
public tests of Polatis switches.
"""

from collections.abc import Iterator

from moefabric.emulator.ocs.events import PORT_TEXTS, OcsEvent, OcsEventKind
from moefabric.emulator.ocs.tl1.frames import Message, format_time, quote

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
    """The standing alarms, as lines in the order of their ports."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, str], str] = {}

    def __iter__(self) -> Iterator[str]:
        return iter([self._lines[key] for key in sorted(self._lines)])

    def clear(self) -> None:
        """Forget all alarms."""
        self._lines.clear()

    def update(self, event: OcsEvent, wall_s: float) -> Message | None:
        """Apply an event, and return its autonomous message, if it has one.

        An alarm is a line such as `17:MJ,LOS,SA,01-01,00-00-00,,:"Port 17 has no light"`, quoted.
        """
        text, time = PORT_TEXTS.get(event.kind, ""), format_time(wall_s)
        if event.kind in ALARMS:
            severity, condition = ALARMS[event.kind]
            alarms = {
                (port, condition): quote(
                    f'{port}:{severity},{condition},SA,{time},,:"{text.format(port)}"'
                )
                for port in event.ports
            }
            for alarm in alarms:
                self._lines.pop(alarm, None)
            if severity != "CL":
                self._lines |= alarms
            return Message(ALARM_CODES[severity], "REPT ALM EQPT", tuple(alarms.values()))
        if event.kind in REPORTED:
            condition = REPORTED[event.kind]
            lines = tuple(
                quote(f'{port}:{condition},TC,{time},,,,:"{text.format(port)}"')
                for port in event.ports
            )
            return Message("A ", "REPT EVT EQPT", lines)
        return None
