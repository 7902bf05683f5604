"""Codecs of blocks of 32-bit floats, by name: error-bounded ones, and simpler ones beside them."""

import struct
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from moefabric_studies.codecs.code_streams import STREAMS, library
from moefabric_studies.codecs.error_bounded import ErrorBounded, Floats, error_bounds

_SHAPE: Final = struct.Struct("<IH")
_LEVELS: Final = 127


class BlockCodec(Protocol):
    """Writes blocks of vectors as bytes, and reads them again."""

    def encode(self, block: Floats) -> bytes:
        """Return the bytes of a block [vectors, dimension]."""

    def decode(self, data: bytes) -> Floats:
        """Decode a block from its bytes."""


@dataclass(frozen=True)
class Ieee754:
    """The numbers in a format of IEEE 754, without a bound: too large ones become infinite."""

    dtype: type[np.floating[Any]]

    def encode(self, block: Floats) -> bytes:
        """Return the shape and the numbers."""
        with np.errstate(over="ignore"):
            numbers = block.astype(self.dtype, copy=False)
        return _SHAPE.pack(*block.shape) + numbers.tobytes()

    def decode(self, data: bytes) -> Floats:
        """Return the block."""
        numbers = np.frombuffer(data, self.dtype, offset=_SHAPE.size)
        return numbers.astype(np.float32, copy=False).reshape(_SHAPE.unpack_from(data))


class Int8:
    """Codec with one byte for each number and a scale for each vector."""

    def encode(self, block: Floats) -> bytes:
        """Return the shape, the scales and the bytes."""
        scales = np.abs(block).max(axis=1, keepdims=True, initial=0) / _LEVELS
        codes = np.rint(block / np.where(scales > 0, scales, 1)).astype(np.int8)
        parts = _SHAPE.pack(*block.shape), scales.astype(np.float32).tobytes(), codes.tobytes()
        return b"".join(parts)

    def decode(self, data: bytes) -> Floats:
        """Return the block."""
        rows, dimension = _SHAPE.unpack_from(data)
        scales = np.frombuffer(data, np.float32, rows, _SHAPE.size)
        codes = np.frombuffer(data, np.int8, offset=_SHAPE.size + scales.nbytes)
        return codes.reshape(rows, dimension) * scales[:, None]


@dataclass(frozen=True)
class Zfp:
    """zfp with an absolute tolerance (Lindstrom, 2014); the bound is relative to the range."""

    bound: float

    def encode(self, block: Floats) -> bytes:
        """Return zfp's stream, whose header has the shape."""
        tolerance = float(error_bounds(block, self.bound)[0, 0])
        stream: bytes = library("zfpy").compress_numpy(block, tolerance=tolerance)
        return stream

    def decode(self, data: bytes) -> Floats:
        """Return the block."""
        block: Floats = library("zfpy").decompress_numpy(data)
        return block


HYBRID: Final = "hybrid"
"""Vector-LZ or entropy coding of quantised numbers, whichever is shorter."""
HYBRID_STREAMS: Final = ("vector-lz", "ans")
BLOCK_CODECS: Final = ("fp32", "fp16", "int8", "zfp", *STREAMS, HYBRID)
"""Names of the codecs; those of streams quantise first."""


def block_codec(name: str, bound: float) -> BlockCodec:
    """Return the codec with a name.

    Args:
        name: One of `BLOCK_CODECS`.
        bound: Largest error relative to the range of a block, for codecs that have a bound.
    """
    plain: dict[str, BlockCodec] = {
        "fp32": Ieee754(np.float32),
        "fp16": Ieee754(np.float16),
        "int8": Int8(),
    }
    if name in plain:
        return plain[name]
    if name == "zfp":
        return Zfp(bound)
    return ErrorBounded(bound, HYBRID_STREAMS if name == HYBRID else (name,))
