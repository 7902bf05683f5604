"""Structured logs: each process of a fabric appends JSON lines to a file of its own.

A line has `time` (ISO 8601, UTC), `level`, `process`, `pid`, `logger` and `message`, perhaps
`exception`, and ids: `fabric`, `run`, `region`, `iteration`, `collective`, `reconfiguration`.
Variable MOEFABRIC_LOG sets the level. Ids come from three places: `start` (of the process),
`log_context` (of what the process does), and `extra` of a logging call. They travel with HTTP
requests in the header `baggage` (W3C Baggage).

Agents on real servers use this module too. It needs Python 3.8 and the standard library only.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import re
import sys
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Iterator, Mapping  # noqa: UP035 - Python 3.8

LEVEL_VARIABLE: Final = "MOEFABRIC_LOG"
LEVELS: Final = ("debug", "info", "warning", "error")
IDS: Final = ("fabric", "run", "region", "iteration", "collective", "reconfiguration")
SUFFIX: Final = ".jsonl"
MOST_BYTES: Final = 1 << 20
"""Size at which a log file is renamed; one older file is kept."""
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FORMATTED: Final = " formatted"
"""Attribute of a record with its line, until it is written."""
_ID: Final = re.compile(r"[A-Za-z0-9_.~/-]{1,64}")
_CONTEXT: ContextVar[Mapping[str, object]] = ContextVar("ids", default=MappingProxyType({}))
_PART: ContextVar[str] = ContextVar("part", default="")
_process_ids: dict[str, object] = {}


@contextmanager
def log_context(**ids: object) -> Iterator[None]:
    """Add ids to the log lines of this thread, green thread or coroutine until the block ends."""
    token = _CONTEXT.set({**_CONTEXT.get(), **ids})
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def current_ids() -> dict[str, object]:
    """Return the ids of the process and of the present context."""
    return {**_process_ids, **_CONTEXT.get()}


def baggage(**ids: object) -> str:
    """Return the header `baggage` with the present ids and these ones."""
    known = {**current_ids(), **ids}
    return ",".join(f"{name}={known[name]}" for name in IDS if name in known)


def ids_of_baggage(header: str | None) -> dict[str, str]:
    """Return the ids in a header `baggage`; other members are left out."""
    members = (member.strip().partition("=")[::2] for member in (header or "").split(","))
    return {name: value for name, value in members if name in IDS and _ID.fullmatch(value)}


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON.

    Args:
        process: Name of the process, such as `controller-r0`.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        formatted: str | None = vars(record).pop(_FORMATTED, None)
        return self._line(record) if formatted is None else formatted

    def _line(self, record: logging.LogRecord) -> str:
        instant = datetime.fromtimestamp(record.created, timezone.utc)  # noqa: UP017 - Python 3.8
        line: dict[str, Any] = {
            "time": instant.isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage(),
            **current_ids(),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD},
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _LogFile(logging.handlers.RotatingFileHandler):
    """A log file that is renamed when it is full."""

    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: N802 - logging's name
        """Return whether the file has no room for a record, by one system call."""
        if self.stream is None:
            return False
        line, size = self.format(record), os.fstat(self.stream.fileno()).st_size
        vars(record)[_FORMATTED] = line  # which is written next
        return size + len(line) + 1 >= self.maxBytes


def start(process: str, folder: Path | None = None, **ids: object) -> logging.Handler:
    """Log this process's records from now on; return the handler.

    Args:
        process: Name of the process.
        folder: Folder of the log file. Default: that of the fabric whose process this is. Without
            a folder that can be written, lines go to standard error.
        ids: Ids of all lines.
    """
    sys.excepthook = _log_uncaught
    handler = _attach(logging.getLogger(), process, folder or log_folder(), ids)
    handler.addFilter(lambda _record: not _PART.get())
    return handler


@contextmanager
def part(name: str, folder: Path | None = None, **ids: object) -> Iterator[None]:
    """Log a part of this process as if it were a process of its own.

    The part is what runs in the present context until the block ends, or in a copy of it at any
    time. Arguments are those of `start`.
    """
    handler = _handler(name, folder or log_folder())
    handler.setFormatter(JsonFormatter(name))
    handler.addFilter(lambda _record: _PART.get() == name)
    logging.getLogger().addHandler(handler)
    token = _PART.set(name)
    try:
        with log_context(**ids):
            yield
    finally:
        _PART.reset(token)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if issubclass(kind, Exception):
        logging.getLogger(__name__).error("the process ends", exc_info=(kind, error, trace))
    sys.__excepthook__(kind, error, trace)


@contextmanager
def logged(process: str, folder: Path, **ids: object) -> Iterator[None]:
    """Log moefabric's work in this process until the block ends, beside the caller's own logging.

    All its threads have the ids of the present context.
    """
    logger = logging.getLogger("moefabric")
    earlier_level, earlier_ids = logger.level, dict(_process_ids)
    handler = _attach(logger, process, folder, ids)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(earlier_level)
        _process_ids.clear()
        _process_ids.update(earlier_ids)
        with suppress(OSError):  # the disk is full
            handler.close()


def _attach(
    logger: logging.Logger, process: str, folder: Path | None, ids: Mapping[str, object]
) -> logging.Handler:
    if logger.parent is None:  # a fork replaces the handlers of its parent
        for inherited in list(logger.handlers):
            logger.removeHandler(inherited)
            inherited.close()
    logging.raiseExceptions = False  # a full disk must not flood standard error
    handler = _handler(process, folder)
    handler.setFormatter(JsonFormatter(process))
    logger.addHandler(handler)
    logger.setLevel(chosen_level())
    _process_ids.clear()
    fabric = {"fabric": folder.parent.name} if folder else {}
    _process_ids.update({**fabric, **_CONTEXT.get(), **ids})
    return handler


def _handler(process: str, folder: Path | None) -> logging.Handler:
    with suppress(OSError):  # a folder of a real server, or one that is mounted read-only
        if folder is not None:
            return _LogFile(
                folder / f"{process}{SUFFIX}", maxBytes=MOST_BYTES, backupCount=1, encoding="utf-8"
            )
    return logging.StreamHandler(sys.stderr)


def log_folder() -> Path | None:
    """Return the folder of the logs of the fabric whose process this is; None outside of one."""
    root, fabric = (os.environ.get(f"MOEFABRIC_{name}", "") for name in ("RUN_DIR", "FABRIC"))
    return Path(root, fabric, "log") if root and fabric else None


def chosen_level() -> int:
    """Return the level of MOEFABRIC_LOG; `info` if it has none."""
    name = os.environ.get(LEVEL_VARIABLE, "").lower()
    return int(getattr(logging, name.upper())) if name in LEVELS else logging.INFO
