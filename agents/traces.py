"""Gating traces: which tokens of which rank go to which expert, read from the files that simulators and trainers write."""

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from moefabric.errors import SpecError

_MATRIX: Final = "num_global_tokens_per_expert"
_COUNTS: Final = "counts"


@dataclass(frozen=True, eq=False)
class Gating:
    """Tokens that each rank sends each expert.

    `tokens` is an int64 array of shape (iterations, layers, source ranks, experts), frozen; counts are never negative.
    A single matrix is one iteration of one layer. `source` says where it comes from.
    """

    tokens: NDArray[np.int64]
    source: str = ""

    def __post_init__(self) -> None:
        """ValueError if the shape is another, it is empty, or a count is negative."""
        array = np.array(self.tokens, dtype=np.int64)
        if array.ndim != 4 or not array.size:
            raise ValueError(f"shape {array.shape} is not iterations x layers x ranks x experts")
        if (array < 0).any():
            at = "".join(f"[{i}]" for i in np.argwhere(array < 0)[0])
            raise ValueError(f"{at}: {array[array < 0][0]} tokens are fewer than none")
        array.setflags(write=False)
        object.__setattr__(self, "tokens", array)

    @property
    def iterations(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def layers(self) -> int:
        return int(self.tokens.shape[1])

    @property
    def ranks(self) -> int:
        return int(self.tokens.shape[2])

    @property
    def experts(self) -> int:
        return int(self.tokens.shape[3])

    def matrix(self, iteration: int, layer: int) -> NDArray[np.int64]:
        """Tokens [source rank, expert] of one layer in one iteration; a shorter trace starts over, by iteration and by layer."""
        found: NDArray[np.int64] = self.tokens[iteration % self.iterations, layer % self.layers]
        return found


def repeated(tokens: NDArray[np.int64], ranks: int, experts: int) -> NDArray[np.int64]:
    """Tokens [..., rank, expert] of so many ranks and experts, starting over where there are fewer: as MixNet's simulator wraps its own matrix."""
    wide = tokens[..., np.arange(ranks) % tokens.shape[-2], :]
    whole: NDArray[np.int64] = wide[..., np.arange(experts) % tokens.shape[-1]]
    return whole


def gating(path: Path) -> Gating:
    """Read a gating trace, by the ending of its name.

    `.json`: `{"num_global_tokens_per_expert": [[...], ...], "row_sum": n}`, square, `row_sum` optional.
    `.txt`: one line `[[...],[...]]`, square, as MixNet's simulator reads it.
    `.npz`: `counts[step][layer][source rank][expert]`, as a training run writes it.
    SpecError with every fault that was found, each with its place, and the remedy where there is one.
    """
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise SpecError(
            [(str(path), f"a gating trace ends in {', '.join(_READERS)}, not {path.suffix or 'nothing'!r}")]
        )
    try:
        return reader(path)
    except FileNotFoundError:
        raise SpecError(
            [(str(path), "there is no such file; paths in a spec are relative to the spec's folder")]
        ) from None
    except OSError as error:
        raise SpecError([(str(path), f"can't be read: {error.strerror or error}")]) from error
    except UnicodeDecodeError as error:
        raise SpecError([(str(path), "is not text")]) from error


def _json(path: Path) -> Gating:
    try:
        said = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise SpecError([(f"{path}:{error.lineno}", f"is not JSON: {error.msg}")]) from error
    if not isinstance(said, dict) or _MATRIX not in said:
        raise SpecError([(str(path), f'an object with "{_MATRIX}" is needed')])
    return _square(said[_MATRIX], f"{path}: {_MATRIX}", str(path), said.get("row_sum"))


def _text(path: Path) -> Gating:
    try:
        said = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise SpecError(
            [(f"{path}:{error.lineno}", f"is not a matrix [[...],[...]]: {error.msg}")]
        ) from error
    return _square(said, f"{path}: ", str(path), None)


def _square(rows: Any, place: str, source: str, row_sum: Any) -> Gating:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise SpecError(
            [(place.removesuffix(": "), "a matrix is needed: a list of rows, each a list of token counts")]
        )
    if faults := _faults(rows, place, row_sum):
        raise SpecError(faults)
    return Gating(np.array(rows, dtype=np.int64)[np.newaxis, np.newaxis], source)


def _faults(rows: list[list[Any]], place: str, row_sum: Any) -> list[tuple[str, str]]:
    faults = []
    for i, row in enumerate(rows):
        if len(row) != len(rows):
            faults.append(
                (
                    f"{place}[{i}]",
                    f"{len(row)} counts, but the matrix has {len(rows)} rows; it must be square",
                )
            )
        wrong = [(j, count) for j, count in enumerate(row) if not _is_count(count)]
        faults += [(f"{place}[{i}][{j}]", f"{count!r} is not a count of tokens") for j, count in wrong]
        if not wrong and row_sum is not None and sum(row) != row_sum:
            faults.append((f"{place}[{i}]", f"sums to {sum(row)}, not to row_sum {row_sum}"))
    return faults


def _is_count(count: Any) -> bool:
    return isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 1 << 62


def _npz(path: Path) -> Gating:
    try:
        with np.load(path, allow_pickle=False) as archive:
            if _COUNTS not in archive.files:
                raise SpecError(
                    [(str(path), f'has no array "{_COUNTS}", only {", ".join(archive.files) or "nothing"}')]
                )
            counts = archive[_COUNTS]
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise SpecError([(str(path), "is not an archive of plain arrays (numpy.savez)")]) from error
    if not np.issubdtype(counts.dtype, np.integer):
        raise SpecError([(f"{path}: {_COUNTS}", f"whole numbers are needed, not {counts.dtype}")])
    try:
        return Gating(counts, str(path))
    except ValueError as error:
        raise SpecError([(f"{path}: {_COUNTS}", str(error))]) from error


_READERS: Final[dict[str, Callable[[Path], Gating]]] = {".json": _json, ".txt": _text, ".npz": _npz}
