"""A policy: how demand becomes circuits, and how each pair's bytes are parted between light and the EPS."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Share, Split
from moefabric.topology import Fabric, Region

Pair = tuple[int, int]
"""Two servers by their position in the region, the lesser first."""

Counts = tuple[tuple[int, ...], ...]
"""Circuits of every server pair, [server][server], symmetric: the matrix C of Algorithm 1."""


class Policy(Protocol):
    """A pure object: equal demand and equal light give equal circuits and an equal split."""

    @property
    def name(self) -> str:
        """What a specification calls it."""

    @property
    def moves(self) -> bool:
        """Whether its light changes while a job runs; otherwise it is lit once."""

    def circuits(self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet) -> CircuitSet:
        """The circuits that the region's demand deserves; those of `now` keep their NICs where their pair is still lit."""

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """Which share of each pair's bytes goes by which light, and which by the EPS."""


def counts(servers: int, lit: list[Pair]) -> Counts:
    """How many circuits each pair has when these are lit, one entry a circuit."""
    matrix = [[0] * servers for _ in range(servers)]
    for i, j in lit:
        matrix[i][j] += 1
        matrix[j][i] += 1
    return tuple(map(tuple, matrix))


def heaviest_first(demand: NDArray[np.float64]) -> list[tuple[float, int, int]]:
    """(less what they owe, i, j) of every pair that owes something, the one that owes most first; ties in server order."""
    rows, columns = np.nonzero(np.triu(demand, 1))
    owed = -demand[rows, columns]
    first = np.argsort(owed, kind="stable")
    return list(zip(owed[first].tolist(), rows[first].tolist(), columns[first].tolist(), strict=True))


def taken(free: list[int], i: int, j: int) -> bool:
    """Whether both servers had a port free: one of either is now taken."""
    if free[i] and free[j]:
        free[i] -= 1
        free[j] -= 1
        return True
    return False


def afforded(lit: Iterable[Pair], ports: Sequence[int]) -> list[Pair]:
    """Those of the pairs, in their order, for which both servers have a port left; `ports` of each server."""
    free = list(ports)
    return [pair for pair in lit if taken(free, *pair)]


def counted(servers: tuple[str, ...], circuits: CircuitSet) -> NDArray[np.int64]:
    """How many circuits join each pair of servers, [server, server]."""
    index = {server: position for position, server in enumerate(servers)}
    matrix = np.zeros((len(servers), len(servers)), dtype=np.int64)
    for circuit in circuits:
        a, b = circuit.pair
        if a in index and b in index:
            matrix[index[a], index[b]] += 1
            matrix[index[b], index[a]] += 1
    return matrix


def light_first(demand: DemandMatrix, circuits: CircuitSet) -> Split:
    """All bytes of a pair with a circuit by light, those of the others by the EPS (paper section 5.3; never both)."""
    lit = counted(demand.servers, circuits) > 0
    index = {server: position for position, server in enumerate(demand.servers)}
    return Split(
        tuple(
            Share(a, b, owed, 0.0) if lit[index[a], index[b]] else Share(a, b, 0.0, owed)
            for a, b, owed in demand.pairs()
        )
    )
