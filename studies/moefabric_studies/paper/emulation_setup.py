"""Emulation of a job's region: wiring of each network, scale, and operations of a layer.

One layer stands for the stage, since all layers see the same gating, as in the paper's simulator.
Emulated NICs have the same rate on the wire whatever their rate in the model, and an all-to-all
lasts equally long there: the packets of all rates of a model are the same.
"""

import os
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from moefabric import DemandMatrix, Eps, EpsKind, Fabric, Ocs, Region, Scale
from moefabric.api.networks import fabric_frame_segments, frame_bits, machine_speed
from moefabric.api.predictions import shortest_wall_s
from moefabric.api.workloads import Collective, Compute, Operation, Reconfigure
from moefabric_studies.paper import network
from moefabric_studies.paper.job import GPUS_PER_SERVER, PaperJob

_LOAD: Final = 0.75
"""Part of the machine's capacity that the NICs together may use."""
_DURATION_MARGIN: Final = 1.25
"""Duration of an all-to-all relative to the shortest that can be measured."""
_BURSTS: Final = 12
"""Duration of an all-to-all relative to bursts of all peers at one NIC, which may all come last
with an even demand."""
WARM_UP_OPERATIONS: Final = 4
"""Leading operations of a layer that use every connection once: reconfiguration, dispatch and
combine."""
_MBPS: Final = 1e6
_REST_S: Final = 0.1
"""Wall-clock pause between all-to-alls. A connection keeps its pace until its bytes are
acknowledged, up to 40 ms later."""


@dataclass(frozen=True)
class NetworkEmulation:
    """Emulation of a network.

    Attributes:
        optical: optical NICs of a server.
        electrical: electrical NICs of a server.
        eps: packet switches of the electrical NICs.
        policy: policy that plans circuits and splits bytes.
    """

    optical: int
    electrical: int
    eps: Eps | None
    policy: str

    @property
    def wiring(self) -> tuple[int, int, Eps | None]:
        """NICs and packet switches. Networks with equal wiring share a fabric."""
        return self.optical, self.electrical, self.eps


def network_emulation(job: PaperJob, name: str) -> NetworkEmulation:
    """Return the emulation of a network of `network.NETWORKS` for a job's region.

    Raises:
        KeyError: if there is no such network.
    """
    leaf, gpus = Eps(job.servers), GPUS_PER_SERVER
    narrow = Eps(network.SERVERS_PER_LEAF, gpus, network.OVERSUBSCRIPTION)
    rail = replace(leaf, kind=EpsKind.RAIL, nic_per_gpu=True)
    return {
        "fat-tree": NetworkEmulation(0, gpus, leaf, "eps"),
        "oversubscribed": NetworkEmulation(0, gpus, narrow, "eps"),
        "rail-optimised": NetworkEmulation(0, gpus, rail, "eps"),
        "topoopt": NetworkEmulation(network.topoopt_degree(job), 0, None, "topoopt"),
        "mixnet": NetworkEmulation(6, 2, leaf, "mixnet"),
        "mixnet-spill": NetworkEmulation(6, 2, leaf, "spill"),
        "mixnet-joint": NetworkEmulation(6, 2, leaf, "joint"),
    }[name]


def region_fabric(
    name: str,
    job: PaperJob,
    emulation: NetworkEmulation,
    settle_ns: int = 0,
    *,
    regions: int = 1,
    mtu: int = network.MTU,
) -> Fabric:
    """Return the fabric of a job's regions, at the rate that NICs have on the wire.

    Args:
        name: name of the fabric.
        settle_ns: settle time of the OCS.
        regions: number of regions.
        mtu: largest IP packet in bytes.
    """
    servers = job.servers * regions
    nics = servers * GPUS_PER_SERVER
    rate_bps = _LOAD * machine_speed().full_nic_bps(nics, os.cpu_count() or 1)
    return Fabric(
        name=name,
        regions=tuple(_region(number, job, emulation, settle_ns) for number in range(regions)),
        gpus=GPUS_PER_SERVER,
        optical=emulation.optical,
        electrical=emulation.electrical,
        nic_rate_bps=max(1.0, rate_bps // _MBPS) * _MBPS,
        eps=emulation.eps,
        mtu=mtu,
        patch_panel=emulation.eps is None,
    )


def _region(number: int, job: PaperJob, emulation: NetworkEmulation, settle_ns: int) -> Region:
    servers = tuple(f"s{number * job.servers + i}" for i in range(job.servers))
    ports = job.servers * emulation.optical
    return Region(
        f"r{number}", number, servers, Ocs(f"ocs{number}", ports, settle_ns) if ports else None
    )


def at_nic_rate(fabric: Fabric, job: PaperJob, rate_bps: float) -> Fabric:
    """Return the fabric with NICs that stand for this rate.

    The scale is that at which the all-to-all of a non-blocking EPS lasts long enough to be
    measured.
    """
    budgets = np.full(job.servers, GPUS_PER_SERVER * network.nic_bytes_s(rate_bps))
    demand = job.dispatch_bytes
    shortest_s = min(network.eps_s(demand, budgets), network.eps_s(demand.T, budgets))
    measurable_s = _DURATION_MARGIN * shortest_wall_s(len(fabric.servers), os.cpu_count() or 1)
    wire_bps = fabric.scale.rate_bps(fabric.nic_rate_bps)
    burst_bits = frame_bits(fabric_frame_segments(fabric), fabric.mtu) * (job.servers - 1)
    burst_s = burst_bits / wire_bps
    dilation = max(1.0, max(measurable_s, _BURSTS * burst_s) / shortest_s)
    return replace(
        fabric,
        nic_rate_bps=rate_bps,
        scale=Scale(rate_bps / fabric.nic_rate_bps / dilation, dilation),
    )


def layer_operations(job: PaperJob, fabric: Fabric) -> tuple[Operation, ...]:
    """Return a layer's four all-to-alls in every region (paper section 5.1).

    Each pass requests circuits once. Connections rest between two all-to-alls.
    """
    dispatch = DemandMatrix.block_diagonal(
        [job.demand(region.servers) for region in fabric.regions]
    )
    combine = dispatch.combine(job.model.combine_ratio)
    rest = (_REST_S / fabric.scale.dilation,) * len(fabric.servers)
    return (
        Reconfigure("forward", 0, dispatch),
        Collective("dispatch", "forward", 0, dispatch),
        Compute("expert", "forward", 0, rest),
        Collective("combine", "forward", 0, combine),
        Compute("attention", "backward", 0, rest),
        Reconfigure("backward", 0, combine),
        Collective("combine", "backward", 0, combine),
        Compute("expert", "backward", 0, rest),
        Collective("dispatch", "backward", 0, dispatch),
        Compute("attention", "backward", 0, rest),
    )
