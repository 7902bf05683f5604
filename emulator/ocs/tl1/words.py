"""TL1's words: from the bytes of a connection to commands `VERB:TID:AID:CTAG:general:block 1:block 2;` as values.

Syntax after GR-831-CORE; which code goes with which fault, and the offsets in the texts, after public tests of Polatis switches.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

COMMAND_BYTES = 16 * 1024
"""A longer command is not done."""
VERB = re.compile(r"[A-Z][A-Z0-9]*(?:-[A-Z0-9]+)*")
IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,19}")
QUOTED = re.compile(r'"((?:[^"\\\r\n]|\\[^\r\n])*)"')
NO_TAG = "0"
"""What an answer is tagged with if its command has no tag."""


class DeniedError(Exception):
    """A command that is not done: a code of four letters, and what it was about."""

    def __init__(self, code: str, text: str = "", ctag: str = NO_TAG) -> None:
        self.code, self.text, self.ctag = code, text, ctag
        super().__init__(f"{code} {text}".strip())


class PartlyError(DeniedError):
    """A command that was done in part; `lines` are what there is of it now."""

    def __init__(self, code: str, text: str, lines: tuple[str, ...]) -> None:
        self.lines = lines
        super().__init__(code, text)


@dataclass(frozen=True)
class Word:
    """A part of a command, and where it begins."""

    text: str
    offset: int

    @property
    def plain(self) -> str:
        """Without white space around it, and without quotes."""
        bare = self.text.strip()
        quoted = QUOTED.fullmatch(bare)
        return re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else bare

    @property
    def is_quoted(self) -> bool:
        return QUOTED.fullmatch(self.text.strip()) is not None

    def split(self, at: str) -> list["Word"]:
        """Its parts between the separators that stand in no quotes; none, if there is nothing but white space."""
        return list(_split(self, at)) if self.text.strip() else []


@dataclass(frozen=True)
class Command:
    """A command as it was written."""

    verb: str
    tid: str
    aid: Word
    ctag: str
    blocks: tuple[Word, ...]
    """What follows the tag: the general block, which is empty, then blocks 1, 2..."""

    def block(self, number: int) -> Word | None:
        """A block, if it was written."""
        return self.blocks[number] if number < len(self.blocks) else None

    def words(self, number: int) -> list[Word]:
        """A block's words, between commas."""
        block = self.block(number)
        return block.split(",") if block else []


class Commands:
    """A connection's bytes, cut into the texts of commands; half a command waits for its other half."""

    def __init__(self) -> None:
        self._unended = bytearray()
        self._in_quotes = self._escaped = self._overlong = False

    def fed(self, data: bytes) -> Iterator[str | None]:
        """The texts that these bytes complete; None for one that is too long."""
        begun = 0
        for at, byte in enumerate(data):
            if self._ends(byte):
                self._keep(data[begun:at])
                begun = at + 1
                yield self._taken()
        self._keep(data[begun:])

    def _ends(self, byte: int) -> bool:
        """Whether a command ends here. A quoted string ends with its line at the latest."""
        if byte in b"\r\n":
            self._in_quotes = self._escaped = False
        elif self._escaped:
            self._escaped = False
        elif self._in_quotes and byte == 0x5C:
            self._escaped = True
        elif byte == 0x22:
            self._in_quotes = not self._in_quotes
        return byte == 0x3B and not self._in_quotes

    def _keep(self, data: bytes) -> None:
        if self._overlong or len(self._unended) + len(data) > COMMAND_BYTES:
            self._overlong = True
            self._unended.clear()
        else:
            self._unended += data

    def _taken(self) -> str | None:
        text = None if self._overlong else self._unended.decode("ascii", "replace")
        self._unended.clear()
        self._overlong = False
        return text


def command(text: str) -> Command | None:
    """A command's text as a value; None for white space. DeniedError for what is none."""
    if not text.strip():
        return None
    lead = len(text) - len(text.lstrip())
    fields = Word(text[lead:], 0).split(":")
    verb = re.sub(r"\s*-\s*", "-", fields[0].text.strip()).upper()
    ctag = _tag(fields)
    if not VERB.fullmatch(verb):
        raise DeniedError("IISP", "Parse error at offset 1 in command", ctag)
    if any(_is_unbalanced(field.text) for field in fields):
        raise DeniedError("IISP", "Unbalanced quotes", ctag)
    tid = fields[1]
    if tid.text.strip() and not tid.is_quoted and not IDENTIFIER.fullmatch(tid.plain):
        raise DeniedError("IITA", f"Parse error at offset {tid.offset + 1} in command", ctag)
    return Command(verb, tid.plain, fields[2], ctag, tuple(fields[4:]))


def _tag(fields: list[Word]) -> str:
    """The tag, which every command needs."""
    if len(fields) < 4:
        last = fields[-1]
        at = last.offset + len(last.text) + 1
        raise DeniedError("IICT", f"Parse error at offset {at} in command")
    tag = fields[3]
    plain = tag.plain
    fits = (
        len(plain) <= 20 and plain.isprintable() and plain.isascii()
        if tag.is_quoted
        else TAG.fullmatch(plain)
    )
    if not fits or not plain:
        raise DeniedError("IICT", f"Parse error at offset {tag.offset + 1} in command")
    return plain


def _split(word: Word, at: str) -> Iterator[Word]:
    in_quotes = escaped = False
    begun = 0
    for place, char in enumerate(word.text):
        if escaped:
            escaped = False
        elif in_quotes and char == "\\":
            escaped = True
        elif char == '"':
            in_quotes = not in_quotes
        elif char == at and not in_quotes:
            yield Word(word.text[begun:place], word.offset + begun)
            begun = place + 1
    yield Word(word.text[begun:], word.offset + begun)


def _is_unbalanced(text: str) -> bool:
    return '"' in QUOTED.sub("", text)
