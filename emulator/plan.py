"""Plan: every node, link, interface, rate and address of a fabric as data, before anything is made."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from emulator import shaping
from moefabric.errors import FabricError
from moefabric.management import Management
from moefabric.ocs_profile import Profile
from moefabric.topology import Fabric, Kind, Nic, Region

FABRIC: Final = ""
"""The node that is the fabric's own namespace: its switches and bridges are there."""
BRIDGE: Final = "management"
HOST_INTERFACE: Final = "eth0"
MANAGEMENT_INTERFACE: Final = "mgmt0"
_IFNAMSIZ: Final = 15
_BRIDGE_NUMBER: Final = 254


@dataclass(frozen=True)
class Interface:
    """One end of a link: where it is, what it is called, its OpenFlow or OCS port number, its addresses with prefix length.

    `neighbours` are the addresses and MACs of others that it knows from the start.
    """

    node: str
    name: str
    port: int = 0
    mac: str = ""
    addresses: tuple[str, ...] = ()
    neighbours: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Link:
    """A veth pair. `rate_bps` is the emulated rate that both ends are shaped to; None is unshaped."""

    name: str
    a: Interface
    b: Interface
    mtu: int
    rate_bps: float | None = None

    @property
    def ends(self) -> tuple[Interface, Interface]:
        """Both ends."""
        return self.a, self.b


@dataclass(frozen=True)
class SwitchPlan:
    """An OpenFlow switch. `name` is the vocabulary's; `bridge` is the node's, which a server's switch may not share with its host."""

    name: str
    bridge: str
    datapath_id: int
    controller: tuple[str, int]
    ports: tuple[Interface, ...]


@dataclass(frozen=True)
class OcsPlan:
    """An optical circuit switch: `plugged` maps an input to the interface that its fibre pair ends on."""

    region: Region
    name: str
    ports: int
    settle_ns: int
    link_up_ns: int
    address: str
    plugged: tuple[tuple[int, str], ...]
    link_down: bool = False
    profile: Profile = field(default_factory=Profile)


@dataclass(frozen=True)
class Plan:
    """All that is made for a fabric."""

    servers: tuple[str, ...]
    switches: tuple[SwitchPlan, ...]
    ocses: tuple[OcsPlan, ...]
    links: tuple[Link, ...]
    bridge_address: str

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes with a namespace of their own: servers, OCSes."""
        return self.servers + tuple(ocs.name for ocs in self.ocses)

    def interfaces(self, node: str) -> tuple[Interface, ...]:
        """The interfaces of a node, in the order of the links."""
        return tuple(end for link in self.links for end in link.ends if end.node == node)


def bridge(switch: str, fabric: Fabric) -> str:
    """The bridge (and Mininet node) that is a switch: `sw-s0` for server `s0`'s, else the switch's own name."""
    return f"sw-{switch}" if switch in fabric.index else switch


def plan(fabric: Fabric, management: Management) -> Plan:
    """What is made for this fabric. FabricError for names or rates that the machine can't have; all of them at once."""
    links = (
        *_host_links(fabric),
        *_nic_links(fabric),
        *_uplinks(fabric),
        *_management_links(fabric, management),
    )
    ports = _switch_ports(links)
    made = Plan(
        servers=fabric.servers,
        switches=tuple(_switch(fabric, management, name, ports.get(name, [])) for name in fabric.switches),
        ocses=tuple(
            _ocs(fabric, management, region) for region in fabric.regions if region.ocs and fabric.optical
        ),
        links=links,
        bridge_address=f"{management.address(_BRIDGE_NUMBER)}/24",
    )
    if faults := [*_bad_names(made), *_bad_rates(made)]:
        raise FabricError("\n".join(faults))
    return made


def _host_links(fabric: Fabric) -> Iterator[Link]:
    """A server and its switch. It knows its region from the start: all together would overflow the machine's one table of neighbours."""
    known_by = {
        server: [(address, fabric.mac(server)) for address in fabric.addresses(server)]
        for server in fabric.servers
    }
    for server in fabric.servers:
        host = Interface(
            server,
            HOST_INTERFACE,
            mac=fabric.mac(server),
            addresses=tuple(f"{a}/8" for a in fabric.addresses(server)),
            neighbours=tuple(
                known
                for peer in fabric.region_of[server].servers
                for known in known_by[peer]
                if peer != server
            ),
        )
        switch = Interface(FABRIC, f"{server}-host", fabric.ports(server)["host"])
        yield Link(f"{server}/host", host, switch, fabric.mtu)


def _nic_links(fabric: Fabric) -> Iterator[Link]:
    rate = fabric.scale.rate_bps(fabric.nic_rate_bps)
    for server in fabric.servers:
        for nic in fabric.nics(server):
            near = Interface(FABRIC, f"{server}-{nic.path}", fabric.ports(server)[str(nic)])
            far = _fibre(fabric, nic) if nic.kind is Kind.OPTICAL else _copper(fabric, nic)
            yield Link(str(nic), near, far, fabric.mtu, rate)


def _fibre(fabric: Fabric, nic: Nic) -> Interface:
    """The far end of an optical NIC: a port of its region's OCS."""
    ocs, port = fabric.region_of[nic.server].ocs, fabric.ocs_port(nic)
    if ocs is None or port > ocs.ports:
        raise FabricError(f"{nic}: there is no OCS port {port} for it in its region")
    return Interface(ocs.name, f"{ocs.name}-p{port}", port)


def _copper(fabric: Fabric, nic: Nic) -> Interface:
    """The far end of an electrical NIC: a port of its leaf."""
    if not fabric.leaves:
        raise FabricError(f"{nic}: there is no EPS for it")
    leaf = fabric.leaf_of_nic(nic)
    port = fabric.ports(leaf)[str(nic)]
    return Interface(FABRIC, f"{leaf}-p{port}", port)


def _uplinks(fabric: Fabric) -> Iterator[Link]:
    rate = fabric.scale.rate_bps(fabric.uplink_rate_bps)
    for leaf, spine in fabric.uplinks:
        up, down = fabric.ports(leaf)[spine], fabric.ports(spine)[leaf]
        ends = Interface(FABRIC, f"{leaf}-p{up}", up), Interface(FABRIC, f"{spine}-p{down}", down)
        yield Link(f"{leaf}~{spine}", *ends, fabric.mtu, rate)


def _management_links(fabric: Fabric, management: Management) -> Iterator[Link]:
    addresses = {server: management.server(fabric, server) for server in fabric.servers}
    addresses |= {
        region.ocs.name: management.ocs(region) for region in fabric.regions if region.ocs and fabric.optical
    }
    for node, address in addresses.items():
        inside = Interface(node, MANAGEMENT_INTERFACE, addresses=(f"{address}/24",))
        yield Link(f"{node}/management", inside, Interface(FABRIC, f"{node}-mgmt"), 1500)


def _switch_ports(links: tuple[Link, ...]) -> dict[str, list[Interface]]:
    """The interfaces of each switch, which are called `SWITCH-...`."""
    found: dict[str, list[Interface]] = {}
    for link in links:
        for end in link.ends:
            if end.node == FABRIC and end.port:
                found.setdefault(end.name.rpartition("-")[0], []).append(end)
    return found


def _switch(fabric: Fabric, management: Management, name: str, ports: list[Interface]) -> SwitchPlan:
    return SwitchPlan(
        name=name,
        bridge=bridge(name, fabric),
        datapath_id=fabric.dpid(name),
        controller=management.openflow(fabric.region_of.get(name)),
        ports=tuple(sorted(ports, key=lambda end: end.port)),
    )


def _ocs(fabric: Fabric, management: Management, region: Region) -> OcsPlan:
    assert region.ocs is not None
    nics = [nic for server in region.servers for nic in fabric.optical_nics(server)]
    return OcsPlan(
        region=region,
        name=region.ocs.name,
        ports=region.ocs.ports,
        settle_ns=region.ocs.settle_ns,
        link_up_ns=region.ocs.link_up_ns,
        address=management.ocs(region),
        plugged=tuple((end.port, end.name) for end in (_fibre(fabric, nic) for nic in nics)),
        link_down=region.ocs.link_down,
        profile=region.ocs.profile,
    )


def _bad_names(made: Plan) -> Iterator[str]:
    names = [(end.node, end.name) for link in made.links for end in link.ends]
    names += [(FABRIC, switch.bridge) for switch in made.switches] + [(FABRIC, BRIDGE)]
    for (_, name), times in Counter(names).items():
        if len(name) > _IFNAMSIZ:
            yield f"{name}: Linux has interface names of {_IFNAMSIZ} letters at most; shorten the server's or OCS's name"
        if times > 1:
            yield f"{name}: {times} interfaces of one namespace have this name"


def _bad_rates(made: Plan) -> Iterator[str]:
    for link in made.links:
        if link.rate_bps is not None and (why := shaping.refusal(link.rate_bps)):
            yield f"{link.name}: {why}"
