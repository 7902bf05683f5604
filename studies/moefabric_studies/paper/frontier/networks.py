"""Networks of a server with eight NICs: policies, circuits, prices, and times of all-to-alls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Final, Literal

import numpy as np

from moefabric import Circuit, CircuitSet, Fabric, Nic, Region, network_usd
from moefabric.api import networks
from moefabric_studies.paper.job import GPUS_PER_SERVER, Counts, FloatArray
from moefabric_studies.paper.network import algorithm1_circuits, circuits_first_s, eps_s, spill_s

NICS: Final = GPUS_PER_SERVER
"""NICs of a server."""

Device = Literal["EPS", "tapered EPS", "OCS", "patch panel"]
"""Device at which the NICs that serve a region's all-to-alls end."""


@dataclass(frozen=True)
class FrontierPolicy:
    """A policy of the study and the device that it needs.

    Attributes:
        name: Name in results.
        title: Name on pictures.
        device: Where optical NICs end; the EPS without them.
        moves: Whether circuits move for each layer.
        waits: Whether a forward dispatch waits for its circuits.
    """

    name: str
    title: str
    device: Device
    moves: bool = False
    waits: bool = False


EPS: Final = FrontierPolicy("eps", "non-blocking EPS", "EPS")
TAPERED: Final = FrontierPolicy("eps-tapered", "EPS tapered above the region", "tapered EPS")
MIXNET: Final = FrontierPolicy("mixnet", "mixnet (OCS)", "OCS", moves=True, waits=True)
SPILL: Final = FrontierPolicy("spill", "spill (OCS)", "OCS", moves=True)
JOINT: Final = FrontierPolicy("joint", "joint (OCS)", "OCS", moves=True)
MOVED_MULTIHOP: Final = FrontierPolicy(
    "joint-multihop", "multihop, moved circuits (OCS)", "OCS", moves=True
)
EVEN_SPILL: Final = FrontierPolicy(
    "spill-even", "null model: spill, even circuits (panel)", "patch panel"
)
MULTIHOP: Final = FrontierPolicy("multihop", "multihop, even circuits (panel)", "patch panel")
POLICIES: Final = (EPS, TAPERED, MIXNET, SPILL, JOINT, MOVED_MULTIHOP, EVEN_SPILL, MULTIHOP)


def optical_nics(policy: FrontierPolicy) -> tuple[int, ...]:
    """Return the numbers of NICs of a server that don't end on the EPS.

    At least one NIC is left for pipeline and data-parallel transfers, which leave the region. Of a
    tapered EPS these are the NICs for which leaves have no uplinks.
    """
    return (0,) if policy == EPS else tuple(range(1, NICS))


def server_usd(policy: FrontierPolicy, optical: int, rate_bps: float) -> float:
    """Return the price of a server's part of a network.

    Args:
        optical: NICs of a server that don't end on the EPS, as in `optical_nics`.
        rate_bps: Rate of a NIC.
    """
    electrical = NICS - optical
    inventories: Mapping[Device, networks.NetworkInventory] = {
        "EPS": networks.NetworkInventory(1, NICS),
        "tapered EPS": networks.NetworkInventory(1, NICS, oversubscription=NICS / electrical),
        "OCS": networks.NetworkInventory(1, electrical, optical=optical),
        "patch panel": networks.NetworkInventory(1, electrical, patch_panel_nics=optical),
    }
    return network_usd(inventories[policy.device], rate_bps)


@cache
def even_circuits(servers: int, degree: int) -> Counts:
    """Return circuits [server, server] that suit any demand: a full mesh, or an expander.

    Args:
        servers: Servers of a region.
        degree: Circuits of a server.
    """
    return networks.circuit_counts(servers, networks.even_order([degree] * servers))


def wired_circuits(counts: Counts) -> CircuitSet:
    """Return circuits for counts [server, server], each on the next free NIC of both servers."""
    used = [0] * len(counts)
    circuits = []
    for a, b in np.argwhere(np.triu(counts)).tolist():
        for _ in range(int(counts[a, b])):
            ends = (Nic(f"s{server}", networks.NicKind.OPTICAL, used[server]) for server in (a, b))
            circuits.append(Circuit(*ends))
            used[a] += 1
            used[b] += 1
    return CircuitSet.of(circuits)


@dataclass(frozen=True)
class ForwardedSplit:
    """A split in which servers forward.

    Attributes:
        nic_bytes: The completion time: bytes that a NIC carries meanwhile.
        forwarded: Part of the demand that is forwarded.
        relays: Servers that forward on the longest path.
    """

    nic_bytes: float
    forwarded: float
    relays: int


def forwarded_split(
    demand: FloatArray, counts: Counts, electrical: int, forwarding_nics: float | None = None
) -> ForwardedSplit:
    """Return the split with the least time and, of equal ones, the least forwarding.

    Args:
        demand: Bytes [server, server].
        counts: Circuits [server, server].
        electrical: Electrical NICs of a server.
        forwarding_nics: Rate at which a server forwards, in NICs; None is any rate.
    """
    servers = tuple(f"s{number}" for number in range(len(demand)))
    links = networks.waterfill.EpsLinks.one_leaf(np.full(len(demand), float(electrical)))
    eps = links if electrical else None
    circuits, optical = wired_circuits(counts), int(counts.sum(axis=1).max())
    region = Region("r0", 0, servers, None)
    wired = Fabric("frontier", (region,), 1, optical, electrical, 1.0, None, forwarding=True)
    lanes = networks.relay_lanes(wired, region)
    trees = networks.relay_trees(circuits, lanes)
    program = networks.RelayLinearProgram(
        servers, circuits, trees, 1.0, eps, forwarding_nics, lanes
    )
    split = program.split(demand, exact=True)
    routes = (
        networks.tree_route(circuits, servers[a], servers[b], root, lane, lanes)
        for a, b, root, lane in split.forwarded
    )
    # Each circuit of a route is two links.
    relays = max((len(route) // 2 - 1 for route in routes), default=0)
    return ForwardedSplit(
        split.seconds, float(sum(split.forwarded.values()) / demand.sum()), relays
    )


@dataclass(frozen=True, eq=False)
class Comparison:
    """Completion times of a demand by policy, in bytes that a NIC carries in the time.

    Attributes:
        demand: Bytes [server, server].
        optical: NICs of a server on an OCS or a patch panel; the others are electrical.
    """

    demand: FloatArray
    optical: int
    _found: dict[str, float] = field(default_factory=dict)

    @property
    def electrical(self) -> int:
        """Electrical NICs of a server."""
        return NICS - self.optical

    def nic_bytes(self, policy: FrontierPolicy) -> float:
        """Return the completion time of a dispatch, as bytes of a NIC."""
        if policy.name not in self._found:
            self._found[policy.name] = self._nic_bytes(policy)
        return self._found[policy.name]

    def _nic_bytes(self, policy: FrontierPolicy) -> float:
        demand, electrical = self.demand, self._budgets
        times: Mapping[FrontierPolicy, Callable[[], float]] = {
            EPS: lambda: eps_s(demand, np.full(len(demand), float(NICS))),
            TAPERED: lambda: self.nic_bytes(EPS),
            MIXNET: lambda: circuits_first_s(demand, self._algorithm1.astype(float), electrical),
            SPILL: lambda: self._spill(self._algorithm1),
            JOINT: lambda: min(self._spill(self._searched), self.nic_bytes(EVEN_SPILL)),
            EVEN_SPILL: lambda: self._spill(self._even),
            MULTIHOP: lambda: self.multihop_split.nic_bytes,
            MOVED_MULTIHOP: lambda: min(
                self.nic_bytes(MULTIHOP),
                self._forwarded(self._algorithm1),
                self._forwarded(self._searched),
            ),
        }
        return times[policy]()

    def unmoved(self, policy: FrontierPolicy) -> FrontierPolicy:
        """Return the policy with the same split over circuits that never move."""
        return {JOINT: EVEN_SPILL, SPILL: EVEN_SPILL, MOVED_MULTIHOP: MULTIHOP}[policy]

    @cached_property
    def multihop_split(self) -> ForwardedSplit:
        """The split of `multihop` over even circuits."""
        return forwarded_split(self.demand, self._even, self.electrical)

    def limited_nic_bytes(self, forwarding_nics: float) -> float:
        """Return the completion time with `multihop` and limited forwarding, in bytes of a NIC.

        Args:
            forwarding_nics: Rate at which a server forwards, in NICs; 0 for no forwarding.
        """
        if not forwarding_nics:
            return self.nic_bytes(EVEN_SPILL)
        limited = forwarded_split(self.demand, self._even, self.electrical, forwarding_nics)
        return limited.nic_bytes

    @cached_property
    def _even(self) -> Counts:
        return even_circuits(len(self.demand), self.optical)

    @cached_property
    def _ports(self) -> Counts:
        return np.full(len(self.demand), self.optical)

    @cached_property
    def _budgets(self) -> FloatArray:
        return np.full(len(self.demand), float(self.electrical))

    @cached_property
    def _algorithm1(self) -> Counts:
        return algorithm1_circuits(self.demand, self._ports)

    @cached_property
    def _searched(self) -> Counts:
        """Circuits that `joint` finds."""
        links = networks.waterfill.EpsLinks.one_leaf(self._budgets)
        return networks.joint.best_circuits(self.demand, self._ports, 1.0, links)

    def _spill(self, counts: Counts) -> float:
        return spill_s(self.demand, counts.astype(np.float64), self._budgets)

    def _forwarded(self, counts: Counts) -> float:
        return forwarded_split(self.demand, counts, self.electrical).nic_bytes
