"""A demand matrix as a file: a JSON array of rows, bytes from the row's server to the column's."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from moefabric.errors import SpecError

_MOST: Final = sys.float_info.max


def read_demand(path: Path, servers: int | None = None) -> list[list[float]]:
    """The matrix in a file, square, of at least two servers (exactly `servers`, where given). SpecError with every fault's place."""
    try:
        rows = json.loads(path.read_text())
    except OSError as fault:
        raise SpecError([(str(path), fault.strerror or str(fault))]) from fault
    except UnicodeDecodeError as fault:
        raise SpecError([(str(path), f"not text in UTF-8: byte {fault.object[fault.start]:#04x}")]) from fault
    except json.JSONDecodeError as fault:
        raise SpecError([(f"{path}:{fault.lineno}", f"not JSON: {fault.msg}")]) from fault
    except ValueError as fault:
        raise SpecError([(str(path), f"not JSON: {fault}")]) from fault
    if faults := list(_faults(rows, servers)):
        raise SpecError([(f"{path}: {place}" if place else str(path), what) for place, what in faults])
    return [[float(value) for value in row] for row in rows]


def _faults(rows: Any, servers: int | None) -> Iterator[tuple[str, str]]:
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        yield "", "an array of rows is needed, bytes from the row's server to the column's"
        return
    if servers is None and len(rows) < 2:
        yield "", f"at least two servers are needed, {len(rows)} given"
        return
    size = servers or len(rows)
    if len(rows) != size:
        yield "", f"{size} servers need {size} rows, {len(rows)} given"
    for i, row in enumerate(rows):
        if len(row) != size:
            yield f"[{i}]", f"the matrix is not square: {size} rows, {len(row)} numbers in this one"
        for j, value in enumerate(row):
            if not _is_size(value):
                yield f"[{i}][{j}]", f"{json.dumps(value)} is not a number of bytes"


def _is_size(value: Any) -> bool:
    """Whether a JSON value is a finite number, and not a negative one."""
    # Compared as it is: an integer may be too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST
