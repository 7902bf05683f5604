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

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, pairwise
from math import gcd
from typing import Final

import numpy as np

from moefabric.core.errors import SpecError
from moefabric.workload.collectives.schedule import Call, Extent, Schedule, cut
from moefabric.workload.collectives.steps import Numbers, RankSteps, schedule_of, transfer
from moefabric.workload.graphs.execution_graph import CollectiveKind

CHUNKS: Final = 32
"""Parts in which a chain or a tree passes a buffer on, so that its links work at the same time."""
LEAST_CHUNK: Final = 65536
"""Bytes below which parts aren't divided any more, as their latency would exceed their time."""


class Ring:
    """All-reduce, reduce-scatter and all-gather by one or more rings."""

    kinds: Sequence[CollectiveKind] = ("all_reduce", "reduce_scatter", "all_gather")

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

    def schedule(self, call: Call) -> Schedule:
        """Return the steps of an all-reduce, a reduce-scatter or an all-gather."""
        ranks = [RankSteps() for _ in range(call.ranks)]
        orders = ring_orders(call, self.rings)
        parts = [cut(call.shard(rank), len(orders), call.element) for rank in range(call.ranks)]
        for number, order in enumerate(orders):
            shards = [parts[rank][number] for rank in order]
            if call.kind != "all_gather":
                _pass_around(ranks, order, shards, range(1, call.ranks), "reduce-scatter")
            if call.kind != "reduce_scatter":
                _pass_around(ranks, order, shards, range(call.ranks - 1), "all-gather")
        return schedule_of(self.name, call, ranks)


def _pass_around(
    ranks: Sequence[RankSteps],
    order: Sequence[int],
    shards: Sequence[Extent],
    turns: range,
    phase: str,
) -> None:
    """Add the steps by which shards go from each rank to the next one, turn by turn.

    In turn 0, each rank sends the shard of its own position.
    """
    count = len(order)
    for turn in turns:
        for place, rank in enumerate(order):
            following, shard = order[(place + 1) % count], shards[(place - turn) % count]
            transfer(ranks, rank, following, shard, phase, add=phase == "reduce-scatter")


def ring_orders(call: Call, rings: int) -> list[tuple[int, ...]]:
    """Return the ranks of each ring in its order.

    Args:
        call: The collective, with the servers of its ranks.
        rings: Greatest number of rings.
    """
    members: defaultdict[int, list[int]] = defaultdict(list)
    for rank in range(call.ranks):
        members[call.server(rank)].append(rank)
    counts = {len(ranks) for ranks in members.values()}
    if counts == {1}:
        strides = [s for s in range(1, max(2, call.ranks)) if gcd(s, call.ranks) == 1]
        return [
            tuple(place * stride % call.ranks for place in range(call.ranks))
            for stride in strides[:rings]
        ]
    turns = min(rings, max(counts))
    return [
        tuple(chain.from_iterable(np.roll(own, -turn).tolist() for own in members.values()))
        for turn in range(turns)
    ]


class Chain:
    """Broadcast and reduce along a chain of all ranks, in chunks that follow one another."""

    kinds: Sequence[CollectiveKind] = ("broadcast", "reduce")
    name = "chain"

    def __init__(self, chunks: int = CHUNKS) -> None:
        """Choose the number of chunks; small buffers have fewer."""
        self.chunks = chunks

    def schedule(self, call: Call) -> Schedule:
        """Return the steps of a broadcast or a reduce."""
        ranks = [RankSteps() for _ in range(call.ranks)]
        pipeline = RingPipeline(ranks)
        order = [(call.root + place) % call.ranks for place in range(call.ranks)]
        links = list(pairwise(order if call.kind == "broadcast" else reversed(order)))
        for chunk in chunks_of(call, Extent("output", 0, call.size), self.chunks):
            for sender, receiver in links:
                pipeline.pass_on(sender, receiver, chunk, call.kind)
        return schedule_of(self.name, call, ranks)


class RingPipeline:
    """Chunks that ranks pass on one after another: a rank sends one at a time to each peer.

    If all were in flight at once, they would share the link, and all would arrive in the end.
    """

    def __init__(self, ranks: Sequence[RankSteps]) -> None:
        """Pass chunks on between these ranks."""
        self._ranks = ranks
        self._last: dict[tuple[int, int, str], Numbers] = {}

    def pass_on(self, sender: int, receiver: int, chunk: Extent, phase: str) -> None:
        """Add the steps that send a chunk, and that receive it, or add it in a phase `reduce`."""
        key = sender, receiver, phase
        after = self._last.get(key, ())
        steps = transfer(
            self._ranks, sender, receiver, chunk, phase, add=phase == "reduce", after=after
        )
        self._last[key] = steps


def chunks_of(call: Call, extent: Extent, chunks: int) -> tuple[Extent, ...]:
    """Cut a range into chunks of at least `LEAST_CHUNK` bytes, between numbers."""
    return cut(extent, max(1, min(chunks, extent.size // LEAST_CHUNK)), call.element)


RING: Final = Ring()
MULTI_RING: Final = Ring(8, "multi-ring")
CHAIN: Final = Chain()
