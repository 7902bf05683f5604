"""Networks that the paper compares, and the all-to-alls of a region on each of them.

All times are those of the fluid model: a transfer lasts as long as its fullest link needs. Regions
are equal and share no full link, so one region stands for all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Final, Literal, Self

import numpy as np

from moefabric import (
    CircuitSet,
    DemandMatrix,
    Eps,
    EpsKind,
    Fabric,
    Ocs,
    Region,
    Share,
    flows,
    policy_named,
    predict,
)
from moefabric.api import networks
from moefabric.api.networks import goodput_share, joint, waterfill
from moefabric_studies.arrays import Array
from moefabric_studies.paper.job import GPUS_PER_SERVER, Counts, FloatArray, PaperJob
from moefabric_studies.paper.path_collisions import hashed_to_spread

MTU: Final = 9000
"""Packet size of the paper's simulator in bytes."""
SERVERS_PER_LEAF: Final = 1
"""Servers of a leaf with narrow uplinks. The public simulator's fat-tree has a host for each GPU:
with 1,024 hosts k is 16, and the k/2 hosts of a leaf are the 8 GPUs of one server."""
OVERSUBSCRIPTION: Final = 3.0
OPTICAL_NICS: Final = 6
"""Optical NICs of a MixNet server."""
ELECTRICAL_NICS: Final = GPUS_PER_SERVER - OPTICAL_NICS

TreeFlows = Literal["pooled", "nic-per-gpu", "hashed"]
"""How a tree carries all-to-alls: spread evenly over the NICs of a server; by the NICs of the GPUs
that send and receive them; or so, and each of these flows over one random path."""
PlanningPolicy = Literal["mixnet", "spill", "joint"]
"""Policy that plans circuits and split."""


@dataclass(frozen=True)
class AllToAll:
    """Completion times of a layer's all-to-alls.

    Attributes:
        dispatch_s: completion time of a dispatch.
        combine_s: completion time of a combine.
        circuits: number of circuits [server, server]; empty without circuits.
    """

    dispatch_s: float
    combine_s: float
    circuits: Array[np.int64] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))

    def scaled(self, factor: float) -> Self:
        """Return the all-to-alls with times multiplied by `factor`."""
        return replace(self, dispatch_s=self.dispatch_s * factor, combine_s=self.combine_s * factor)

    @property
    def layer_s(self) -> float:
        """Seconds of a layer's four all-to-alls, forward and backward (paper section 5.1)."""
        return 2 * (self.dispatch_s + self.combine_s)


@dataclass(frozen=True)
class PaperNetwork:
    """A network of the paper.

    Attributes:
        electrical: NICs of a server that carry all-reduce and pipeline transfers. TopoOpt's single
            NIC stands for the circuit of its all-reduce ring and for that of each pipeline stage.
            On the 3:1 tree, all of these leave the leaf and have a third of 8 NICs.
        cost_model: name of the network in `moefabric.core.network_cost`.
        all_to_all: all-to-alls of one region of a job, by the NIC rate in bits per second.
        optical: NICs of a server that end circuits.
    """

    electrical: float
    cost_model: str
    all_to_all: Callable[[PaperJob, float], AllToAll]
    optical: int = 0

    def eps_bytes_s(self, rate_bps: float) -> float:
        """Return a server's bytes per second for all-reduce and pipeline transfers."""
        return self.electrical * nic_bytes_s(rate_bps)


def with_server_times(
    all_to_all: AllToAll, job: PaperJob, optical: int, paths: networks.ServerPaths
) -> AllToAll:
    """Return the all-to-alls of a region with the times of gathering and scattering in servers.

    Where all NICs are electrical, each GPU uses its own, so that nothing is gathered. Pairs with a
    circuit use it alone.

    Args:
        all_to_all: the all-to-alls, with their circuits.
        optical: NICs of a server that end circuits; the others are electrical.
        paths: paths inside servers.
    """
    if not all_to_all.circuits.any():
        return all_to_all
    servers, electrical = tuple(f"s{i}" for i in range(job.servers)), GPUS_PER_SERVER - optical
    region = Region("r0", 0, servers, Ocs("ocs0", job.servers * optical))
    fabric = Fabric(
        name="servers",
        regions=(region,),
        gpus=GPUS_PER_SERVER,
        optical=optical,
        electrical=electrical,
        nic_rate_bps=1.0,
        eps=Eps(job.servers) if electrical else None,
        patch_panel=not electrical,
        server_paths=paths,
        nvlink_rate_bps=8 * job.training.nvlink_bytes_s,
    )
    lit = networks.assign_nics(fabric, region, all_to_all.circuits, CircuitSet())
    shares = [
        Share(a, b, size, 0.0) if lit.between(a, b) else Share(a, b, 0.0, size)
        for a, b, size in job.demand(servers).pairs()
    ]
    seconds = networks.gather_and_scatter(fabric, lit, flows(fabric, lit, shares)).seconds
    # A combine has the bytes of a dispatch in the other direction.
    combine_s = all_to_all.combine_s + seconds * job.model.combine_ratio
    return replace(all_to_all, dispatch_s=all_to_all.dispatch_s + seconds, combine_s=combine_s)


def nic_bytes_s(rate_bps: float) -> float:
    """Return the payload bytes per second of a NIC."""
    return rate_bps * goodput_share(MTU) / 8


def dispatch_and_combine(
    seconds: Callable[[FloatArray], float], job: PaperJob, circuits: Counts | None = None
) -> AllToAll:
    """Return the all-to-alls of a job, given the completion time of a matrix.

    Args:
        seconds: completion time of a matrix of bytes.
        circuits: number of circuits [server, server].
    """
    times = seconds(job.dispatch_bytes), seconds(job.combine_bytes)
    return AllToAll(*times) if circuits is None else AllToAll(*times, circuits)


def eps_s(demand: FloatArray, budgets: FloatArray) -> float:
    """Return the completion time on a non-blocking EPS.

    Args:
        demand: bytes [server, server].
        budgets: bytes per second of each server, each way.
    """
    return float(max((demand.sum(axis=0) / budgets).max(), (demand.sum(axis=1) / budgets).max()))


def circuits_first_s(demand: FloatArray, light: FloatArray, budgets: FloatArray) -> float:
    """Return the completion time if pairs with circuits use them alone, and others the EPS.

    Args:
        demand: bytes [server, server].
        light: bytes per second [server, server] of the circuits.
        budgets: bytes per second of each server to the EPS, each way.
    """
    lit = light > 0
    optical_s = np.divide(demand, light, out=np.zeros_like(demand), where=lit).max(initial=0.0)
    return float(max(optical_s, eps_s(np.where(lit, 0.0, demand), budgets)))


def spill_s(demand: FloatArray, light: FloatArray, budgets: FloatArray) -> float:
    """Return the completion time if pairs use circuits and EPS. See `circuits_first_s`."""
    return waterfill.completion_s(demand, light, waterfill.EpsLinks.one_leaf(budgets))


def algorithm1_circuits(demand: FloatArray, ports: int | Counts) -> Counts:
    """Return the circuits [server, server] of the paper's Algorithm 1.

    Args:
        demand: bytes [server, server].
        ports: optical NICs of every server, or of each.
    """
    n = len(demand)
    pairs = networks.mixnet.algorithm1_order(demand + demand.T, np.broadcast_to(ports, n).tolist())
    return networks.circuit_counts(n, pairs)


def _fat_tree(job: PaperJob, rate_bps: float) -> AllToAll:
    budgets = np.full(job.servers, GPUS_PER_SERVER * nic_bytes_s(rate_bps))
    return dispatch_and_combine(lambda demand: eps_s(demand, budgets), job)


def oversubscribed_all_to_all(
    job: PaperJob, rate_bps: float, servers_per_leaf: int = SERVERS_PER_LEAF
) -> AllToAll:
    """Return the all-to-alls of a region under leaves with narrow uplinks.

    Args:
        rate_bps: rate of a NIC.
        servers_per_leaf: servers of a leaf; a region's servers fill leaf after leaf.
    """
    servers, nics = tuple(f"s{i}" for i in range(job.servers)), GPUS_PER_SERVER
    region, eps = Region("r0", 0, servers, None), Eps(servers_per_leaf, nics, OVERSUBSCRIPTION)
    fabric = Fabric("oversubscribed", (region,), nics, 0, nics, rate_bps, eps, mtu=MTU)
    links = waterfill.EpsLinks.of(fabric, servers)
    no_light = np.zeros((job.servers, job.servers))
    return dispatch_and_combine(lambda demand: waterfill.completion_s(demand, no_light, links), job)


def nic_per_gpu_all_to_all(
    job: PaperJob,
    rate_bps: float,
    oversubscription: float = 1.0,
    kind: EpsKind = EpsKind.LEAF_SPINE,
) -> AllToAll:
    """Return the all-to-alls of a region whose GPUs send and receive by their own NICs.

    Args:
        rate_bps: rate of a NIC.
        oversubscription: downward rate of a leaf, relative to its upward rate.
        kind: kind of the EPS. On rails, bytes for a GPU use the rail of its NIC (NCCL with PXN).
    """
    dispatch, nics = job.demand(), GPUS_PER_SERVER
    eps = Eps(SERVERS_PER_LEAF, 1, oversubscription, kind, nic_per_gpu=True)
    region = Region("r0", 0, dispatch.servers, None)
    fabric = Fabric("own NICs", (region,), nics, 0, nics, rate_bps, eps, mtu=MTU)

    def seconds(demand: DemandMatrix) -> float:
        sent = networks.planned_flows(fabric, policy_named("eps"), demand, CircuitSet())
        return predict(fabric, CircuitSet(), sent).seconds

    return AllToAll(seconds(dispatch), seconds(dispatch.combine(job.model.combine_ratio)))


_TREES: Final = {"fat-tree": 1.0, "oversubscribed": OVERSUBSCRIPTION}
"""Oversubscription of trees by name."""


def mixnet_all_to_all(
    job: PaperJob,
    rate_bps: float,
    policy: PlanningPolicy = "mixnet",
    optical: int = OPTICAL_NICS,
    electrical_rate_bps: float | None = None,
) -> AllToAll:
    """Return the all-to-alls of a region whose servers have equal NICs.

    Args:
        rate_bps: rate of an optical NIC.
        policy: policy that plans circuits and split.
        optical: optical NICs of a server; the others are electrical.
        electrical_rate_bps: rate of an electrical NIC; None is `rate_bps`.
    """
    budget = (GPUS_PER_SERVER - optical) * nic_bytes_s(electrical_rate_bps or rate_bps)
    ports, budgets = np.full(job.servers, optical), np.full(job.servers, budget)
    return optical_all_to_all(job, policy, ports, nic_bytes_s(rate_bps), budgets)


def optical_all_to_all(
    job: PaperJob,
    policy: PlanningPolicy,
    ports: Counts,
    circuit_bytes_s: float,
    budgets: FloatArray,
) -> AllToAll:
    """Return the all-to-alls of a region with an OCS and a non-blocking EPS.

    Args:
        policy: policy that plans circuits and split.
        ports: optical NICs of each server.
        circuit_bytes_s: bytes per second of a circuit.
        budgets: bytes per second of each server to the EPS, each way.
    """
    demand = job.dispatch_bytes
    circuits = (
        joint.best_circuits(demand, ports, circuit_bytes_s, waterfill.EpsLinks.one_leaf(budgets))
        if policy == "joint"
        else algorithm1_circuits(demand, ports)
    )
    light = np.multiply(circuits, circuit_bytes_s)
    completion_s = circuits_first_s if policy == "mixnet" else spill_s
    return dispatch_and_combine(lambda matrix: completion_s(matrix, light, budgets), job, circuits)


def topoopt_degree(job: PaperJob) -> int:
    """Return the NICs of a server that a patch panel leaves to the EP group.

    One NIC is for the all-reduce ring, and one for each neighbouring pipeline stage.
    """
    return GPUS_PER_SERVER - 1 - min(2, job.pp - 1)


@lru_cache(maxsize=64)
def _matching_order(demand: bytes, servers: int, degree: int) -> list[tuple[int, int]]:
    """Return TopoOpt's circuits, which are the same at all rates, for a demand's floats."""
    return networks.topoopt.matching_order(np.frombuffer(demand).reshape(servers, servers), degree)


def topoopt_all_to_all(
    job: PaperJob,
    rate_bps: float,
    degree: int | None = None,
    completion_s: Callable[[FloatArray, FloatArray], float] | None = None,
) -> AllToAll:
    """Return the all-to-alls of a region over circuits that are set once.

    Args:
        rate_bps: rate of a NIC.
        degree: NICs of a server for the EP group; None is `topoopt_degree`.
        completion_s: completion time of a demand over circuits, both [server, server]; None is
            `forwarding_s`.
    """
    demand, seconds = job.dispatch_bytes, completion_s or forwarding_s
    pairs = _matching_order(
        (demand + demand.T).tobytes(), job.servers, degree or topoopt_degree(job)
    )
    circuits = networks.circuit_counts(job.servers, pairs)
    light = np.multiply(circuits, nic_bytes_s(rate_bps))
    return dispatch_and_combine(lambda matrix: seconds(matrix, light), job, circuits)


def forwarding_s(demand: FloatArray, light: FloatArray) -> float:
    """Return the completion time over circuits alone, with forwarding by servers.

    Pairs without a circuit are forwarded evenly by the servers that have a circuit to both ends.

    Args:
        demand: bytes [server, server].
        light: bytes per second [server, server] of the circuits.

    Returns:
        Seconds; infinity if a pair has no such server.
    """
    lit = light > 0
    carried = np.where(lit, demand, 0.0)
    for a, b in zip(*np.nonzero(~lit & (demand > 0)), strict=True):
        relays = np.nonzero(lit[a] & lit[:, b])[0]
        if not len(relays):
            return float("inf")
        carried[a, relays] += demand[a, b] / len(relays)
        carried[relays, b] += demand[a, b] / len(relays)
    return float(np.divide(carried, light, out=np.zeros_like(carried), where=lit).max(initial=0.0))


def single_path_s(demand: FloatArray, light: FloatArray) -> float:
    """Return the completion time over circuits alone if each pair uses one shortest path.

    The public simulator's flat topology routes so. Of several shortest paths, the one over the
    first servers is used.

    Args:
        demand: bytes [server, server].
        light: bytes per second [server, server] of the circuits.

    Returns:
        Seconds; infinity if a pair has no path.
    """
    n, carried = len(demand), np.zeros_like(demand)
    for a in range(n):
        parent, reached = {a: a}, [a]
        for server in reached:
            for other in np.nonzero(light[server])[0]:
                if int(other) not in parent:
                    parent[int(other)] = server
                    reached.append(int(other))
        for b in np.nonzero(demand[a])[0]:
            end = int(b)
            if end not in parent:
                return float("inf")
            while end != a:
                carried[parent[end], end] += demand[a, b]
                end = parent[end]
    return float(
        np.divide(carried, light, out=np.zeros_like(carried), where=light > 0).max(initial=0.0)
    )


_MIXNET: Final = partial(PaperNetwork, ELECTRICAL_NICS, "mixnet", optical=OPTICAL_NICS)
NETWORKS: Final[Mapping[str, PaperNetwork]] = {
    "fat-tree": PaperNetwork(8, "fat-tree", _fat_tree),
    "oversubscribed": PaperNetwork(
        8 / OVERSUBSCRIPTION, "oversubscribed", oversubscribed_all_to_all
    ),
    "rail-optimised": PaperNetwork(
        8, "rail-optimised", partial(nic_per_gpu_all_to_all, kind=EpsKind.RAIL)
    ),
    "topoopt": PaperNetwork(1, "topoopt", topoopt_all_to_all, GPUS_PER_SERVER),
    "mixnet": _MIXNET(mixnet_all_to_all),
    "mixnet-spill": _MIXNET(partial(mixnet_all_to_all, policy="spill")),
    "mixnet-joint": _MIXNET(partial(mixnet_all_to_all, policy="joint")),
}
"""The networks by name."""


def networks_with(tree_flows: TreeFlows) -> Mapping[str, PaperNetwork]:
    """Return the networks, whose trees carry all-to-alls in one of the ways."""
    if tree_flows == "pooled":
        return NETWORKS

    def all_to_all(name: str, job: PaperJob, rate_bps: float) -> AllToAll:
        if tree_flows == "nic-per-gpu":
            return nic_per_gpu_all_to_all(job, rate_bps, _TREES[name])
        return NETWORKS[name].all_to_all(job, rate_bps).scaled(hashed_to_spread(job))

    trees = {n: replace(NETWORKS[n], all_to_all=partial(all_to_all, n)) for n in _TREES}
    return {**NETWORKS, **trees}
