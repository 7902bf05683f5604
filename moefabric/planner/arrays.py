"""Arrays of servers: their types, and the circuits of each pair as counts."""

import numpy as np
from numpy.typing import NDArray

from moefabric.core.circuits import CircuitSet

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


def circuit_matrix(servers: tuple[str, ...], circuits: CircuitSet) -> Ints:
    """Count the circuits of each pair of servers.

    Args:
        servers: Names, in the order of rows and columns. Circuits of other servers don't count.

    Returns:
        Symmetric counts [server, server].
    """
    index = {server: position for position, server in enumerate(servers)}
    matrix = np.zeros((len(servers), len(servers)), dtype=np.int64)
    for circuit in circuits:
        a, b = circuit.pair
        if a in index and b in index:
            matrix[index[a], index[b]] += 1
            matrix[index[b], index[a]] += 1
    return matrix
