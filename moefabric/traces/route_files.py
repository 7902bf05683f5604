"""Routes of single tokens, from the files whose counts `gating_files` reads too."""

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.core.errors import TraceError
from moefabric.traces.formats import trace_reader
from moefabric.traces.gating_files import ParquetRoutesReader, RoutesReader, read_route_lines
from moefabric.traces.route_tables import read_route_tables
from moefabric.workload.gating import ROUTES, archived_routes, read_archive
from moefabric.workload.token_routes import TokenRoutes

MAX_CHOICES: Final = 1 << 28
"""Choices of experts that are in memory."""

_Place = tuple[int, int, int]
"""Iteration, layer and rank."""


def load_routes(path: Path) -> TokenRoutes:
    """Read routes from JSON lines, Parquet in FLAME-MoE's layout, or a NumPy archive.

    All layers of all iterations must have equally many tokens of each rank. Ranks that a file
    doesn't tell are one rank.

    Args:
        path: The file, or the folder of Parquet files.

    Raises:
        SpecError: If the file can't be read, or has no routes.
    """
    if path.is_file() and zipfile.is_zipfile(path):
        arrays = read_archive(path)
        if ROUTES not in arrays:
            raise TraceError(path, "", f"has counts by expert, but no array {ROUTES}")
        return archived_routes(arrays, path)
    reader = trace_reader(path)
    if isinstance(reader, RoutesReader):
        return _routes(path, _line_parts(path))
    if isinstance(reader, ParquetRoutesReader):
        return _routes(path, _table_parts(path))
    raise TraceError(path, "", f"has no routes of tokens ({reader.name})")


def _line_parts(path: Path) -> Iterator[tuple[_Place, NDArray[np.int64]]]:
    for iteration, layer, rank, routes in read_route_lines(path):
        flat = [expert for route in routes for expert in route]
        rows = _rows(path, np.array(flat, dtype=np.int64), np.array([len(one) for one in routes]))
        yield (iteration, layer, rank), rows


def _table_parts(path: Path) -> Iterator[tuple[_Place, NDArray[np.int64]]]:
    for iteration, layer, experts, lengths in read_route_tables(path):
        if len(lengths):
            yield (iteration, layer, 0), _rows(path, experts, lengths)


def _rows(path: Path, experts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return experts [token, choice] of tokens that have equally many."""
    if not len(experts) or lengths.min() != lengths.max():
        raise TraceError(path, "", "tokens have different numbers of experts")
    return experts.reshape(len(lengths), -1)


def _routes(path: Path, parts: Iterable[tuple[_Place, NDArray[np.int64]]]) -> TokenRoutes:
    """Join parts to the routes of all iterations, layers and ranks that they name."""
    rows: dict[_Place, list[NDArray[np.int64]]] = {}
    choices = 0
    for place, part in parts:
        rows.setdefault(place, []).append(part)
        choices += part.size
        if choices > MAX_CHOICES:
            raise TraceError(path, "", f"has more than {MAX_CHOICES} choices, which is the limit")
    axes = [sorted({place[axis] for place in rows}) for axis in range(3)]
    places = [(i, layer, r) for i in axes[0] for layer in axes[1] for r in axes[2]]
    shapes = {
        (sum(map(len, rows.get(place, []))), *{part.shape[1] for part in rows.get(place, [])})
        for place in places
    }
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        each = "each rank of each layer of each iteration"
        raise TraceError(path, "", f"equally many tokens and experts of {each} are needed")
    experts = np.stack([np.concatenate(rows[place]) for place in places])
    try:
        return TokenRoutes(experts.reshape(*map(len, axes), *experts.shape[1:]))
    except ValueError as error:
        raise TraceError(path, "", str(error)) from error
