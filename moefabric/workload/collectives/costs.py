"""Bandwidths of collectives by nccl-tests' definitions, and the time that ports need at least.

With S bytes in t seconds among n ranks, the algorithm's bandwidth is S / t. The bus bandwidth
multiplies it by the bytes that a rank's port must carry, divided by S: it can be compared with the
rate of the port (nccl-tests, doc/PERFORMANCE.md).

| collective | S | bus bandwidth / algorithm bandwidth |
|---|---|---|
| all_reduce | a rank's buffer | 2 (n - 1) / n |
| reduce_scatter, all_gather, gather, scatter | the buffer of all parts | (n - 1) / n |
| all_to_all | a rank's input, with its own part | (n - 1) / n |
| broadcast, reduce | the buffer | 1 |

nccl-tests has no all-to-all of different sizes. Here S is the input of the rank that sends most to
others, its own part included; its bus bandwidth counts what this rank sends to others.
"""

from collections.abc import Sequence

import numpy as np

from moefabric.workload.collectives.schedule import Call


def counted_bytes(call: Call) -> int:
    """Return the S of nccl-tests; 0 for a barrier."""
    if call.kind == "all_to_all":
        return sum(call.sizes[_busiest_sender(call)])
    return call.size * (call.ranks if call.kind in {"all_gather", "gather"} else 1)


def bus_factor(call: Call) -> float:
    """Return the bus bandwidth divided by the algorithm bandwidth."""
    if call.kind == "all_to_all":
        row = call.sizes[rank := _busiest_sender(call)]
        return (sum(row) - row[rank]) / sum(row) if sum(row) else 0.0
    passes = {"all_reduce": 2, "broadcast": 0, "reduce": 0, "barrier": 0}.get(call.kind, 1)
    is_whole = call.kind in {"broadcast", "reduce"}
    return passes * (call.ranks - 1) / call.ranks + is_whole


def _busiest_sender(call: Call) -> int:
    others = [sum(row) - row[rank] for rank, row in enumerate(call.sizes)]
    return others.index(max(others))


def port_bytes(call: Call, groups: Sequence[int] | None = None) -> int:
    """Return the least bytes that any schedule sends through the busiest port in one direction.

    Args:
        call: The collective.
        groups: Number of each rank's group of ranks behind one port, such as its server. None: each
            rank has a port.

    Returns:
        The least bytes that any algorithm sends or receives at the busiest port. Groups add their
        own numbers before they send them.
    """
    groups = range(call.ranks) if groups is None else groups
    names = sorted(set(groups))
    if len(names) < 2:
        return 0
    if call.kind == "all_to_all":
        leaving = np.where(np.not_equal.outer(groups, groups), call.sizes, 0)
        ends = (np.bincount(groups, leaving.sum(axis=axis)) for axis in (0, 1))
        return int(max(sums.max() for sums in ends))
    whole, own = counted_bytes(call), dict.fromkeys(names, 0)
    for rank, name in enumerate(groups):
        own[name] += call.size if call.kind == "gather" else call.shard(rank).size
    match call.kind:
        case "all_reduce":
            return -(-2 * (len(names) - 1) * whole // len(names))
        case "reduce_scatter" | "all_gather":
            return max(max(size, whole - size) for size in own.values())
        case "gather" | "scatter":
            return whole - own[groups[call.root]]
    return whole  # broadcast, reduce, or nothing of a barrier
