"""A fabric as the user writes it: servers, NICs, regions with their OCS, the EPS and the scale."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from moefabric import topology
from moefabric.ocs_control import Driver, Mode, OcsControl, Verification
from moefabric.ocs_profile import Profile
from moefabric.spec.ocs_profile import OcsProfile
from moefabric.spec.part import Fault, Part, Whole, known
from moefabric.spec.quantities import DurationNs, Rate
from moefabric.units import rate_text

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
"""Lower-case letters, digits and dashes: names become those of namespaces, folders and links."""

SLOWEST_BPS: Final = 200e3
FASTEST_BPS: Final = 20e9
"""Emulated link rates that HTB shapes faithfully here: a full frame within 60 ms, and less than a core moves."""
_MOST_SERVERS: Final = 160
_MOST_REGIONS: Final = 60


class OcsSpec(Part):
    """An OCS: ports (inputs and as many outputs), time until a moved port has light, time until the link is up after that.

    What isn't given is the profile's. `link_down`: whether the server switch sees its port down without light and until the link is up.
    `driver` to `verify` are the controller's (see `OcsControl`): how it reaches the switch, and what it has to see before traffic relies on light.
    """

    ports: int | None = Field(default=None, ge=2, le=4096)
    profile: OcsProfile = Profile()
    settle: DurationNs | None = None
    link_up: DurationNs = 0
    link_down: bool = False
    startup: Literal["preserve", "volatile"] | None = None
    driver: Literal["scpi", "tl1", "restconf"] = "scpi"
    address: str | None = Field(default=None, min_length=1)
    port: int | None = Field(default=None, ge=1, le=65535)
    user: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+$")] | None = None
    password_env: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    mode: Literal["safe", "update", "overwrite"] = "overwrite"
    verify: Literal["light", "read-back"] = "light"

    def made(self, name: str, needed: int, scale: topology.Scale) -> topology.Ocs:
        """The OCS that this describes, for a region that needs so many ports."""
        settle = self.profile.settle.fixed_ns if self.settle is None else self.settle
        profile = replace(self.profile, startup=self.startup or self.profile.startup)
        return topology.Ocs(
            name=name,
            ports=self.ports or profile.ports or needed,
            settle_ns=scale.wall_ns(settle),
            link_up_ns=scale.wall_ns(self.link_up),
            link_down=self.link_down,
            profile=profile.scaled(scale.dilation),
            control=self._control(),
        )

    def _control(self) -> OcsControl:
        return OcsControl(
            driver=Driver(self.driver),
            address=self.address,
            port=self.port,
            user=self.user,
            password_env=self.password_env,
            mode=Mode(self.mode),
            verify=Verification(self.verify),
        )


class RegionSpec(Part):
    """Servers that share an OCS; `count` such regions, one after the other."""

    count: int = Field(default=1, ge=1, le=_MOST_REGIONS)
    servers: int = Field(ge=2, le=_MOST_SERVERS)
    ocs: OcsSpec = OcsSpec()


class BackupSpec(Part):
    """Servers that stand in for lost ones, and whose GPUs do for lost ones; joined to the EPS alone."""

    servers: int = Field(ge=1, le=_MOST_SERVERS)


class EpsSpec(Part):
    """Which NICs share a leaf, servers on a leaf (all, where not given), spines, and how much less a leaf's uplinks carry than its NICs.

    `leaf-spine`: all NICs of a server on one leaf. `rail`: a leaf for each NIC of a server, those of the same number together, and
    `servers_per_leaf` servers a pod.
    """

    kind: Literal["leaf-spine", "rail"] = "leaf-spine"
    servers_per_leaf: int | None = Field(default=None, ge=1)
    spines: int | None = Field(default=None, ge=1, le=16)
    oversubscription: float = Field(default=1.0, ge=1.0, le=64.0)

    def made(self, servers: int) -> topology.Eps:
        """The EPS that this describes, for so many servers."""
        width = self.servers_per_leaf or servers
        return topology.Eps(width, self.spines or 0, self.oversubscription, topology.EpsKind(self.kind))


class NicsSpec(Part):
    """A server's NICs: optical ones on the OCS, electrical ones on the EPS; or all of them on a flat patch panel."""

    optical: int = Field(default=0, ge=0, le=16)
    electrical: int = Field(default=0, ge=0, le=16)
    patched: int = Field(default=0, ge=0, le=16)

    @property
    def lit(self) -> int:
        """Those that end circuits."""
        return self.optical or self.patched


class ScaleSpec(Part):
    """Byte scaling and dilation (see `Scale`)."""

    bytes: float = Field(default=1.0, ge=1.0)
    dilation: float = Field(default=1.0, ge=1.0)


class WiringSpec(Part):
    """What all fabrics of an experiment share."""

    gpus_per_server: int = Field(default=8, ge=1, le=250)
    nic_rate: Rate
    mtu: int = Field(default=1500, ge=576, le=9000)
    regions: list[RegionSpec] = Field(min_length=1, max_length=_MOST_REGIONS)
    eps: EpsSpec = EpsSpec()
    backup: BackupSpec | None = None
    switch: Literal["auto", "bpf", "ovs"] = "auto"

    @property
    def servers(self) -> int:
        """Servers in all regions."""
        return sum(region.count * region.servers for region in self.regions)

    @property
    def backups(self) -> int:
        """Servers that stand by."""
        return self.backup.servers if self.backup is not None else 0

    @property
    def each_region(self) -> tuple[RegionSpec, ...]:
        """Every region by itself, in order."""
        return tuple(region for region in self.regions for _ in range(region.count))


class FabricSpec(WiringSpec, Whole):
    """A fabric file."""

    fabric: Name
    nics: NicsSpec
    scale: ScaleSpec

    def faults(self) -> Iterator[Fault]:
        """What single values can't tell, as far as they are known."""
        yield from known(
            size_faults(self, ""), self._nic_faults(), self._joining_faults(), self._rate_faults()
        )

    def _nic_faults(self) -> Iterator[Fault]:
        yield from nic_faults(self.nics, "nics")

    def _joining_faults(self) -> Iterator[Fault]:
        yield from joining_faults(self, self.nics, "nics", "")
        yield from eps_faults(self, self.nics, self.eps, "eps")

    def _rate_faults(self) -> Iterator[Fault]:
        yield from rate_faults(self, topology.Scale(self.scale.bytes, self.scale.dilation), "nic_rate")

    def wired(self) -> topology.Fabric:
        """The fabric that this describes."""
        scale = topology.Scale(self.scale.bytes, self.scale.dilation)
        return wired(self, self.fabric, self.nics, scale, self.eps)


def size_faults(spec: WiringSpec, place: str) -> Iterator[Fault]:
    """More regions or servers than there are addresses."""
    yield from known(_region_faults(spec, place), _server_faults(spec, place))


def _region_faults(spec: WiringSpec, place: str) -> Iterator[Fault]:
    if (regions := sum(region.count for region in spec.regions)) > _MOST_REGIONS:
        yield (
            f"{place}regions",
            f"{regions} regions are more than the {_MOST_REGIONS} that one fabric can have",
        )


def _server_faults(spec: WiringSpec, place: str) -> Iterator[Fault]:
    if (servers := spec.servers + spec.backups) > _MOST_SERVERS:
        yield (
            f"{place}regions",
            f"{servers} servers are more than the {_MOST_SERVERS} that one fabric can have",
        )


def nic_faults(nics: NicsSpec, place: str) -> Iterator[Fault]:
    """Servers that reach nobody."""
    if nics.patched and nics.optical + nics.electrical:
        yield place, "a flat patch panel has all NICs: patched goes without optical and electrical"
    elif nics.patched == 1:
        yield place, "one patched NIC joins pairs of servers and no more: give each server two or more"
    elif nics.optical + nics.electrical + nics.patched == 0:
        yield place, "a server without any NIC reaches nobody"


def joining_faults(spec: WiringSpec, nics: NicsSpec, nics_place: str, wiring_place: str) -> Iterator[Fault]:
    """NICs that find no port, and regions or backup servers that nothing joins."""
    if spec.backups and not nics.electrical:
        yield nics_place, "backup servers are joined by the EPS only: give each server an electrical NIC"
    if sum(region.count for region in spec.regions) > 1 and not nics.electrical:
        if nics.patched:
            yield nics_place, "a patch panel joins the servers of one region: several need an EPS"
        else:
            yield nics_place, "regions are joined by the EPS only: give each server an electrical NIC"
    for number, region in enumerate(spec.regions):
        yield from known(_port_faults(region, nics.optical, f"{wiring_place}regions[{number}].ocs.ports"))


def eps_faults(spec: WiringSpec, nics: NicsSpec, eps: EpsSpec, place: str) -> Iterator[Fault]:
    """An oversubscription that nothing feels."""
    servers = spec.servers + spec.backups
    one_leaf = (eps.servers_per_leaf or servers) >= servers
    if not nics.electrical or eps.oversubscription == 1 or not one_leaf:
        return
    meets = "every leaf of a rail" if eps.kind == "rail" else "one leaf"
    said = f"{meets} has NICs of all {servers} servers, so that nothing is oversubscribed"
    yield f"{place}.oversubscription", f"{said}: give {place}.servers_per_leaf, less than {servers}"


def _port_faults(region: RegionSpec, optical: int, place: str) -> Iterator[Fault]:
    ports, needed = region.ocs.ports or region.ocs.profile.ports, region.servers * optical
    if ports is not None and needed > ports:
        yield place, f"{region.servers} servers of {optical} optical NICs need {needed} ports, {ports} given"


def rate_faults(spec: WiringSpec, scale: topology.Scale, place: str) -> Iterator[Fault]:
    """A rate that this emulation can't shape."""
    emulated = scale.rate_bps(spec.nic_rate)
    if SLOWEST_BPS <= emulated <= FASTEST_BPS:
        return
    said = f"{rate_text(spec.nic_rate)} at scale {scale.bytes:g} x {scale.dilation:g} is {rate_text(emulated)} on the wire"
    yield (
        place,
        f"{said}; links are shaped between {rate_text(SLOWEST_BPS)} and {rate_text(FASTEST_BPS)}: change scale.bytes",
    )


def wired(
    spec: WiringSpec, name: str, nics: NicsSpec, scale: topology.Scale, eps: EpsSpec
) -> topology.Fabric:
    """The fabric that a wiring makes with these NICs and packet switches."""
    regions, first = [], 0
    for index, region in enumerate(spec.each_region):
        servers = tuple(f"s{first + i}" for i in range(region.servers))
        first += region.servers
        ocs = _ocs(region, index, nics, scale)
        regions.append(topology.Region(f"r{index}", index, servers, ocs))
    if spec.backups:
        waiting = tuple(f"s{first + i}" for i in range(spec.backups))
        regions.append(topology.Region("backup", len(regions), waiting, None, backup=True))
    return topology.Fabric(
        name=name,
        regions=tuple(regions),
        gpus=spec.gpus_per_server,
        optical=nics.lit,
        electrical=nics.electrical,
        nic_rate_bps=spec.nic_rate,
        eps=eps.made(spec.servers + spec.backups) if nics.electrical else None,
        scale=scale,
        mtu=spec.mtu,
        panel=nics.patched > 0,
    )


def _ocs(region: RegionSpec, index: int, nics: NicsSpec, scale: topology.Scale) -> topology.Ocs | None:
    """A region's OCS; a patch panel is one that has as many ports as it needs, and whose light has settled before the job begins."""
    if nics.patched:
        return topology.Ocs(f"ocs{index}", region.servers * nics.patched)
    return region.ocs.made(f"ocs{index}", region.servers * nics.optical, scale) if nics.optical else None
