"""Demands as execution graphs of messages, and the bytes that the ranks of a graph send each other.

Formats without collectives (GOAL, htsim's connection matrices) hold such graphs.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from moefabric.core.demand import DemandMatrix
from moefabric.workload.execution_graph import ExecutionGraph, Node


def demand_graph(demand: DemandMatrix) -> ExecutionGraph:
    """Return a demand as a graph of sends and receives that don't wait for each other.

    In step n of n, each rank sends to the rank n after it and receives from the rank n before it.
    The step is the tag. Pairs that owe nothing have no operation.
    """
    owed, count = whole_bytes(demand), len(demand.servers)
    ranks = {}
    for rank in range(count):
        nodes: list[Node] = []
        for step in range(1, count):
            to, source = (rank + step) % count, (rank - step) % count
            if size := owed.get((rank, to)):
                nodes.append(Node(len(nodes) + 1, "send", size=size, peer=to, tag=step))
            if size := owed.get((source, rank)):
                nodes.append(Node(len(nodes) + 1, "receive", size=size, peer=source, tag=step))
        ranks[rank] = tuple(nodes)
    return ExecutionGraph(ranks)


def whole_bytes(demand: DemandMatrix) -> Mapping[tuple[int, int], int]:
    """Return the whole bytes, above 0, that each pair of servers owes, by their positions."""
    index = {server: position for position, server in enumerate(demand.servers)}
    owed = {(index[a], index[b]): round(size) for a, b, size in demand.pairs()}
    return {pair: size for pair, size in owed.items() if size}


def message_bytes(graph: ExecutionGraph) -> NDArray[np.int64]:
    """Return the bytes [rank, rank] of the sends of a graph, without its collectives."""
    matrix = np.zeros((len(graph.ranks), len(graph.ranks)), dtype=np.int64)
    for rank, nodes in graph.ranks.items():
        for node in nodes:
            if node.kind == "send":
                matrix[rank, node.peer] += node.size
    return matrix


def graph_demand(graph: ExecutionGraph) -> DemandMatrix:
    """Return what the ranks of a graph send each other as the demand of servers `s0`, `s1`, ...

    Dependencies, computation, collectives and messages of a rank to itself are left out.
    """
    matrix = message_bytes(graph)
    np.fill_diagonal(matrix, 0)
    return DemandMatrix([f"s{n}" for n in range(len(matrix))], matrix.tolist())
