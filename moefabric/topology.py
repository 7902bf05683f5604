"""Topology: what is wired. Servers, their NICs, regions, OCSes and the EPS, with every name, address and port number.

All of it is a function of a `Fabric`, so that the emulator, the controllers and the agents agree without asking each other.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from ipaddress import IPv4Network
from itertools import product
from math import ceil
from typing import Final, Self

from moefabric.ocs_control import OcsControl
from moefabric.ocs_profile import Profile

HOST_PORT: Final = 1
"""OpenFlow port of a server switch that its host is plugged into."""

_DPID_LEAF: Final = 0x10000
_DPID_SPINE: Final = 0x20000
_DSCP_OPTICAL: Final = 1
_DSCP_ELECTRICAL: Final = 17


class Kind(StrEnum):
    """What a NIC ends on."""

    OPTICAL = "optical"
    ELECTRICAL = "electrical"


@dataclass(frozen=True, order=True)
class Nic:
    """A server's network interface: `s0/o1` ends on the region's OCS, `s0/e0` on the EPS."""

    server: str
    kind: Kind
    index: int

    def __str__(self) -> str:
        return f"{self.server}/{self.path}"

    @property
    def path(self) -> str:
        """The NIC within its server, `o1` or `e0`: also the name of the path that leaves by it."""
        return f"{self.kind.value[0]}{self.index}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The NIC that `s0/o1` names. ValueError where it names none."""
        server, _, path = text.partition("/")
        kinds = {"o": Kind.OPTICAL, "e": Kind.ELECTRICAL}
        if not server or path[:1] not in kinds or not path[1:].isdecimal():
            raise ValueError(f"{text!r} is not a NIC such as s0/o1 or s0/e0")
        return cls(server, kinds[path[0]], int(path[1:]))


def dscp(path: str) -> int:
    """The DSCP that a sender marks a flow with so that it leaves by NIC `path` (`o1`, `e0`)."""
    base = _DSCP_OPTICAL if path[0] == "o" else _DSCP_ELECTRICAL
    return base + int(path[1:])


@dataclass(frozen=True)
class Ocs:
    """An optical circuit switch: `ports` inputs and as many outputs, the time until a moved port is lit again."""

    name: str
    ports: int
    settle_ns: int = 0
    link_up_ns: int = 0
    link_down: bool = False
    """Whether a NIC's link is down while it has no light, and until `link_up_ns` after that is back."""
    profile: Profile = field(default_factory=Profile)
    """What the device is besides; its settle time counts here, and its ports don't."""
    control: OcsControl = field(default_factory=OcsControl)
    """How its controller reaches it, and how much that trusts it."""


@dataclass(frozen=True)
class Region:
    """Servers that share an OCS. No circuit leaves it."""

    name: str
    index: int
    servers: tuple[str, ...]
    ocs: Ocs | None
    backup: bool = False
    """Whether its servers do nothing until they stand in for others; then they have no light."""


class EpsKind(StrEnum):
    """Which NICs share a leaf of the EPS."""

    LEAF_SPINE = "leaf-spine"
    """All NICs of a server end on one leaf; 1:1 it stands for a fat tree."""
    RAIL = "rail"
    """The NICs of one number do, of all servers of a pod: rail-optimised."""


@dataclass(frozen=True)
class Eps:
    """The electrical packet switches: leaves that hold NICs of `servers_per_leaf` servers, joined by spines where not all meet at a leaf.

    A leaf of a leaf-spine holds all NICs of its servers. Rails have a leaf for each NIC of a server, and `servers_per_leaf` servers are a pod.
    """

    servers_per_leaf: int
    spines: int = 0
    oversubscription: float = 1.0
    kind: EpsKind = EpsKind.LEAF_SPINE


@dataclass(frozen=True)
class Scale:
    """How the model's rates, bytes and times become the emulation's.

    Byte scaling divides rates and bytes by `bytes`, so times stay; dilation multiplies times by `dilation` (and divides rates again).
    """

    bytes: float = 1.0
    dilation: float = 1.0

    def rate_bps(self, model_bps: float) -> float:
        """The emulated rate of a link that runs at `model_bps` in the model."""
        return model_bps / (self.bytes * self.dilation)

    def size_bytes(self, model_bytes: float) -> int:
        """The bytes that are really sent for `model_bytes`; at least one where there is any."""
        return max(1, round(model_bytes / self.bytes)) if model_bytes > 0 else 0

    def wall_ns(self, model_ns: float) -> int:
        """How long `model_ns` of the model's time lasts on the emulation's clock."""
        return round(model_ns * self.dilation)


@dataclass(frozen=True)
class Fabric:
    """What is wired once and lit many times."""

    name: str
    regions: tuple[Region, ...]
    gpus: int
    optical: int
    electrical: int
    nic_rate_bps: float
    eps: Eps | None
    scale: Scale = field(default_factory=Scale)
    mtu: int = 1500
    panel: bool = False
    """Whether the optical NICs end on a flat patch panel: laid once, before the job, and servers forward for pairs without a circuit."""
    out: frozenset[Nic] = frozenset()
    """NICs that carry nothing. They are wired all the same: no name, port or address changes with them."""

    @cached_property
    def servers(self) -> tuple[str, ...]:
        """All servers, in order."""
        return tuple(server for region in self.regions for server in region.servers)

    @cached_property
    def working(self) -> tuple[str, ...]:
        """The servers that a job starts on: all but the backup ones."""
        return tuple(server for region in self.regions if not region.backup for server in region.servers)

    @cached_property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The servers that a job starts on, by region."""
        return {region.name: region.servers for region in self.regions if not region.backup}

    @cached_property
    def backups(self) -> tuple[str, ...]:
        """The servers that wait to stand in for others."""
        return tuple(server for region in self.regions if region.backup for server in region.servers)

    @cached_property
    def index(self) -> dict[str, int]:
        """A server's position among all servers."""
        return {server: position for position, server in enumerate(self.servers)}

    @cached_property
    def region_of(self) -> dict[str, Region]:
        """The region a server is in."""
        return {server: region for region in self.regions for server in region.servers}

    def nics(self, server: str) -> tuple[Nic, ...]:
        """A server's NICs, optical ones first."""
        return self.optical_nics(server) + self.electrical_nics(server)

    def optical_nics(self, server: str) -> tuple[Nic, ...]:
        """A server's NICs that end on the OCS; none where its region has no OCS."""
        return self._lights[server]

    @cached_property
    def _lights(self) -> dict[str, tuple[Nic, ...]]:
        return {
            server: self._nics(server, Kind.OPTICAL, self.optical if region.ocs else 0)
            for server, region in self.region_of.items()
        }

    def electrical_nics(self, server: str) -> tuple[Nic, ...]:
        """A server's NICs that end on the EPS."""
        return self._wires[server]

    def without(self, nics: Iterable[Nic]) -> "Fabric":
        """The same fabric when these NICs carry nothing either."""
        gone = self.out | frozenset(nics)
        return self if gone == self.out else replace(self, out=gone)

    def usable(self, nics: Iterable[Nic]) -> tuple[Nic, ...]:
        """Those of the NICs that carry anything."""
        return tuple(nic for nic in nics if nic not in self.out)

    def usable_optical(self, server: str) -> tuple[Nic, ...]:
        """A server's optical NICs that carry anything."""
        return self.usable(self.optical_nics(server))

    def usable_electrical(self, server: str) -> tuple[Nic, ...]:
        """A server's electrical NICs that carry anything."""
        return self.usable(self.electrical_nics(server))

    @cached_property
    def _wires(self) -> dict[str, tuple[Nic, ...]]:
        return {server: self._nics(server, Kind.ELECTRICAL, self.electrical) for server in self.servers}

    @staticmethod
    def _nics(server: str, kind: Kind, count: int) -> tuple[Nic, ...]:
        return tuple(Nic(server, kind, i) for i in range(count))

    # --- addresses -------------------------------------------------------------------------------------------------

    def prefix(self, place: str) -> IPv4Network:
        """The addresses of a server (`s0`, a /24), a region (`r0`, a /16) or the fabric (`*`, a /8)."""
        return self._prefixes[place]

    @cached_property
    def _prefixes(self) -> dict[str, IPv4Network]:
        found = {"*": IPv4Network("10.0.0.0/8")}
        for region in self.regions:
            found[region.name] = IPv4Network(f"10.{region.index}.0.0/16")
            for position, server in enumerate(region.servers):
                found[server] = IPv4Network(f"10.{region.index}.{position}.0/24")
        return found

    def addresses(self, server: str) -> tuple[str, ...]:
        """One address a GPU: `10.<region>.<server in region>.<gpu+1>`."""
        return self._addresses[server]

    @cached_property
    def _addresses(self) -> dict[str, tuple[str, ...]]:
        return {
            server: tuple(f"10.{region.index}.{position}.{gpu + 1}" for gpu in range(self.gpus))
            for region in self.regions
            for position, server in enumerate(region.servers)
        }

    def mac(self, server: str) -> str:
        """The one MAC address of a server's host."""
        return self._macs[server]

    @cached_property
    def _macs(self) -> dict[str, str]:
        octets = {server: self.prefix(server).network_address.packed for server in self.servers}
        return {
            server: "02:00:" + ":".join(f"{octet:02x}" for octet in packed[:3]) + ":01"
            for server, packed in octets.items()
        }

    # --- optics ----------------------------------------------------------------------------------------------------

    def ocs_port(self, nic: Nic) -> int:
        """The OCS input (1-based) that an optical NIC's transmit fibre is plugged into; its output is `ocs.ports` further."""
        region = self.region_of[nic.server]
        return region.servers.index(nic.server) * self.optical + nic.index + 1

    def nic_at(self, region: Region, port: int) -> Nic:
        """The optical NIC behind input `port` of a region's OCS."""
        position, index = divmod(port - 1, self.optical)
        return Nic(region.servers[position], Kind.OPTICAL, index)

    # --- packet switches -------------------------------------------------------------------------------------------

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """Leaf switches of the EPS."""
        if self.eps is None or not self.electrical:
            return ()
        return tuple(f"leaf{i}" for i in range(self._pods * self._leaves_a_pod))

    @cached_property
    def _pods(self) -> int:
        """Groups of servers whose NICs of one number share a leaf."""
        return ceil(len(self.servers) / self.eps.servers_per_leaf) if self.eps else 0

    @property
    def rails(self) -> bool:
        """Whether the NICs of one number share a leaf, rather than those of a server."""
        return self.eps is not None and self.eps.kind is EpsKind.RAIL

    @property
    def _leaves_a_pod(self) -> int:
        return self.electrical if self.rails else 1

    @cached_property
    def spines(self) -> tuple[str, ...]:
        """Spine switches of the EPS; none where every leaf holds every server."""
        if self.eps is None or not self.electrical or self._pods < 2:
            return ()
        most = self.eps.servers_per_leaf if self.rails else self.electrical
        return tuple(f"spine{i}" for i in range(self.eps.spines or min(2, most)))

    @property
    def switches(self) -> tuple[str, ...]:
        """Every OpenFlow datapath: server switches (named like their servers), leaves, spines."""
        return self.servers + self.leaves + self.spines

    def leaf_of(self, server: str) -> str:
        """The leaf that a server's electrical NICs end on; on rails, the first one."""
        return self._leaf_of[server]

    @cached_property
    def _leaf_of(self) -> dict[str, str]:
        assert self.eps is not None
        each, width = self._leaves_a_pod, self.eps.servers_per_leaf
        return {server: self.leaves[i // width * each] for server, i in self.index.items()}

    def leaf_of_nic(self, nic: Nic) -> str:
        """The leaf that an electrical NIC ends on."""
        return self._leaf_of_nic[nic]

    @cached_property
    def _leaf_of_nic(self) -> dict[Nic, str]:
        return {nic: leaf for leaf in self.leaves for nic in self.nics_under(leaf)}

    def under(self, leaf: str) -> tuple[str, ...]:
        """The servers of which an electrical NIC ends on `leaf`."""
        assert self.eps is not None
        first = self.leaves.index(leaf) // self._leaves_a_pod * self.eps.servers_per_leaf
        return self.servers[first : first + self.eps.servers_per_leaf]

    def nics_under(self, leaf: str) -> tuple[Nic, ...]:
        """The electrical NICs that end on `leaf`."""
        number = self.leaves.index(leaf) % self._leaves_a_pod
        wires = (self.electrical_nics(server) for server in self.under(leaf))
        return tuple(nic for nics in wires for nic in (nics[number : number + 1] if self.rails else nics))

    @property
    def uplinks(self) -> Iterator[tuple[str, str]]:
        """Links between leaves and spines."""
        return iter(tuple(product(self.leaves, self.spines)))

    @property
    def uplink_rate_bps(self) -> float:
        """Rate of one leaf-spine link in the model, so that a leaf's uplinks carry its NICs / oversubscription."""
        if self.eps is None or not self.spines:
            return 0.0
        nics = self.eps.servers_per_leaf * (1 if self.rails else self.electrical)
        return nics * self.nic_rate_bps / self.eps.oversubscription / len(self.spines)

    def dpid(self, switch: str) -> int:
        """OpenFlow datapath id of a switch."""
        if switch in self.index:
            return self.index[switch] + 1
        if switch.startswith("leaf"):
            return _DPID_LEAF + int(switch.removeprefix("leaf"))
        return _DPID_SPINE + int(switch.removeprefix("spine"))

    def ports(self, switch: str) -> dict[str, int]:
        """A switch's ports: what is plugged in (`host`, a NIC `s0/o1`, a switch `spine0`) and its OpenFlow port number."""
        if switch in self.index:
            names = ["host", *map(str, self.nics(switch))]
        elif switch in self.leaves:
            names = [*map(str, self.nics_under(switch)), *self.spines]
        else:
            names = list(self.leaves)
        return {name: number for number, name in enumerate(names, start=HOST_PORT)}
