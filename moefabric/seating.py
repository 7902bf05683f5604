"""Seating: what a job's iteration is when some work in others' places: where ranks are at home, and what their tensor parallelism sends.

A rank all of whose GPUs are lost moves to the backup with its tokens and experts. One that has lost some of them stays, and its partial sums
cross servers: reduced inside the server, exchanged with the backup, handed round inside (paper section 7.5), twice a layer and pass.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from moefabric.demand import DemandMatrix, Placement
from moefabric.health import Gpu, Seats, groups
from moefabric.iteration import Collective, Compute, Operation
from moefabric.topology import Fabric

TENSOR = "tensor"
"""Kind of the collective in which a tensor-parallel group of two servers exchanges partial sums."""


@dataclass(frozen=True)
class Seating:
    """Where everyone of a job on a fabric works: `placements` of the EP groups in order, and pairs of servers that share a rank."""

    groups: Mapping[str, tuple[str, ...]]
    placements: tuple[Placement, ...]
    sharing: tuple[tuple[str, str], ...] = ()

    @property
    def servers(self) -> tuple[str, ...]:
        """All that work, group by group."""
        return tuple(server for group in self.groups.values() for server in group)


def seating(fabric: Fabric, placements: Iterable[Placement], tp: int, seats: Seats) -> Seating:
    """Where everyone works, `placements` being those of the whole job; ranks are of `tp` GPUs, in order."""
    made, sharing = [], dict[tuple[str, str], None]()
    grouped = groups(fabric, seats)
    for placement, servers in zip(placements, grouped.values(), strict=True):
        homes = []
        for rank in range(placement.ranks):
            home, other = _home(placement, rank, tp, seats)
            homes.append(servers.index(home))
            sharing |= {(home, instead): None for instead in other}
        even = servers == placement.servers and homes == [placement.home(r) for r in range(placement.ranks)]
        made.append(placement if even else replace(placement, servers=servers, homes=tuple(homes)))
    return Seating(grouped, tuple(made), tuple(sharing))


def _home(placement: Placement, rank: int, tp: int, seats: Seats) -> tuple[str, list[str]]:
    """The server that a rank is on, and the others that some of its GPUs are on."""
    server = placement.servers[placement.home(rank)]
    if server in seats.servers:
        return seats.servers[server], []
    local = rank - next(r for r in range(placement.ranks) if placement.home(r) == placement.home(rank))
    gpus = [Gpu(server, local * tp + index) for index in range(tp)]
    instead = [seats.gpus[gpu].server for gpu in gpus if gpu in seats.gpus]
    if len(instead) == tp:
        return instead[0], [other for other in dict.fromkeys(instead) if other != instead[0]]
    return server, list(dict.fromkeys(instead))


def exchange(seated: Seating, rank_bytes: float) -> DemandMatrix | None:
    """What ranks of two servers send between them after a computation: a rank's tokens, each way. None where no rank is."""
    if not seated.sharing:
        return None
    index = {server: position for position, server in enumerate(seated.servers)}
    owed = np.zeros((len(index), len(index)))
    for home, other in seated.sharing:
        owed[index[home], index[other]] += rank_bytes
        owed[index[other], index[home]] += rank_bytes
    return DemandMatrix(seated.servers, owed)


def exchanging(operations: Iterable[Operation], owed: DemandMatrix | None) -> Iterator[Operation]:
    """An iteration in which partial sums are exchanged after attention and experts, in both passes."""
    for operation in operations:
        yield operation
        if owed is not None and isinstance(operation, Compute):
            yield Collective(TENSOR, operation.direction, operation.layer, owed)
