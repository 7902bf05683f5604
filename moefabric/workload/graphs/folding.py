"""Folding of execution graphs onto fewer ranks, their first operations, and scaled copies.

Ranks of a training job run the same program on other data, so that some of them stand for all.
Ranks from 0 up to the new number remain with their operations. Where a group loses members, the
sizes of its collectives grow by as much as keeps the bytes that a rank sends to others.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from moefabric.core.errors import SpecError
from moefabric.core.units import size_text
from moefabric.workload.graphs.execution_graph import CollectiveKind, ExecutionGraph, Node, Place
from moefabric.workload.graphs.timeline import sent_bytes

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
    first = {rank: nodes[:count] for rank, nodes in graph.ranks.items()}
    while True:
        present = {(rank, node.number) for rank, nodes in first.items() for node in nodes}
        allowed = {one for members in calls if present >= members for one in members}
        shorter = {rank: _runnable(rank, nodes, allowed) for rank, nodes in first.items()}
        if shorter == first:
            break
        first = shorter
    whole, left = (sum(map(len, nodes.values())) for nodes in (graph.ranks, first))
    some, are = ("operation", "is") if count == 1 else (f"{count} operations", "are")
    note = f"The first {some} of each rank {are} replayed: {left} of {whole}."
    return ExecutionGraph(first, graph.groups, graph.name, (*graph.notes, note))


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


def fold(graph: ExecutionGraph, ranks: int) -> ExecutionGraph:
    """Return a graph of the first ranks of another one, which stand for the others.

    Collectives of which only one rank remains become computation that takes no time; a note says
    how many bytes of a rank are left out with them. Messages to ranks that don't remain can't be
    folded.

    Args:
        graph: A graph without faults.
        ranks: Number of ranks of the result.

    Raises:
        SpecError: If there are fewer ranks than that, or messages go to ranks that don't remain.
    """
    if not 1 <= ranks <= len(graph.ranks):
        raise SpecError([("ranks", f"{ranks} is not 1 to {len(graph.ranks)}, those of the trace")])
    if ranks == len(graph.ranks):
        return graph
    groups = {
        name: tuple(rank for rank in members if rank < ranks)
        for name, members in graph.groups.items()
    }
    folded: dict[int, tuple[Node, ...]] = {}
    left_out: defaultdict[str, int] = defaultdict(int)
    for rank in range(ranks):
        nodes = []
        for node in graph.ranks[rank]:
            if node.kind in {"send", "receive"} and node.peer >= ranks:
                place = f"rank {rank}, operation {node.number}"
                message = f"its message with rank {node.peer} can't be folded onto {ranks} ranks"
                raise SpecError([(place, message)])
            if node.kind != "collective":
                nodes.append(node)
                continue
            members, remaining = graph.groups[node.group], groups[node.group]
            if len(remaining) == 1:
                if rank == 0:
                    left_out[node.group] += sent_bytes(node, len(members))
                plain = Node(node.number, "compute", node.name, node.after, stream=node.stream)
                nodes.append(plain if len(members) > 1 else node)
            else:
                nodes.append(_folded(node, rank, members, remaining))
        folded[rank] = tuple(nodes)
    notes = (*graph.notes, *_notes(graph, ranks, left_out))
    kept = {name: members for name, members in groups.items() if members}
    return ExecutionGraph(folded, kept, graph.name, notes)


def _notes(graph: ExecutionGraph, ranks: int, left_out: dict[str, int]) -> Iterator[str]:
    onto = f"{len(graph.ranks)} ranks are folded onto {ranks}"
    yield f"{onto}: each one sends the bytes that it sent before, to fewer ranks."
    for name, size in left_out.items():
        if size:
            keeps = f"Group {name} keeps 1 of {len(graph.groups[name])} ranks"
            yield f"{keeps}: {size_text(size)} that rank 0 sends in it are left out."


def _folded(node: Node, rank: int, members: Sequence[int], remaining: Sequence[int]) -> Node:
    root = node.root if node.root in remaining else remaining[0]
    if node.splits:
        splits = _merged_splits(node.splits, rank, members, remaining)
        return replace(node, splits=splits, size=sum(splits), root=root)
    assert node.collective is not None
    size = folded_size(node.collective, node.size, len(members), len(remaining))
    return replace(node, size=size, root=root)


def folded_size(collective: CollectiveKind, size: int, before: int, now: int) -> int:
    """Return the size of a collective of fewer ranks that leaves the bytes of a rank unchanged.

    Ranks share the new size in whole numbers of 4 bytes.

    Args:
        size: Size of the collective's operations, as in `Node.size`.
        before: Number of ranks.
        now: Number of ranks that remain, at least 2.
    """
    if before == now or not size:
        return size
    match collective:
        case "all_gather":
            parts, exact = 1, size * (before - 1) / (now - 1)
        case "all_to_all" | "all_reduce" | "reduce_scatter" | "scatter":
            parts, exact = now, size * (before - 1) / before * now / (now - 1)
        case _:
            return size
    return max(1, round(exact / (parts * _ELEMENT))) * parts * _ELEMENT


def _merged_splits(
    splits: Sequence[int], rank: int, members: Sequence[int], remaining: Sequence[int]
) -> tuple[int, ...]:
    """Return a rank's bytes to the remaining ranks; its others take those of the rest in turn."""
    sizes = dict(zip(members, splits, strict=True))
    others = [one for one in remaining if one != rank]
    gone = [size for one, size in sizes.items() if one not in set(remaining)]
    for index, size in enumerate(gone):
        sizes[others[index % len(others)]] += size
    return tuple(sizes[one] for one in remaining)
