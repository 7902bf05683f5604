"""Which chunks of a tensor matter: those of large values."""

import numpy as np
from numpy.typing import NDArray

from moefabric.agents.tensors.packets import CHUNK_BYTES

_CHUNK_VALUES = CHUNK_BYTES // 4


def by_magnitude(changes: NDArray[np.float32]) -> list[int]:
    """Return the chunks of a tensor, those of the largest changes first.

    Args:
        changes: What each value changes at the receiver: gradients, or updates of parameters.
    """
    starts = np.arange(0, len(changes), _CHUNK_VALUES)
    sums = np.add.reduceat(np.abs(changes), starts)
    sizes = np.diff(np.append(starts, len(changes)))
    return [int(chunk) for chunk in np.argsort(-sums / sizes, kind="stable")]
