"""Output messages of TL1: responses, acknowledgements, autonomous messages (GR-831-CORE), alarms.

The layout of alarms follows GR-833-CORE. The text of shutter messages, such as `Port 1 disabled`,
follows public tests of Polatis switches.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from moefabric.emulator.ocs.events import PORT_TEXTS, OcsEvent, OcsEventKind

UNNAMED = "( nil )"
LINE = "   {}\r\n"


@dataclass(frozen=True)
class Message:
    """An autonomous message. Its alarm code is `*C`, `**`, `* ` or `A `."""

    code: str
    verb: str
    lines: tuple[str, ...]


def heading(sid: str, wall_s: float) -> str:
    """Return the header of a message: system identifier and time."""
    date = time.strftime("%y-%m-%d %H:%M:%S", time.gmtime(wall_s))
    return f"\r\n\n   {sid or UNNAMED} {date}\r\n"


def response(
    header: str, ctag: str, code: str, lines: Iterable[str] = (), remark: str = ""
) -> bytes:
    """Return the response to a command; `lines` are quoted where necessary.

    Completion codes: COMPLD (executed), PRTL (executed in part), DENY (refused).
    """
    return _frame(header, f"M  {ctag} {code}", [*lines, *_remarks(remark)])


def autonomous(header: str, atag: int, message: Message) -> bytes:
    """Return an autonomous message."""
    return _frame(header, f"{message.code:<2} {atag} {message.verb}", message.lines)


def acknowledgement(code: str, ctag: str) -> bytes:
    """Return an acknowledgement.

    Codes: IP (in progress), PF (printout follows), OK, NA (no acknowledgement), NG (no good), RL
    (repeat later).
    """
    return f"\r\n{code} {ctag}\r\n<".encode("ascii", "replace")


def quote(text: str) -> str:
    """Return a line of data in quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _remarks(text: str) -> list[str]:
    """Return a comment whose text contains no end of a comment or message."""
    printable = "".join(char if char.isprintable() and char != ";" else "?" for char in text)[:120]
    return [f"/* {printable.replace('*/', '* /')} */"] if printable else []


def _frame(header: str, head: str, lines: Iterable[str]) -> bytes:
    return f"{header}{head}\r\n{''.join(map(LINE.format, lines))};".encode("ascii", "replace")


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
        date, text = time.strftime("%m-%d,%H-%M-%S", time.gmtime(wall_s)), PORT_TEXTS[event.kind]
        fields = f"{severity},{condition},SA,{date},," if severity else f"{condition},TC,{date},,,,"
        lines = {
            (port, condition): f'{port}:{fields}:"{text.format(port)}"' for port in event.ports
        }
        if severity:
            remaining = {key: line for key, line in self._lines.items() if key not in lines}
            self._lines = remaining if severity == "CL" else remaining | lines
        verb = "REPT ALM EQPT" if severity else "REPT EVT EQPT"
        return Message(code, verb, tuple(map(quote, lines.values())))
