"""Direct exchanges: each rank sends to each rank that needs its bytes, all at once."""

from collections.abc import Sequence
from typing import Final

from moefabric.workload.collectives.all_to_all import WindowedAllToAll
from moefabric.workload.collectives.schedule import Call, Extent
from moefabric.workload.collectives.steps import RankSteps, StepwiseSchedule, move, transfer
from moefabric.workload.graphs.execution_graph import COLLECTIVES


class Direct(StepwiseSchedule):
    """Every collective but the barrier, without a rank in between."""

    name = "direct"
    kinds = tuple(one for one in COLLECTIVES if one != "barrier")

    def add_steps(self, call: Call, ranks: Sequence[RankSteps]) -> None:
        """Add the steps of a collective."""
        if call.kind == "all_to_all":
            WindowedAllToAll(None).add_steps(call, ranks)
        pairs = [(r, (r + i) % call.ranks) for r in range(call.ranks) for i in range(1, call.ranks)]
        if call.kind in {"all_reduce", "reduce_scatter"}:
            for rank, peer in pairs:
                transfer(ranks, rank, peer, call.shard(peer), "reduce-scatter", add=True)
        if call.kind in {"all_reduce", "all_gather"}:
            for rank, peer in pairs:
                transfer(ranks, rank, peer, call.shard(rank), "all-gather")
        if call.kind in {"broadcast", "reduce"}:
            whole = Extent("output", 0, call.size)
            for root, peer in pairs:
                if root == call.root:
                    ends = (root, peer) if call.kind == "broadcast" else (peer, root)
                    transfer(ranks, *ends, whole, call.kind, add=call.kind == "reduce")
        if call.kind in {"gather", "scatter"}:
            _parts_with_root(call, ranks)


def _parts_with_root(call: Call, ranks: Sequence[RankSteps]) -> None:
    for rank in range(call.ranks):
        if call.kind == "gather":
            source, target = rank, call.root
            part = Extent("input", 0, call.size)
            place = Extent("output", rank * call.size, call.size)
        else:
            source, target = call.root, rank
            shard = call.shard(rank)
            part = Extent("input", shard.offset, shard.size)
            place = Extent("output", 0, shard.size)
        move(ranks, source, target, part, place, "local" if source == target else call.kind)


DIRECT: Final = Direct()
