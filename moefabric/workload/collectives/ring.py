"""Rings and chains: all-reduce, reduce-scatter, all-gather, broadcast and reduce.

A ring passes shards from neighbour to neighbour. Each rank sends 2 (n - 1) / n of its bytes in an
all-reduce, which is the least of all algorithms (Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", 2009).

Several rings divide the bytes, so that several NICs or links carry them at the same time. On
servers with equal numbers of ranks, each ring enters and leaves a server by other ranks, as NCCL's
rings do. With one rank a server, ring k steps over as many ranks as the k-th number that has no
divisor in common with the number of ranks: such rings have no link in common (TotientPerms of
TopoOpt, NSDI 2023).
"""

from collections.abc import Sequence
from itertools import chain
from math import gcd
from typing import Final

import numpy as np

from moefabric.core.errors import SpecError
from moefabric.workload.collectives.schedule import Call, Extent, cut
from moefabric.workload.collectives.steps import RankSteps, StepwiseSchedule, transfer
from moefabric.workload.collectives.tree import Tree


class Ring(StepwiseSchedule):
    """All-reduce, reduce-scatter and all-gather by one or more rings."""

    kinds = ("all_reduce", "reduce_scatter", "all_gather")

    def __init__(self, rings: int = 1, name: str = "ring") -> None:
        """Choose the number of rings.

        Args:
            rings: Number of rings that divide the bytes; fewer if there are no more different ones.
            name: Name of the algorithm.

        Raises:
            SpecError: If there is no ring.
        """
        if rings < 1:
            raise SpecError([(f"schedule {name}", f"{rings} rings carry nothing")])
        self.rings, self.name = rings, name

    def add_steps(self, call: Call, ranks: Sequence[RankSteps]) -> None:
        """Add the steps of an all-reduce, a reduce-scatter or an all-gather."""
        orders = ring_orders(call, self.rings)
        parts = [cut(call.shard(rank), len(orders), call.element) for rank in range(call.ranks)]
        for number, order in enumerate(orders):
            shards = [parts[rank][number] for rank in order]
            if call.kind != "all_gather":
                _pass_around(ranks, order, shards, add=True)
            if call.kind != "reduce_scatter":
                _pass_around(ranks, order, shards, add=False)


def _pass_around(
    ranks: Sequence[RankSteps], order: Sequence[int], shards: Sequence[Extent], *, add: bool
) -> None:
    """Add the steps by which shards go from each rank to the next one, turn by turn.

    In turn 0, each rank sends the shard of its own position. Sums end at their position, after as
    many turns as there are other ranks; the first of these turns is 1.
    """
    count, phase = len(order), "reduce-scatter" if add else "all-gather"
    for turn in range(add, count - 1 + add):
        for place, rank in enumerate(order):
            following, shard = order[(place + 1) % count], shards[(place - turn) % count]
            transfer(ranks, rank, following, shard, phase, add=add)


def ring_orders(call: Call, rings: int) -> list[tuple[int, ...]]:
    """Return the ranks of each ring in its order.

    Args:
        call: The collective, with the servers of its ranks.
        rings: Greatest number of rings.
    """
    members = call.members
    counts = {len(ranks) for ranks in members.values()}
    if counts == {1}:
        strides = [s for s in range(1, max(2, call.ranks)) if gcd(s, call.ranks) == 1]
        places = range(call.ranks)
        return [tuple(n * stride % call.ranks for n in places) for stride in strides[:rings]]
    turns = min(rings, max(counts))
    return [
        tuple(chain.from_iterable(np.roll(own, -turn).tolist() for own in members.values()))
        for turn in range(turns)
    ]


RING: Final = Ring()
MULTI_RING: Final = Ring(8, "multi-ring")
CHAIN: Final = Tree(
    "chain", ("broadcast", "reduce"), lambda rank, _ranks: rank - 1 if rank else None
)
"""Broadcast and reduce along a chain of all ranks, in chunks that follow one another."""
