"""Parts and scaled copies of execution graphs, for graphs that are too large for a testbed."""

from dataclasses import replace

from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node, Place

_ELEMENT = 4
"""Bytes of a number; scaled sizes are whole numbers of it."""


def leading_operations(graph: ExecutionGraph, count: int) -> ExecutionGraph:
    """Return the first operations of each rank.

    Collectives and messages that not all of their ranks have among their first operations are left
    out, with all that waits for them.

    Args:
        graph: A graph without faults.
        count: Operations of each rank, at most.
    """
    if all(len(nodes) <= count for nodes in graph.ranks.values()):
        return graph
    calls = [{(rank, node.number) for rank, node in own} for own in graph.meetings()]
    kept = {rank: nodes[:count] for rank, nodes in graph.ranks.items()}
    while True:
        present = {(rank, node.number) for rank, nodes in kept.items() for node in nodes}
        allowed = {one for members in calls if present >= members for one in members}
        shorter = {rank: _runnable(rank, nodes, allowed) for rank, nodes in kept.items()}
        if shorter == kept:
            break
        kept = shorter
    whole, left = (sum(map(len, nodes.values())) for nodes in (graph.ranks, kept))
    note = f"The first {count} operations of each rank are replayed: {left} of {whole}."
    return ExecutionGraph(kept, graph.groups, graph.name, (*graph.notes, note))


def _runnable(rank: int, nodes: tuple[Node, ...], allowed: set[Place]) -> tuple[Node, ...]:
    """Return the allowed operations whose dependencies are all allowed."""
    numbers = {node.number for node in nodes if (rank, node.number) in allowed}
    while True:
        fewer = {n.number for n in nodes if n.number in numbers and set(n.after) <= numbers}
        if fewer == numbers:
            return tuple(node for node in nodes if node.number in numbers)
        numbers = fewer


def scaled(graph: ExecutionGraph, factor: float) -> ExecutionGraph:
    """Return a graph whose sizes are divided by a factor, in whole numbers of 4 bytes.

    No size becomes 0: collectives keep a number for each of their ranks, messages one number.
    """
    if factor == 1:
        return graph
    ranks = {
        rank: tuple(_scaled(node, factor, len(graph.groups.get(node.group, ()))) for node in nodes)
        for rank, nodes in graph.ranks.items()
    }
    return ExecutionGraph(ranks, graph.groups, graph.name, graph.notes)


def _scaled(node: Node, factor: float, ranks: int) -> Node:
    if not node.size:
        return node
    if node.splits:
        splits = tuple(_rounded(size, factor, _ELEMENT) for size in node.splits)
        return replace(node, splits=splits, size=sum(splits))
    shares = 1 if node.kind != "collective" or node.collective == "all_gather" else ranks
    return replace(node, size=_rounded(node.size, factor, _ELEMENT * shares))


def _rounded(size: int, factor: float, unit: int) -> int:
    return max(1, round(size / factor / unit)) * unit if size else 0
