"""Which NICs end the circuits of each pair: those that are lit already, then the lowest free ones."""

from collections.abc import Iterator

from controller.planner.policy import Counts
from moefabric.circuits import Circuit, CircuitSet
from moefabric.topology import Fabric, Nic, Region


def circuits(fabric: Fabric, region: Region, wanted: Counts, now: CircuitSet) -> CircuitSet:
    """`wanted[i][j]` circuits between the i-th and the j-th server of the region.

    A pair that keeps circuits keeps their NICs, so that as little as possible goes dark. New ones take the lowest free NIC of either server,
    pair after pair in server order. ValueError where a server has fewer NICs than circuits.
    """
    pairs = [
        (a, b, wanted[i][j])
        for i, a in enumerate(region.servers)
        for j, b in enumerate(region.servers)
        if i < j and wanted[i][j]
    ]
    kept = [circuit for a, b, count in pairs for circuit in now.between(a, b)[:count]]
    taken = {nic for circuit in kept for nic in (circuit.a, circuit.b)}
    free = {server: _free(fabric, server, taken) for server in region.servers}
    new = [
        Circuit(_next(free, a), _next(free, b))
        for a, b, count in pairs
        for _ in range(count - len(now.between(a, b)[:count]))
    ]
    return CircuitSet.of(kept + new)


def _free(fabric: Fabric, server: str, taken: set[Nic]) -> Iterator[Nic]:
    return iter([nic for nic in fabric.optical_nics(server) if nic not in taken])


def _next(free: dict[str, Iterator[Nic]], server: str) -> Nic:
    nic = next(free[server], None)
    if nic is None:
        raise ValueError(f"{server} has fewer optical NICs than circuits are wanted of it")
    return nic
