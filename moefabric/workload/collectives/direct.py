"""Direct exchanges: each rank sends to each rank that needs its bytes, all at once."""

from collections.abc import Sequence
from typing import Final

from moefabric.workload.collectives.all_to_all import WindowedAllToAll
from moefabric.workload.collectives.schedule import Call, Extent, Schedule
from moefabric.workload.collectives.steps import RankSteps, schedule_of
from moefabric.workload.graphs.execution_graph import CollectiveKind


class Direct:
    """Every collective but the barrier, without a rank in between."""

    name = "direct"
    kinds: Sequence[CollectiveKind] = (
        "all_to_all",
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
    )

    def schedule(self, call: Call) -> Schedule:
        """Return the steps of a collective."""
        if call.kind == "all_to_all":
            return WindowedAllToAll(None, self.name).schedule(call)
        ranks = [RankSteps() for _ in range(call.ranks)]
        if call.kind in {"all_reduce", "reduce_scatter"}:
            for rank, steps in enumerate(ranks):
                for peer in _others(call, rank):
                    steps.send(peer, call.shard(peer), "reduce-scatter")
                    steps.receive_add(peer, call.shard(rank), "reduce-scatter")
        if call.kind in {"all_reduce", "all_gather"}:
            for rank, steps in enumerate(ranks):
                for peer in _others(call, rank):
                    steps.send(peer, call.shard(rank), "all-gather")
                    steps.receive(peer, call.shard(peer), "all-gather")
        if call.kind in {"broadcast", "reduce"}:
            _with_root(call, ranks)
        if call.kind in {"gather", "scatter"}:
            _parts_with_root(call, ranks)
        return schedule_of(self.name, call, ranks)


def _others(call: Call, rank: int) -> list[int]:
    """Return the other ranks, from the next one on, so that ranks start with different peers."""
    return [(rank + i) % call.ranks for i in range(1, call.ranks)]


def _with_root(call: Call, ranks: Sequence[RankSteps]) -> None:
    whole = Extent("output", 0, call.size)
    for peer in _others(call, call.root):
        if call.kind == "broadcast":
            ranks[call.root].send(peer, whole, "broadcast")
            ranks[peer].receive(call.root, whole, "broadcast")
        else:
            ranks[peer].send(call.root, whole, "reduce")
            ranks[call.root].receive_add(peer, whole, "reduce")


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
        if source == target:
            ranks[rank].copy(part, place, "local")
        else:
            ranks[source].send(target, part, call.kind)
            ranks[target].receive(source, place, call.kind)


DIRECT: Final = Direct()
