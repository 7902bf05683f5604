"""SCPI's words: how headers are spelled, how a line falls into commands, what port lists and errors look like.

After SCPI-99 volume 1 and IEEE 488.2: any case, short or long form of each word, `;` between commands of a line.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

PORTS_IN_A_LIST = 4096


@dataclass(frozen=True)
class ScpiError:
    """An entry of the error queue: a code of SCPI-99 volume 2, chapter 21, and what it was about."""

    code: int
    about: str = ""

    NAMES: ClassVar[Mapping[int, str]] = {
        -100: "Command error",
        -102: "Syntax error",
        -104: "Data type error",
        -108: "Parameter not allowed",
        -109: "Missing parameter",
        -113: "Undefined header",
        -200: "Execution error",
        -203: "Command protected",
        -221: "Settings conflict",
        -222: "Data out of range",
        -224: "Illegal parameter value",
        -240: "Hardware error",
        -241: "Hardware missing",
        -350: "Queue overflow",
        -363: "Input buffer overrun",
    }

    @property
    def event_bit(self) -> int:
        """Its bit of the standard event status register (IEEE 488.2, 11.5.1): command, execution or device error."""
        return {1: 32, 2: 16, 3: 8, 4: 4}[-self.code // 100]

    def __str__(self) -> str:
        detail = "".join(c if " " <= c <= "~" else "?" for c in self.about.replace('"', "'"))
        return f'{self.code},"{"; ".join(filter(None, (self.NAMES[self.code], detail)))[:255]}"'


class CommandError(Exception):
    """A command that is not done; `entry` is what the error queue gets."""

    def __init__(self, code: int, about: str = "") -> None:
        self.entry = ScpiError(code, about)
        super().__init__(str(self.entry))


def spelled(header: str) -> re.Pattern[str]:
    """All spellings of a header such as `OXC:SWITch:SIZE?`: capitals are the short form, `[...]` may be left out."""

    def word(found: re.Match[str]) -> str:
        short, rest = found[1], found[2]
        return f"{short}(?:{rest})?" if rest else short

    parts = header.replace("*", r"\*").replace("?", r"\?").replace("[", "(?:").replace("]", ")?")
    return re.compile(re.sub(r"([A-Z]+)([a-z]*)", word, parts), re.IGNORECASE)


@dataclass(frozen=True)
class Unit:
    """A command of a line: its header as sent, its parameters, and the headers that it may stand for, best first."""

    header: str
    parameters: str

    def spellings(self, path: str) -> list[str]:
        """A command without a leading `:` goes on from the path of the one before it, or else from the root."""
        if self.header.startswith("*"):
            return [self.header]
        if self.header.startswith(":"):
            return [] if self.header.startswith(":*") else [self.header[1:]]
        return [f"{path}{self.header}", self.header] if path else [self.header]


def units(line: str) -> Iterator[Unit]:
    """The commands of a line. `;` within double quotes separates nothing."""
    parts = re.findall(r'(?:[^;"]+|"[^"]*(?:"|$))+', line) if '"' in line else line.split(";")
    for part in parts:
        if said := part.strip():
            header, *parameters = said.split(maxsplit=1)
            yield Unit(header, parameters[0] if parameters else "")


def path_after(spelling: str, path: str) -> str:
    """Where the command behind one of this spelling goes on from; common commands leave the path as it is."""
    return path if spelling.startswith("*") else spelling.rpartition(":")[0] + ":"


LIST = re.compile(r"\(\s*@\s*([^()]*)\)\s*")
COMMA = re.compile(r",\s*(?=\()")
NUMBERS = re.compile(r" *[0-9]{1,9} *(?:, *[0-9]{1,9} *)*")
ITEM = re.compile(r"([0-9]{1,9})(?:\s*:\s*([0-9]{1,9}))?")


def port_lists(text: str, wanted: int) -> list[list[int]]:
    """The ports of `wanted` lists such as `(@1,2), (@13:14)`; a range may run either way."""
    if not text:
        raise CommandError(-109, f"{wanted} port list{'s' * (wanted > 1)} such as (@1,2)")
    lists: list[list[int]] = []
    at = 0
    while at < len(text):
        found = LIST.match(text, at)
        if not found:
            raise CommandError(-102, f"a port list such as (@1,2), not {text[at:][:64]}")
        lists.append(_ports_of(found[1]))
        at = found.end()
        if at < len(text):
            comma = COMMA.match(text, at)
            if not comma:
                raise CommandError(-102, f"a comma and a port list, not {text[at:][:64]}")
            at = comma.end()
    if len(lists) != wanted:
        raise CommandError(-109 if len(lists) < wanted else -108, f"{len(lists)} port lists of {wanted}")
    return lists


def _ports_of(inside: str) -> list[int]:
    if not inside.strip():
        return []
    if NUMBERS.fullmatch(inside) and inside.count(",") < PORTS_IN_A_LIST:
        return list(map(int, inside.split(",")))
    ports: list[int] = []
    for item in inside.split(","):
        found = ITEM.fullmatch(item.strip())
        if not found:
            raise CommandError(-104, f"a port number, not {item.strip()[:64] or 'nothing'}")
        first, last = int(found[1]), int(found[2] or found[1])
        if len(ports) + abs(last - first) >= PORTS_IN_A_LIST:
            raise CommandError(-222, f"more than {PORTS_IN_A_LIST} ports in a list")
        ports += range(first, last + 1) if first <= last else range(first, last - 1, -1)
    return ports


def number(text: str, what: str, most: int = 255) -> int:
    """A whole number between 0 and `most`."""
    if not text:
        raise CommandError(-109, what)
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise CommandError(-104, f"{what}, not {text[:64]}")
    if int(text) > most:
        raise CommandError(-222, f"{text}: 0..{most}")
    return int(text)


def listed(ports: Iterable[int]) -> str:
    """Ports as a list: `(@1,2)`."""
    return f"(@{','.join(map(str, ports))})"
