"""Trees: all-reduce over two binary trees, broadcast and reduce over one, chunk by chunk.

A rank that is an inner node of one tree is a leaf of the other, so that both directions of its NIC
are full in large all-reduces (Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth
broadcast, reduction and scan", 2009; NCCL's double binary trees).
"""

from collections.abc import Callable, Sequence
from typing import Final

from moefabric.workload.collectives.ring import CHUNKS, RingPipeline, chunks_of
from moefabric.workload.collectives.schedule import Call, Extent, Schedule, cut
from moefabric.workload.collectives.steps import RankSteps, schedule_of
from moefabric.workload.graphs.execution_graph import CollectiveKind

Parent = Callable[[int], int | None]
"""Returns the parent of a rank; None for the root."""


class Tree:
    """All-reduce over two trees; broadcast and reduce over one."""

    name = "tree"
    kinds: Sequence[CollectiveKind] = ("all_reduce", "broadcast", "reduce")

    def __init__(self, chunks: int = CHUNKS) -> None:
        """Choose the number of chunks of each tree; small buffers have fewer."""
        self.chunks = chunks

    def schedule(self, call: Call) -> Schedule:
        """Return the steps of an all-reduce, a broadcast or a reduce."""
        ranks = [RankSteps() for _ in range(call.ranks)]
        pipeline = RingPipeline(ranks)
        whole = Extent("output", 0, call.size)
        if call.kind == "all_reduce":
            halves = cut(whole, 2, call.element)
            parts = list(zip(double_tree(call.ranks), halves, strict=True))
        else:
            parts = [(_shifted(tree_parent, call.root, call.ranks), whole)]
        for parent, part in parts:
            order = _from_root(parent, call.ranks)
            for chunk in chunks_of(call, part, self.chunks):
                if call.kind != "broadcast":
                    for child, above in reversed(order):
                        pipeline.pass_on(child, above, chunk, "reduce")
                if call.kind != "reduce":
                    for child, above in order:
                        pipeline.pass_on(above, child, chunk, "broadcast")
        return schedule_of(self.name, call, ranks)


def tree_parent(rank: int, ranks: int) -> int | None:
    """Return the parent of a rank in a binary tree with root 0, whose odd ranks are leaves.

    A rank has one child on either side, at half the distance of the lowest bit of its number.
    """
    if not rank:
        return None
    bit = rank & -rank
    upper = (rank ^ bit) | (bit << 1)
    return upper if upper < ranks else rank ^ bit


def double_tree(ranks: int) -> tuple[Parent, Parent]:
    """Return the parents in two trees; no rank is an inner node of both, but for their roots."""

    def second(rank: int) -> int | None:
        if ranks % 2:
            return _shifted(tree_parent, 1, ranks)(rank)
        parent = tree_parent(ranks - 1 - rank, ranks)
        return None if parent is None else ranks - 1 - parent

    return (lambda rank: tree_parent(rank, ranks)), second


def _shifted(parent: Callable[[int, int], int | None], root: int, ranks: int) -> Parent:
    """Return a tree with another root: every rank takes the place of the one `root` before it."""

    def shifted(rank: int) -> int | None:
        above = parent((rank - root) % ranks, ranks)
        return None if above is None else (above + root) % ranks

    return shifted


def _from_root(parent: Parent, ranks: int) -> list[tuple[int, int]]:
    """Return (child, parent) for all ranks but the root, each after its parent's own."""
    depths: dict[int, int] = {}
    for rank in range(ranks):
        depth, above = 0, parent(rank)
        while above is not None:
            depth, above = depth + 1, parent(above)
        depths[rank] = depth
    ordered = sorted(depths, key=lambda rank: (depths[rank], rank))
    return [(rank, above) for rank in ordered if (above := parent(rank)) is not None]


TREE: Final = Tree()
