"""Assigns NICs to circuits: lit ones first, parallel circuits on different NUMA nodes."""

import numpy as np
from numpy.typing import ArrayLike

from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.nic import Nic, NicKind
from moefabric.core.server_paths import NUMA_NODES
from moefabric.core.topology import Fabric, Region
from moefabric.simulator.server_times import pcie_switch, pcie_switches


def numa_node(fabric: Fabric, index: int) -> int:
    """Return the NUMA node of a server's optical NIC with this index."""
    switch = pcie_switch(fabric, Nic("", NicKind.OPTICAL, index))
    return switch * NUMA_NODES // pcie_switches(fabric)


def usable_ports(fabric: Fabric, region: Region) -> list[int]:
    """Count the usable optical NICs of each server of a region, in server order."""
    return [len(fabric.usable_optical(server)) for server in region.servers]


def assign_nics(
    fabric: Fabric, region: Region, counts: ArrayLike, current: CircuitSet
) -> CircuitSet:
    """Choose the NICs of each circuit so that the fewest lit circuits change.

    A pair that keeps circuits keeps their NICs. New circuits of a pair take NICs of different
    NUMA nodes, so that they don't share one path inside the server (`permuteLinks` in Algorithm 1
    of arXiv 2501.03905). Among equal NUMA nodes, the lowest free NIC is taken. Pairs with several
    circuits choose first, then pairs in server order.

    Args:
        region: The region whose servers are joined.
        counts: Circuits of each pair [server, server], symmetric.
        current: Circuits that are lit.

    Returns:
        The circuits, as many of each pair as `counts` says.

    Raises:
        ValueError: If a server has fewer usable optical NICs than circuits.
    """
    matrix = np.triu(np.asarray(counts), 1)
    pairs = {
        (region.servers[i], region.servers[j]): int(matrix[i, j])
        for i, j in np.argwhere(matrix).tolist()
    }
    usable = current.without_nics(fabric.unusable_nics)
    assigned = {(a, b): list(usable.between(a, b)[:count]) for (a, b), count in pairs.items()}
    free = {
        server: [nic.index for nic in fabric.usable_optical(server)] for server in region.servers
    }
    for circuit in (circuit for circuits in assigned.values() for circuit in circuits):
        free[circuit.a.server].remove(circuit.a.index)
        free[circuit.b.server].remove(circuit.b.index)
    for (a, b), count in sorted(pairs.items(), key=lambda item: -item[1]):
        circuits = assigned[a, b]
        while len(circuits) < count:
            ends = _take_nic(fabric, free, a, circuits), _take_nic(fabric, free, b, circuits)
            circuits.append(Circuit(*ends))
    return CircuitSet.of(circuit for circuits in assigned.values() for circuit in circuits)


def _take_nic(
    fabric: Fabric, free: dict[str, list[int]], server: str, circuits: list[Circuit]
) -> Nic:
    """Take the free NIC of a server whose NUMA node has the fewest of a pair's circuits."""
    if not free[server]:
        raise ValueError(f"{server} has fewer optical NICs than the circuits need")
    if not circuits:
        return Nic(server, NicKind.OPTICAL, free[server].pop(0))
    used = [0] * NUMA_NODES
    for circuit in circuits:
        used[numa_node(fabric, circuit.end_at(server).index)] += 1
    index = min(free[server], key=lambda nic: (used[numa_node(fabric, nic)], nic))
    free[server].remove(index)
    return Nic(server, NicKind.OPTICAL, index)
