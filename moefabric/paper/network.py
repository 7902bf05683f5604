"""The networks that the paper compares: how long one all-to-all of a region takes on each, and what is left for the rest.

Everything is the fluid model's: a transfer takes what its fullest link takes. Regions are equal and share no link that is full, so that one of them
stands for all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from controller.planner import joint, mixnet, topoopt, water
from controller.planner.policy import counts
from moefabric.fluid import goodput_share
from moefabric.paper.job import GPUS, Array, Job
from moefabric.topology import Eps, Fabric, Region

MTU: Final = 9000
"""Bytes of a packet in the paper's simulator."""
PER_LEAF: Final = 4
"""Servers on a leaf where uplinks are narrow: the smallest k-ary fat tree that holds 128 servers has k = 8 and k/2 servers on each."""
OVERSUBSCRIPTION: Final = 3.0
_BUDGET_S: Final = 5.0
"""Of the joint planner: enough for it to end, so that equal jobs give equal tables."""

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class AllToAll:
    """Seconds of one dispatch and of one combine, and the circuits they had, [server, server]."""

    dispatch_s: float
    combine_s: float
    circuits: Counts = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))

    def times(self, factor: float) -> Self:
        """So many times as long."""
        return replace(self, dispatch_s=self.dispatch_s * factor, combine_s=self.combine_s * factor)

    @property
    def layer_s(self) -> float:
        """The four all-to-alls of a layer: forward dispatch and combine, backward the same matrices (paper section 5.1)."""
        return 2 * (self.dispatch_s + self.combine_s)


@dataclass(frozen=True)
class Network:
    """`optical` NICs of a server on its region's OCS; `electrical` ones on the EPS, or on what stands for it, for all-reduce and pipeline.

    `all_to_all(job, rate_bps)` is one region's. `bought` names its price in `moefabric.cost`.
    """

    name: str
    optical: int
    electrical: int
    bought: str
    all_to_all: Callable[[Job, float], AllToAll]


def byte_rate(rate_bps: float) -> float:
    """Payload bytes a second of a NIC."""
    return rate_bps * goodput_share(MTU) / 8


def lit_rates(circuits: Counts, rate: float) -> Array:
    """Bytes a second [from, to] by light, each circuit carrying `rate`."""
    return circuits.astype(np.float64) * rate


def both_ways(seconds: Callable[[Array], float], owed: Array, circuits: Counts | None = None) -> AllToAll:
    """Dispatch and combine of the same demand."""
    made = AllToAll(seconds(owed), seconds(owed.T))
    return made if circuits is None else AllToAll(made.dispatch_s, made.combine_s, circuits)


def eps_s(owed: Array, budgets: Array) -> float:
    """Over a non-blocking EPS to which each server has `budgets` bytes a second each way."""
    return float(max((owed.sum(axis=0) / budgets).max(), (owed.sum(axis=1) / budgets).max()))


def light_first_s(owed: Array, light: Array, budgets: Array) -> float:
    """A pair with light (`light[from, to]` bytes a second) by light alone, the others by the EPS."""
    lit = light > 0
    by_light = np.divide(owed, light, out=np.zeros_like(owed), where=lit).max(initial=0.0)
    return float(max(by_light, eps_s(np.where(lit, 0.0, owed), budgets)))


def spill_s(owed: Array, light: Array, budgets: Array) -> float:
    """Each pair by light and EPS so that all ends together."""
    return water.seconds(owed, light, leaf(budgets))


def leaf(budgets: Array) -> water.EpsLinks:
    """A non-blocking EPS to which each server has `budgets` bytes a second each way."""
    n = len(budgets)
    return water.EpsLinks(
        np.ones((1, n)), np.zeros((0, n)), np.zeros((n, n), dtype=np.bool_), np.tile(budgets, 2)
    )


def joint_circuits(owed: Array, ports: Counts, rate: float, budgets: Array) -> Counts:
    """Circuits of the joint planner, [server, server]; `ports` optical NICs of each server."""
    return joint.best(owed, ports, rate, leaf(budgets), _BUDGET_S)


def greedy(owed: Array, degree: int | Counts) -> Counts:
    """Circuits of Algorithm 1, [server, server]; `degree` is the optical NICs of every server, or of each."""
    n = len(owed)
    ports = np.broadcast_to(degree, n).tolist()
    return np.array(counts(n, mixnet.order(owed + owed.T, ports)), dtype=np.int64).reshape(n, n)


# --- networks ----------------------------------------------------------------------------------------------------------


def _fat_tree(job: Job, rate_bps: float) -> AllToAll:
    budgets = np.full(job.servers, GPUS * byte_rate(rate_bps))
    return both_ways(lambda owed: eps_s(owed, budgets), job.owed)


def _oversubscribed(job: Job, rate_bps: float) -> AllToAll:
    names = tuple(f"s{i}" for i in range(job.servers))
    eps = Eps(PER_LEAF, GPUS, OVERSUBSCRIPTION)
    wired = Fabric("f", (Region("r0", 0, names, None),), GPUS, 0, GPUS, rate_bps, eps, mtu=MTU)
    links = water.EpsLinks.of(wired, names)
    dark = np.zeros((job.servers, job.servers))
    return both_ways(lambda owed: water.seconds(owed, dark, links), job.owed)


def _rail(job: Job, rate_bps: float) -> AllToAll:
    """Rail-optimised, as NCCL sends on it: what a GPU is sent arrives by its own NIC, on the rail of that number (PXN at the sender)."""
    return AllToAll(_rails_s(job, job.tokens, rate_bps), _rails_s(job, job.tokens.T, rate_bps))


def _rails_s(job: Job, tokens: Array, rate_bps: float) -> float:
    sent = by_rail(job, tokens) * job.model.token_bytes
    return float(max(sent.sum(axis=0).max(), sent.sum(axis=1).max()) / byte_rate(rate_bps))


def by_rail(job: Job, tokens: Array) -> Array:
    """What servers send each other by each rail, [from, to, rail], of `tokens` [from rank, to rank]: the GPUs of a rank share its tokens."""
    n, tp, ranks = job.servers, job.training.tp, job.training.ep // job.servers
    sent = tokens.reshape(n, ranks, n, ranks).sum(axis=1)
    sent[np.arange(n), np.arange(n)] = 0.0
    made: Array = np.repeat(sent / tp, tp, axis=2)
    return made


def _mixnet(job: Job, rate_bps: float) -> AllToAll:
    return with_degree(job, rate_bps, 6, 2, rate_bps)


def with_degree(
    job: Job, rate_bps: float, optical: int, electrical: float, eps_rate_bps: float, *, spill: bool = False
) -> AllToAll:
    """MixNet or spill with any degree; the electrical NICs may have another rate."""
    lit = greedy(job.owed, optical)
    light = lit_rates(lit, byte_rate(rate_bps))
    budgets = np.full(job.servers, electrical * byte_rate(eps_rate_bps))
    ends = spill_s if spill else light_first_s
    return both_ways(lambda owed: ends(owed, light, budgets), job.owed, lit)


def _spill(job: Job, rate_bps: float) -> AllToAll:
    return with_degree(job, rate_bps, 6, 2, rate_bps, spill=True)


def _joint(job: Job, rate_bps: float) -> AllToAll:
    rate = byte_rate(rate_bps)
    budgets = np.full(job.servers, 2 * rate)
    lit = joint_circuits(job.owed, np.full(job.servers, 6), rate, budgets)
    return both_ways(lambda owed: spill_s(owed, lit_rates(lit, rate), budgets), job.owed, lit)


def _topoopt(job: Job, rate_bps: float) -> AllToAll:
    """A flat patch panel laid once: a NIC for the all-reduce ring, one to each neighbouring stage, the rest for the EP group.

    Pairs without a circuit are forwarded by servers that have one to both, evenly; a circuit then carries both.
    """
    stages = min(2, job.pp - 1)
    laid = topoopt.order(job.owed + job.owed.T, GPUS - 1 - stages)
    lit = np.array(counts(job.servers, laid), dtype=np.int64).reshape(job.owed.shape)
    return both_ways(lambda owed: forwarded_s(owed, lit_rates(lit, byte_rate(rate_bps))), job.owed, lit)


def forwarded_s(owed: Array, light: Array) -> float:
    """Over circuits alone, pairs without one by way of one other server; infinite where there is none."""
    lit = light > 0
    carried = np.where(lit, owed, 0.0)
    for a, b in zip(*np.nonzero(~lit & (owed > 0)), strict=True):
        between = np.nonzero(lit[a] & lit[:, b])[0]
        if not len(between):
            return float("inf")
        carried[a, between] += owed[a, b] / len(between)
        carried[between, b] += owed[a, b] / len(between)
    return float(np.divide(carried, light, out=np.zeros_like(carried), where=lit).max(initial=0.0))


NETWORKS: Final[Mapping[str, Network]] = MappingProxyType(
    {
        network.name: network
        for network in (
            Network("fat-tree", 0, 8, "fat-tree", _fat_tree),
            Network("oversubscribed", 0, 8, "oversubscribed", _oversubscribed),
            Network("rail-optimised", 0, 8, "rail-optimised", _rail),
            Network("topoopt", 8, 1, "topoopt", _topoopt),
            Network("mixnet", 6, 2, "mixnet", _mixnet),
            Network("mixnet-spill", 6, 2, "mixnet", _spill),
            Network("mixnet-joint", 6, 2, "mixnet", _joint),
        )
    }
)
"""By name. TopoOpt's one "electrical" NIC is the one circuit that its all-reduce ring, and each pipeline stage, has."""
