"""TL1's messages out: responses, acknowledgements and autonomous messages, to the byte (GR-831-CORE)."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

UNNAMED = "( nil )"
LINE = "   {}\r\n"


@dataclass(frozen=True)
class Stamp:
    """Who says something, and when: the heading of a message."""

    sid: str
    wall_s: float

    def __str__(self) -> str:
        said = time.strftime("%y-%m-%d %H:%M:%S", time.gmtime(self.wall_s))
        return f"\r\n\n   {self.sid or UNNAMED} {said}\r\n"


@dataclass(frozen=True)
class Message:
    """Something that is said without being asked for. `code` is its urgency: `*C`, `**`, `* ` or `A `."""

    code: str
    verb: str
    lines: tuple[str, ...]


def completed(stamp: Stamp, ctag: str, lines: Iterable[str] = (), remark: str = "") -> bytes:
    """A command has been done; `lines` are as they go, quoted where they have to be."""
    return _framed(stamp, f"M  {ctag} COMPLD", [*lines, *_remarks(remark)])


def denied(stamp: Stamp, ctag: str, code: str, remark: str = "") -> bytes:
    """A command has not been done."""
    return _framed(stamp, f"M  {ctag} DENY", [code, *_remarks(remark)])


def partly(stamp: Stamp, ctag: str, code: str, lines: Iterable[str] = (), remark: str = "") -> bytes:
    """A command has been done in part: what failed, and what there is now."""
    return _framed(stamp, f"M  {ctag} PRTL", [code, *lines, *_remarks(remark)])


def autonomous(stamp: Stamp, atag: int, message: Message) -> bytes:
    """Something has happened."""
    return _framed(stamp, f"{message.code:<2} {atag} {message.verb}", message.lines)


def acknowledged(code: str, ctag: str) -> bytes:
    """A command has come: IP in progress, PF printout follows, OK, NA no acknowledgement, NG no good, RL repeat later."""
    return f"\r\n{code} {ctag}\r\n<".encode("ascii", "replace")


def quoted(text: str) -> str:
    """A line that is data."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def day(wall_s: float) -> str:
    """`MM-DD,HH-MM-SS`: when something happened."""
    return time.strftime("%m-%d,%H-%M-%S", time.gmtime(wall_s))


def _remarks(text: str) -> list[str]:
    """A remark for people: nothing in it may end the message, or itself."""
    bare = "".join(char if char.isprintable() and char != ";" else "?" for char in text)[:120]
    return [f"/* {bare.replace('*/', '* /')} */"] if bare else []


def _framed(stamp: Stamp, head: str, lines: Iterable[str]) -> bytes:
    return f"{stamp}{head}\r\n{''.join(map(LINE.format, lines))};".encode("ascii", "replace")
