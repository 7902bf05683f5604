"""Figures of a trace: operations, bytes by collective and group, times, gating."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from moefabric.workload.gating.statistics import gating_statistics
from moefabric.workload.gating.traces import GatingTrace
from moefabric.workload.graphs.execution_graph import ROOTED, ExecutionGraph, Node
from moefabric.workload.graphs.timeline import lengths_s, sent_bytes

NOTHING_SENT: Final = "there are no collectives and no messages: nothing can be replayed"


def sends_bytes(graph: ExecutionGraph) -> bool:
    """Return whether any rank takes part in a collective or sends a message."""
    return any(node.kind != "compute" for nodes in graph.ranks.values() for node in nodes)


def summary_document(
    trace: ExecutionGraph | GatingTrace, form: str, rate_bps: float
) -> dict[str, Any]:
    """Return the figures of a trace as JSON values.

    Args:
        trace: The trace; a graph has no faults.
        form: Name of its format.
        rate_bps: Rate of a NIC, for the ideal time of a graph.

    Raises:
        SpecError: If ranks wait for each other.
    """
    if isinstance(trace, ExecutionGraph):
        return {"format": form, **_of_graph(trace, rate_bps)}
    return {"format": form, **_of_gating(trace)}


def _of_graph(graph: ExecutionGraph, rate_bps: float) -> dict[str, Any]:
    """Return the figures of a graph.

    `compute_s` is that of the busiest rank, `critical_path_s` that of the longest chain over all
    ranks, and `ideal_s` the time on NICs of the rate that nothing else delays.
    """
    ranks = graph.ranks.values()
    operations = Counter(node.collective or node.kind for nodes in ranks for node in nodes)
    computation = (
        sum(node.duration_s for node in nodes if node.kind == "compute") for nodes in ranks
    )
    critical_path_s, ideal_s = lengths_s(graph, [math.inf, rate_bps / 8])
    return {
        "name": graph.name,
        "ranks": len(ranks),
        "operations": dict(operations.most_common()),
        "groups": dict(sorted(Counter(map(len, graph.groups.values())).items())),
        "traffic": tuple(_traffic(graph)),
        "compute_s": max(computation, default=0.0),
        "critical_path_s": critical_path_s,
        "ideal_s": ideal_s,
        "rate_bps": rate_bps,
        "notes": (*graph.notes, *([] if sends_bytes(graph) else [NOTHING_SENT])),
    }


def _traffic(graph: ExecutionGraph) -> Iterator[dict[str, Any]]:
    """Yield one kind of operation in groups of one size that do the same.

    `groups` is empty for messages, whose `ranks` are those that send. `calls` and `rank_bytes` are
    those of the rank that has most of them.
    """
    calls: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    sizes: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    totals = Counter[tuple[str, str]]()
    for rank, nodes in graph.ranks.items():
        for node in nodes:
            if node.kind == "send":
                key, size = ("message", ""), node.size
                total = size
            elif node.kind == "collective" and node.collective is not None:
                key = node.collective, node.group
                members = graph.groups[node.group]
                kept_bytes = node.splits[members.index(rank)] if node.splits else 0
                size = node.size - kept_bytes if node.splits else sent_bytes(node, len(members))
                total = _share_of_all(node, rank, members, size)
            else:
                continue
            totals[key] += total
            calls[key][rank] += 1
            sizes[key][rank] += size
    alike: defaultdict[tuple[str, int, int, int, int], list[str]] = defaultdict(list)
    for (operation, group), counts in calls.items():
        ranks = len(graph.groups[group]) if group else len(counts)
        most_bytes = max(sizes[operation, group].values())
        figures = max(counts.values()), most_bytes, totals[operation, group]
        alike[operation, ranks, *figures].append(group)
    for (operation, ranks, most, rank_bytes, total), groups in alike.items():
        yield {
            "operation": operation,
            "groups": tuple(filter(None, groups)),
            "ranks": ranks,
            "calls": most,
            "rank_bytes": rank_bytes,
            "total_bytes": total * len(groups),
        }


def _share_of_all(node: Node, rank: int, members: Sequence[int], size: int) -> int:
    """Return what a rank adds to the bytes that all ranks of a collective send.

    Each byte of a collective with a root has one end there, so that the root counts for all.

    Args:
        node: The rank's operation.
        rank: The rank.
        members: Ranks of its group.
        size: Bytes that the busiest rank sends or receives.
    """
    if node.collective not in ROOTED:
        return size
    if rank != (node.root if node.root in members else members[0]):
        return 0
    return size * (len(members) - 1) if node.collective in {"broadcast", "reduce"} else size


def _of_gating(trace: GatingTrace) -> dict[str, Any]:
    rows = trace.tokens.sum(axis=-1)
    figures = asdict(gating_statistics(trace)).items()
    return {
        **dict(zip(("iterations", "layers", "ranks", "experts"), trace.tokens.shape, strict=True)),
        "tokens": int(trace.tokens.sum()),
        "row_tokens": [int(rows.min()), float(np.median(rows)), int(rows.max())],
        "statistics": {
            key: None if math.isnan(value) else value
            for key, value in figures
            if isinstance(value, float)
        },
        "top_k": list(trace.top_k),
        "notes": list(_gating_faults(trace)),
    }


def _gating_faults(trace: GatingTrace) -> Iterator[str]:
    """Yield what a model's gating can't be."""
    if len(trace.top_k) > 1:
        counts = " and ".join(map(str, trace.top_k))
        yield f"tokens have {counts} experts, but those of one model have equally many"
