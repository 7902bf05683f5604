"""A demand matrix as a file: a JSON array of rows, bytes from the row's server to the column's."""

import json
from math import isfinite
from pathlib import Path
from typing import Any

from moefabric.errors import SpecError


def read_demand(path: Path, servers: int | None = None) -> list[list[float]]:
    """The matrix in a file, square, of at least two servers (exactly `servers`, where given). SpecError with every fault's place."""
    try:
        rows = json.loads(path.read_text())
    except OSError as fault:
        raise SpecError([(str(path), fault.strerror or str(fault))]) from fault
    except (json.JSONDecodeError, UnicodeDecodeError) as fault:
        where = f"{path}:{fault.lineno}" if isinstance(fault, json.JSONDecodeError) else str(path)
        raise SpecError([(where, f"not JSON: {fault}")]) from fault
    faults = _faults(rows, servers)
    if faults:
        raise SpecError([(f"{path}: {place}" if place else str(path), what) for place, what in faults])
    return [[float(value) for value in row] for row in rows]


def _faults(rows: Any, servers: int | None) -> list[tuple[str, str]]:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        return [("", "an array of rows is needed, bytes from the row's server to the column's")]
    n = servers or len(rows)
    faults = []
    if len(rows) != n:
        faults.append(("", f"{n} servers need {n} rows, {len(rows)} given"))
    elif n < 2:
        faults.append(("", "at least two servers are needed"))
    for i, row in enumerate(rows):
        if len(row) != n:
            faults.append((f"[{i}]", f"the matrix is not square: {n} bytes counts are needed, {len(row)} given"))
        for j, value in enumerate(row):
            if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
                faults.append((f"[{i}][{j}]", f"{json.dumps(value)} is not a number of bytes"))
            elif value < 0:
                faults.append((f"[{i}][{j}]", f"{value:g} bytes are less than none"))
    return faults
