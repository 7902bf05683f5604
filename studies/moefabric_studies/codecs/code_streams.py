"""Lossless streams of integer vectors: vector-LZ, asymmetric numeral systems, zstd and LZ4."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from moefabric.api.plugins import missing_package

Codes = NDArray[Any]
"""Integers of shape [vectors, dimension], in C order."""
WINDOW: Final = 32
"""Vectors before a vector among which its copy is looked for (the authors' window)."""
_MOST_WEIGHT: Final = 0xFFFF


class CodeStream(Protocol):
    """Writes integer vectors as bytes, and reads them again."""

    def encode(self, codes: Codes) -> bytes:
        """Return the bytes of codes."""

    def decode(self, data: bytes, rows: int, dimension: int, dtype: np.dtype[Any]) -> Codes:
        """Return the codes of these bytes.

        Args:
            data: What `encode` returned.
            rows: Vectors.
            dimension: Numbers of a vector.
            dtype: Type of the numbers.
        """


@dataclass(frozen=True)
class VectorLz:
    """A bit for each vector, then the distance of its last copy, or the vector itself.

    The authors' code has matches of several vectors, of two bytes each; here a match is one vector
    and one byte.

    Attributes:
        window: Vectors before a vector among which its copy is looked for, at most 255.
    """

    window: int = WINDOW

    def encode(self, codes: Codes) -> bytes:
        """Return flags, distances and literal vectors."""
        previous = _last_equal(codes)
        distance = np.arange(len(codes)) - previous
        matched = (previous >= 0) & (distance <= self.window)
        distances = distance[matched].astype(np.uint8)
        flags = np.packbits(matched)
        return flags.tobytes() + distances.tobytes() + codes[~matched].tobytes()

    def decode(self, data: bytes, rows: int, dimension: int, dtype: np.dtype[Any]) -> Codes:
        """Return the vectors; copies of copies are followed to their literal."""
        flag_bytes = -(-rows // 8)
        flags = np.frombuffer(data, np.uint8, flag_bytes)
        matched = np.unpackbits(flags, count=rows).astype(bool)
        matches = int(matched.sum())
        source = np.arange(rows)
        source[matched] -= np.frombuffer(data, np.uint8, matches, flag_bytes)
        while matched[source].any():
            source = source[source]
        literals = np.frombuffer(data, dtype, offset=flag_bytes + matches).reshape(-1, dimension)
        codes: Codes = literals[(np.cumsum(~matched) - 1)[source]]
        return codes


def _last_equal(codes: Codes) -> NDArray[np.int64]:
    """Return the number of the last equal vector before each vector; -1 without one.

    Vectors are found by a hash and compared whole. A hash of two different vectors hides a copy and
    does no other harm.
    """
    rows = codes.view(np.uint8).reshape(len(codes), codes.shape[1] * codes.itemsize)
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 8)))
    words = np.ascontiguousarray(padded).view(np.uint64)
    factors = np.random.default_rng(0).integers(1, 1 << 63, words.shape[1], np.uint64) | 1
    # The upper half has bits of all words; the lower bits of a product depend on lower bits only.
    mixed = (words ^ (words >> np.uint64(29))) * factors
    keys = (mixed ^ (mixed >> np.uint64(32))).sum(axis=1, dtype=np.uint64)
    order = np.argsort(keys, kind="stable")
    earlier, later = order[:-1], order[1:]
    same = keys[earlier] == keys[later]
    earlier, later = earlier[same], later[same]
    equal = (codes[earlier] == codes[later]).all(axis=1)
    previous = np.full(len(codes), -1, np.int64)
    previous[later[equal]] = earlier[equal]
    return previous


class Ans:
    """Asymmetric numeral systems: the entropy of the bytes' frequencies (Duda, 2013).

    It stands for the authors' Huffman code, which needs up to a bit for each byte more.
    """

    def encode(self, codes: Codes) -> bytes:
        """Return the bytes that occur, their frequencies in 16 bits, and the coder's words."""
        symbols = codes.reshape(-1).view(np.uint8)
        counts = np.bincount(symbols, minlength=256)
        present = counts > 0
        most = max(1, int(counts.max()))
        weights = np.maximum(1, counts[present] * _MOST_WEIGHT // most).astype("<u2")
        head = np.packbits(present).tobytes() + weights.tobytes()
        if len(weights) < 2:
            return head
        coder = library("constriction").stream.stack.AnsCoder()
        numbers = (np.cumsum(present) - 1).astype(np.int32)
        coder.encode_reverse(numbers[symbols], _categorical(weights))
        words: bytes = coder.get_compressed().astype("<u4").tobytes()
        return head + words

    def decode(self, data: bytes, rows: int, dimension: int, dtype: np.dtype[Any]) -> Codes:
        """Return the vectors."""
        size = rows * dimension * dtype.itemsize
        present = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8, 32)))
        weights = np.frombuffer(data, "<u2", len(present), 32)
        if len(weights) < 2:
            symbols = np.repeat(present.astype(np.uint8), size)
        else:
            words = np.frombuffer(data, "<u4", offset=32 + weights.nbytes).astype(np.uint32)
            coder = library("constriction").stream.stack.AnsCoder(words)
            symbols = present.astype(np.uint8)[coder.decode(_categorical(weights), size)]
        return symbols.view(dtype).reshape(rows, dimension)


def _categorical(weights: NDArray[Any]) -> Any:
    """Return the entropy model of weights, the same at both ends."""
    shares = (weights / weights.sum(dtype=np.float64)).astype(np.float32)
    return library("constriction").stream.model.Categorical(shares, perfect=False)


class Zstd:
    """zstd (RFC 8878) at its fastest level."""

    def encode(self, codes: Codes) -> bytes:
        """Return a frame."""
        frame: bytes = library("zstandard").ZstdCompressor(level=1).compress(codes.tobytes())
        return frame

    def decode(self, data: bytes, rows: int, dimension: int, dtype: np.dtype[Any]) -> Codes:
        """Return the vectors."""
        plain = library("zstandard").ZstdDecompressor().decompress(data)
        return np.frombuffer(plain, dtype).reshape(rows, dimension)


class Lz4:
    """A block of LZ4."""

    def encode(self, codes: Codes) -> bytes:
        """Return a block without its size."""
        block: bytes = library("lz4.block").compress(codes.tobytes(), store_size=False)
        return block

    def decode(self, data: bytes, rows: int, dimension: int, dtype: np.dtype[Any]) -> Codes:
        """Return the vectors."""
        size = rows * dimension * dtype.itemsize
        plain = library("lz4.block").decompress(data, uncompressed_size=size)
        return np.frombuffer(plain, dtype).reshape(rows, dimension)


STREAMS: Final[Mapping[str, CodeStream]] = MappingProxyType(
    {"vector-lz": VectorLz(), "ans": Ans(), "zstd": Zstd(), "lz4": Lz4()}
)
"""The streams by name; blocks on the wire have their places in this order."""


def library(name: str) -> Any:
    """Import a library of the extra `systems`.

    Raises:
        UnsupportedError: If it isn't installed.
    """
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise missing_package("this codec", name.partition(".")[0]) from error
