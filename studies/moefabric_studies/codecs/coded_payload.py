"""Tokens with a largest error: ratio and coding times of codecs that really run."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from time import process_time
from typing import Final

import numpy as np

from moefabric_studies.codecs.block_codecs import BLOCK_CODECS, HYBRID, block_codec
from moefabric_studies.codecs.error_bounded import Floats

_TOKENS: Final = 512
_RUNS: Final = 5


@dataclass(frozen=True)
class ErrorBoundedTokens:
    """Tokens whose numbers have a largest error (dual-level compression, arXiv 2407.04272).

    Ratio and times are those of a sample of normal numbers, which this machine codes when they are
    first asked for.

    Attributes:
        eb: Largest error, relative to the range of the numbers.
        codec: Name of a codec of `block_codecs`.
        scale: Bytes that a GPU codes while one core of this machine codes one. A fabric with
            `scale: {bytes: 1000}` has a thousandth of the link rate; 1000 keeps the relation of
            link rate to coding speed.
    """

    eb: float = 0.03
    codec: str = HYBRID
    scale: float = 1000.0

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            ValueError: If one of them is wrong.
        """
        if not 0 < self.eb < 1:
            raise ValueError(f"eb is {self.eb:g}: the error is a part of the range, 0 < eb < 1")
        if self.codec not in BLOCK_CODECS:
            raise ValueError(f"codec is {self.codec!r}, not one of {', '.join(BLOCK_CODECS)}")
        if self.scale <= 0:
            raise ValueError(f"scale is {self.scale:g}, not above 0")

    @property
    def name(self) -> str:
        """The name with its arguments, as specifications write it."""
        return f"error-bounded(eb={self.eb:g}, codec={self.codec}, scale={self.scale:g})"

    def token_bytes(self, hidden: int, plain_bytes: float) -> float:
        """Return the bytes of one token, never more than plain bytes."""
        sample = _sample(hidden)
        coded = len(block_codec(self.codec, self.eb).encode(sample)) / len(sample)
        return min(plain_bytes, coded)

    def token_flops(self, hidden: int) -> float:  # noqa: ARG002
        """Return 0: coding has a time of its own."""
        return 0.0

    @property
    def encode_s_per_byte(self) -> float:
        """Seconds in which one GPU encodes a plain byte of bfloat16."""
        return self._coding_s_per_byte[0] / self.scale

    @property
    def decode_s_per_byte(self) -> float:
        """Seconds in which one GPU decodes the code of one plain byte of bfloat16."""
        return self._coding_s_per_byte[1] / self.scale

    @cached_property
    def _coding_s_per_byte(self) -> tuple[float, float]:
        """Seconds in which this machine encodes and decodes a plain byte."""
        sample, codec = _sample(1024), block_codec(self.codec, self.eb)
        coded, plain = codec.encode(sample), sample.nbytes / 2
        encode_s = median(_seconds(lambda: codec.encode(sample)) for _ in range(_RUNS))
        decode_s = median(_seconds(lambda: codec.decode(coded)) for _ in range(_RUNS))
        return encode_s / plain, decode_s / plain


def _seconds(action: Callable[[], object]) -> float:
    """Return the processor time of an action, which a busy machine doesn't lengthen."""
    began = process_time()
    action()
    return process_time() - began


def _sample(hidden: int) -> Floats:
    """Return tokens [token, hidden] of normal numbers."""
    return np.random.default_rng(0).normal(size=(_TOKENS, hidden)).astype(np.float32)
