"""Bytes that the ranks of an execution graph send each other."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node
from moefabric.workload.graphs.timeline import sent_bytes


def message_bytes(graph: ExecutionGraph) -> NDArray[np.int64]:
    """Return the bytes [rank, rank] of the sends of a graph, without its collectives."""
    matrix = np.zeros((len(graph.ranks), len(graph.ranks)), dtype=np.int64)
    for rank, nodes in graph.ranks.items():
        for node in nodes:
            if node.kind == "send":
                matrix[rank, node.peer] += node.size
    return matrix


def pair_bytes(graph: ExecutionGraph) -> NDArray[np.int64]:
    """Return the bytes [rank, rank] that ranks send each other, collectives included.

    Collectives send what their default schedules do: all-to-alls, gathers and scatters directly,
    others in a ring or a chain in the order of the group.
    """
    matrix = message_bytes(graph)
    for rank, nodes in graph.ranks.items():
        for node in nodes:
            if node.kind == "collective" and node.collective != "barrier":
                for peer, size in _sent_to(node, rank, graph.groups[node.group]):
                    matrix[rank, peer] += size
    return matrix


def _sent_to(node: Node, rank: int, members: Sequence[int]) -> Iterator[tuple[int, int]]:
    count, place = len(members), members.index(rank)
    following = members[(place + 1) % count]
    if count == 1:
        return
    match node.collective:
        case "all_to_all":
            sizes = node.splits or (node.size // count,) * count
            yield from (
                (peer, size) for peer, size in zip(members, sizes, strict=False) if peer != rank
            )
        case "gather" if rank != node.root:
            yield node.root, node.size
        case "scatter" if rank == node.root:
            yield from ((peer, node.size // count) for peer in members if peer != rank)
        case "broadcast" if following != node.root:
            yield following, node.size
        case "reduce" if rank != node.root:
            yield members[place - 1], node.size
        case "all_reduce" | "all_gather" | "reduce_scatter":
            yield following, sent_bytes(node, count)
