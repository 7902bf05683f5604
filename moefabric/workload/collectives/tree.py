"""Trees: all-reduce over two binary trees, broadcast and reduce over one, chunk by chunk.

A rank that is an inner node of one tree is a leaf of the other, so that both directions of its NIC
are full in large all-reduces (Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth
broadcast, reduction and scan", 2009; NCCL's double binary trees).
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from moefabric.workload.collectives.schedule import Call, Extent, cut
from moefabric.workload.collectives.steps import Numbers, RankSteps, StepwiseSchedule, transfer
from moefabric.workload.graphs.execution_graph import CollectiveKind

CHUNKS: Final = 32
"""Parts in which a chain or a tree passes a buffer on, so that its links work at the same time."""
LEAST_CHUNK: Final = 65536
"""Bytes below which parts aren't divided any more, as their latency would exceed their time."""

Parent = Callable[[int], int | None]
"""Returns the parent of a rank; None for the root."""


class Tree(StepwiseSchedule):
    """All-reduce over two trees; broadcast and reduce over one."""

    def __init__(
        self, name: str, kinds: Sequence[CollectiveKind], parent: Callable[[int, int], int | None]
    ) -> None:
        """Choose the collectives, and the tree of broadcast and reduce.

        Args:
            name: Name of the algorithm.
            parent: Returns the parent of a rank among a number of ranks, if rank 0 is the root.
        """
        self.name, self.kinds, self._parent = name, kinds, parent

    def add_steps(self, call: Call, ranks: Sequence[RankSteps]) -> None:
        """Add the steps of an all-reduce, a broadcast or a reduce."""
        sent: dict[tuple[int, int, str], Numbers] = {}

        def pass_on(sender: int, receiver: int, chunk: Extent, phase: str) -> None:
            # If all chunks were in flight at once, they would share the link, and all would
            # arrive in the end.
            after, add = sent.get((sender, receiver, phase), ()), phase == "reduce"
            steps = transfer(ranks, sender, receiver, chunk, phase, add=add, after=after)
            sent[sender, receiver, phase] = steps

        whole = Extent("output", 0, call.size)
        parts = [(_shifted(self._parent, call.root, call.ranks), whole)]
        if call.kind == "all_reduce":
            halves = cut(whole, 2, call.element)
            parts = list(zip(double_tree(call.ranks), halves, strict=True))
        for parent, part in parts:
            order = _from_root(parent, call.ranks)
            for chunk in chunks_of(call, part):
                if call.kind != "broadcast":
                    for child, above in reversed(order):
                        pass_on(child, above, chunk, "reduce")
                if call.kind != "reduce":
                    for child, above in order:
                        pass_on(above, child, chunk, "broadcast")


def chunks_of(call: Call, extent: Extent) -> tuple[Extent, ...]:
    """Cut a range into chunks of at least `LEAST_CHUNK` bytes, between numbers."""
    return cut(extent, max(1, min(CHUNKS, extent.size // LEAST_CHUNK)), call.element)


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
    children: defaultdict[int | None, list[int]] = defaultdict(list)
    for rank in range(ranks):
        children[parent(rank)].append(rank)
    order, (root,) = list[tuple[int, int]](), children[None]
    for above in itertools.chain([root], (child for child, _ in order)):
        order += ((child, above) for child in children[above])
    return order


TREE: Final = Tree("tree", ("all_reduce", "broadcast", "reduce"), tree_parent)
