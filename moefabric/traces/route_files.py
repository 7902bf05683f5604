"""Files of the routes of single tokens, which are read as counts or as routes.

They are JSON lines, and Parquet in FLAME-MoE's layout, `actives/iter_0100/layer_02.parquet`. NumPy
archives may have routes, too. Files that don't say which rank sends a token are of one rank.
"""

import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from moefabric.core.errors import TraceError
from moefabric.runtime.missing_package import missing_package
from moefabric.traces.files import parse_json, read_text
from moefabric.traces.formats import trace_reader
from moefabric.traces.gating_files import (
    AXES,
    MAX_EXPERTS,
    ROUTES,
    GatingCells,
    archived_routes,
    bounded_index,
    counted_trace,
    read_archive,
)
from moefabric.workload.gating.token_routes import TokenRoutes
from moefabric.workload.gating.traces import GatingTrace

MAX_CHOICES: Final = 1 << 28
"""Choices of experts that are in memory."""

PARQUET_ROWS: Final = 1 << 18
"""Tokens that are in memory at a time."""
MAX_PARQUET_BYTES: Final = 4 << 30
"""Bytes of a Parquet file, decompressed."""

_PARQUET_FILE: Final = re.compile(r"iter_(\d{1,9})/layer_(\d{1,6})\.parquet")
_PARQUET_COLUMN: Final = "indices"
_Experts = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Experts of successive tokens, and how many each token has."""
_Place = tuple[int, int, int]
"""Iteration, layer and rank."""

_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "iteration": ("iteration", "step"),
    "layer": ("layer", "layer_id", "layer_idx"),
    "rank": ("rank", "source_rank"),
    "experts": ("topk_ids", "topk_experts", "experts", "indices", "selected_experts"),
}
"""Keys of a JSON line, by meaning."""


class RoutesReader:
    """Reads the routes of tokens in JSON lines, and counts them.

    A line has the `layer` and the experts of one token, or of several in lists of lists:
    `{"layer": 3, "topk_ids": [17, 4]}`. `iteration` (or `step`) and `rank` are optional. Lines with
    another `type` than `route` are left out.
    """

    name = "routes"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether the first line is a JSON object of routes."""
        line = head.split(b"\n", 1)[0]
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            return False
        return isinstance(document, dict) and (
            document.get("type") in ("meta", "route") or _key(document, "experts") is not None
        )

    def read(self, path: Path) -> GatingTrace:
        """Count the routes."""
        return _counted(path, self.parts(path))

    def parts(self, path: Path) -> Iterator[tuple[_Place, _Experts]]:
        """Yield the place and the experts of each line.

        Raises:
            TraceError: At a line that isn't a route.
        """
        for line, text in enumerate(read_text(path).splitlines(), start=1):
            if not text.strip():
                continue
            document = parse_json(path, text, f"line {line}")
            if not isinstance(document, dict):
                raise TraceError(path, f"line {line}", "an object is needed")
            if document.get("type", "route") == "route":
                yield _line_part(path, line, document)


class ParquetRoutesReader:
    """Counts the routes of tokens in Parquet files.

    A file has the experts of a token in a row, in the list `indices`. A folder of FLAME-MoE has
    such files in `iter_N/layer_N.parquet`; a file alone is one layer of one iteration.
    """

    name = "routes-parquet"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether the first file is Parquet."""
        return head.startswith(b"PAR1")

    def read(self, path: Path) -> GatingTrace:
        """Count the routes of a file, or of all files of a folder."""
        return _counted(path, self.parts(path))

    def parts(self, path: Path) -> Iterator[tuple[_Place, _Experts]]:
        """Yield places and experts; a file of many tokens yields several times, and any once.

        Raises:
            TraceError: At a file that isn't a table of routes.
            UnsupportedError: Without pyarrow.
        """
        try:
            parquet = import_module("pyarrow.parquet")
            errors = import_module("pyarrow").ArrowException
        except ImportError as error:
            raise missing_package(f"{path}: Parquet", "pyarrow") from error
        if path.is_file():
            files = [(0, 0, path)]
        else:
            matches = (
                (file, _PARQUET_FILE.search(file.as_posix())) for file in path.rglob("*.parquet")
            )
            files = sorted((int(name[1]), int(name[2]), file) for file, name in matches if name)
            if not files:
                raise TraceError(path, "", "no file is called iter_N/layer_N.parquet")
        for iteration, layer, file in files:
            try:
                for experts in _parquet_experts(file, parquet.ParquetFile):
                    yield (iteration, layer, 0), experts
            except (errors, OSError, KeyError, ValueError) as error:  # also for broken contents
                raise TraceError(file, "", f"can't be read as Parquet: {error}") from error


def load_routes(path: str | Path) -> TokenRoutes:
    """Read routes from JSON lines, Parquet in FLAME-MoE's layout, or a NumPy archive.

    All layers of all iterations must have equally many tokens of each rank. Ranks that a file
    doesn't tell are one rank.

    Args:
        path: The file, or the folder of Parquet files.

    Raises:
        SpecError: If the file can't be read, or has no routes.
    """
    path = Path(path)
    if path.is_file() and zipfile.is_zipfile(path):
        arrays = read_archive(path)
        if ROUTES not in arrays:
            raise TraceError(path, "", f"has counts by expert, but no array {ROUTES}")
        return archived_routes(arrays, path)
    reader = trace_reader(path)
    if not isinstance(reader, RoutesReader | ParquetRoutesReader):
        raise TraceError(path, "", f"has no routes of tokens ({reader.name})")
    return _routes(path, reader.parts(path))


def _counted(path: Path, parts: Iterable[tuple[_Place, _Experts]]) -> GatingTrace:
    top_k = set[int]()

    def cells() -> Iterator[GatingCells]:
        for place, (experts, lengths) in parts:
            top_k.update(np.unique(lengths).tolist())
            yield *place, np.bincount(experts, minlength=1).astype(np.int64)

    return replace(counted_trace(path, cells()), top_k=tuple(sorted(top_k)))


def _routes(path: Path, parts: Iterable[tuple[_Place, _Experts]]) -> TokenRoutes:
    """Join parts to the routes of all iterations, layers and ranks that they name."""
    rows: dict[_Place, list[NDArray[np.int64]]] = {}
    choices = 0
    for place, (experts, lengths) in parts:
        if not len(lengths):
            continue
        if not len(experts) or lengths.min() != lengths.max():
            raise TraceError(path, "", "tokens have different numbers of experts")
        rows.setdefault(place, []).append(experts.reshape(len(lengths), -1))
        choices += experts.size
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
    routes = np.stack([np.concatenate(rows[place]) for place in places])
    try:
        return TokenRoutes(routes.reshape(*map(len, axes), *routes.shape[1:]))
    except ValueError as error:
        raise TraceError(path, "", str(error)) from error


def _key(document: Mapping[str, Any], meaning: str) -> Any:
    return next((document[key] for key in _KEYS[meaning] if key in document), None)


def _line_part(path: Path, line: int, document: Mapping[str, Any]) -> tuple[_Place, _Experts]:
    listed = _key(document, "experts")
    if not isinstance(listed, list) or _key(document, "layer") is None:
        known = " or ".join(_KEYS["experts"])
        raise TraceError(path, f"line {line}", f"layer and a list {known} are needed")
    tokens = listed if listed and all(isinstance(one, list) for one in listed) else [listed]
    experts = [bounded_index(path, line, "expert", one) for token in tokens for one in token]
    iteration, layer, rank = (
        bounded_index(path, line, axis, 0 if (value := _key(document, axis)) is None else value)
        for axis in AXES[:3]
    )
    arrays = np.array(experts, dtype=np.int64), np.array([len(one) for one in tokens])
    return (iteration, layer, rank), arrays


def _parquet_experts(file: Path, open_file: Callable[[Path], Any]) -> Iterator[_Experts]:
    nothing = np.zeros(0, dtype=np.int64)
    parquet = open_file(file)
    try:
        if _PARQUET_COLUMN not in parquet.schema_arrow.names:
            names = ", ".join(parquet.schema_arrow.names)
            raise TraceError(file, "", f"there is no column {_PARQUET_COLUMN}, only {names}")
        _check_size(file, parquet.metadata)
        chosen = 0
        yield nothing, nothing
        for batch in parquet.iter_batches(columns=[_PARQUET_COLUMN], batch_size=PARQUET_ROWS):
            column = batch.column(0)
            if not hasattr(column, "value_lengths"):
                raise TraceError(file, _PARQUET_COLUMN, f"is not lists: {column.type}")
            experts = column.flatten().to_numpy(zero_copy_only=False)
            chosen += len(experts)
            if chosen > MAX_CHOICES:
                raise TraceError(file, _PARQUET_COLUMN, f"has more than {MAX_CHOICES} choices")
            if not len(experts):
                continue
            if not np.issubdtype(experts.dtype, np.integer):
                raise TraceError(file, _PARQUET_COLUMN, f"is not integers: {experts.dtype}")
            if experts.min() < 0 or experts.max() >= MAX_EXPERTS:
                fault = f"experts {experts.min()} to {experts.max()} are not 0 to {MAX_EXPERTS}"
                raise TraceError(file, _PARQUET_COLUMN, fault)
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            yield experts.astype(np.int64), lengths.astype(np.int64)
    finally:
        parquet.close()


def _check_size(file: Path, metadata: Any) -> None:
    """Raise TraceError if a Parquet file is too large by its footer.

    The footer's entries of columns tell more, but pyarrow ends the process where they are broken.
    """
    groups = range(metadata.num_row_groups)
    size = sum(metadata.row_group(group).total_byte_size for group in groups)
    if metadata.num_rows > MAX_CHOICES or size > MAX_PARQUET_BYTES:
        limits = f"the limits are {MAX_CHOICES} and {MAX_PARQUET_BYTES}"
        raise TraceError(file, "", f"has {metadata.num_rows} tokens, {size} bytes; {limits}")
