"""Trace files: bounded reading of bytes and JSON, compressed or not, and the files of all ranks."""

import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeGuard

from moefabric.core.errors import TraceError

MAX_BYTES: Final = 512 << 20
"""Bytes of a binary or text trace, decompressed."""
MAX_JSON_BYTES: Final = 256 << 20
"""Bytes of a JSON document, decompressed; Python needs up to about ten times as much for it."""
HEAD_BYTES: Final = 64 << 10
"""Bytes that readers see to recognise their format."""

_GZIP: Final = b"\x1f\x8b"
_NUMBER: Final = re.compile(r"\d+")


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Return the contents of a file, decompressed if it is gzip.

    Args:
        limit: Largest number of decompressed bytes that is accepted.

    Raises:
        TraceError: If the file can't be read, is damaged, or is larger than the limit.
    """
    data = _start(path, limit + 1)
    if len(data) > limit:
        raise TraceError(path, "", f"is larger than {limit} bytes, which is the limit")
    return data


def read_head(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed if it is gzip.

    Raises:
        TraceError: If the file can't be read or is damaged.
    """
    return _start(path, HEAD_BYTES)


def _start(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            compressed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            if not compressed:
                return file.read(count)
            with gzip.GzipFile(fileobj=file) as content:
                return content.read(count)
    except FileNotFoundError:
        raise TraceError(path, "", "there is no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(path, "", f"the gzip data are damaged: {error}") from error
    except OSError as error:
        raise TraceError(path, "", f"can't be read: {error.strerror or error}") from error


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Return the contents of a text file, decompressed if it is gzip.

    Raises:
        TraceError: As `read_bytes`, or if the file is not UTF-8.
    """
    try:
        return read_bytes(path, limit).decode()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        fault = f"is not text in UTF-8: byte {byte:#04x}"
        raise TraceError(path, f"byte {error.start}", fault) from error


def read_json(path: Path) -> Any:
    """Return the document of a JSON file, decompressed if it is gzip.

    Raises:
        TraceError: As `read_text`, or if the file is not JSON or is nested too deeply.
    """
    return parse_json(path, read_text(path, MAX_JSON_BYTES))


def parse_json(path: Path, text: str, place: str = "") -> Any:
    """Return the document of a JSON text.

    Args:
        path: The file that the text comes from.
        place: Where in the file the text is; empty if it is the whole file.

    Raises:
        TraceError: If the text is not JSON or is nested too deeply.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = place or f"line {error.lineno}, column {error.colno}"
        raise TraceError(path, where, f"is not JSON: {error.msg}") from error
    except RecursionError:
        raise TraceError(path, place, "JSON is nested too deeply") from None
    except ValueError as error:
        raise TraceError(path, place, f"is not JSON: {error}") from error


def rank_files(path: Path) -> Mapping[int, Path]:
    """Return the files of a trace by rank.

    A trace is one file, which is rank 0, or a folder or a prefix of files whose names differ by
    the rank: `m.0.et`, `m.1.et`, or `rank-0.json`, `rank-1.json`. A name may have further numbers.

    Args:
        path: A file, a folder, or the part of a path that the names of all files begin with.

    Raises:
        TraceError: If there is no such trace, or the names give no ranks from 0 upwards.
    """
    families = file_families(path)
    if len(families) > 1:
        names = ", ".join(family[0].name for family in families)
        raise TraceError(path, "", f"holds several traces ({names}): give a longer prefix")
    return families[0]


def refuse_copies(files: Mapping[int, Path]) -> None:
    """Check that no rank has another one's recording, of whose process each one tells.

    Raises:
        TraceError: If two files have the same content.
    """
    first = dict[bytes, Path]()
    for file in files.values():
        original = first.setdefault(sha256(read_bytes(file, MAX_JSON_BYTES)).digest(), file)
        if original is not file:
            fault = f"is a copy of {original.name}: each rank needs the file that it wrote"
            raise TraceError(file, "", fault)


def first_file(path: Path) -> Path:
    """Return the file that shows a trace's format: the only one, or that of rank 0.

    Of a folder without files that are numbered by rank, it is the first one in it or beneath.

    Raises:
        TraceError: If there is no file.
    """
    try:
        return file_families(path)[0][0]
    except TraceError:
        if file := min(filter(Path.is_file, path.rglob("*")), default=None):
            return file
        raise


def file_families(path: Path) -> list[Mapping[int, Path]]:
    """Return all sets of files whose names differ by a rank from 0; at least one.

    Args:
        path: A file, a folder, or the part of a path that the names of all files begin with.

    Raises:
        TraceError: If there are none.
    """
    if path.is_file():
        return [{0: path}]
    folder, prefix = (path, "") if path.is_dir() else (path.parent, path.name)
    by_pattern: dict[str, list[Path]] = {}
    for file in sorted(folder.glob(f"{escape(prefix)}*")) if folder.is_dir() else ():
        if file.is_file() and not file.name.startswith("."):
            by_pattern.setdefault(_NUMBER.sub("#", file.name), []).append(file)
    families = [family for files in by_pattern.values() if (family := _by_rank(files))]
    if not families:
        missing = next(filter(None, map(_missing_rank, by_pattern.values())), None)
        if missing is not None:
            raise TraceError(path, "", f"has no file of rank {missing[0]}: {missing[1]} is missing")
        what = "has no files numbered by rank from 0" if path.is_dir() else "there is no such file"
        raise TraceError(path, "", what)
    return families


def _missing_rank(files: Sequence[Path]) -> tuple[int, str] | None:
    """Return the first rank without a file, and that file's name; None if the names give no ranks.

    The names of ranks have one number, which is 0 for the first.
    """
    ranks = [[int(n) for n in _NUMBER.findall(file.name)] for file in files]
    numbers = {own[0] for own in ranks if len(own) == 1}
    if 0 not in numbers or len(numbers) < len(files):
        return None
    missing = min(set(range(max(numbers))) - numbers, default=None)
    return None if missing is None else (missing, _NUMBER.sub(str(missing), files[0].name))


def _by_rank(files: list[Path]) -> Mapping[int, Path]:
    """Return the files by the first number of their names that counts from 0, or nothing."""
    numbers = [[int(n) for n in _NUMBER.findall(file.name)] for file in files]
    for column in zip(*numbers, strict=False):
        if sorted(column) == list(range(len(files))):
            return dict(sorted(zip(column, files, strict=True)))
    return {}


def is_count(value: object, limit: int = 1 << 62) -> TypeGuard[int]:
    """Return whether a value of JSON is a whole number from 0 to before a limit."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit


def as_time(value: object) -> float | None:
    """Return a number of JSON that may be a time, or None."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1 << 62 else None


class Entry:
    """A JSON object in a file. The methods raise TraceError if a value is wrong.

    Attributes:
        place: Where in the file the object is.
        values: The object.
    """

    def __init__(self, path: Path, place: str, values: Any) -> None:
        self.path, self.place = path, place
        if not isinstance(values, dict):
            raise self.error("an object is needed")
        self.values: dict[str, Any] = values

    def error(self, fault: str, key: str = "") -> TraceError:
        """Return the error of the object, or of one of its values."""
        return TraceError(self.path, f"{self.place}.{key}" if key else self.place, fault)

    def count(self, key: str, limit: int = 1 << 63, default: Any = None) -> int:
        """Return a whole number from 0."""
        value = self.values.get(key, default)
        if not is_count(value, limit):
            raise self.error(f"{value!r} is not a whole number", key)
        return value


def json_list(path: Path, document: Any, key: str, what: str) -> list[Any]:
    """Return the list in a document's key.

    Raises:
        TraceError: If there is no list.
    """
    values = document.get(key) if isinstance(document, dict) else None
    if not isinstance(values, list):
        raise TraceError(path, key, f"a list of {what} is needed")
    return values
