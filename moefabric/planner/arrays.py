"""Arrays of servers: their types, and the circuits of each pair as counts."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from moefabric.core.circuits import CircuitSet

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


def circuit_counts(servers: int, pairs: Iterable[tuple[int, int]]) -> Ints:
    """Count the circuits of each pair: the matrix C of Algorithm 1.

    Args:
        servers: Number of servers.
        pairs: The two servers of each circuit, by position.

    Returns:
        Symmetric counts [server, server].
    """
    counts = np.zeros((servers, servers), dtype=np.int64)
    for i, j in pairs:
        counts[i, j] += 1
        counts[j, i] += 1
    return counts


def circuit_matrix(servers: tuple[str, ...], circuits: CircuitSet) -> Ints:
    """Count the circuits of each pair of servers.

    Args:
        servers: Names, in the order of rows and columns. Circuits of other servers don't count.

    Returns:
        Symmetric counts [server, server].
    """
    index = {server: position for position, server in enumerate(servers)}
    pairs = (circuit.pair for circuit in circuits)
    inner = ((index[a], index[b]) for a, b in pairs if a in index and b in index)
    return circuit_counts(len(servers), inner)
