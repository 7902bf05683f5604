"""A region of a job as it is emulated: what each network is wired as, at which scale its all-to-alls are sent, and what is sent.

One layer stands for the stage: all layers see the same gating, as in the paper's simulator. NICs carry the same bits a second on the wire whatever their
rate in the model, and an all-to-all lasts equally long there: four rates of a model are the same packets, sent four times.
"""

import os
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.experiment.sending import BURST_SEGMENTS, Policy
from moefabric.flows import Share, Split
from moefabric.iteration import Collective, Compute, Operation, Reconfigure
from moefabric.paper.job import GPUS, Job
from moefabric.paper.network import MTU, OVERSUBSCRIPTION, PER_LEAF, by_rail, byte_rate, eps_s
from moefabric.scaling import CARRIED_BPS, shortest_wall_s
from moefabric.topology import Eps, EpsKind, Fabric, Ocs, Region, Scale

_CARRIED: Final = 0.75
"""How much of what the machine carries is asked of it, and by how much an all-to-all outlasts the shortest that is worth measuring."""
_LONGER: Final = 1.25
_BURSTS: Final = 12
"""How many times as long as a burst from every peer takes at one NIC: where demand is even, all may come last."""
COLD: Final = 4
"""How many of a layer's operations use every connection once: its light, dispatch and combine."""
_MBPS: Final = 1e6
_REST_S: Final = 0.1
"""On the wire. A connection keeps the pace of what it last sent until that is acknowledged, which may be 40 ms later."""


@dataclass(frozen=True)
class Wiring:
    """NICs of a server and what they end on."""

    optical: int
    electrical: int
    eps: Eps | None
    panel: bool = False


@dataclass(frozen=True)
class Emulation:
    """A network as it is emulated: its wiring, and the policy that plans its light and splits its bytes."""

    wiring: Wiring
    policy: str


def emulation(job: Job, network: str) -> Emulation:
    """How a network of `moefabric.paper.network.NETWORKS` is emulated for a job's region. KeyError where it isn't one."""
    leaf = Eps(job.servers)
    mixed = Wiring(6, 2, leaf)
    panel = Wiring(GPUS - 1 - min(2, job.pp - 1), 0, None, panel=True)
    made = {
        "fat-tree": Emulation(Wiring(0, GPUS, leaf), "eps"),
        "oversubscribed": Emulation(Wiring(0, GPUS, Eps(PER_LEAF, GPUS, OVERSUBSCRIPTION)), "eps"),
        "rail-optimised": Emulation(Wiring(0, GPUS, replace(leaf, kind=EpsKind.RAIL)), "eps"),
        "topoopt": Emulation(panel, "topoopt"),
        "mixnet": Emulation(mixed, "mixnet"),
        "mixnet-spill": Emulation(mixed, "spill"),
        "mixnet-joint": Emulation(mixed, "joint"),
    }
    return made[network]


def fabric(
    name: str, job: Job, wiring: Wiring, settle_ns: int = 0, *, regions: int = 1, mtu: int = MTU
) -> Fabric:
    """Regions of the job as they are wired and shaped, at the rate that their NICs have on the wire."""
    return Fabric(
        name=name,
        regions=tuple(_region(number, job, wiring, settle_ns) for number in range(regions)),
        gpus=GPUS,
        optical=wiring.optical,
        electrical=wiring.electrical,
        nic_rate_bps=_wire_bps(job.servers * regions),
        eps=wiring.eps,
        mtu=mtu,
        panel=wiring.panel,
    )


def _region(number: int, job: Job, wiring: Wiring, settle_ns: int) -> Region:
    servers = tuple(f"s{number * job.servers + i}" for i in range(job.servers))
    ocs = Ocs(f"ocs{number}", job.servers * wiring.optical, settle_ns) if wiring.optical else None
    return Region(f"r{number}", number, servers, ocs)


def _wire_bps(servers: int) -> float:
    carried = _CARRIED * CARRIED_BPS["bpf"] * (os.cpu_count() or 1)
    return max(1.0, carried / (servers * GPUS) // _MBPS) * _MBPS


def at(wired: Fabric, job: Job, rate_bps: float) -> Fabric:
    """The same wires, standing for NICs of this rate, at the scale at which a non-blocking EPS's all-to-all lasts long enough to be measured."""
    budgets = np.full(job.servers, GPUS * byte_rate(rate_bps))
    shortest = min(eps_s(job.owed, budgets), eps_s(job.owed.T, budgets))
    worth = _LONGER * shortest_wall_s(len(wired.servers), os.cpu_count() or 1)
    burst_s = 8 * BURST_SEGMENTS * wired.mtu * (job.servers - 1) / wired.scale.rate_bps(wired.nic_rate_bps)
    dilation = max(1.0, max(worth, _BURSTS * burst_s) / shortest)
    return replace(
        wired, nic_rate_bps=rate_bps, scale=Scale(rate_bps / wired.nic_rate_bps / dilation, dilation)
    )


def operations(job: Job, wired: Fabric) -> tuple[Operation, ...]:
    """The four all-to-alls of a layer (paper section 5.1) in every region, each pass asking for light once; between two of them connections rest."""
    dispatch = DemandMatrix.apart([DemandMatrix(region.servers, job.owed) for region in wired.regions])
    combine = dispatch.combine()
    rest = (_REST_S / wired.scale.dilation,) * len(wired.servers)
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


class Rails:
    """A rail-optimised EPS as NCCL sends on it: what a GPU is sent arrives by its own NIC, and leaves by the one of that number."""

    def __init__(self, job: Job, servers: tuple[str, ...], light: Policy) -> None:
        self.circuits = light.circuits
        dispatch = DemandMatrix(servers, job.owed)
        self._sent = {
            dispatch: by_rail(job, job.tokens) * job.model.token_bytes,
            dispatch.combine(): by_rail(job, job.tokens.T) * job.model.token_bytes,
        }

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:  # noqa: ARG002 - the seam's
        """The job's dispatch or combine by the EPS, rail by rail. KeyError for any other demand."""
        sent = self._sent[demand]
        index = {server: position for position, server in enumerate(demand.servers)}
        return Split(
            tuple(Share(a, b, 0.0, owed, tuple(sent[index[a], index[b]])) for a, b, owed in demand.pairs())
        )
