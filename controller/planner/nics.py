"""Which NICs end the circuits of each pair: those that are lit already, then free ones, parallel circuits on different NUMA nodes."""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from controller.planner.policy import Counts
from moefabric.circuits import Circuit, CircuitSet
from moefabric.topology import Fabric, Kind, Nic, Region

NUMA_NODES: Final = 2
"""Halves of a server; its optical NICs are divided between them in order."""


def numa_node(fabric: Fabric, index: int) -> int:
    """The NUMA node that a server's optical NIC of this index is plugged into."""
    return index * NUMA_NODES // fabric.optical


def ports(fabric: Fabric, region: Region) -> list[int]:
    """How many optical NICs each server of the region can use: those that are out are none."""
    return [len(fabric.usable_optical(server)) for server in region.servers]


def circuits(fabric: Fabric, region: Region, wanted: Counts, now: CircuitSet) -> CircuitSet:
    """`wanted[i][j]` circuits between the i-th and the j-th server of the region.

    A pair that keeps circuits keeps their NICs, so that as little as possible goes dark. New circuits of a pair take NICs of different NUMA
    nodes, so that they don't share one path inside the server (`permuteLinks` of the paper's Algorithm 1); of equal ones the lowest free. Pairs
    of several circuits choose first, then pairs in server order. ValueError where a server has fewer NICs than circuits.
    """
    pairs = list(_pairs(region, wanted))
    kept = {(a, b): _whole(fabric, now.between(a, b))[:count] for a, b, count in pairs}
    free = {server: [nic.index for nic in fabric.usable_optical(server)] for server in region.servers}
    for circuit in (circuit for lit in kept.values() for circuit in lit):
        free[circuit.a.server].remove(circuit.a.index)
        free[circuit.b.server].remove(circuit.b.index)
    made = [circuit for lit in kept.values() for circuit in lit]
    for a, b, count in sorted(pairs, key=lambda pair: -pair[2]):
        mine = list(kept[a, b])
        while len(mine) < count:
            mine.append(Circuit(_next(fabric, free, a, mine), _next(fabric, free, b, mine)))
            made.append(mine[-1])
    return CircuitSet.of(made)


def _pairs(region: Region, wanted: Counts) -> Iterator[tuple[str, str, int]]:
    """(server, server, circuits) of every pair that is to be lit, in server order."""
    matrix = np.triu(np.asarray(wanted), 1)
    for i, j in zip(*(each.tolist() for each in np.nonzero(matrix)), strict=True):
        yield region.servers[i], region.servers[j], int(matrix[i, j])


def _whole(fabric: Fabric, circuits: Iterable[Circuit]) -> tuple[Circuit, ...]:
    """Those of which no end is out."""
    return tuple(circuit for circuit in circuits if not {circuit.a, circuit.b} & fabric.out)


def _next(fabric: Fabric, free: dict[str, list[int]], server: str, mine: list[Circuit]) -> Nic:
    """The free NIC of a server that best keeps a pair's circuits apart; it is taken."""
    if not free[server]:
        raise ValueError(f"{server} has fewer optical NICs than circuits are wanted of it")
    used = [0] * NUMA_NODES
    for circuit in mine:
        end = circuit.a if circuit.a.server == server else circuit.b
        used[numa_node(fabric, end.index)] += 1
    index = min(free[server], key=lambda nic: (used[numa_node(fabric, nic)], nic))
    free[server].remove(index)
    return Nic(server, Kind.OPTICAL, index)
