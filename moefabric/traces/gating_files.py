"""Files of gating that count tokens by expert.

These are NumPy archives, MixNet's matrices, SGLang's statistics, and CSV. Files that don't say
which rank sends a token become traces of one rank. Layers without tokens are left out.
"""

import csv
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from moefabric.core.errors import SpecError, TraceError
from moefabric.runtime.atomic_file import replaced_file, write_whole
from moefabric.traces.files import is_count, read_head, read_json, read_text
from moefabric.traces.formats import trace_reader
from moefabric.workload.gating.token_routes import TokenRoutes
from moefabric.workload.gating.traces import GatingTrace

_MATRIX: Final = "num_global_tokens_per_expert"
_COUNTS: Final = "counts"
ROUTES: Final = "routes"
"""Name of the array of routes in an archive."""
_SCORES: Final = "scores"
_LOGICAL: Final = "logical_count"
MAX_ARRAY_BYTES: Final = 1 << 30
"""Bytes of an array of an archive, decompressed."""
_BROKEN: Final = (
    *(zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, RuntimeError),
    TokenError,
)
"""Errors of `zipfile` and NumPy for an archive that is damaged, encrypted or of another kind."""

MAX_EXPERTS: Final = 1 << 16
"""Bound of the number of an expert."""
MAX_CELLS: Final = 1 << 27
"""Counts of a trace: iterations x layers x ranks x experts."""
MAX_INDEX: Final = (1 << 24, 1 << 14, 1 << 16, MAX_EXPERTS)
"""Bound of the number of an iteration, layer, rank and expert in a file."""
MAX_COUNT: Final = 1 << 53

AXES: Final = ("iteration", "layer", "rank", "expert")
_COLUMNS: Final[dict[str, str]] = {
    "iteration": "iteration", "step": "iteration", "layer": "layer", "rank": "rank",
    "source": "rank", "expert": "expert", "tokens": "tokens", "count": "tokens",
}  # fmt: skip
_WIDE: Final = re.compile(r"(?:c|e|expert_?)(\d{1,5})")


class CountsReader:
    """Reads NumPy archives of counts and MixNet's gating matrices."""

    name = "gating"

    def matches(self, path: Path, head: bytes) -> bool:
        """Return whether the file is an archive with `counts` or `routes`, or a gating matrix."""
        with suppress(OSError, *_BROKEN), zipfile.ZipFile(path) as archive:
            return not {"counts.npy", "routes.npy"}.isdisjoint(archive.namelist())
        start = head.lstrip()[:64]
        return start.startswith(b"[[") or b'"num_global_tokens_per_expert"' in head[:4096]

    def read(self, path: Path) -> GatingTrace:
        """Read the counts."""
        if zipfile.is_zipfile(path):
            return _npz(path)
        return _text(path) if read_head(path).lstrip().startswith(b"[[") else _json(path)


class SglangReader:
    """Reads the statistics of SGLang's expert distribution recorder."""

    name = "sglang"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether the file has `logical_count`."""
        return head.lstrip().startswith(b"{") and b'"logical_count"' in head[:4096]

    def read(self, path: Path) -> GatingTrace:
        """Read the counts of all ranks together."""
        return _json(path)


class CountsCsvReader:
    """Reads counts in CSV.

    The first line names the columns. A row has either one count (`tokens`) of an `expert`, or a
    column for each expert (`c0`, `c1`, ...). `iteration`, `layer` and `rank` are optional. Without
    such a line, the file is one matrix: a row for each rank, a column for each expert.
    """

    name = "gating-csv"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether the first line names experts, or has numbers only."""
        first = head.decode("utf-8", "replace").splitlines()[:1]
        words = next(csv.reader(first), []) if first else []
        if len(words) > 1 and all(word.strip().isdigit() for word in words):
            return True
        names = [word.strip() for word in words]
        wide = [name for name in names if _WIDE.fullmatch(name)]
        return bool(wide) or {"expert", "tokens"} <= {_COLUMNS.get(name) for name in names}

    def read(self, path: Path) -> GatingTrace:
        """Read the counts."""
        rows = csv.reader(read_text(path).splitlines())
        try:
            return counted_trace(path, _csv_cells(path, list(rows)))
        except csv.Error as error:
            raise TraceError(path, "", f"is not CSV: {error}") from error


def read_gating(path: str | Path) -> GatingTrace:
    """Read a gating trace; the suffix of its name gives the format.

    `.json` is `{"num_global_tokens_per_expert": [[...], ...], "row_sum": n}`, square, `row_sum`
    optional, or SGLang's record of the expert distribution, `{"logical_count": [layer][expert]}`
    or `[step][layer][expert]`: tokens of all ranks together, which become a trace of one rank
    without the layers that have no experts. `.json.gz` is the same, compressed. `.txt` is one line
    `[[...],[...]]`, square, as MixNet's simulator reads it. `.npz` is
    `counts[step][layer][source rank][expert]`, as a training run writes it.

    Raises:
        SpecError: If the file can't be read or is wrong. The error lists all faults with places.
    """
    path = Path(path)
    reader = _READERS.get(suffix := _ending(path))
    if reader is None:
        fault = f"a gating trace ends in {', '.join(_READERS)}, not {suffix or 'nothing'!r}"
        raise TraceError(path, "", fault)
    if not path.exists():
        raise TraceError(path, "", "there is no such file")
    return reader(path)


def _ending(path: Path) -> str:
    return path.suffix if path.suffix != ".gz" else "".join(path.suffixes[-2:])


def _json(path: Path) -> GatingTrace:
    document = read_json(path)
    if isinstance(document, dict) and _LOGICAL in document:
        return _expert_distribution(document[_LOGICAL], path)
    if not isinstance(document, dict) or _MATRIX not in document:
        raise TraceError(path, "", f'an object with "{_MATRIX}" or "{_LOGICAL}" is needed')
    return _square(document[_MATRIX], path, _MATRIX, document.get("row_sum"))


def _text(path: Path) -> GatingTrace:
    return _square(read_json(path), path)


def _expert_distribution(counts: Any, path: Path) -> GatingTrace:
    """Return the trace of one rank for the counts of SGLang's expert distribution recorder."""
    try:
        array = np.array(counts, dtype=np.float64)
    except (TypeError, ValueError) as error:
        fault = "layers with equal numbers of token counts are needed"
        raise TraceError(path, _LOGICAL, fault) from error
    if array.ndim not in {2, 3} or not array.size:
        fault = f"shape {array.shape} is not [steps x] layers x experts"
        raise TraceError(path, _LOGICAL, fault)
    if not np.isfinite(array).all() or (array != np.rint(array)).any():
        raise TraceError(path, _LOGICAL, "whole numbers are needed")
    steps = array.reshape(-1, *array.shape[-2:])
    has_experts = steps.any(axis=(0, 2))  # dense layers have zeros
    if not has_experts.any():
        raise TraceError(path, _LOGICAL, "no layer has tokens")
    return _trace(steps[:, has_experts, np.newaxis].astype(np.int64), path, _LOGICAL)


def _trace(counts: NDArray[Any], path: Path, place: str) -> GatingTrace:
    try:
        return GatingTrace(counts, str(path))
    except ValueError as error:
        raise TraceError(path, place, str(error)) from error


def _square(rows: Any, path: Path, key: str = "", row_sum: Any = None) -> GatingTrace:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        fault = "a matrix is needed: a list of rows, each a list of token counts"
        raise TraceError(path, key, fault)
    if faults := _faults(rows, f"{path}: {key}", row_sum):
        raise SpecError(faults)
    return GatingTrace(np.array(rows, dtype=np.int64)[np.newaxis, np.newaxis], str(path))


def _faults(rows: list[list[Any]], place: str, row_sum: Any) -> list[tuple[str, str]]:
    faults, n = [], len(rows)
    for i, row in enumerate(rows):
        if len(row) != n:
            fault = f"{len(row)} counts, but the matrix has {n} rows; it must be square"
            faults.append((f"{place}[{i}]", fault))
        wrong = [j for j, count in enumerate(row) if not is_count(count)]
        faults += [(f"{place}[{i}][{j}]", f"{row[j]!r} is not a count of tokens") for j in wrong]
        if not wrong and row_sum is not None and sum(row) != row_sum:
            faults.append((f"{place}[{i}]", f"sums to {sum(row)}, not to row_sum {row_sum}"))
    return faults


def _npz(path: Path) -> GatingTrace:
    arrays = read_archive(path)
    if _COUNTS not in arrays:
        routes = archived_routes(arrays, path)
        return GatingTrace(routes.counts(), str(path), (routes.top_k,))
    counts = arrays[_COUNTS]
    if not np.issubdtype(counts.dtype, np.integer):
        raise TraceError(path, _COUNTS, f"whole numbers are needed, not {counts.dtype}")
    return _trace(counts, path, _COUNTS)


def read_archive(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of gating in a NumPy archive: counts, or routes and maybe their scores.

    Raises:
        SpecError: If it is no archive of plain arrays, has neither counts nor routes, or an array
            is too large.
    """
    try:
        with zipfile.ZipFile(path) as members:
            for member in members.infolist():
                _check_array(path, members, member)
        with np.load(path, allow_pickle=False) as archive:
            arrays = {n: archive[n] for n in (_COUNTS, ROUTES, _SCORES) if n in archive.files}
            names = ", ".join(archive.files) or "nothing"
    except OSError as error:
        raise TraceError(path, "", f"can't be read: {error.strerror or error}") from error
    except _BROKEN as error:
        raise TraceError(path, "", "is not an archive of plain arrays (numpy.savez)") from error
    if _COUNTS not in arrays and ROUTES not in arrays:
        raise TraceError(path, "", f'has no array "{_COUNTS}", only {names}')
    return arrays


def _check_array(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Check the size of an archive's array by its header, before there is memory for it.

    Raises:
        TraceError: If it is too large.
        ValueError: If the member isn't a plain array, or has fewer or more bytes than its shape.
    """
    with archive.open(member) as file:
        read_header = _HEADER_READERS[np.lib.format.read_magic(file)]
        try:
            shape, _, dtype = read_header(file)
        except TypeError as error:  # a key of the header is no text
            raise ValueError(f"the header: {error}") from error
        size = prod(shape) * dtype.itemsize
        if max(size, member.file_size) > MAX_ARRAY_BYTES:
            shown = " x ".join(map(str, shape))
            fault = f"has an array of {size} bytes ({shown}); the limit is {MAX_ARRAY_BYTES}"
            raise TraceError(path, "", fault)
        if member.file_size - file.tell() != size:
            raise ValueError("the header and the size of the array differ")


_HEADER_READERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""By version of the format. The third is that of structures, which no gating has."""


def archived_routes(arrays: Mapping[str, NDArray[Any]], path: Path) -> TokenRoutes:
    """Return the routes of an archive's arrays `routes` and, if given, `scores`.

    Raises:
        TraceError: If they are wrong, or have too many experts to count tokens by expert.
    """
    try:
        routes = TokenRoutes(arrays[ROUTES], arrays.get(_SCORES))
    except ValueError as error:
        raise TraceError(path, ROUTES, str(error)) from error
    experts = int(routes.experts.max()) + 1
    if experts > MAX_EXPERTS:
        raise TraceError(path, ROUTES, f"expert {experts - 1} is not below {MAX_EXPERTS}")
    _check_cells(path, (*routes.experts.shape[:3], experts))
    return routes


def _check_cells(path: Path, shape: tuple[int, ...]) -> None:
    """Raise TraceError if counts of a shape don't fit into memory."""
    if prod(shape) > MAX_CELLS:
        sizes = " x ".join(map(str, shape))
        raise TraceError(path, "", f"{sizes} counts are more than {MAX_CELLS}")


_FORMATS: Final = ("gating", "gating-csv", "sglang", "routes", "routes-parquet")
"""Names of the readers of gating."""
_READERS: Final = {".json": _json, ".json.gz": _json, ".txt": _text, ".npz": _npz}


def load_gating(path: str | Path) -> GatingTrace:
    """Read gating in any known format.

    Endings that `read_gating` knows decide; other files are told by their content.

    Args:
        path: The file, or the folder of routes.

    Raises:
        SpecError: If the file can't be read, or has no gating.
    """
    path = Path(path)
    if _ending(path) in _READERS or not path.exists():
        return read_gating(path)
    reader = trace_reader(path, suited=_FORMATS)
    trace = reader.read(path)
    if not isinstance(trace, GatingTrace):
        raise TraceError(path, "", f"is a trace of operations ({reader.name}), not of gating")
    return trace


def write_gating(trace: GatingTrace, path: Path, form: str) -> None:
    """Write gating as `csv`, a row for each count above 0, or as `npz`.

    Raises:
        SpecError: If there is no such format.
    """
    if form == "npz":
        with replaced_file(path) as file:
            np.savez_compressed(file, counts=trace.tokens)
    elif form == "csv":
        write_whole(path, counts_csv(trace))
    else:
        raise SpecError([("--to", f"{form!r} is not one of csv, npz, the formats of gating")])


def counts_csv(trace: GatingTrace) -> str:
    """Return the counts as CSV, with the shape kept by a row for the last cell."""
    lines = ["iteration,layer,rank,expert,tokens"]
    last = tuple(size - 1 for size in trace.tokens.shape)
    cells = [tuple(cell) for cell in np.argwhere(trace.tokens).tolist()]
    if not cells or cells[-1] != last:
        cells.append(last)
    lines += [f"{','.join(map(str, cell))},{trace.tokens[cell]}" for cell in cells]
    return "\n".join(lines) + "\n"


GatingCells = tuple[int, int, int, NDArray[np.int64]]
"""Iteration, layer, rank, and tokens by expert."""


def counted_trace(path: Path, cells: Iterable[GatingCells]) -> GatingTrace:
    """Return the trace of counts, without the layers and iterations that no count names."""
    sums: dict[tuple[int, int, int], NDArray[np.int64]] = {}
    for iteration, layer, rank, tokens in cells:
        known = sums.get((iteration, layer, rank), tokens[:0])
        total = np.zeros(max(len(known), len(tokens)), dtype=np.int64)
        for part in (known, tokens):
            total[: len(part)] += part
        sums[iteration, layer, rank] = total
    if not sums:
        raise TraceError(path, "", "there are no counts")
    iterations, layers = (sorted({key[axis] for key in sums}) for axis in (0, 1))
    ranks = max(key[2] for key in sums) + 1
    experts = max(map(len, sums.values()))
    shape = len(iterations), len(layers), ranks, experts
    _check_cells(path, shape)
    tokens = np.zeros(shape, dtype=np.int64)
    places = [{number: n for n, number in enumerate(axis)} for axis in (iterations, layers)]
    for (iteration, layer, rank), counts in sums.items():
        tokens[places[0][iteration], places[1][layer], rank, : len(counts)] = counts
    return GatingTrace(tokens, str(path))


def _csv_cells(path: Path, rows: Sequence[Sequence[str]]) -> Iterator[GatingCells]:
    names = [word.strip() for word in rows[0]] if rows else []
    if names and all(name.isdigit() for name in names):
        for rank, row in enumerate(rows):
            place = 0, 0, bounded_index(path, rank + 1, "rank", rank)
            yield *place, _counts(path, rank + 1, row, names)
        return
    columns = {_COLUMNS[name]: n for n, name in enumerate(names) if name in _COLUMNS}
    wide = {int(match[1]): n for n, name in enumerate(names) if (match := _WIDE.fullmatch(name))}
    if missing := [name for name in ("expert", "tokens") if name not in columns and not wide]:
        raise TraceError(path, "line 1", f"there is no column {missing[0]}")
    single: list[tuple[int, int, int, int, int]] = []
    axes = [axis for axis in AXES if axis in columns]
    for line, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        if len(row) != len(names):
            raise TraceError(path, f"line {line}", f"{len(row)} columns are not {len(names)}")
        indices = {
            axis: bounded_index(path, line, axis, _number(path, line, row[columns[axis]]))
            for axis in axes
        }
        where = indices.get("iteration", 0), indices.get("layer", 0), indices.get("rank", 0)
        if wide:
            words = [row[wide[n]] if n in wide else "0" for n in range(max(wide) + 1)]
            yield *where, _counts(path, line, words, words)
        else:
            count = _number(path, line, row[columns["tokens"]])
            single.append((*where, indices["expert"], count))
    for place, group in groupby(sorted(single), key=lambda row: row[:3]):
        experts, tokens = np.array([row[3:] for row in group], dtype=np.int64).T
        counts = np.zeros(experts[-1] + 1, dtype=np.int64)
        np.add.at(counts, experts, tokens)
        yield *place, counts


def _counts(path: Path, line: int, row: Sequence[str], like: Sequence[str]) -> NDArray[np.int64]:
    if len(row) != len(like):
        raise TraceError(path, f"line {line}", f"{len(row)} columns are not {len(like)}")
    return np.array([_number(path, line, word) for word in row], dtype=np.int64)


def _number(path: Path, line: int, word: str) -> int:
    text = word.strip()
    if not re.fullmatch(r"\d{1,16}", text) or int(text) > MAX_COUNT:
        raise TraceError(path, f"line {line}", f"{word[:40]!r} is not a count")
    return int(text)


def bounded_index(path: Path, line: int, axis: str, number: Any) -> int:
    """Return the number of an iteration, layer, rank or expert.

    Raises:
        TraceError: At the line, if the value is not a number within the bounds of its axis.
    """
    bound = MAX_INDEX[AXES.index(axis)]
    if not is_count(number, bound):
        fault = f"{axis} {str(number)[:40]!r} is not a number from 0 to {bound - 1}"
        raise TraceError(path, f"line {line}", fault)
    return number
