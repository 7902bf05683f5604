"""Fabrics: servers, their NICs and regions, and the OCSes and EPS that connect them.

Names, addresses and port numbers are functions of a `Fabric`, so that the emulator, the controllers
and the agents agree without exchanging messages. Those of servers and packet switches have modules
of their own: `moefabric.core.addressing`, `moefabric.core.eps` and `moefabric.core.openflow_ports`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from moefabric.core.addressing import Addressing
from moefabric.core.eps import Eps, EpsWiring
from moefabric.core.link import EpsLink
from moefabric.core.nic import Nic, NicKind
from moefabric.core.ocs import Ocs
from moefabric.core.openflow_ports import OpenflowPorts
from moefabric.core.server_paths import ServerPaths
from moefabric.core.units import QueueLimit, Scale


@dataclass(frozen=True)
class Region:
    """Servers that share an OCS; no circuit leaves the region.

    Attributes:
        name: `r0`, `r1` and so on.
        index: Position among the fabric's regions.
        servers: Names of its servers.
        ocs: Its OCS, if it has one.
        backup: Whether its servers stand by to replace others. Backup servers have no circuits.
        modelled: Whether it exists in a model only. Its servers in the fabric have no circuits and
            no tasks of their own; they send the bytes that the model computes.
    """

    name: str
    index: int
    servers: tuple[str, ...]
    ocs: Ocs | None
    backup: bool = False
    modelled: bool = False

    @property
    def moving_ns(self) -> int:
        """Time on the wall clock from a change of circuits until they carry traffic again."""
        return self.ocs.settle_ns + self.ocs.link_up.fixed_ns if self.ocs else 0


@dataclass(frozen=True)
class Fabric:
    """Servers and switches that are wired once and reconfigured many times.

    Example:
        >>> region = Region("r0", 0, ("s0", "s1"), Ocs("ocs0", ports=4))
        >>> fabric = Fabric("lab", (region,), 8, 2, 1, 100e9, Eps(servers_per_leaf=2))
        >>> [str(nic) for nic in fabric.nics("s1")], fabric.switches
        (['s1/o0', 's1/o1', 's1/e0'], ('s0', 's1', 'leaf0'))
        >>> fabric.addressing.addresses("s1")[:2], fabric.openflow.ports("s1")["s1/e0"]
        (('10.0.1.1', '10.0.1.2'), 4)

    Attributes:
        name: Name of the fabric.
        regions: Its regions.
        gpus: GPUs of a server.
        optical: Optical NICs of a server.
        electrical: Electrical NICs of a server.
        nic_rate_bps: Rate of a NIC in the model, in bits per second.
        eps: The electrical packet switches, if there are any.
        scale: How the model's rates, bytes and times are emulated.
        mtu: Largest IP packet on all links, in bytes.
        patch_panel: Whether optical NICs end on a flat patch panel. Its circuits are set once,
            before the job. Without an EPS, servers forward for pairs without a circuit.
        forwarding: Whether servers forward for each other by relay trees
            (`moefabric.core.forwarding`), so that a sender may choose a path over several circuits.
        forwarding_by_hosts: Whether agents forward, by receiving bytes and sending them again,
            rather than server switches. Forwarded bytes then have one relay, next to both ends.
        forwarding_rate_bps: Rate in the model at which a server forwards for all others together,
            in bits per second; None if its NICs alone limit it.
        queue: Room of each NIC's and switch port's queue; None if no packet is dropped.
        spreads_unmarked: Whether unmarked flows of a pair are spread over its circuits and the EPS;
            otherwise they take its first circuit.
        unusable_nics: NICs that carry nothing. They stay wired: no name, port or address changes.
        own_rates_bps: Rates of the NICs of servers whose NICs have another rate, by server.
        server_paths: Paths inside each server, between its GPUs and its NICs.
        nvlink_rate_bps: Rate of a GPU's NVLinks in each direction, in bits per second; None for no
            limit.
        numbers: Each server's position in the larger cluster of which this fabric is a part; empty
            if it is no part.
    """

    name: str
    regions: tuple[Region, ...]
    gpus: int
    optical: int
    electrical: int
    nic_rate_bps: float
    eps: Eps | None
    scale: Scale = field(default_factory=Scale)
    mtu: int = 1500
    patch_panel: bool = False
    forwarding: bool = False
    forwarding_by_hosts: bool = False
    forwarding_rate_bps: float | None = None
    queue: QueueLimit | None = None
    spreads_unmarked: bool = False
    unusable_nics: frozenset[Nic] = frozenset()
    numbers: tuple[int, ...] = ()
    own_rates_bps: tuple[tuple[str, float], ...] = ()
    server_paths: ServerPaths = field(default_factory=ServerPaths)
    nvlink_rate_bps: float | None = None

    def rate_bps(self, server: str) -> float:
        """Return the rate of each of a server's NICs in the model, in bits per second."""
        return self._own_rates_bps.get(server, self.nic_rate_bps)

    @cached_property
    def _own_rates_bps(self) -> dict[str, float]:
        return dict(self.own_rates_bps)

    @cached_property
    def rates_bps(self) -> tuple[float, ...]:
        """Rate of a NIC of each server, in the order of the servers."""
        return tuple(map(self.rate_bps, self.servers))

    @cached_property
    def largest_region(self) -> int:
        """Number of servers of the largest region."""
        return max(len(region.servers) for region in self.regions)

    @property
    def nic_per_gpu(self) -> bool:
        """Whether a GPU sends and receives the bytes of all-to-alls by its own electrical NIC."""
        return self.eps is not None and self.eps.nic_per_gpu

    @property
    def eps_link(self) -> EpsLink | None:
        """Behaviour of links of the EPS; None if they have neither delay nor losses."""
        return self.eps.link if self.eps is not None else None

    @cached_property
    def servers(self) -> tuple[str, ...]:
        """All servers, in order."""
        return tuple(server for region in self.regions for server in region.servers)

    @cached_property
    def ocses(self) -> dict[Region, Ocs]:
        """The OCSes, by region."""
        return {region: region.ocs for region in self.regions if region.ocs}

    @property
    def password_variables(self) -> frozenset[str]:
        """Environment variables with the passwords of optical switches; controllers read them."""
        controls = (ocs.control for ocs in self.ocses.values())
        return frozenset(control.password_env for control in controls if control.password_env)

    @cached_property
    def ep_groups(self) -> dict[str, tuple[str, ...]]:
        """The servers on which a job starts, by region: all but the backup servers."""
        return {region.name: region.servers for region in self.regions if not region.backup}

    @cached_property
    def primary_servers(self) -> tuple[str, ...]:
        """The servers on which a job starts, in order."""
        return tuple(server for servers in self.ep_groups.values() for server in servers)

    @cached_property
    def backup_servers(self) -> tuple[str, ...]:
        """The servers that stand by to replace others, in order."""
        return tuple(
            server for region in self.regions if region.backup for server in region.servers
        )

    @cached_property
    def server_index(self) -> dict[str, int]:
        """Each server's position among all servers."""
        return {server: position for position, server in enumerate(self.servers)}

    @cached_property
    def server_number(self) -> dict[str, int]:
        """Each server's position in the whole cluster, which selects NICs and spines."""
        return dict(zip(self.servers, self.numbers or range(len(self.servers)), strict=True))

    @cached_property
    def region_of(self) -> dict[str, Region]:
        """Each server's region."""
        return {server: region for region in self.regions for server in region.servers}

    def nics(self, server: str) -> tuple[Nic, ...]:
        """Return a server's NICs, optical ones first."""
        return self.optical_nics(server) + self.electrical_nics(server)

    def optical_nics(self, server: str) -> tuple[Nic, ...]:
        """Return a server's NICs that end on the OCS; none if its region has no OCS."""
        return self._optical_nics[server]

    def electrical_nics(self, server: str) -> tuple[Nic, ...]:
        """Return a server's NICs that end on the EPS."""
        return self._electrical_nics[server]

    @cached_property
    def _optical_nics(self) -> dict[str, tuple[Nic, ...]]:
        return {
            server: tuple(Nic(server, NicKind.OPTICAL, i) for i in range(self.optical))
            if region.ocs
            else ()
            for server, region in self.region_of.items()
        }

    @cached_property
    def _electrical_nics(self) -> dict[str, tuple[Nic, ...]]:
        return {
            server: tuple(Nic(server, NicKind.ELECTRICAL, i) for i in range(self.electrical))
            for server in self.servers
        }

    def without_nics(self, nics: Iterable[Nic]) -> "Fabric":
        """Return the fabric with more NICs unusable."""
        unusable = self.unusable_nics | frozenset(nics)
        return self if unusable == self.unusable_nics else replace(self, unusable_nics=unusable)

    def usable_nics(self, nics: Iterable[Nic]) -> tuple[Nic, ...]:
        """Return the usable ones of some NICs."""
        unusable = self.unusable_nics
        return tuple([nic for nic in nics if nic not in unusable]) if unusable else tuple(nics)

    def usable_optical(self, server: str) -> tuple[Nic, ...]:
        """Return a server's usable optical NICs."""
        return self.usable_nics(self.optical_nics(server))

    def usable_electrical(self, server: str) -> tuple[Nic, ...]:
        """Return a server's usable electrical NICs."""
        return self.usable_nics(self.electrical_nics(server))

    @cached_property
    def addressing(self) -> Addressing:
        """The addresses of servers and regions."""
        return Addressing({region.name: region.servers for region in self.regions}, self.gpus)

    @cached_property
    def openflow(self) -> OpenflowPorts:
        """Datapath IDs and port numbers of server switches, leaves and spines."""
        return OpenflowPorts(
            {server: self.nics(server) for server in self.servers}, self.eps_wiring
        )

    @cached_property
    def eps_wiring(self) -> EpsWiring:
        """The leaves and spines, and the NICs that end on each leaf."""
        return EpsWiring(self.eps, self._electrical_nics, self.electrical)

    @property
    def has_circuits_only(self) -> bool:
        """True if a patch panel joins all NICs, so that there is no EPS."""
        return self.patch_panel and not self.electrical

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """Leaf switches of the EPS; none if servers have no electrical NIC."""
        return self.eps_wiring.leaves

    @cached_property
    def spines(self) -> tuple[str, ...]:
        """Spine switches of the EPS; none if every leaf holds every server."""
        return self.eps_wiring.spines

    @property
    def switches(self) -> tuple[str, ...]:
        """Every OpenFlow datapath: server switches (named as their servers), leaves, spines."""
        return self.servers + self.leaves + self.spines


def circuit_rate_bps(fabric: Fabric, a: str, b: str) -> float:
    """Return the rate of a circuit between two servers: that of its slower NIC."""
    return min(fabric.rate_bps(a), fabric.rate_bps(b))


def uplink_rate_bps(fabric: Fabric) -> float:
    """Return the rate of one link between a leaf and a spine.

    If the rates of NICs differ, leaves have uplinks for the fastest ones.
    """
    return fabric.eps_wiring.uplink_rate_bps(max(fabric.rates_bps))


def capacity_bps(fabric: Fabric) -> float:
    """Return the rate of all NICs together."""
    return (fabric.optical + fabric.electrical) * sum(fabric.rates_bps)


def drops_packets(fabric: Fabric) -> bool:
    """Return whether queues or links may drop packets, so that hosts send single ones."""
    return fabric.queue is not None or fabric.eps_link is not None


def queue_room(fabric: Fabric) -> str:
    """Return the room of the queues that drop packets, as users write it (`100 packets`)."""
    link = fabric.eps_link
    if link is None or link.behaviour.queue_bytes is None:
        return str(fabric.queue) if fabric.queue is not None else "any length"
    return str(QueueLimit(link.behaviour.queue_bytes, in_bytes=True))


def ocs_port(fabric: Fabric, nic: Nic) -> int:
    """Return the OCS input (from 1) of an optical NIC's transmit fibre.

    Its receive fibre is plugged into output `ocs_port + ocs.ports`.
    """
    region = fabric.region_of[nic.server]
    first = fabric.ocses[region].first_port if region in fabric.ocses else 1
    return region.servers.index(nic.server) * fabric.optical + nic.index + first


def nic_at(fabric: Fabric, region: Region, port: int) -> Nic | None:
    """Return the optical NIC on an input or an output of a region's OCS; None if there is none."""
    ocs = fabric.ocses[region]
    before = (port - 1) % ocs.ports + 1 - ocs.first_port
    position, index = divmod(before, fabric.optical)
    wired = 0 <= position < len(region.servers)
    return fabric.optical_nics(region.servers[position])[index] if wired else None
