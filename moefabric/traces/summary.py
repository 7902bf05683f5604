"""Figures of a trace: operations, bytes by collective and group, times, gating."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from moefabric.workload.gating.statistics import gating_statistics
from moefabric.workload.gating.traces import GatingTrace
from moefabric.workload.graphs.execution_graph import ExecutionGraph
from moefabric.workload.graphs.timeline import length_s, sent_bytes


@dataclass(frozen=True)
class Traffic:
    """One kind of operation in groups of one size that do the same.

    Attributes:
        operation: A collective, or `message`.
        groups: Names of the groups; empty for messages.
        ranks: Ranks of a group; of messages, ranks that send.
        calls: Operations of a rank (the largest number).
        rank_bytes: Bytes that a rank sends in them (the largest number).
        total_bytes: Bytes that all ranks send in them.
    """

    operation: str
    groups: tuple[str, ...]
    ranks: int
    calls: int
    rank_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class GraphSummary:
    """Figures of an execution graph.

    Attributes:
        name: Name of the trace.
        ranks: Number of ranks.
        operations: Number of operations by kind, over all ranks.
        groups: Number of groups by their number of ranks.
        traffic: Bytes, by operation and group.
        compute_s: Seconds of computation of the busiest rank.
        critical_path_s: Seconds of the longest chain of computation, over all ranks.
        ideal_s: Seconds on NICs of `rate_bps` that nothing else delays.
        rate_bps: That rate.
        notes: What the reader left out or assumed.
    """

    name: str
    ranks: int
    operations: dict[str, int]
    groups: dict[int, int]
    traffic: tuple[Traffic, ...]
    compute_s: float
    critical_path_s: float
    ideal_s: float
    rate_bps: float
    notes: tuple[str, ...]


def summarise(graph: ExecutionGraph, rate_bps: float) -> GraphSummary:
    """Return the figures of a graph.

    Args:
        graph: A graph without faults.
        rate_bps: Rate of a NIC.

    Raises:
        SpecError: If ranks wait for each other.
    """
    operations = Counter(
        node.collective or node.kind for nodes in graph.ranks.values() for node in nodes
    )
    computation = (
        sum(node.duration_s for node in nodes if node.kind == "compute")
        for nodes in graph.ranks.values()
    )
    return GraphSummary(
        name=graph.name,
        ranks=len(graph.ranks),
        operations=dict(operations.most_common()),
        groups=dict(sorted(Counter(map(len, graph.groups.values())).items())),
        traffic=tuple(_traffic(graph)),
        compute_s=max(computation, default=0.0),
        critical_path_s=length_s(graph),
        ideal_s=length_s(graph, rate_bps / 8),
        rate_bps=rate_bps,
        notes=graph.notes,
    )


def _traffic(graph: ExecutionGraph) -> Iterator[Traffic]:
    calls: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    sizes: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for rank, nodes in graph.ranks.items():
        for node in nodes:
            if node.kind == "send":
                key, size = ("message", ""), node.size
            elif node.kind == "collective" and node.collective is not None:
                key = node.collective, node.group
                members = graph.groups[node.group]
                own = node.splits[members.index(rank)] if node.splits else 0
                size = node.size - own if node.splits else sent_bytes(node, len(members))
            else:
                continue
            calls[key][rank] += 1
            sizes[key][rank] += size
    alike: defaultdict[tuple[str, int, int, int, int], list[str]] = defaultdict(list)
    for (operation, group), counts in calls.items():
        ranks = len(graph.groups[group]) if group else len(counts)
        own_sizes = sizes[operation, group]
        figures = max(counts.values()), max(own_sizes.values()), sum(own_sizes.values())
        alike[operation, ranks, *figures].append(group)
    for (operation, ranks, most, rank_bytes, total), groups in alike.items():
        names = tuple(group for group in groups if group)
        yield Traffic(operation, names, ranks, most, rank_bytes, total * len(groups))


def summary_document(
    trace: ExecutionGraph | GatingTrace, form: str, rate_bps: float
) -> dict[str, Any]:
    """Return the figures of a trace as JSON values.

    Args:
        trace: The trace.
        form: Name of its format.
        rate_bps: Rate of a NIC, for the ideal time of a graph.
    """
    if isinstance(trace, ExecutionGraph):
        return {"format": form, **asdict(summarise(trace, rate_bps))}
    iterations, layers, ranks, experts = trace.tokens.shape
    rows = trace.tokens.sum(axis=-1)
    statistics = {
        key: None if math.isnan(value) else value
        for key, value in asdict(gating_statistics(trace)).items()
        if isinstance(value, float)
    }
    return {
        "format": form,
        "iterations": iterations,
        "layers": layers,
        "ranks": ranks,
        "experts": experts,
        "tokens": int(trace.tokens.sum()),
        "row_tokens": [int(rows.min()), float(np.median(rows)), int(rows.max())],
        "statistics": statistics,
    }
