"""Gating traces (which tokens of which rank go to which expert): readers, repetition and noise."""

import gzip
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from moefabric.core.errors import SpecError
from moefabric.workload.gating.token_routes import TokenRoutes

Counts = NDArray[np.int64]
"""Numbers of tokens."""
FloatArray = NDArray[np.float64]
_MATRIX: Final = "num_global_tokens_per_expert"
_COUNTS: Final = "counts"
ROUTES: Final = "routes"
"""Name of the array of routes in an archive."""
_SCORES: Final = "scores"
_LOGICAL: Final = "logical_count"
MAX_JSON_BYTES: Final = 256 << 20
"""Bytes of a JSON document, decompressed."""
MAX_ARRAY_BYTES: Final = 1 << 30
"""Bytes of an array of an archive, decompressed."""
BROKEN_ARCHIVE: Final = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, RuntimeError)
"""What `zipfile` raises for an archive that is damaged, encrypted or compressed otherwise."""
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True, eq=False)
class GatingTrace:
    """Tokens that each rank sends each expert.

    Attributes:
        tokens: Counts [iteration, layer, source rank, expert], int64, frozen. A single matrix is
            one iteration of one layer.
        source: Where the trace comes from.

    Raises:
        ValueError: If the array has other dimensions, is empty, or has a negative count.
    """

    tokens: Counts
    source: str = ""

    def __post_init__(self) -> None:
        array = np.array(self.tokens, dtype=np.int64)
        if array.ndim != 4 or not array.size:
            raise ValueError(f"shape {array.shape} is not iterations x layers x ranks x experts")
        if (array < 0).any():
            cell = "".join(f"[{i}]" for i in np.argwhere(array < 0)[0])
            raise ValueError(f"{cell}: {array[array < 0][0]} tokens: counts must not be negative")
        array.setflags(write=False)
        object.__setattr__(self, "tokens", array)

    @property
    def shares(self) -> NDArray[np.float64]:
        """The share of each expert in the tokens of each rank, all of which have tokens."""
        shares: NDArray[np.float64] = self.tokens / self.tokens.sum(axis=-1, keepdims=True)
        return shares

    def matrix(self, iteration: int, layer: int) -> Counts:
        """Return the tokens [source rank, expert] of one layer in one iteration.

        A trace repeats by iteration and by layer.
        """
        iterations, layers = self.tokens.shape[:2]
        matrix: Counts = self.tokens[iteration % iterations, layer % layers]
        return matrix


def repeat_tokens(tokens: Counts, ranks: int, experts: int, seed: int) -> Counts:
    """Repeat gating for more ranks and experts.

    Ranks are repeated in order: the ranks of a trace of one rank are all alike. Copies of experts
    are shuffled, the same way for all ranks, layers and iterations. In order, each server would
    have as many copies of every expert as the others, and no server would be busier. Shuffled
    copies still make servers more alike than experts are: `repeat_for_servers` checks by how much.

    Args:
        tokens: Tokens [..., rank, expert].
        ranks: Ranks of the result.
        experts: Experts of the result.
        seed: Seed of the shuffle.
    """
    rows = tokens[..., np.arange(ranks) % tokens.shape[-2], :]
    columns = np.arange(experts) % tokens.shape[-1]
    if experts > tokens.shape[-1]:
        columns = np.random.default_rng(seed).permutation(columns)
    return rows[..., columns]


def server_skew(tokens: Counts, servers: int) -> float:
    """Return the tokens of the busiest server, relative to the mean over servers.

    Experts fill the servers in order, evenly. The result is the median over layers and iterations.

    Args:
        tokens: Tokens [..., rank, expert].
        servers: Number of servers, of which the number of experts is a multiple.
    """
    loads = tokens.sum(axis=-2).reshape(-1, servers, tokens.shape[-1] // servers).sum(axis=2)
    means = np.maximum(loads.mean(axis=1), 1e-300)
    return float(np.median(loads.max(axis=1) / means))


MOST_FLATTENING: Final = 0.5
"""Part of the recorded skew that repetition may remove."""


def repeat_for_servers(tokens: Counts, ranks: int, experts: int, servers: int, seed: int) -> Counts:
    """Repeat gating as `repeat_tokens` does, unless that makes servers alike.

    Args:
        tokens: Tokens [..., rank, expert].
        ranks: Ranks of the result.
        experts: Experts of the result.
        servers: Servers, which ranks and experts of the result fill in order.
        seed: Seed of the shuffle.

    Raises:
        ValueError: If less than `1 - MOST_FLATTENING` of the excess of `server_skew` over 1
            remains. It isn't checked if experts of the trace can't fill the servers evenly.
    """
    repeated = repeat_tokens(tokens, ranks, experts, seed)
    recorded = tokens.shape[-1]
    if experts == recorded or recorded % servers or experts % servers:
        return repeated
    before, after = server_skew(tokens, servers), server_skew(repeated, servers)
    if after - 1 < (1 - MOST_FLATTENING) * (before - 1):
        busiest = f"the busiest server has {after:.2f} times the mean instead of {before:.2f}"
        remedy = f"use a trace of {experts} experts, or another seed"
        raise ValueError(f"with copies of {recorded} experts {busiest}: {remedy}")
    return repeated


def add_noise(gating: Counts, sigma: float, seed: int, place: tuple[int, ...]) -> Counts:
    """Vary a gating matrix at random, for one layer of a region in one iteration.

    Each expert's popularity, and then each rank's share of each expert, is multiplied by
    exp(N(0, sigma)). Rows keep their sums to within rounding: every token still has its top-k
    experts. A sigma of 0.1 moves 5 to 7 % of a row's tokens to other experts, as much as two steps
    of a training run differ.

    Args:
        gating: Tokens [rank, expert].
        sigma: Standard deviation; 0 returns the matrix unchanged.
        seed: Seed of the random numbers.
        place: (iteration, layer, region), and the micro-batch unless it is the first. Each place
            has a random stream of its own, so that more regions change nothing in the others.

    Returns:
        Tokens [rank, expert].
    """
    if not sigma:
        return gating
    random = np.random.default_rng([seed, *place])
    popularity = np.exp(random.normal(0.0, sigma, gating.shape[1]))
    shares = gating * popularity * np.exp(random.normal(0.0, sigma, gating.shape))
    sums = shares.sum(axis=1, keepdims=True)
    scaled = shares / np.where(sums > 0, sums, 1.0) * gating.sum(axis=1, keepdims=True)
    noisy: Counts = np.rint(scaled).astype(np.int64)
    return noisy


def read_gating(path: Path, form: str = "") -> GatingTrace:
    """Read a gating trace; the suffix of its name gives the format.

    `.json` is `{"num_global_tokens_per_expert": [[...], ...], "row_sum": n}`, square, `row_sum`
    optional, or SGLang's record of the expert distribution, `{"logical_count": [layer][expert]}`
    or `[step][layer][expert]`: tokens of all ranks together, which become a trace of one rank
    without the layers that have no experts. `.json.gz` is the same, compressed. `.txt` is one line
    `[[...],[...]]`, square, as MixNet's simulator reads it. `.npz` is
    `counts[step][layer][source rank][expert]`, as a training run writes it.

    Args:
        path: The file.
        form: A suffix that gives the format instead of the name's.

    Raises:
        SpecError: If the file can't be read or is wrong. The error lists all faults with places.
    """
    suffix = form or (path.suffix if path.suffix != ".gz" else "".join(path.suffixes[-2:]))
    reader = _READERS.get(suffix)
    if reader is None:
        suffixes, suffix = ", ".join(_READERS), suffix or "nothing"
        raise _error(path, f"a gating trace ends in {suffixes}, not {suffix!r}")
    try:
        return reader(path)
    except FileNotFoundError:
        hint = "there is no such file; paths in a spec are relative to the spec's folder"
        raise _error(path, hint) from None
    except OSError as error:
        raise _error(path, f"can't be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, EOFError, zlib.error) as error:
        raise _error(path, "is not text") from error


def _error(place: object, fault: str) -> SpecError:
    return SpecError([(str(place), fault)])


def _json(path: Path) -> GatingTrace:
    document = _document(path, "JSON")
    if isinstance(document, dict) and _LOGICAL in document:
        return _expert_distribution(document[_LOGICAL], path)
    if not isinstance(document, dict) or _MATRIX not in document:
        raise _error(path, f'an object with "{_MATRIX}" or "{_LOGICAL}" is needed')
    return _square(document[_MATRIX], f"{path}: {_MATRIX}", path, document.get("row_sum"))


def _text(path: Path) -> GatingTrace:
    return _square(_document(path, "a matrix [[...],[...]]"), f"{path}: ", path, None)


def _expert_distribution(counts: Any, path: Path) -> GatingTrace:
    """Return the trace of one rank for the counts of SGLang's expert distribution recorder."""
    place = f"{path}: {_LOGICAL}"
    try:
        array = np.array(counts, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise _error(place, "layers with equal numbers of token counts are needed") from error
    if array.ndim not in {2, 3} or not array.size:
        raise _error(place, f"shape {array.shape} is not [steps x] layers x experts")
    if not np.isfinite(array).all() or (array != np.rint(array)).any():
        raise _error(place, "whole numbers are needed")
    steps = array.reshape(-1, *array.shape[-2:])
    has_experts = steps.any(axis=(0, 2))
    if not has_experts.any():
        raise _error(place, "no layer has tokens")
    return _trace(steps[:, has_experts, np.newaxis].astype(np.int64), path, place)


def _trace(counts: NDArray[Any], path: Path, place: str) -> GatingTrace:
    try:
        return GatingTrace(counts, str(path))
    except ValueError as error:
        raise _error(place, str(error)) from error


def _document(path: Path, expected: str) -> Any:
    try:
        with path.open("rb") as file:
            opened = gzip.open if file.read(2) == _GZIP else open
        with opened(path, "rb") as content:
            data = content.read(MAX_JSON_BYTES + 1)
        if len(data) > MAX_JSON_BYTES:
            raise _error(path, f"is larger than {MAX_JSON_BYTES} bytes, which is the limit")
        return json.loads(data.decode())
    except json.JSONDecodeError as error:
        raise _error(f"{path}:{error.lineno}", f"is not {expected}: {error.msg}") from error
    except RecursionError:
        raise _error(path, f"is not {expected}: nested too deeply") from None


def _square(rows: Any, place: str, source: Path, row_sum: Any) -> GatingTrace:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        fault = "a matrix is needed: a list of rows, each a list of token counts"
        raise _error(place.removesuffix(": "), fault)
    if faults := _faults(rows, place, row_sum):
        raise SpecError(faults)
    return GatingTrace(np.array(rows, dtype=np.int64)[np.newaxis, np.newaxis], str(source))


def _faults(rows: list[list[Any]], place: str, row_sum: Any) -> list[tuple[str, str]]:
    faults, n = [], len(rows)
    for i, row in enumerate(rows):
        if len(row) != n:
            fault = f"{len(row)} counts, but the matrix has {n} rows; it must be square"
            faults.append((f"{place}[{i}]", fault))
        wrong = [j for j, count in enumerate(row) if not _is_count(count)]
        faults += [(f"{place}[{i}][{j}]", f"{row[j]!r} is not a count of tokens") for j in wrong]
        if not wrong and row_sum is not None and sum(row) != row_sum:
            faults.append((f"{place}[{i}]", f"sums to {sum(row)}, not to row_sum {row_sum}"))
    return faults


def _is_count(count: Any) -> bool:
    return isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 1 << 62


def _npz(path: Path) -> GatingTrace:
    arrays = read_archive(path)
    if _COUNTS not in arrays:
        return GatingTrace(archived_routes(arrays, path).counts(), str(path))
    counts, place = arrays[_COUNTS], f"{path}: {_COUNTS}"
    if not np.issubdtype(counts.dtype, np.integer):
        raise _error(place, f"whole numbers are needed, not {counts.dtype}")
    return _trace(counts, path, place)


def read_archive(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of gating in a NumPy archive: counts, or routes and maybe their scores.

    Raises:
        SpecError: If it is no archive of plain arrays, has neither counts nor routes, or an array
            is too large.
    """
    try:
        with zipfile.ZipFile(path) as members:
            size = max((one.file_size for one in members.infolist()), default=0)
        if size > MAX_ARRAY_BYTES:
            raise _error(path, f"has an array of {size} bytes; the limit is {MAX_ARRAY_BYTES}")
        with np.load(path, allow_pickle=False) as archive:
            arrays = {n: archive[n] for n in (_COUNTS, ROUTES, _SCORES) if n in archive.files}
            names = ", ".join(archive.files) or "nothing"
    except BROKEN_ARCHIVE as error:
        raise _error(path, "is not an archive of plain arrays (numpy.savez)") from error
    if _COUNTS not in arrays and ROUTES not in arrays:
        raise _error(path, f'has no array "{_COUNTS}", only {names}')
    return arrays


def archived_routes(arrays: Mapping[str, NDArray[Any]], path: Path) -> TokenRoutes:
    """Return the routes of an archive's arrays `routes` and, if given, `scores`."""
    try:
        return TokenRoutes(arrays[ROUTES], arrays.get(_SCORES))
    except ValueError as error:
        raise _error(f"{path}: {ROUTES}", str(error)) from error


_READERS: Final = {".json": _json, ".json.gz": _json, ".txt": _text, ".npz": _npz}
SUFFIXES: Final = tuple(_READERS)
"""Endings of names that `read_gating` knows."""
