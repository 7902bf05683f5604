"""Queues of a fabric's shaped interfaces: packets that left them, and packets that were dropped."""

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from moefabric.emulator.fabric.plan import FABRIC, FabricPlan, Link
from moefabric.emulator.fabric.shaping import QUEUE_HANDLE
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.command import run

QueueCounts = dict[str, dict[str, int]]
"""By port, the counters `packets`, `bytes` (with headers, of packets that left) and `drops`."""


def port_names(link: Link) -> tuple[str, str]:
    """Return the names of a link's ends: `s0/e0` and `leaf0 to s0/e0`, `leaf0 to spine1`."""
    if "~" in link.name:
        near, far = link.name.split("~")
        return f"{near} to {far}", f"{far} to {near}"
    return link.name, f"{link.b.name.rpartition('-')[0]} to {link.name}"


def read_queues(plan: FabricPlan, pids: Mapping[str, int]) -> QueueCounts:
    """Read the counters of all queues of the kernel.

    Call it in the fabric's own namespace.

    Args:
        plan: the fabric.
        pids: by node, the pid of a process in the node's namespace.

    Raises:
        FabricError: if a namespace is gone.
    """
    ports = defaultdict[str, dict[str, str]](dict)
    for link, _ in plan.shaped:
        for end, port in zip((link.a, link.b), port_names(link), strict=True):
            if end in link.ends:
                ports[end.node][end.name] = port
    counts: QueueCounts = {}
    for node, names in ports.items():
        shown = _read() if node == FABRIC else namespaces.run_in(pids[node], _read)
        counts |= {
            names[qdisc["dev"]]: {field: qdisc[field] for field in ("packets", "bytes", "drops")}
            for qdisc in shown
            if qdisc["handle"] == QUEUE_HANDLE and qdisc["dev"] in names
        }
    return counts


def _read() -> list[dict[str, Any]]:
    return list(json.loads(run(["tc", "-s", "-j", "qdisc", "show"])))
