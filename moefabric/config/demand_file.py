"""Reads demand files: JSON arrays of rows, bytes from the row's server to the column's."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from moefabric.config.file_kinds import refuse_other_kind
from moefabric.config.input_file import read_json
from moefabric.config.section import InputError
from moefabric.core.errors import SpecError

_MAX_BYTES: Final = sys.float_info.max


def read_demand(path: Path, servers: int | None = None) -> list[list[float]]:
    """Return the square demand matrix in a file.

    Args:
        path: The JSON file.
        servers: Number of servers that the matrix must have; None accepts two or more.

    Raises:
        SpecError: With all errors of the file, each with its place.
    """
    refuse_other_kind(path, "demand")
    return _checked(read_json(path), servers, f"{path}: ")


def check_demand(rows: Any, servers: int | None, place: str) -> list[list[float]]:
    """Return a square demand matrix of Python or numpy as rows of numbers.

    Args:
        rows: Bytes from the row's server to the column's.
        servers: Number of servers that the matrix must have; None accepts two or more.
        place: Where the matrix was given, to be named in messages.

    Raises:
        SpecError: With all errors of the matrix.
    """
    plain = rows.tolist() if hasattr(rows, "tolist") else [list(row) for row in rows]
    return _checked(plain, servers, place)


def _checked(rows: Any, servers: int | None, place: str) -> list[list[float]]:
    """Return rows as numbers; raise SpecError with all errors, whose places begin with `place`."""
    if errors := list(_errors(rows, servers)):
        places = ((f"{place}{inner}".removesuffix(": "), message) for inner, message in errors)
        raise SpecError(list(places))
    return [[float(value) for value in row] for row in rows]


def _errors(rows: Any, servers: int | None) -> Iterator[InputError]:
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        yield "", "an array of rows is needed: bytes from the row's server to the column's"
        return
    if servers is None and len(rows) < 2:
        yield "", f"at least two servers are needed, {len(rows)} given"
        return
    size = servers or len(rows)
    if len(rows) != size:
        yield "", f"{size} servers need {size} rows, {len(rows)} given"
    for i, row in enumerate(rows):
        if len(row) != size:
            yield f"[{i}]", f"the matrix is not square: {size} rows, {len(row)} numbers in this row"
        for j, value in enumerate(row):
            # The integer itself is compared, since it may be too large for a float.
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= _MAX_BYTES:
                yield f"[{i}][{j}]", f"{json.dumps(value)} is not a number of bytes"
