"""Syntax of TL1: parses the bytes of a connection into commands.

A command is `VERB:TID:AID:CTAG:general:block 1:block 2;` (GR-831-CORE). Error codes, and the
offsets in the error texts, follow public tests of Polatis switches.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_COMMAND_BYTES = 16 * 1024
"""A longer command is not executed."""
VERB = re.compile(r"[A-Z][A-Z0-9]*(?:-[A-Z0-9]+)*")
IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,19}")
QUOTED_PART = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?$)', re.DOTALL)
"""Quoted part of a text; without a closing quote, the rest of the text."""
QUOTED = re.compile(r'"((?:[^"\\\r\n]|\\[^\r\n])*)"')
NO_TAG = "0"
"""Tag of the response to a command without a tag."""


class DeniedError(Exception):
    """A command is refused; the reason has a code of four letters.

    If the command was executed in part, `lines` list the executed parts.
    """

    def __init__(
        self, code: str, text: str = "", ctag: str = NO_TAG, lines: list[str] | None = None
    ) -> None:
        self.code, self.text, self.ctag, self.lines = code, text, ctag, lines
        super().__init__(f"{code} {text}".strip())


@dataclass(frozen=True)
class Field:
    """A part of a command, and its offset."""

    text: str
    offset: int

    @property
    def value(self) -> str:
        """The text without quotes and surrounding white space."""
        stripped = self.text.strip()
        match = QUOTED.fullmatch(stripped)
        return re.sub(r"\\(.)", r"\1", match[1]) if match else stripped

    @property
    def is_quoted(self) -> bool:
        """True if the text is a quoted string."""
        return QUOTED.fullmatch(self.text.strip()) is not None

    def split(self, separator: str) -> list["Field"]:
        """Split at separators outside quotes; a field of white space has no parts."""
        if not self.text.strip():
            return []
        unquoted = QUOTED_PART.sub(lambda match: "_" * len(match[0]), self.text)
        parts, start = [], 0
        for part in unquoted.split(separator):
            end = start + len(part)
            parts.append(Field(self.text[start:end], self.offset + start))
            start = end + 1
        return parts


@dataclass(frozen=True)
class Command:
    """A command as it was sent."""

    verb: str
    tid: str
    aid: Field
    ctag: str
    blocks: tuple[Field, ...]
    """The general block, which must be empty, then blocks 1, 2 and so on."""

    def fields(self, number: int) -> list[Field]:
        """Return the fields of a block, or none if the block is absent."""
        return self.blocks[number].split(",") if number < len(self.blocks) else []


class CommandReader:
    """Divides the bytes of a connection into the texts of commands."""

    def __init__(self) -> None:
        self._incomplete = bytearray()
        self._in_quotes = self._escaped = self._overlong = False

    def feed(self, data: bytes) -> Iterator[str | None]:
        """Yield the texts that these bytes complete; None for a text that is too long."""
        start = 0
        for at, byte in enumerate(data):
            if self._is_end(byte):
                self._append(data[start:at])
                start = at + 1
                text = self._incomplete.decode("ascii", "replace")
                overlong, self._overlong = self._overlong, False
                self._incomplete.clear()
                yield None if overlong else text
        self._append(data[start:])

    def _is_end(self, byte: int) -> bool:
        """Return whether a command ends here. The end of a line ends a quoted string."""
        if byte in b"\r\n":
            self._in_quotes = self._escaped = False
        elif self._escaped:
            self._escaped = False
        elif self._in_quotes and byte == 0x5C:
            self._escaped = True
        elif byte == 0x22:
            self._in_quotes = not self._in_quotes
        return byte == 0x3B and not self._in_quotes

    def _append(self, data: bytes) -> None:
        if self._overlong or len(self._incomplete) + len(data) > MAX_COMMAND_BYTES:
            self._overlong = True
            self._incomplete.clear()
        else:
            self._incomplete += data


def parse_command(text: str) -> Command | None:
    """Parse a command.

    Returns:
        The command, or None if there is only white space.

    Raises:
        DeniedError: if the text is no command.
    """
    if not text.strip():
        return None
    fields = Field(text.lstrip(), 0).split(":")
    verb = re.sub(r"\s*-\s*", "-", fields[0].text.strip()).upper()
    ctag = _tag(fields)
    if not VERB.fullmatch(verb):
        raise DeniedError("IISP", "Parse error at offset 1 in command", ctag)
    if any('"' in QUOTED.sub("", field.text) for field in fields):
        raise DeniedError("IISP", "Unbalanced quotes", ctag)
    tid = fields[1]
    if tid.text.strip() and not tid.is_quoted and not IDENTIFIER.fullmatch(tid.value):
        raise DeniedError("IITA", f"Parse error at offset {tid.offset + 1} in command", ctag)
    return Command(verb, tid.value, fields[2], ctag, tuple(fields[4:]))


def _tag(fields: list[Field]) -> str:
    """Return the correlation tag, which every command needs."""
    if len(fields) < 4:
        last = fields[-1]
        at = last.offset + len(last.text) + 1
        raise DeniedError("IICT", f"Parse error at offset {at} in command")
    tag = fields[3].value
    if fields[3].is_quoted:
        is_valid = 0 < len(tag) <= 20 and tag.isprintable() and tag.isascii()
    else:
        is_valid = TAG.fullmatch(tag) is not None
    if not is_valid:
        raise DeniedError("IICT", f"Parse error at offset {fields[3].offset + 1} in command")
    return tag
