"""Error-bounded coding of blocks of vectors: a quantiser and a lossless stream.

The quantiser of "Accelerating Communication in Deep Learning Recommendation Model Training with
Dual-Level Adaptive Lossy Compression" (SC'24, arXiv 2407.04272): an error bound is relative to the
range of a block, and codes are multiples of twice the bound.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from moefabric_studies.codecs.code_streams import STREAMS, Codes

Floats = NDArray[np.float32]

_LARGEST_CODE: Final = 1 << 12
"""Largest code; rounding in 32 bits might exceed the bound beyond it, so that bits are kept."""
_MARGIN: Final = 1 - 2.0**-8
"""Share of the bound that is left to the quantiser; the rest covers rounding in 32 bits."""
_HEADER: Final = struct.Struct("<BBfIH")
_DTYPES: Final = tuple(np.dtype(name) for name in ("<i1", "<i2", "<i4"))
_BITS: Final = 2
"""Type of codes that are the bits of numbers, for blocks that can't be quantised."""


def error_bounds(blocks: Floats, relative: float | NDArray[Any]) -> NDArray[np.float64]:
    """Return the largest error of each block: the bound times the block's range.

    Args:
        blocks: Shape [..., vectors, dimension].
        relative: Bound relative to the range, a number or an array that fits [..., 1, 1].

    Returns:
        Shape [..., 1, 1].
    """
    axes = (-2, -1)
    high, low = (f(blocks, axis=axes, keepdims=True).astype(np.float64) for f in (np.max, np.min))
    bounds: NDArray[np.float64] = (high - low) * relative
    return bounds


def _steps(bounds: NDArray[np.float64]) -> Floats:
    """Return the distance of neighbouring codes; 0 where 32 bits have no normal number for it."""
    steps = 2 * bounds * _MARGIN
    normal = (steps >= np.finfo(np.float32).tiny) & (steps <= np.finfo(np.float32).max)
    return np.where(normal, steps, 0).astype(np.float32)


def _quotients(blocks: Floats, steps: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the codes of blocks as 32-bit floats, and which blocks can be quantised."""
    with np.errstate(all="ignore"):  # blocks that give no finite codes keep their bits
        codes = np.rint(blocks / steps)
        largest = np.abs(codes).max(axis=(-2, -1), keepdims=True, initial=0)
        is_coded = (steps > 0) & (largest <= _LARGEST_CODE) & np.isfinite(largest * steps)
        return codes, is_coded


def rounded(blocks: Floats, relative: float | NDArray[Any]) -> Floats:
    """Return the values that a receiver decodes from error-bounded blocks, without coding them.

    Args:
        blocks: Shape [..., vectors, dimension].
        relative: As for `error_bounds`.
    """
    steps = _steps(error_bounds(blocks, relative))
    codes, is_coded = _quotients(blocks, steps)
    return np.where(is_coded, np.where(is_coded, codes, 0) * steps, blocks)


@dataclass(frozen=True)
class ErrorBounded:
    """Codes a block of vectors with a largest error.

    Attributes:
        bound: Largest error, relative to the range of the block.
        streams: Lossless streams of `code_streams`; the shortest result of them is taken.
    """

    bound: float
    streams: Sequence[str] = ("vector-lz", "ans")

    def encode(self, block: Floats) -> bytes:
        """Return the bytes of a block [vectors, dimension], with all that `decode` needs."""
        step, codes = quantised(block, self.bound)
        written = {name: STREAMS[name].encode(codes) for name in self.streams}
        name = min(written, key=lambda name: len(written[name]))
        kind = _DTYPES.index(codes.dtype)
        return _HEADER.pack(list(STREAMS).index(name), kind, step, *block.shape) + written[name]

    def decode(self, data: bytes) -> Floats:
        """Return the block that `encode` wrote, with any bound and streams."""
        stream, kind, step, rows, dimension = _HEADER.unpack_from(data)
        decode = list(STREAMS.values())[stream].decode
        codes = decode(data[_HEADER.size :], rows, dimension, _DTYPES[kind])
        if kind == _BITS:
            return np.ascontiguousarray(codes).view(np.float32)
        block: Floats = codes * np.float32(step)
        return block


def quantised(block: Floats, bound: float) -> tuple[float, Codes]:
    """Return the step and the codes of a block; the bits of its numbers if it has no codes."""
    steps = _steps(error_bounds(block, bound)) if block.size else np.zeros((1, 1), np.float32)
    codes, is_coded = _quotients(block, steps)
    if not is_coded.all():
        return 0.0, block.view(_DTYPES[_BITS])
    is_short = block.size and max(codes.max(), -codes.min()) <= np.iinfo(np.int8).max
    return float(steps[0, 0]), codes.astype(_DTYPES[0 if is_short else 1])
