"""Syntax of SCPI: headers, lines of several commands, port lists and numbers.

The syntax follows SCPI-99 volume 1 and IEEE 488.2. Case is ignored, each word has a short and a
long form, and `;` separates the commands of a line.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from moefabric.emulator.ocs.scpi.status import ScpiError

MAX_PORTS = 4096
"""Maximum number of ports in a list."""


def header_pattern(header: str) -> re.Pattern[str]:
    """Return a pattern for all spellings of a header such as `OXC:SWITch:SIZE?`.

    The capitals of a word are its short form; words in `[...]` are optional.
    """

    def word(match: re.Match[str]) -> str:
        short, rest = match[1], match[2]
        return f"{short}(?:{rest})?" if rest else short

    parts = header.replace("*", r"\*").replace("?", r"\?").replace("[", "(?:").replace("]", ")?")
    return re.compile(re.sub(r"([A-Z]+)([a-z]*)", word, parts), re.IGNORECASE)


@dataclass(frozen=True)
class Unit:
    """A command of a line: header as sent, and parameters."""

    header: str
    parameters: str

    def spellings(self, path: str) -> list[str]:
        """Return the full headers that this header may stand for, most likely first.

        A command without a leading `:` continues the path of the previous command, or starts at
        the root.
        """
        if self.header.startswith("*"):
            return [self.header]
        if self.header.startswith(":"):
            return [] if self.header.startswith(":*") else [self.header[1:]]
        return [f"{path}{self.header}", self.header] if path else [self.header]


def units(line: str) -> Iterator[Unit]:
    """Yield the commands of a line. `;` within double quotes is no separator."""
    parts = re.findall(r'(?:[^;"]+|"[^"]*(?:"|$))+', line) if '"' in line else line.split(";")
    for part in parts:
        if words := part.split(maxsplit=1):
            yield Unit(words[0], words[1].rstrip() if len(words) > 1 else "")


def path_after(spelling: str, path: str) -> str:
    """Return the path that the next command continues; common commands keep the path."""
    return path if spelling.startswith("*") else spelling.rpartition(":")[0] + ":"


LIST = re.compile(r"\(\s*@\s*([^()]*)\)\s*")
COMMA = re.compile(r",\s*(?=\()")
NUMBERS = re.compile(r" *[0-9]{1,9} *(?:, *[0-9]{1,9} *)*")
ITEM = re.compile(r"([0-9]{1,9})(?:\s*:\s*([0-9]{1,9}))?")


def port_lists(text: str, count: int) -> list[list[int]]:
    """Read `count` port lists such as `(@1,2), (@13:14)`; ranges may ascend or descend."""
    if not text:
        raise ScpiError(-109, f"{count} port list{'s' * (count > 1)} such as (@1,2)")
    lists: list[list[int]] = []
    at = 0
    while at < len(text):
        match = LIST.match(text, at)
        if not match:
            raise ScpiError(-102, f"a port list such as (@1,2), not {text[at:][:64]}")
        lists.append(_port_list(match[1]))
        at = match.end()
        if at < len(text):
            comma = COMMA.match(text, at)
            if not comma:
                raise ScpiError(-102, f"a comma and a port list, not {text[at:][:64]}")
            at = comma.end()
    if len(lists) != count:
        code = -109 if len(lists) < count else -108
        raise ScpiError(code, f"{len(lists)} port lists of {count}")
    return lists


def _port_list(text: str) -> list[int]:
    if not text.strip():
        return []
    if NUMBERS.fullmatch(text) and text.count(",") < MAX_PORTS:
        return list(map(int, text.split(",")))
    ports: list[int] = []
    for item in map(str.strip, text.split(",")):
        match = ITEM.fullmatch(item)
        if not match:
            raise ScpiError(-104, f"a port number, not {item[:64] or 'nothing'}")
        first, last = int(match[1]), int(match[2] or match[1])
        if len(ports) + abs(last - first) >= MAX_PORTS:
            raise ScpiError(-222, f"more than {MAX_PORTS} ports in a list")
        ports += range(first, last + 1) if first <= last else range(first, last - 1, -1)
    return ports


def number(text: str, meaning: str, most: int = 255) -> int:
    """Read a whole number between 0 and `most`; error messages contain `meaning`."""
    if not text:
        raise ScpiError(-109, meaning)
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ScpiError(-104, f"{meaning}, not {text[:64]}")
    if int(text) > most:
        raise ScpiError(-222, f"{text}: 0..{most}")
    return int(text)


def format_ports(ports: Iterable[int]) -> str:
    """Return ports as a list: `(@1,2)`."""
    return f"(@{','.join(map(str, ports))})"
