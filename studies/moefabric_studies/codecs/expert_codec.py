"""Experts as differences from their mean, of which the largest numbers are kept.

Source: HybridEP, arXiv 2510.19470, section 5: every worker has the mean of all experts (the shared
expert), so that an expert needs only the top k of its residual on the wire. A kept number has its
value and its index, and both are counted: four bytes each.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]
KEPT_BYTES: Final = 8
"""Bytes of a kept number: its value as float32 and its index as uint32."""
_SAMPLE_STRIDE: Final = 64


def shared_expert(experts: Sequence[Weights]) -> Weights:
    """Return the mean of all experts."""
    mean: Weights = np.mean(experts, axis=0, dtype=np.float32)
    return mean


def encode(expert: Weights, shared: Weights, ratio: float) -> bytes:
    """Return an expert with `ratio` times fewer bytes.

    Args:
        expert: Its weights, in one dimension.
        shared: The weights of the shared expert.
        ratio: Bytes of the expert for each byte of the code.
    """
    residual = expert - shared
    count = max(1, int(expert.nbytes / ratio / KEPT_BYTES))
    index = _largest(np.abs(residual), count).astype(np.uint32)
    return index.tobytes() + residual[index].tobytes()


def _largest(magnitudes: Weights, count: int) -> NDArray[np.intp]:
    """Return the indices of the `count` largest numbers, in any order.

    A sample gives a bound that about twice as many numbers reach, so that few are compared.
    """
    sample = magnitudes[::_SAMPLE_STRIDE]
    above = min(len(sample), 2 * count // _SAMPLE_STRIDE + 1)
    bound = np.partition(sample, -above)[-above]
    candidates = np.flatnonzero(magnitudes >= bound)
    if len(candidates) < count:
        candidates = np.arange(len(magnitudes))
    best: NDArray[np.intp] = candidates[np.argpartition(magnitudes[candidates], -count)[-count:]]
    return best


def decode(code: bytes, shared: Weights) -> Weights:
    """Return the weights of an expert: the shared expert's, and the kept part of the residual."""
    index, values = np.split(np.frombuffer(code, np.uint32), 2)
    expert = shared.copy()
    expert[index] += values.view(np.float32)
    return expert
