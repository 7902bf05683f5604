"""Plan of a fabric: every node, link, interface, rate and address as data."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from moefabric.core.addressing import GATEWAY_MAC
from moefabric.core.eps import uplink_name
from moefabric.core.errors import FabricError
from moefabric.core.link import LinkBehaviour, LinkPlace
from moefabric.core.nic import Nic, NicKind
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region, ocs_port, uplink_rate_bps
from moefabric.core.units import QueueLimit, Scale
from moefabric.emulator.fabric import shaping
from moefabric.runtime.run_directory import ManagementNetwork, ServerInterfaces

FABRIC: Final = ""
"""Node that is the fabric's own namespace, with its switches and bridges."""
BRIDGE: Final = "management"
"""Bridge of the controllers, OCSes and switches."""
SERVER_BRIDGE: Final = "servers"
"""Bridge of the servers' management interfaces, which leads nowhere else.

Further ones, called `servers1` and so on, join it in large fabrics.
"""
_BRIDGE_SERVERS: Final = 1000
"""Servers of a bridge. Linux allows a bridge 1,023 ports; further bridges need some of them."""
HOST_INTERFACE: Final = "eth0"
MANAGEMENT_INTERFACE: Final = "mgmt0"
_IFNAMSIZ: Final = 15


@dataclass(frozen=True)
class Interface:
    """End of a link.

    Attributes:
        node: the node that the interface belongs to.
        name: unique in its namespace.
        port: OpenFlow or OCS port number, or 0.
        bridge: the bridge of the management network that it is a port of; empty for none.
        mac: MAC address; empty leaves the choice to the kernel.
        addresses: IPv4 addresses with prefix length.
        further_addresses: IPv4 addresses of its node that are reached through it. They are on the
            node's loopback interface, so that programs know the interface by one address.
        neighbours: addresses and MACs of its permanent neighbours.
        gateway: its next hop to the rest of the fabric; None if that is on the link.
    """

    node: str
    name: str
    port: int = 0
    bridge: str = ""
    mac: str = ""
    addresses: tuple[str, ...] = ()
    further_addresses: tuple[str, ...] = ()
    neighbours: tuple[tuple[str, str], ...] = ()
    gateway: "Gateway | None" = None


@dataclass(frozen=True)
class Gateway:
    """Next hop, by its address and MAC, to a network."""

    network: str
    address: str
    mac: str


@dataclass(frozen=True)
class Tunnel:
    """Point-to-point VXLAN (RFC 7348) in the place of a veth pair between two machines.

    Attributes:
        vni: VXLAN network identifier, the same at both ends.
        local: address of the machine here.
        remote: address of the other machine.
        end: the end of the link that is here.
    """

    vni: int
    local: str
    remote: str
    end: Interface


@dataclass(frozen=True)
class Link:
    """Veth pair; both ends are shaped to `rate_bps`, the emulated rate, unless that is None.

    A link with a behaviour has a relay between its ends instead, which also limits the rate. A link
    with a tunnel has only one of its ends here.
    """

    name: str
    a: Interface
    b: Interface
    mtu: int
    rate_bps: float | None = None
    behaviour: LinkBehaviour | None = None
    tunnel: Tunnel | None = None

    @property
    def is_host_link(self) -> bool:
        """True if the link joins a server and its server switch."""
        return self.name.endswith("/host")

    @property
    def is_nic(self) -> bool:
        """True if the link belongs to a NIC, whose name it has."""
        return "/" in self.name and bool(self.a.port)

    @property
    def port_names(self) -> tuple[str, str]:
        """Names of its ends: `s0/e0` and `leaf0 to s0/e0`, or `leaf0 to spine1` and the reverse."""
        if "~" in self.name:
            near, far = self.name.split("~")
            return f"{near} to {far}", f"{far} to {near}"
        return self.name, f"{self.b.name.rpartition('-')[0]} to {self.name}"

    @property
    def ends(self) -> tuple[Interface, ...]:
        """The ends that are on this machine."""
        return (self.a, self.b) if self.tunnel is None else (self.tunnel.end,)


@dataclass(frozen=True)
class SwitchPlan:
    """OpenFlow switch.

    Attributes:
        name: as users know it.
        bridge: name of its node, since a server and its switch share `name`.
        datapath_id: datapath id in OpenFlow.
        ports: interface by port number.
    """

    name: str
    bridge: str
    datapath_id: int
    ports: tuple[Interface, ...]

    @property
    def description(self) -> dict[str, Any]:
        """Entry of the switch in a request to the process that serves switches in eBPF."""
        ports = {end.port: end.name for end in self.ports}
        return {"name": self.bridge, "datapath_id": self.datapath_id, "ports": ports}


@dataclass(frozen=True)
class OcsPlan:
    """Optical circuit switch.

    Attributes:
        region: the region that it serves.
        spec: the switch as the user described it.
        address: management address.
        prefix: length of that address's prefix.
        plugged: input port and interface of each fibre pair.
    """

    region: Region
    spec: Ocs
    address: str
    prefix: int
    plugged: tuple[tuple[int, str], ...]

    @property
    def name(self) -> str:
        """Name of the switch and of its node."""
        return self.spec.name

    @property
    def is_emulated(self) -> bool:
        """False if the fabric's controllers command a real switch in its place."""
        return self.spec.control.address is None


@dataclass(frozen=True)
class FabricPlan:
    """Everything made for a fabric on one machine.

    Attributes:
        servers: names of the servers.
        switches: electrical switches.
        ocses: optical switches.
        links: links with an end here.
        bridge_address: address of the management bridge, with prefix length.
        queue: room of each shaped interface's queue.
        frame_s: wall time in which a large frame passes a link.
    """

    servers: tuple[str, ...]
    switches: tuple[SwitchPlan, ...]
    ocses: tuple[OcsPlan, ...]
    links: tuple[Link, ...]
    bridge_address: str
    queue: QueueLimit | None = None
    frame_s: float = Scale.frame_s

    def with_interfaces(self, names: Mapping[str, ServerInterfaces]) -> "FabricPlan":
        """Return the plan with other names of interfaces, by server."""

        def renamed(end: Interface) -> Interface:
            interfaces = names.get(end.node, ServerInterfaces())
            changed = {HOST_INTERFACE: interfaces.host, MANAGEMENT_INTERFACE: interfaces.management}
            return replace(end, name=changed.get(end.name, end.name))

        links = tuple(replace(link, a=renamed(link.a), b=renamed(link.b)) for link in self.links)
        return replace(self, links=links) if names else self

    @property
    def programmed(self) -> tuple[Link, ...]:
        """Links with a behaviour of their own."""
        return tuple(link for link in self.links if link.behaviour is not None)

    @property
    def shaped(self) -> tuple[tuple[Link, float], ...]:
        """Links whose ends the kernel shapes, with their rates."""
        plain = [link for link in self.links if link.behaviour is None]
        return tuple((link, link.rate_bps) for link in plain if link.rate_bps is not None)

    @property
    def shaped_ends(self) -> tuple[tuple[Link, Interface, float], ...]:
        """Ends of shaped links that can hold packets back, with their rates.

        What leaves an OCS by a port has come from one NIC, which sent it at its own rate. So the
        ports of an OCS whose NICs have one rate need no shaping: packets would never wait there.
        """
        rates = defaultdict[str, set[float]](set)
        for link, rate_bps in self.shaped:
            rates[link.b.node].add(rate_bps)
        light = {ocs.name for ocs in self.ocses if len(rates[ocs.name]) == 1}
        return tuple(
            (link, end, rate_bps)
            for link, rate_bps in self.shaped
            for end in link.ends
            if end.node not in light
        )

    @property
    def further_bridges(self) -> tuple[str, ...]:
        """Bridges of servers that join the first one."""
        names = {end.bridge for link in self.links for end in link.ends}
        return tuple(sorted(names - {"", BRIDGE, SERVER_BRIDGE}))

    @property
    def single_packets(self) -> bool:
        """True if hosts send frames of one packet, because queues of limited room count them."""
        return self.queue is not None or bool(self.programmed)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes with a namespace of their own: servers and OCSes."""
        return self.servers + tuple(ocs.name for ocs in self.ocses)


def bridge_name(switch: str, fabric: Fabric) -> str:
    """Return the bridge and Mininet node of a switch: `sw-s0` for server `s0`, else its name."""
    return f"sw-{switch}" if switch in fabric.server_index else switch


def plan_fabric(fabric: Fabric, management: ManagementNetwork) -> FabricPlan:
    """Plan a fabric.

    Raises:
        FabricError: lists all names and rates that the machine can't have.
    """
    links = (*_host_links(fabric), *_nic_links(fabric), *_uplinks(fabric))
    ports = _switch_ports(links)
    plan = FabricPlan(
        servers=fabric.servers,
        switches=tuple(
            SwitchPlan(
                name=name,
                bridge=bridge_name(name, fabric),
                datapath_id=fabric.openflow.dpid(name),
                ports=tuple(sorted(ports[name], key=lambda end: end.port)),
            )
            for name in fabric.switches
        ),
        ocses=tuple(
            OcsPlan(region, ocs, address, management.network.prefixlen, _plugged(links, ocs))
            for region, ocs, address in _ocses(fabric, management)
        ),
        links=(*links, *_management_links(fabric, management)),
        bridge_address=management.interface_address(management.switches_address),
        queue=fabric.queue,
        frame_s=fabric.scale.frame_s,
    )
    if faults := [*_bad_names(plan), *_bad_rates(plan)]:
        raise FabricError("\n".join(faults))
    return plan


def _ocses(fabric: Fabric, management: ManagementNetwork) -> Iterator[tuple[Region, Ocs, str]]:
    """Yield each region with its OCS and the OCS's management address."""
    for region in fabric.regions:
        if region.ocs and fabric.optical:
            yield region, region.ocs, management.ocs_address(region)


def _host_links(fabric: Fabric) -> Iterator[Link]:
    """Yield the links between servers and their switches.

    Servers of a region are permanent neighbours of each other. Other regions are behind a gateway,
    because the kernel has one neighbour table for all namespaces, with room for 1,024 entries that
    ARP makes (arp(7), gc_thresh3), and permanent entries for all pairs would take too much memory.
    """
    at = fabric.addressing
    entries = {s: [(address, at.mac(s)) for address in at.addresses(s)] for s in fabric.servers}
    for server in fabric.servers:
        first, *further = at.addresses(server)
        region, whole = fabric.region_of[server], at.prefix("*")
        hop = at.gateway(server)
        on_link = at.prefix(region.name) if hop else whole
        host = Interface(
            server,
            HOST_INTERFACE,
            mac=at.mac(server),
            addresses=(f"{first}/{on_link.prefixlen}",),
            further_addresses=tuple(further),
            neighbours=tuple(
                entry for peer in region.servers for entry in entries[peer] if peer != server
            ),
            gateway=Gateway(str(whole), hop, GATEWAY_MAC) if hop else None,
        )
        switch = Interface(FABRIC, f"{server}-host", fabric.openflow.ports(server)["host"])
        yield Link(f"{server}/host", host, switch, fabric.mtu)


def _nic_links(fabric: Fabric) -> Iterator[Link]:
    for server in fabric.servers:
        rate_bps = fabric.scale.rate_bps(fabric.rate_bps(server))
        ports = fabric.openflow.ports(server)
        for nic in fabric.nics(server):
            near = Interface(FABRIC, f"{server}-{nic.path}", ports[str(nic)])
            is_optical = nic.kind is NicKind.OPTICAL
            far = _ocs_end(fabric, nic) if is_optical else _leaf_end(fabric, nic)
            place = None if is_optical else LinkPlace.NICS
            behaviour = _behaviour(fabric, place, rate_bps)
            yield Link(str(nic), near, far, fabric.mtu, rate_bps, behaviour)


def _behaviour(fabric: Fabric, place: LinkPlace | None, rate_bps: float) -> LinkBehaviour | None:
    """Return the behaviour of a link at this place; None for a plain veth pair."""
    link = fabric.eps.link if fabric.eps is not None else None
    if link is None or link.place is not place:
        return None
    return link.emulated(rate_bps, fabric.scale)


def _ocs_end(fabric: Fabric, nic: Nic) -> Interface:
    """Return the far end of an optical NIC: a port of its region's OCS."""
    ocs, port = fabric.region_of[nic.server].ocs, ocs_port(fabric, nic)
    if ocs is None or port > ocs.ports:
        raise FabricError(f"{nic}: there is no OCS port {port} for it in its region")
    return Interface(ocs.name, f"{ocs.name}-p{port}", port)


def _leaf_end(fabric: Fabric, nic: Nic) -> Interface:
    """Return the far end of an electrical NIC: a port of its leaf."""
    if not fabric.leaves:
        raise FabricError(f"{nic}: there is no EPS for it")
    leaf = fabric.eps_wiring.leaf_of_nic(nic)
    port = fabric.openflow.ports(leaf)[str(nic)]
    return Interface(FABRIC, f"{leaf}-p{port}", port)


def _plugged(links: Iterable[Link], ocs: Ocs) -> tuple[tuple[int, str], ...]:
    """Return input port and interface of each fibre pair of an OCS."""
    return tuple((link.b.port, link.b.name) for link in links if link.b.node == ocs.name)


def _uplinks(fabric: Fabric) -> Iterator[Link]:
    rate_bps = fabric.scale.rate_bps(uplink_rate_bps(fabric))
    for leaf, spine in fabric.eps_wiring.uplinks:
        up, down = fabric.openflow.ports(leaf)[spine], fabric.openflow.ports(spine)[leaf]
        ends = Interface(FABRIC, f"{leaf}-p{up}", up), Interface(FABRIC, f"{spine}-p{down}", down)
        behaviour = _behaviour(fabric, LinkPlace.UPLINKS, rate_bps)
        yield Link(uplink_name(leaf, spine), *ends, fabric.mtu, rate_bps, behaviour)


def _management_links(fabric: Fabric, management: ManagementNetwork) -> Iterator[Link]:
    addresses = {server: management.server_address(fabric, server) for server in fabric.servers}
    addresses |= {ocs.name: address for _, ocs, address in _ocses(fabric, management)}
    for node, address in addresses.items():
        subnet_address = management.interface_address(address)
        inside = Interface(node, MANAGEMENT_INTERFACE, addresses=(subnet_address,))
        bridge = BRIDGE
        if (number := fabric.server_index.get(node)) is not None:
            bridge = f"{SERVER_BRIDGE}{number // _BRIDGE_SERVERS or ''}"
        outside = Interface(FABRIC, f"{node}-mgmt", bridge=bridge)
        yield Link(f"{node}/management", inside, outside, 1500)


def _switch_ports(links: tuple[Link, ...]) -> dict[str, list[Interface]]:
    """Return the interfaces by switch; an interface's name starts with its switch's name."""
    ports = defaultdict[str, list[Interface]](list)
    for link in links:
        for end in link.ends:
            if end.node == FABRIC and end.port:
                ports[end.name.rpartition("-")[0]].append(end)
    return ports


def _bad_names(plan: FabricPlan) -> Iterator[str]:
    names = [(end.node, end.name) for link in plan.links for end in link.ends]
    names += [(FABRIC, switch.bridge) for switch in plan.switches]
    names += [(FABRIC, bridge) for bridge in (BRIDGE, SERVER_BRIDGE, *plan.further_bridges)]
    for (_, name), count in Counter(names).items():
        if len(name) > _IFNAMSIZ:
            yield (
                f"{name}: Linux has interface names of {_IFNAMSIZ} letters at most; "
                "shorten the server's or OCS's name"
            )
        if count > 1:
            yield f"{name}: {count} interfaces of one namespace have this name"


def _bad_rates(plan: FabricPlan) -> Iterator[str]:
    for link in plan.links:
        if link.rate_bps is not None and (reason := shaping.rate_refusal(link.rate_bps)):
            yield f"{link.name}: {reason}"
