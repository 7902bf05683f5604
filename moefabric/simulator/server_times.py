"""Times of an all-to-all inside servers: before its first byte leaves one, and after its last one.

The delegates of a peer are the GPUs next to the NICs that lead there: those of the pair's circuits,
or of the EPS. All servers of an all-to-all gather bytes at their delegates first, then send, and
scatter what has arrived: steps 1, 2, 3 and 5 of MixNet's all-to-all (arXiv 2501.03905, section
5.3). In step 4, meanwhile, GPUs of a server exchange their own bytes, which takes no longer than
the NICs do.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf

import numpy as np
from numpy.typing import NDArray

from moefabric.core.circuits import CircuitSet
from moefabric.core.flows import Flow
from moefabric.core.nic import Nic, NicKind
from moefabric.core.routes import route
from moefabric.core.server_paths import NUMA_NODES
from moefabric.core.topology import Fabric

Bytes = NDArray[np.float64]
_End = tuple[str, str, str]
"""A server, its peer, and the path of a NIC of the server."""


@dataclass(frozen=True)
class ServerTimes:
    """Model seconds of an all-to-all inside servers.

    Attributes:
        before_s: Before the first byte leaves; with the exchange of token counts, if there is one.
        after_s: After the last byte has arrived.
    """

    before_s: float = 0.0
    after_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Both together."""
        return self.before_s + self.after_s


def pcie_switches(fabric: Fabric) -> int:
    """Return the number of PCIe switches of a server."""
    nics = fabric.optical + fabric.electrical
    return fabric.server_paths.pcie_switches or min(fabric.gpus, max(1, nics))


def pcie_switch(fabric: Fabric, nic: Nic) -> int:
    """Return the number of the PCIe switch of a NIC.

    Optical NICs are spread from the first switch on, electrical ones from the last one back. So no
    two share a switch if there are enough.
    """
    switches = pcie_switches(fabric)
    if nic.kind is NicKind.OPTICAL:
        return nic.index * switches // fabric.optical
    return switches - 1 - (fabric.electrical - 1 - nic.index) * switches // fabric.electrical


def gather_and_scatter(fabric: Fabric, circuits: CircuitSet, flows: Iterable[Flow]) -> ServerTimes:
    """Return the times of gathering and scattering the bytes of flows.

    A pair's bytes over the EPS leave and arrive evenly by all electrical NICs, as those of a
    cluster do, however few flows stand for them.

    Args:
        fabric: The fabric, with the paths inside its servers.
        circuits: The lit circuits.
        flows: Flows of an all-to-all, in bytes of the model.
    """
    if fabric.server_paths.gather == "none":
        return ServerTimes()
    switches = pcie_switches(fabric)

    @cache
    def spread(path: str) -> Bytes:
        """Return the parts of a flow's bytes on each PCIe switch, given one of its NICs' names."""
        nic = Nic.parse(f"server/{path}")
        alike = range(fabric.electrical) if nic.kind is NicKind.ELECTRICAL else (nic.index,)
        on = [pcie_switch(fabric, nic._replace(index=index)) for index in alike]
        return np.bincount(on, minlength=switches) / len(alike)

    def slowest_s(loads: Mapping[_End, float]) -> float:
        """Return the seconds of the server that needs longest."""
        by_server = defaultdict[str, dict[str, Bytes]](dict)
        for (server, peer, path), size in loads.items():
            own = by_server[server].setdefault(peer, np.zeros(switches))
            own += size * spread(path)
        return max(_handover_s(fabric, np.array([*p.values()])) for p in by_server.values())

    sent, received = defaultdict[_End, float](float), defaultdict[_End, float](float)
    for flow in flows:
        near = far = "e0"
        if flow.is_optical or not fabric.electrical:
            if not (links := route(fabric, circuits, flow)):
                continue
            near, far = (nic.partition("/")[2] for nic in (links[0][0], links[-1][1]))
        sent[flow.src, flow.dst, near] += flow.bytes
        received[flow.dst, flow.src, far] += flow.bytes
    return ServerTimes(slowest_s(sent), slowest_s(received)) if sent else ServerTimes()


def _handover_s(fabric: Fabric, loads: Bytes) -> float:
    """Return the seconds in which a server gathers or scatters bytes.

    Each GPU has an equal part of the bytes for each peer. Paths are as fast in both directions, so
    that both take equally long.

    Args:
        fabric: The fabric, with the paths inside its servers.
        loads: Bytes [peer, PCIe switch] by the NICs of a switch.
    """
    paths, gpus, switches = fabric.server_paths, fabric.gpus, loads.shape[1]
    own_gpus = np.bincount(np.arange(gpus) * switches // gpus, minlength=switches)
    moved = loads - loads.sum(axis=1, keepdims=True) * own_gpus / gpus
    if paths.gather == "nvswitch":
        rate_bps = fabric.nvlink_rate_bps or inf
        return float((_fullest(moved) / own_gpus).max() * 8 / rate_bps)
    crossing = moved @ np.eye(NUMA_NODES)[np.arange(switches) * NUMA_NODES // switches]
    pcie_s = 8 * _fullest(moved).max() / paths.pcie_rate_bps
    return float(max(pcie_s, 8 * _fullest(crossing).max() / paths.numa_rate_bps))


def _fullest(moved: Bytes) -> Bytes:
    """Return the bytes that move to each place or from it, whichever are more.

    Args:
        moved: Bytes [peer, place] that move to a place; negative if they move from it.
    """
    arriving, leaving = moved.clip(min=0).sum(axis=0), (-moved).clip(min=0).sum(axis=0)
    fullest: Bytes = np.maximum(arriving, leaving)
    return fullest
