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


class EpsSpec(Part):
    """Leaf-spine: servers on a leaf (all, where not given), spines, and how much less a leaf's uplinks carry than its servers."""

    servers_per_leaf: int | None = Field(default=None, ge=1)
    spines: int | None = Field(default=None, ge=1, le=16)
    oversubscription: float = Field(default=1.0, ge=1.0, le=64.0)


class NicsSpec(Part):
    """A server's NICs."""

    optical: int = Field(ge=0, le=16)
    electrical: int = Field(ge=0, le=16)


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
    switch: Literal["auto", "bpf", "ovs"] = "auto"

    @property
    def servers(self) -> int:
        """Servers in all regions."""
        return sum(region.count * region.servers for region in self.regions)

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

    def _rate_faults(self) -> Iterator[Fault]:
        yield from rate_faults(self, topology.Scale(self.scale.bytes, self.scale.dilation), "nic_rate")

    def wired(self) -> topology.Fabric:
        """The fabric that this describes."""
        return wired(self, self.fabric, self.nics, topology.Scale(self.scale.bytes, self.scale.dilation))


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
    if spec.servers > _MOST_SERVERS:
        yield (
            f"{place}regions",
            f"{spec.servers} servers are more than the {_MOST_SERVERS} that one fabric can have",
        )


def nic_faults(nics: NicsSpec, place: str) -> Iterator[Fault]:
    """Servers that reach nobody."""
    if nics.optical + nics.electrical == 0:
        yield place, "a server without any NIC reaches nobody"


def joining_faults(spec: WiringSpec, nics: NicsSpec, nics_place: str, wiring_place: str) -> Iterator[Fault]:
    """NICs that find no port, and regions that nothing joins."""
    if sum(region.count for region in spec.regions) > 1 and not nics.electrical:
        yield nics_place, "regions are joined by the EPS only: give each server an electrical NIC"
    for number, region in enumerate(spec.regions):
        yield from known(_port_faults(region, nics.optical, f"{wiring_place}regions[{number}].ocs.ports"))


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


def wired(spec: WiringSpec, name: str, nics: NicsSpec, scale: topology.Scale) -> topology.Fabric:
    """The fabric that a wiring makes with these NICs."""
    regions, first = [], 0
    for index, region in enumerate(spec.each_region):
        servers = tuple(f"s{first + i}" for i in range(region.servers))
        first += region.servers
        ocs = region.ocs.made(f"ocs{index}", region.servers * nics.optical, scale) if nics.optical else None
        regions.append(topology.Region(f"r{index}", index, servers, ocs))
    eps = topology.Eps(
        spec.eps.servers_per_leaf or spec.servers, spec.eps.spines or 0, spec.eps.oversubscription
    )
    return topology.Fabric(
        name=name,
        regions=tuple(regions),
        gpus=spec.gpus_per_server,
        optical=nics.optical,
        electrical=nics.electrical,
        nic_rate_bps=spec.nic_rate,
        eps=eps if nics.electrical else None,
        scale=scale,
        mtu=spec.mtu,
    )
