"""Parts and scaled copies of execution graphs, so that a testbed can replay what is too large."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from moefabric.workload.execution_graph import ExecutionGraph, Node

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
    kept = {rank: nodes[:count] for rank, nodes in graph.ranks.items()}
    while True:
        allowed = _calls_of_all(kept, graph.groups)
        shorter = {rank: _runnable(nodes, allowed[rank]) for rank, nodes in kept.items()}
        if shorter == kept:
            break
        kept = shorter
    whole, left = (sum(map(len, nodes.values())) for nodes in (graph.ranks, kept))
    note = f"The first {count} operations of each rank are replayed: {left} of {whole}."
    return ExecutionGraph(kept, graph.groups, graph.name, (*graph.notes, note))


def _calls_of_all(
    ranks: Mapping[int, tuple[Node, ...]], groups: Mapping[str, tuple[int, ...]]
) -> dict[int, set[int]]:
    """Return, by rank, the numbers of operations that all of their ranks have."""
    calls: defaultdict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    for rank, nodes in ranks.items():
        counts: defaultdict[tuple[object, ...], int] = defaultdict(int)
        for node in nodes:
            if node.kind == "compute":
                key: tuple[object, ...] = (rank, node.number)
            elif node.kind == "collective":
                key = ("group", node.group)
            else:
                ends = (rank, node.peer) if node.kind == "send" else (node.peer, rank)
                key = ("message", *ends, node.tag)
            counted = (key, node.kind) if node.kind in {"send", "receive"} else (key,)
            calls[*key, counts[counted]].append((rank, node.number))
            counts[counted] += 1
    allowed: dict[int, set[int]] = {rank: set() for rank in ranks}
    for key, members in calls.items():
        needed = {"group": len(groups.get(str(key[1]), ())), "message": 2}.get(str(key[0]), 1)
        if len(members) >= needed:
            for rank, number in members:
                allowed[rank].add(number)
    return allowed


def _runnable(nodes: tuple[Node, ...], allowed: set[int]) -> tuple[Node, ...]:
    """Return the operations that are allowed and wait for no others than such."""
    numbers = {node.number for node in nodes} & allowed
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
