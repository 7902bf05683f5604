"""Topology: servers, NICs, regions, OCSes and the EPS, with every name, address and port number.

All of these are functions of a `Fabric`, so that the emulator, the controllers and the agents agree
without exchanging messages.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from ipaddress import IPv4Network
from itertools import accumulate, pairwise, product
from math import ceil
from typing import Final, Self

from moefabric.core.link import EpsLink
from moefabric.core.ocs import Ocs
from moefabric.core.units import QueueLimit, Scale, rate_text

HOST_PORT: Final = 1
"""OpenFlow port of a server switch that its host is plugged into."""

GATEWAY_MAC: Final = "02:00:0a:ff:ff:fe"
"""MAC address to which servers send what is for other regions."""
_NET: Final = 10
_DPID_LEAF: Final = 0x10000
_DPID_SPINE: Final = 0x20000


class NicKind(StrEnum):
    """The switch on which a NIC ends: the OCS or the EPS."""

    OPTICAL = "optical"
    ELECTRICAL = "electrical"

    __hash__ = str.__hash__  # Enum's is not in C, and every set of NICs calls it


@dataclass(frozen=True, order=True)
class Nic:
    """A server's network interface: `s0/o1` ends on the region's OCS, `s0/e0` on the EPS."""

    server: str
    kind: NicKind
    index: int

    def __str__(self) -> str:
        return f"{self.server}/{self.path}"

    @property
    def path(self) -> str:
        """The NIC within its server (`o1`, `e0`), which also names the path that leaves by it."""
        return f"{self.kind[0]}{self.index}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the NIC with this name.

        Args:
            text: Such as `s0/o1` or `s0/e0`.

        Raises:
            ValueError: If the text names no NIC.
        """
        server, _, path = text.partition("/")
        kinds = {"o": NicKind.OPTICAL, "e": NicKind.ELECTRICAL}
        if not server or path[:1] not in kinds or not path[1:].isdecimal():
            raise ValueError(f"{text!r} is not a NIC such as s0/o1 or s0/e0")
        return cls(server, kinds[path[0]], int(path[1:]))


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
            no tasks of their own; they send what the model says.
    """

    name: str
    index: int
    servers: tuple[str, ...]
    ocs: Ocs | None
    backup: bool = False
    modelled: bool = False


class EpsKind(StrEnum):
    """Which NICs share a leaf of the EPS."""

    LEAF_SPINE = "leaf-spine"
    """All NICs of a server end on one leaf; at 1:1 it stands for a fat tree."""
    RAIL = "rail"
    """Rail-optimised: NICs of one number end on one leaf, of all servers of a pod."""


@dataclass(frozen=True)
class Eps:
    """The electrical packet switches: leaves, joined by spines if one leaf doesn't hold all NICs.

    A leaf of a leaf-spine holds all NICs of its servers. Rails have a leaf for each NIC of a
    server, and `servers_per_leaf` servers are a pod.

    Attributes:
        servers_per_leaf: Number of servers whose NICs end on a leaf.
        spines: Number of spines; 0 is as many as are needed, up to two.
        oversubscription: Downward rate of a leaf, relative to its upward rate.
        kind: Which NICs share a leaf.
        link: Behaviour of its links; None for links without delay and loss.
        pods: Number of servers of each pod, if some of a larger cluster's servers are missing
            (`moefabric.core.fabric_part`); empty if all pods but the last are full.
    """

    servers_per_leaf: int
    spines: int = 0
    oversubscription: float = 1.0
    kind: EpsKind = EpsKind.LEAF_SPINE
    link: EpsLink | None = None
    pods: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fabric:
    """Servers and switches that are wired once and reconfigured many times.

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
        forwarding_by_hosts: Whether an agent receives what it forwards and sends it again, rather
            than the server switch. Such traffic has one relay, next to both ends.
        forwarding_rate_bps: Rate in the model at which a server forwards for all others together,
            in bits per second; None if its NICs alone limit it.
        queue: Room of each NIC's and switch port's queue; None if no packet is dropped.
        spreads_unmarked: Whether unmarked flows of a pair are spread over its circuits and the EPS;
            otherwise they take its first circuit.
        unusable_nics: NICs that carry nothing. They stay wired: no name, port or address changes.
        own_rates_bps: Rates of the NICs of servers whose NICs have another rate, by server.
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

    def rate_bps(self, server: str) -> float:
        """Return the rate of each of a server's NICs in the model, in bits per second."""
        return self._own_rates_bps.get(server, self.nic_rate_bps)

    def circuit_rate_bps(self, a: str, b: str) -> float:
        """Return the rate of a circuit between two servers: that of its slower NIC."""
        return min(self.rate_bps(a), self.rate_bps(b))

    @cached_property
    def _own_rates_bps(self) -> dict[str, float]:
        return dict(self.own_rates_bps)

    @cached_property
    def rates_bps(self) -> tuple[float, ...]:
        """Rate of a NIC of each server, in the order of the servers."""
        return tuple(map(self.rate_bps, self.servers))

    @property
    def capacity_bps(self) -> float:
        """Rate of all NICs together."""
        return (self.optical + self.electrical) * sum(self.rates_bps)

    @property
    def eps_link(self) -> EpsLink | None:
        """Behaviour of links of the EPS; None if they have neither delay nor losses."""
        return self.eps.link if self.eps is not None else None

    @property
    def drops_packets(self) -> bool:
        """Whether queues or links may drop packets, and hosts therefore send single ones."""
        return self.queue is not None or self.eps_link is not None

    @property
    def room(self) -> str:
        """Room of the queues that drop packets, as users write it."""
        link = self.eps_link
        if link is None or link.behaviour.queue_bytes is None:
            return str(self.queue) if self.queue is not None else "any length"
        return str(QueueLimit(link.behaviour.queue_bytes, in_bytes=True))

    @cached_property
    def servers(self) -> tuple[str, ...]:
        """All servers, in order."""
        return tuple(server for region in self.regions for server in region.servers)

    @property
    def password_variables(self) -> frozenset[str]:
        """Environment variables with the passwords of optical switches; controllers read them."""
        controls = (region.ocs.control for region in self.regions if region.ocs)
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
            server: self._nics(server, NicKind.OPTICAL, self.optical if region.ocs else 0)
            for server, region in self.region_of.items()
        }

    @cached_property
    def _electrical_nics(self) -> dict[str, tuple[Nic, ...]]:
        return {
            server: self._nics(server, NicKind.ELECTRICAL, self.electrical)
            for server in self.servers
        }

    @staticmethod
    def _nics(server: str, kind: NicKind, count: int) -> tuple[Nic, ...]:
        return tuple(Nic(server, kind, i) for i in range(count))

    def without_nics(self, nics: Iterable[Nic]) -> "Fabric":
        """Return the fabric with more NICs unusable."""
        unusable = self.unusable_nics | frozenset(nics)
        return self if unusable == self.unusable_nics else replace(self, unusable_nics=unusable)

    def usable_nics(self, nics: Iterable[Nic]) -> tuple[Nic, ...]:
        """Return those of the NICs that are usable."""
        return tuple(nic for nic in nics if nic not in self.unusable_nics)

    def usable_optical(self, server: str) -> tuple[Nic, ...]:
        """Return a server's usable optical NICs."""
        return self.usable_nics(self.optical_nics(server))

    def usable_electrical(self, server: str) -> tuple[Nic, ...]:
        """Return a server's usable electrical NICs."""
        return self.usable_nics(self.electrical_nics(server))

    def prefix(self, place: str) -> IPv4Network:
        """Return the addresses of a server (`s0`, a /24), a region (`r0`, a /16) or all (`*`)."""
        return self._prefixes[place]

    @cached_property
    def _prefixes(self) -> dict[str, IPv4Network]:
        prefixes = {"*": IPv4Network("10.0.0.0/8")}
        for region in self.regions:
            prefixes[region.name] = IPv4Network(f"10.{region.index}.0.0/16")
            for position, server in enumerate(region.servers):
                prefixes[server] = IPv4Network(f"10.{region.index}.{position}.0/24")
        return prefixes

    def addresses(self, server: str) -> tuple[str, ...]:
        """Return the address of each GPU: `10.<region>.<server in region>.<gpu + 1>`."""
        return self._addresses[server]

    @cached_property
    def _addresses(self) -> dict[str, tuple[str, ...]]:
        return {
            server: tuple(f"10.{region.index}.{position}.{gpu + 1}" for gpu in range(self.gpus))
            for region in self.regions
            for position, server in enumerate(region.servers)
        }

    def server_with(self, address: int) -> str | None:
        """Return the server with an IPv4 address, given as a number; None if no server has it."""
        net, region, position, gpu = address.to_bytes(4, "big")
        if net != _NET or region >= len(self.regions) or not 1 <= gpu <= self.gpus:
            return None
        servers = self.regions[region].servers
        return servers[position] if position < len(servers) else None

    def gateway(self, server: str) -> str | None:
        """Return the next hop of a server to other regions; None in a fabric of one region.

        One entry in a server's neighbour table stands for all other regions. The server switch of
        the receiver gives frames the receiver's MAC address.
        """
        if len(self.regions) == 1:
            return None
        return f"10.{self.region_of[server].index}.255.254"

    def mac(self, server: str) -> str:
        """Return the MAC address of a server's host, the same for all its GPUs."""
        return self._macs[server]

    @cached_property
    def _macs(self) -> dict[str, str]:
        octets = {server: self.prefix(server).network_address.packed for server in self.servers}
        return {
            server: "02:00:" + ":".join(f"{octet:02x}" for octet in packed[:3]) + ":01"
            for server, packed in octets.items()
        }

    def ocs_port(self, nic: Nic) -> int:
        """Return the OCS input (from 1) of an optical NIC's transmit fibre.

        Its receive fibre is plugged into output `ocs_port + ocs.ports`.
        """
        region = self.region_of[nic.server]
        return region.servers.index(nic.server) * self.optical + nic.index + 1

    def nic_at(self, region: Region, port: int) -> Nic:
        """Return the optical NIC behind an input of a region's OCS."""
        position, index = divmod(port - 1, self.optical)
        return Nic(region.servers[position], NicKind.OPTICAL, index)

    @property
    def has_circuits_only(self) -> bool:
        """Whether a patch panel joins all NICs, so that there is no EPS."""
        return self.patch_panel and not self.electrical

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """Leaf switches of the EPS."""
        if self.eps is None or not self.electrical:
            return ()
        return tuple(f"leaf{i}" for i in range(len(self.pods) * self.leaves_per_pod))

    @cached_property
    def _pod_sizes(self) -> tuple[int, ...]:
        """Number of servers of each pod: a group of servers whose NICs end on the same leaves."""
        if self.eps is None:
            return ()
        most = self.eps.servers_per_leaf
        count = ceil(len(self.servers) / most)
        return self.eps.pods or tuple(
            min(most, len(self.servers) - most * pod) for pod in range(count)
        )

    @cached_property
    def pods(self) -> tuple[tuple[str, ...], ...]:
        """The servers of each pod."""
        ends = tuple(accumulate(self._pod_sizes, initial=0))
        return tuple(self.servers[first:end] for first, end in pairwise(ends))

    @property
    def rail_optimised(self) -> bool:
        """Whether the NICs of one number share a leaf, rather than those of a server."""
        return self.eps is not None and self.eps.kind is EpsKind.RAIL

    @property
    def leaves_per_pod(self) -> int:
        """Number of leaves on which the NICs of a pod's servers end."""
        return self.electrical if self.rail_optimised else 1

    @cached_property
    def spines(self) -> tuple[str, ...]:
        """Spine switches of the EPS; none if every leaf holds every server."""
        if self.eps is None or not self.electrical or len(self.pods) < 2:
            return ()
        most = self.eps.servers_per_leaf if self.rail_optimised else self.electrical
        return tuple(f"spine{i}" for i in range(self.eps.spines or min(2, most)))

    @property
    def switches(self) -> tuple[str, ...]:
        """Every OpenFlow datapath: server switches (named as their servers), leaves, spines."""
        return self.servers + self.leaves + self.spines

    def leaf_of(self, server: str) -> str:
        """Return the leaf on which a server's electrical NICs end; on rails, the first one."""
        return self._leaf_of[server]

    @cached_property
    def _leaf_of(self) -> dict[str, str]:
        count = self.leaves_per_pod
        return {
            server: self.leaves[number * count]
            for number, servers in enumerate(self.pods)
            for server in servers
        }

    def leaf_of_nic(self, nic: Nic) -> str:
        """Return the leaf on which an electrical NIC ends."""
        return self._leaf_of_nic[nic]

    @cached_property
    def _leaf_of_nic(self) -> dict[Nic, str]:
        return {nic: leaf for leaf in self.leaves for nic in self.nics_under(leaf)}

    def servers_under(self, leaf: str) -> tuple[str, ...]:
        """Return the servers with an electrical NIC on a leaf."""
        return self.pods[self.leaves.index(leaf) // self.leaves_per_pod]

    def nics_under(self, leaf: str) -> tuple[Nic, ...]:
        """Return the electrical NICs that end on a leaf."""
        number = self.leaves.index(leaf) % self.leaves_per_pod
        chosen = slice(number, number + 1) if self.rail_optimised else slice(None)
        servers = self.servers_under(leaf)
        return tuple(nic for server in servers for nic in self.electrical_nics(server)[chosen])

    @property
    def uplinks(self) -> Iterator[tuple[str, str]]:
        """Links between leaves and spines."""
        return iter(tuple(product(self.leaves, self.spines)))

    @property
    def uplink_rate_bps(self) -> float:
        """Rate of one leaf-spine link in the model.

        All uplinks of a leaf together carry the rate of its NICs divided by the oversubscription,
        as if all NICs had the rate of the fastest ones.
        """
        if self.eps is None or not self.spines:
            return 0.0
        nics = self.eps.servers_per_leaf * (1 if self.rail_optimised else self.electrical)
        return nics * max(self.rates_bps) / self.eps.oversubscription / len(self.spines)

    def dpid(self, switch: str) -> int:
        """Return the OpenFlow datapath ID of a switch."""
        if switch in self.server_index:
            return self.server_index[switch] + 1
        if switch.startswith("leaf"):
            return _DPID_LEAF + int(switch.removeprefix("leaf"))
        return _DPID_SPINE + int(switch.removeprefix("spine"))

    def ports(self, switch: str) -> Mapping[str, int]:
        """Return a switch's OpenFlow port numbers.

        Returns:
            Numbers by what is plugged in: `host`, a NIC (`s0/o1`) or a switch (`spine0`).
        """
        if (known := self._ports.get(switch)) is not None:
            return known
        if switch in self.server_index:
            names = ["host", *map(str, self.nics(switch))]
        elif switch in self.leaves:
            names = [*map(str, self.nics_under(switch)), *self.spines]
        else:
            names = list(self.leaves)
        numbers = {name: number for number, name in enumerate(names, start=HOST_PORT)}
        return self._ports.setdefault(switch, numbers)

    @cached_property
    def _ports(self) -> dict[str, Mapping[str, int]]:
        """The port numbers of the switches that were asked for."""
        return {}


def fabric_description(fabric: Fabric) -> str:
    """Describe the switches that connect a fabric's servers.

    Returns:
        Text such as `leaf-spine of 4 leaves and 2 spines, 3:1 oversubscribed`.
    """
    parts = []
    if fabric.patch_panel:
        panel = f"flat patch panel of {len(fabric.servers) * fabric.optical} ports"
        if fabric.has_circuits_only:
            return f"{panel}, {_forwarders(fabric)}"
        parts.append(panel)
    elif fabric.optical:
        switches = [region.ocs for region in fabric.regions if region.ocs]
        name = "OCS" if len(switches) == 1 else f"{len(switches)} OCSes"
        ports = sorted({ocs.ports for ocs in switches})
        each = " each" if len(switches) > 1 else ""
        parts.append(f"{name} of {' or '.join(map(str, ports))} ports{each}")
    if fabric.eps and fabric.leaves:
        leaves, spines = len(fabric.leaves), len(fabric.spines)
        text = "one leaf" if leaves == 1 else f"leaf-spine of {leaves} leaves"
        if fabric.rail_optimised:
            text = f"rail-optimised, {leaves} {'leaf' if leaves == 1 else 'leaves'}"
        if spines:
            text += f" and {spines} {'spine' if spines == 1 else 'spines'}"
        ratio = fabric.eps.oversubscription if spines else 1.0
        blocking = "non-blocking" if ratio == 1 else f"{ratio:g}:1 oversubscribed"
        parts.append(f"{text}, {blocking}")
    if fabric.forwarding:
        parts.append(_forwarders(fabric))
    return " + ".join(parts)


def _forwarders(fabric: Fabric) -> str:
    rate_bps = fabric.forwarding_rate_bps
    who = "hosts forward" if fabric.forwarding_by_hosts else "servers forward"
    return who if rate_bps is None else f"{who} {rate_text(rate_bps)} each"
