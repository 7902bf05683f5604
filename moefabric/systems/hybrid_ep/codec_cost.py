"""The time that the codec of experts takes on this machine."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median
from time import perf_counter

import numpy as np

from moefabric.workload.expert_codec import decode, encode, shared_expert

_SAMPLES = 5
_EXPERTS = 4


@dataclass(frozen=True)
class CodecCost:
    """The codec on one expert.

    Attributes:
        expert_bytes: Bytes of the expert.
        code_bytes: Bytes of its code, indices included.
        encode_s: Median seconds to encode it.
        decode_s: Median seconds to decode it.
    """

    expert_bytes: int
    code_bytes: int
    encode_s: float
    decode_s: float

    @property
    def ratio(self) -> float:
        """Bytes of the expert for each byte of its code."""
        return self.expert_bytes / self.code_bytes


@cache
def codec_cost(expert_bytes: int, ratio: float) -> CodecCost:
    """Encode and decode an expert of random float32 weights, and return the time of both.

    Args:
        expert_bytes: Bytes of the expert.
        ratio: Bytes of the expert for each byte of the code.
    """
    generator = np.random.default_rng(0)
    weights = [
        generator.standard_normal(expert_bytes // 4, dtype=np.float32) for _ in range(_EXPERTS)
    ]
    shared = shared_expert(weights)
    code = encode(weights[0], shared, ratio)
    return CodecCost(
        weights[0].nbytes,
        len(code),
        _median_s(lambda: encode(weights[0], shared, ratio)),
        _median_s(lambda: decode(code, shared)),
    )


def _median_s(call: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_SAMPLES):
        began = perf_counter()
        call()
        seconds.append(perf_counter() - began)
    return median(seconds)
