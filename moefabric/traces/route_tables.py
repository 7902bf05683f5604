"""Routes of tokens in Parquet files, in FLAME-MoE's layout."""

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from moefabric.core.errors import TraceError, UnsupportedError

MAX_EXPERTS: Final = 1 << 16
"""Bound of the number of an expert."""
PARQUET_ROWS: Final = 1 << 20
"""Tokens that are in memory at a time."""

_PARQUET_FILE: Final = re.compile(r"iter_(\d{1,9})/layer_(\d{1,6})\.parquet")
_PARQUET_COLUMN: Final = "indices"
_RouteRows = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Experts of successive tokens, and how many each token has."""


def read_route_tables(path: Path) -> Iterator[tuple[int, int, *_RouteRows]]:
    """Yield iteration, layer, experts of successive tokens, and how many experts each token has.

    A file of many tokens yields several times, and an empty one once.

    Raises:
        TraceError: At a file that isn't a table of routes.
        UnsupportedError: Without pyarrow.
    """
    try:
        parquet, errors = import_module("pyarrow.parquet"), import_module("pyarrow").ArrowException
    except ImportError as error:
        message = f"{path}: Parquet needs pyarrow: pip install 'moefabric[parquet]'"
        raise UnsupportedError(message) from error
    if path.is_file():
        files = [(0, 0, path)]
    else:
        names = ((file, _PARQUET_FILE.search(file.as_posix())) for file in path.rglob("*.parquet"))
        files = sorted((int(name[1]), int(name[2]), file) for file, name in names if name)
        if not files:
            raise TraceError(path, "", "no file is called iter_N/layer_N.parquet")
    for iteration, layer, file in files:
        try:
            for rows in _parquet_rows(file, parquet.ParquetFile):
                yield iteration, layer, *rows
        except (errors, KeyError) as error:
            raise TraceError(file, "", f"can't be read as Parquet: {error}") from error


def _parquet_rows(file: Path, open_file: Callable[[Path], Any]) -> Iterator[_RouteRows]:
    nothing = np.zeros(0, dtype=np.int64)
    parquet = open_file(file)
    try:
        if _PARQUET_COLUMN not in parquet.schema_arrow.names:
            names = ", ".join(parquet.schema_arrow.names)
            raise TraceError(file, "", f"there is no column {_PARQUET_COLUMN}, only {names}")
        yield nothing, nothing
        for batch in parquet.iter_batches(columns=[_PARQUET_COLUMN], batch_size=PARQUET_ROWS):
            column = batch.column(0)
            experts = column.flatten().to_numpy(zero_copy_only=False)
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
