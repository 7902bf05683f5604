"""Output messages of TL1: responses, acknowledgements, autonomous messages (GR-831-CORE)."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

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


def format_time(wall_s: float) -> str:
    """Return a time of occurrence: `MM-DD,HH-MM-SS`."""
    return time.strftime("%m-%d,%H-%M-%S", time.gmtime(wall_s))


def _remarks(text: str) -> list[str]:
    """Return a comment whose text contains no end of a comment or message."""
    printable = "".join(char if char.isprintable() and char != ";" else "?" for char in text)[:120]
    return [f"/* {printable.replace('*/', '* /')} */"] if printable else []


def _frame(header: str, head: str, lines: Iterable[str]) -> bytes:
    return f"{header}{head}\r\n{''.join(map(LINE.format, lines))};".encode("ascii", "replace")
