"""Logs of a fabric's processes, merged by time."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import SpecError, some_of
from moefabric.runtime.structured_log import LEVELS, SUFFIX

_OUTPUT_SUFFIX: Final = ".log"
_OUTPUT_LEVEL: Final = "warning"
"""Level of a line that a process printed: usually a fault, such as a traceback."""
_FIELDS: Final = ("time", "level", "process", "message")
_SHOWN: Final = {*_FIELDS, "pid", "logger", "exception", "fabric", "run"}
"""Fields that `text` shows in another way, or not."""
_MOST_READ: Final = 4 << 20
_LONGEST_LINE: Final = 1 << 16
_PERIOD_S: Final = 0.2
"""Time between two looks for new lines, each of which opens all files once."""


@dataclass(frozen=True, order=True)
class LogLine:
    """A line of a log.

    Attributes:
        time: ISO 8601, UTC.
        fields: All fields of the line, with ids.
    """

    time: str
    level: str = field(compare=False)
    process: str = field(compare=False)
    message: str = field(compare=False)
    fields: Mapping[str, Any] = field(compare=False)

    def text(self) -> str:
        """Return the line for people: time of day, level, process, message, further fields."""
        further = [f"{name}={value}" for name, value in self.fields.items() if name not in _SHOWN]
        line = f"{self.time[11:23]} {self.level:7} {self.process:14} {self.message}"
        words = [line + (f"  [{' '.join(further)}]" if further else "")]
        words += [f"    {row}" for row in str(self.fields.get("exception", "")).splitlines()]
        return "\n".join(_printable(word) for word in words)

    def to_json(self) -> str:
        """Return the line as JSON."""
        return json.dumps(self.fields)


def _printable(text: str) -> str:
    """Return text without control characters, which could change the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def parse_line(line: bytes, process: str, printed_at: str) -> LogLine:
    """Return the line of a log.

    Args:
        line: The line, structured or any other output of a process.
        process: The process that printed it, if it is not structured.
        printed_at: When it was printed at the latest, if it is not structured.
    """
    text = line.decode("utf-8", "replace")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not (isinstance(fields, dict) and all(isinstance(fields.get(n), str) for n in _FIELDS)):
        fields = dict(zip(_FIELDS, (printed_at, _OUTPUT_LEVEL, process, text), strict=True))
    return LogLine(**{name: fields[name] for name in _FIELDS}, fields=fields)


def line_filter(
    process: str | None = None, level: str = LEVELS[0], ids: Mapping[str, str] | None = None
) -> Callable[[LogLine], bool]:
    """Return whether a line meets these criteria.

    Args:
        process: Pattern of its process, such as `agents-*`; None for all.
        level: Its least level.
        ids: Ids that it must have.
    """
    unwanted = LEVELS[: LEVELS.index(level)]

    def wanted(line: LogLine) -> bool:
        return (
            (process is None or fnmatchcase(line.process, process))
            and line.level not in unwanted
            and all(str(line.fields.get(name)) == value for name, value in (ids or {}).items())
        )

    return wanted


def _process_of(file: Path) -> str:
    """Return the process whose log a file is."""
    return file.name.partition(SUFFIX)[0].removesuffix(_OUTPUT_SUFFIX)


class LogFolder:
    """Reads the logs of all processes of a fabric, and follows them.

    Args:
        folder: The folder of the logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[int, int] = {}
        """Bytes read of each file, by inode: a rotated file has a new name."""

    def processes(self) -> set[str]:
        """Return the names of the processes that have logged."""
        names = {line.process for line in LogFolder(self.folder).new_lines()}
        return names | {_process_of(file) for file in self._files()}

    def check_process(self, pattern: str) -> None:
        """Check that a pattern such as `agents-*` is the name of a process that has logged.

        Raises:
            SpecError: If it is none; it lists the processes.
        """
        names = self.processes()
        if not any(fnmatchcase(name, pattern) for name in names):
            raise SpecError([("--process", f"{pattern} is none of {', '.join(sorted(names))}")])

    def check_ids(self, ids: Mapping[str, str]) -> None:
        """Check that lines have these ids.

        Raises:
            SpecError: If none has one of them; it lists those that there are, the latest first.
        """
        lines = LogFolder(self.folder).new_lines() if ids else []
        for name, value in ids.items():
            known = [str(line.fields[name]) for line in reversed(lines) if name in line.fields]
            if value not in known:
                there_are = some_of(list(dict.fromkeys(known)))
                fault = f" is none of {there_are}" if known else ": no line has one"
                raise SpecError([(f"--{name}", f"{value}{fault}")])

    def _files(self) -> list[Path]:
        patterns = f"*{SUFFIX}.1", f"*{SUFFIX}", f"*{_OUTPUT_SUFFIX}"
        return [file for pattern in patterns for file in sorted(self.folder.glob(pattern))]

    def new_lines(self) -> list[LogLine]:
        """Return the lines since the last call, in order of time."""
        return sorted(line for file in self._files() for line in self._new_lines_of(file))

    def _new_lines_of(self, path: Path) -> Iterator[LogLine]:
        process = _process_of(path)
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                begin = self._read.get(status.st_ino, 0)
                begin = begin if begin <= status.st_size else 0  # the file was truncated
                file.seek(max(begin, status.st_size - _MOST_READ))
                data = file.read(_MOST_READ)
                end = file.tell()
        except OSError:  # it was rotated meanwhile, or is another user's
            return
        *lines, rest = data.split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        self._read[status.st_ino] = end - len(rest)
        printed_at = datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="microseconds")
        yield from (parse_line(line, process, printed_at) for line in lines if line.strip())

    def follow(self) -> Iterator[LogLine]:
        """Yield all lines, then new ones, until the folder is removed."""
        yield from self.new_lines()
        while self.folder.is_dir():
            time.sleep(_PERIOD_S)
            yield from self.new_lines()
