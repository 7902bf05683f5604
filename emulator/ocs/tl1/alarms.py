"""Alarms of an optical switch, and autonomous messages about its events.

The layout follows GR-833-CORE. The text of shutter messages, such as `Port 1 disabled`, follows
public tests of Polatis switches.
"""

from collections.abc import Iterator

from moefabric.emulator.ocs.events import PORT_TEXTS, OcsEvent, OcsEventKind
from moefabric.emulator.ocs.tl1.frames import Message, format_time, quote

REPORTS = {
    OcsEventKind.PORT_FAILED: ("*C", "CR", "PORT-FAIL"),
    OcsEventKind.PORT_RECOVERED: ("A ", "CL", "PORT-FAIL"),
    OcsEventKind.POWER_LOW: ("**", "MJ", "LOS"),
    OcsEventKind.POWER_CLEAR: ("A ", "CL", "LOS"),
    OcsEventKind.ENABLED: ("A ", "", "ENABLED"),
    OcsEventKind.DISABLED: ("A ", "", "DISABLED"),
}
"""Alarm code of an event's message; severity, of alarms only, and condition.

Severity `CL` clears the alarm of the condition.
"""


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

        An alarm is a line such as `17:MJ,LOS,SA,01-01,00-00-00,,:"Port 17 has no light"`.
        """
        if event.kind not in REPORTS:
            return None
        code, severity, condition = REPORTS[event.kind]
        time, text = format_time(wall_s), PORT_TEXTS[event.kind]
        fields = f"{severity},{condition},SA,{time},," if severity else f"{condition},TC,{time},,,,"
        lines = {
            (port, condition): f'{port}:{fields}:"{text.format(port)}"' for port in event.ports
        }
        if severity:
            remaining = {key: line for key, line in self._lines.items() if key not in lines}
            self._lines = remaining if severity == "CL" else remaining | lines
        verb = "REPT ALM EQPT" if severity else "REPT EVT EQPT"
        return Message(code, verb, tuple(map(quote, lines.values())))
