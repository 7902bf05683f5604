"""What an optical switch says without being asked: events as autonomous messages, and the alarms that stand.

Layout after GR-833-CORE. That a port's shutter is told as `Port 1 disabled` follows public tests of Polatis switches.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from emulator.ocs.events import Event, Kind
from emulator.ocs.tl1.frames import Message, day, quoted


@dataclass(frozen=True)
class Alarm:
    """Something that is wrong with a port, since a time of day."""

    port: int
    severity: str
    condition: str
    text: str
    wall_s: float

    def line(self, severity: str | None = None) -> str:
        """`17:MJ,LOS,SA,01-01,00-00-00,,:"Port 17 has no light"`, quoted."""
        said = severity or self.severity
        return quoted(f'{self.port}:{said},{self.condition},SA,{day(self.wall_s)},,:"{self.text}"')


RAISED = {Kind.PORT_FAILED: ("CR", "PORT-FAIL", "failed"), Kind.POWER_LOW: ("MJ", "LOS", "has no light")}
CLEARED = {Kind.PORT_RECOVERED: ("PORT-FAIL", "works again"), Kind.POWER_CLEAR: ("LOS", "has light again")}
TOLD = {Kind.ENABLED: ("ENABLED", "enabled"), Kind.DISABLED: ("DISABLED", "disabled")}
URGENCY = {"CR": "*C", "MJ": "**", "MN": "* "}


class Alarms:
    """The alarms that stand."""

    def __init__(self) -> None:
        self._standing: dict[tuple[int, str], Alarm] = {}

    def __iter__(self) -> Iterator[Alarm]:
        return iter([self._standing[key] for key in sorted(self._standing)])

    def clear(self) -> None:
        """Forget them."""
        self._standing.clear()

    def heard(self, event: Event, wall_s: float) -> Message | None:
        """What an event is told as; None if it isn't."""
        if event.kind in RAISED:
            return self._raised(event, wall_s)
        if event.kind in CLEARED:
            return self._cleared(event, wall_s)
        if event.kind in TOLD:
            condition, text = TOLD[event.kind]
            return Message("A ", "REPT EVT EQPT", tuple(_told(event, condition, text, wall_s)))
        return None

    def _raised(self, event: Event, wall_s: float) -> Message:
        severity, condition, text = RAISED[event.kind]
        raised = [Alarm(port, severity, condition, f"Port {port} {text}", wall_s) for port in event.ports]
        self._standing |= {(alarm.port, condition): alarm for alarm in raised}
        return Message(URGENCY[severity], "REPT ALM EQPT", tuple(alarm.line() for alarm in raised))

    def _cleared(self, event: Event, wall_s: float) -> Message:
        condition, text = CLEARED[event.kind]
        for port in event.ports:
            self._standing.pop((port, condition), None)
        cleared = [Alarm(port, "CL", condition, f"Port {port} {text}", wall_s) for port in event.ports]
        return Message("A ", "REPT ALM EQPT", tuple(alarm.line() for alarm in cleared))


def _told(event: Event, condition: str, text: str, wall_s: float) -> Iterator[str]:
    for port in event.ports:
        yield quoted(f'{port}:{condition},TC,{day(wall_s)},,,,:"Port {port} {text}"')
