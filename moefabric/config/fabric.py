"""A fabric as users write it: servers, NICs, regions with their OCS, EPS and scale."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations, count, islice
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from moefabric.config import section
from moefabric.config.data_sections import AsSection, value_of, with_fields_of
from moefabric.config.hosts import ServerSpec, server_errors
from moefabric.config.ocs import OcsSpec
from moefabric.core.eps import Eps, EpsKind
from moefabric.core.link import EpsLink, LinkBehaviour, LinkPlace
from moefabric.core.ocs import Ocs
from moefabric.core.paths import MARKS, marks_needed, spine_paths
from moefabric.core.server_container import ExistingContainer, ServerContainer
from moefabric.core.server_host import ServerHost
from moefabric.core.server_paths import ServerPaths
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import NS_PER_S, Scale, rate_text
from moefabric.runtime.control_tls import ControlTls
from moefabric.runtime.cpu_monitor import usable_cores
from moefabric.runtime.measured_speed import machine_speed

SLOWEST_BPS: Final = 200e3
"""Least emulated link rate: HTB sends a full frame within 60 ms."""
FASTEST_BPS: Final = 20e9
"""Highest emulated link rate, below what one core forwards."""
_MAX_SERVERS: Final = 4096
"""Servers of the largest fabrics for which `up` is fast enough."""
_MAX_REGIONS: Final = 256
_MAX_REGION_SERVERS: Final = 256
"""Values of an octet of 10.REGION.SERVER.GPU."""
_MAX_MODELLED_SERVERS: Final = 65_536
"""Servers of an experiment that is predicted, whose servers need no addresses."""
_NEEDS_ELECTRICAL: Final = "give each server an electrical NIC"


class RegionSpec(section.Section):
    """Servers that share an OCS."""

    count: int = Field(default=1, ge=1, le=_MAX_MODELLED_SERVERS)
    """Number of regions of this kind, one after the other."""
    servers: int = Field(ge=2, le=_MAX_REGION_SERVERS)
    """Servers of each region."""
    ocs: OcsSpec = Field(default_factory=OcsSpec)
    """Optical circuit switch of each region."""


class BackupSpec(section.Section):
    """Backup servers, which replace lost servers and GPUs. They are connected to the EPS only."""

    servers: int = Field(ge=1, le=_MAX_REGION_SERVERS)
    """Number of backup servers."""


@with_fields_of(LinkBehaviour, {"rate_bps", "paths", "path_choice"})
class EpsLinkSpec(section.Section):
    """Behaviour of links of the EPS, which a relay in user space gives them.

    A fabric has one relay, which passes some 50,000 packets a second on. A run whose relay is late
    is degraded.
    """

    place: Annotated[LinkPlace, Field(strict=False)] = LinkPlace.NICS
    """`nics`: links between electrical NICs and leaves; `uplinks`: between leaves and spines."""

    def build(self) -> EpsLink:
        """Return the behaviour that this section describes."""
        return EpsLink(value_of(self, LinkBehaviour), self.place)


class EpsSpec(section.Section):
    """Electrical packet switches (EPS)."""

    kind: Annotated[EpsKind, Field(strict=False)] = EpsKind.LEAF_SPINE
    """`leaf-spine` connects all NICs of a server to one leaf, `rail` the NICs of the same number to
    one leaf."""
    servers_per_leaf: int | None = Field(default=None, ge=1)
    """Servers of a leaf or, with rails, of a pod. Default: all."""
    spines: int | None = Field(default=None, ge=1, le=16)
    """Number of spines. Default: two, or as many as the leaves need if that is less."""
    oversubscription: float = Field(default=1.0, ge=1.0, le=64.0)
    """Capacity of a leaf's NICs over the capacity of its uplinks."""
    hash_seed: int | None = Field(default=None, ge=0)
    """Hash flows onto spines with this seed, as ECMP does: a pair's bytes on one NIC cross one
    spine, and flows collide. Default: each pair's bytes spread evenly, and none collide."""
    nic_per_gpu: bool = False
    """Whether each GPU sends and receives its bytes of an all-to-all by its own NIC, as where NCCL
    or the paper's simulator send them: of 8 GPUs with 4 NICs, GPUs 2 and 3 by `e1`. On rails, both
    ends take the NIC of the receiving GPU. Needs servers without NICs on circuits. Default: a
    server's bytes spread evenly over its NICs, as if its GPUs had exchanged them in no time."""
    link: EpsLinkSpec | None = None
    """Delay, queue, marks and losses of links. Default: links have no delay and lose nothing."""

    def build(self, servers: int) -> Eps:
        """Return the EPS that this section describes for `servers` servers."""
        return Eps(
            self.servers_per_leaf or servers,
            self.spines or 0,
            self.oversubscription,
            self.kind,
            self.link.build() if self.link is not None else None,
            self.hash_seed,
            self.nic_per_gpu,
        )


class NicsSpec(section.Section):
    """NICs of a server."""

    optical: int = Field(default=0, ge=0, le=16)
    """NICs on the OCS."""
    electrical: int = Field(default=0, ge=0, le=16)
    """NICs on the EPS."""
    patch_panel_nics: int = Field(default=0, ge=0, le=16)
    """NICs on a flat patch panel, whose circuits are laid once. Excludes NICs on the OCS."""
    forwarding: Literal["none", "switch", "host"] = "none"
    """Who forwards over circuits for other servers: nobody; the server switches; or the hosts,
    whose agents receive and send again, over one server at most."""

    forwarding_rate: section.Rate | None = None
    """Rate at which a server forwards for all others together, headers included. Default: that of
    its NICs."""

    @property
    def forwards(self) -> bool:
        """True if servers forward for other servers."""
        return self.forwarding != "none"

    @property
    def panel_only(self) -> bool:
        """True if a patch panel joins all NICs, so that servers forward for unconnected pairs."""
        return self.patch_panel_nics > 0 and not self.electrical

    @property
    def circuit_nics(self) -> int:
        """Number of NICs that end circuits."""
        return self.optical or self.patch_panel_nics

    def nic_errors(self, place: str) -> Iterator[section.InputError]:
        """Yield an error if the NICs don't connect a server with the others."""
        if self.patch_panel_nics and self.optical:
            yield place, "patch_panel_nics and optical exclude each other: leave one of them out"
        elif self.patch_panel_nics == 1 and not self.electrical:
            remedy = "give each server two or more"
            yield place, f"one NIC on a patch panel connects pairs of servers only: {remedy}"
        elif self.optical + self.electrical + self.patch_panel_nics == 0:
            yield place, "servers without NICs reach nobody: give each server a NIC"


class ScaleSpec(section.Section):
    """Scale of the emulation."""

    bytes: float = Field(default=1.0, ge=1.0)
    """Factor by which rates and bytes are divided."""
    dilation: float = Field(default=1.0, ge=1.0)
    """Factor by which time is stretched."""
    frame: Annotated[section.DurationNs, Field(gt=0)] = section.quantity_field("10ms")
    """Wall time in which a frame of more than eight packets passes a link, 64 KB at most."""

    def build(self) -> Scale:
        """Return the scale that this section describes."""
        return Scale(self.bytes, self.dilation, self.frame / NS_PER_S)


ScaleChoice = Annotated[
    Annotated[ScaleSpec, Tag("given")] | Annotated[Literal["auto"], Tag("auto")],
    Discriminator(lambda value: "auto" if isinstance(value, str) else "given"),
]
"""A scale, or `auto`."""


def _servers_by_name(value: object) -> object:
    """Name the key that counts servers where a number or a word is given for servers by name."""
    if isinstance(value, int | float | str):
        fault = "servers by name are needed, such as {s0: {nic_rate: 40Gb/s}}"
        raise ValueError(f"{fault}; regions[0].servers is the number of servers")  # noqa: TRY004
    return value


class WiringSpec(section.Section):
    """Wiring that all fabrics of an experiment share."""

    gpus_per_server: int = Field(default=8, ge=1, le=250)
    """GPUs of each server."""
    nic_rate: section.Rate
    """Rate of each NIC."""
    server_paths: Annotated[ServerPaths, AsSection()] = Field(default_factory=ServerPaths)
    """Paths inside each server, between its GPUs and its NICs."""
    mtu: int = Field(default=1500, ge=576, le=9000)
    """Largest IP packet in bytes."""
    regions: list[RegionSpec] = Field(min_length=1, max_length=_MAX_REGIONS)
    """Regions, in the order of their servers."""
    eps: EpsSpec = Field(default_factory=EpsSpec)
    """Electrical packet switches."""
    backup: BackupSpec | None = None
    """Backup servers. Default: none."""
    queue: section.QueueSize | None = None
    """Room of the queue of each NIC and switch port: `100 packets`, or `400 kB` with headers. A
    packet that finds no room is dropped. Default: none is dropped."""
    unmarked: Literal["light", "spread"] = "light"
    """How flows without a mark travel, such as those of unmodified programs, between servers with
    circuits: `light`, all by the pair's first circuit; `spread`, each by one of its circuits or by
    the EPS, as the switch chooses by addresses and ports."""
    switch: Literal["auto", "bpf", "ovs"] = "auto"
    """Datapath of the emulated packet switches."""
    agents: Literal["shared", "separate"] = "shared"
    """Processes of the agents of emulated servers: `shared`, one for each core with the agents of
    many servers; `separate`, one for each server."""
    controller: Literal["own", "external-eps", "external"] = "own"
    """Controllers of the packet switches: `own`, the fabric's; `external-eps`, another program's
    for leaves and spines; `external`, another program's for all switches. `moefabric inspect`
    shows where the switches connect to it: port 6653 of the machine's management address."""
    control_tls: Annotated[ControlTls, AsSection()] | None = None
    """TLS of OpenFlow and of requests to controllers. Default: none; both stay on this machine."""
    servers: Annotated[dict[str, ServerSpec], BeforeValidator(_servers_by_name)] = Field(
        default_factory=dict
    )
    """Servers that are containers or real hosts or have NICs of another rate, by name: `s0`, `s1`
    and so on. Default: none."""

    @property
    def server_count(self) -> int:
        """Number of servers in all regions, without backup servers."""
        return sum(region.servers for region in self.expanded_regions)

    @property
    def backups(self) -> int:
        """Number of backup servers."""
        return self.backup.servers if self.backup is not None else 0

    @property
    def expanded_regions(self) -> tuple[RegionSpec, ...]:
        """Every single region, in order."""
        if any(self.modelled_size_errors()):
            raise section.UnknownError("regions")  # checks would need memory for each of them
        return tuple(region for region in self.regions for _ in range(region.count))

    def build_fabric(self, name: str, nics: NicsSpec, scale: Scale, eps: EpsSpec) -> Fabric:
        """Return the fabric of this wiring with these NICs and packet switches."""
        servers, regions = map("s{}".format, count()), list[Region]()
        for index, region in enumerate(self.expanded_regions):
            members, ocs = islice(servers, region.servers), _ocs(region, index, nics, scale)
            regions.append(Region(f"r{index}", index, tuple(members), ocs))
        if self.backups:
            members = islice(servers, self.backups)
            regions.append(Region("backup", len(regions), tuple(members), None, backup=True))
        return Fabric(
            name=name,
            regions=tuple(regions),
            gpus=self.gpus_per_server,
            optical=nics.circuit_nics,
            electrical=nics.electrical,
            nic_rate_bps=self.nic_rate,
            eps=eps.build(self.server_count + self.backups) if nics.electrical else None,
            scale=scale,
            mtu=self.mtu,
            patch_panel=nics.patch_panel_nics > 0,
            forwarding=nics.forwards,
            forwarding_by_hosts=nics.forwarding == "host",
            forwarding_rate_bps=nics.forwarding_rate,
            queue=self.queue,
            spreads_unmarked=self.unmarked == "spread",
            own_rates_bps=tuple(self.own_nic_rates.items()),
            server_paths=self.server_paths,
        )

    def size_errors(self, place: str = "") -> Iterator[section.InputError]:
        """Yield errors if there are more regions or servers than addresses."""
        regions, servers = len(self.expanded_regions), self.server_count + self.backups
        limits = (regions, "regions", _MAX_REGIONS), (servers, "servers", _MAX_SERVERS)
        for number, kind, limit in limits:
            if number > limit:
                message = f"{number} {kind} are more than the {limit} that one fabric can have"
                yield f"{place}regions", message

    def modelled_size_errors(self, place: str = "") -> Iterator[section.InputError]:
        """Yield an error if there are more servers than predictions take."""
        servers = sum(region.count * region.servers for region in self.regions)
        if servers > _MAX_MODELLED_SERVERS:
            limit = f"the {_MAX_MODELLED_SERVERS:,} that a prediction takes"
            yield f"{place}regions", f"{servers:,} servers are more than {limit}"

    def server_errors(self, place: str = "") -> Iterator[section.InputError]:
        """Yield errors for servers that there aren't, and for PCIe switches without GPUs."""
        names = [f"s{number}" for number in range(self.server_count + self.backups)]
        yield from server_errors(self.servers, names, f"{place}servers")
        switches, gpus = self.server_paths.pcie_switches, self.gpus_per_server
        if switches > gpus:
            message = f"{switches} PCIe switches for {gpus} GPUs: give {gpus} at most"
            yield f"{place}server_paths.pcie_switches", message

    @property
    def own_nic_rates(self) -> dict[str, float]:
        """Rates of the NICs of the servers that have one of their own."""
        rates = {name: server.nic_rate for name, server in self.servers.items()}
        return {name: rate for name, rate in rates.items() if rate is not None}

    @property
    def containers(self) -> dict[str, ServerContainer]:
        """The servers that are containers."""
        chosen = {name: server.container for name, server in self.servers.items()}
        return {
            name: ExistingContainer(one) if isinstance(one, str) else one
            for name, one in chosen.items()
            if one is not None
        }

    @property
    def real_hosts(self) -> dict[str, ServerHost]:
        """The servers that are real hosts."""
        return {name: s.host.build() for name, s in self.servers.items() if s.host is not None}

    def connection_errors(
        self, nics: NicsSpec, nics_place: str, place: str = ""
    ) -> Iterator[section.InputError]:
        """Yield errors for NICs without a port, and regions or backup servers without an EPS."""
        if self.backups and not nics.electrical:
            yield nics_place, f"backup servers are connected by the EPS only: {_NEEDS_ELECTRICAL}"
        if len(self.expanded_regions) > 1 and not nics.electrical:
            message = f"regions are connected by the EPS only: {_NEEDS_ELECTRICAL}"
            if nics.patch_panel_nics:
                message = "a patch panel connects the servers of one region: several need an EPS"
            yield nics_place, message
        for number, region in enumerate(self.regions):
            with suppress(section.UnknownError):
                needed, first = region.servers * nics.optical, region.ocs.first_port
                ports = region.ocs.ports_for(needed)
                if first - 1 + needed > ports:
                    servers = f"{region.servers} servers of {nics.optical} optical NICs"
                    start = f" from port {first} on" if first > 1 else ""
                    message = f"{servers} need {needed} ports{start}, {ports} given"
                    yield f"{place}regions[{number}].ocs.ports", message
        with suppress(section.UnknownError):
            if nics.optical:
                yield from self._shared_ocs_errors(nics.optical, place)

    def _shared_ocs_errors(self, optical: int, place: str) -> Iterator[section.InputError]:
        """Yield errors for regions that would command the same ports of one real OCS."""
        real = [(n, one) for n, one in enumerate(self.regions) if one.ocs.control.address]
        for number, region in real:
            if region.count > 1:
                message = f"{region.count} regions have the OCS at {region.ocs.control.address}"
                remedy = "list them, each with its first_port"
                yield f"{place}regions[{number}].ocs.address", f"{message}: {remedy}"
        for (first, one), (second, other) in combinations(real, 2):
            if not one.ocs.control.may_be_device_of(other.ocs.control):
                continue
            key = f"{place}regions[{second}].ocs"
            device = f"the OCS at {other.ocs.control.address}"
            needs = one.servers * optical, other.servers * optical
            sizes = one.ocs.ports_for(needs[0]), other.ocs.ports_for(needs[1])
            if sizes[0] != sizes[1]:
                message = f"{device} has {sizes[0]} inputs in region {first} and {sizes[1]} here"
                yield f"{key}.ports", f"{message}: give its number of inputs in both"
            ends = one.ocs.first_port + needs[0], other.ocs.first_port + needs[1]
            if one.ocs.first_port < ends[1] and other.ocs.first_port < ends[0]:
                taken = f"ports {one.ocs.first_port} to {ends[0] - 1} of {device}"
                message = f"region {first} has {taken}: give first_port: {ends[0]} or a later one"
                yield f"{key}.first_port", message

    def forwarding_errors(self, nics: NicsSpec, place: str) -> Iterator[section.InputError]:
        """Yield an error if servers can't forward, relay trees lack marks, or a rate has no use."""
        if not nics.forwards:
            if nics.forwarding_rate is not None and not nics.panel_only:
                yield f"{place}.forwarding_rate", "no server forwards: give forwarding: switch"
            return
        by_hosts = nics.forwarding == "host"
        servers = max(region.servers for region in self.regions)
        if not nics.circuit_nics:
            yield f"{place}.forwarding", "servers forward over circuits: give them optical NICs"
        elif by_hosts and nics.panel_only:
            message = "on a patch panel without an EPS, switches forward: give electrical NICs"
            yield f"{place}.forwarding", message
        elif not by_hosts and (marks := servers + nics.circuit_nics + nics.electrical) > MARKS:
            need = f"{servers} relay trees and the NICs need {marks} DSCP marks, of {MARKS}"
            yield f"{place}.forwarding", f"{need}: make regions smaller"

    def eps_errors(self, nics: NicsSpec, eps: EpsSpec, place: str) -> Iterator[section.InputError]:
        """Yield errors if a key has no effect, paths lack marks, or GPUs can't have own NICs."""
        if eps.nic_per_gpu:
            place_of_key, gpus = f"{place}.nic_per_gpu", self.gpus_per_server
            if nics.circuit_nics:
                message = "servers pool their bytes for circuits"
                yield place_of_key, f"{message}: give fabrics with circuits an eps without it"
            elif nics.electrical and gpus % nics.electrical:
                message = f"{gpus} GPUs don't share {nics.electrical} electrical NICs evenly"
                yield place_of_key, f"{message}: give a number that divides {gpus}"
            if self.backups:
                message = "servers with ranks from elsewhere pool their bytes: leave backup out"
                yield place_of_key, message
        servers = self.server_count + self.backups
        names = tuple(f"s{i}" for i in range(servers))
        region, switches = Region("r0", 0, names, None), eps.build(servers)
        wired = Fabric(
            "errors", (region,), 1, nics.optical, nics.electrical, self.nic_rate, switches
        )
        if (marks := marks_needed(wired)) > MARKS:
            ways = f"{len(spine_paths(wired))} ways by a NIC and a spine"
            need = f"need {marks} DSCP marks with those of the NICs, of {MARKS}"
            yield f"{place}.spines", f"{ways} {need}: give fewer spines or electrical NICs"
        one_leaf = (eps.servers_per_leaf or servers) >= servers
        if nics.electrical and eps.oversubscription != 1 and one_leaf:
            leaf = "every leaf of a rail" if eps.kind is EpsKind.RAIL else "one leaf"
            effect = f"{leaf} has NICs of all {servers} servers, so that nothing is oversubscribed"
            remedy = f"give {place}.servers_per_leaf, less than {servers}"
            yield f"{place}.oversubscription", f"{effect}: {remedy}"
        if nics.electrical and eps.hash_seed is not None and len(wired.spines) < 2:
            effect = f"flows cross {len(wired.spines) or 'no'} spine, so that none is hashed"
            yield f"{place}.hash_seed", f"{effect}: give servers_per_leaf and spines"

    def rate_errors(self, scale: Scale, place: str) -> Iterator[section.InputError]:
        """Yield errors if links of an emulated rate can't be shaped."""
        for server, rate in {"": self.nic_rate, **self.own_nic_rates}.items():
            emulated = scale.rate_bps(rate)
            if not SLOWEST_BPS <= emulated <= FASTEST_BPS:
                which = f"{server}: " if server else ""
                nic_rate = f"{which}{rate_text(rate)} at scale {scale.bytes:g} x {scale.dilation:g}"
                bounds = f"between {rate_text(SLOWEST_BPS)} and {rate_text(FASTEST_BPS)}"
                remedy = f"links are shaped {bounds}: change scale.bytes"
                yield place, f"{nic_rate} is {rate_text(emulated)} on the wire; {remedy}"


def _ocs(region: RegionSpec, index: int, nics: NicsSpec, scale: Scale) -> Ocs | None:
    """Return a region's OCS. A patch panel is an OCS with light from the start."""
    name = f"ocs{index}"
    if nics.patch_panel_nics:
        return Ocs(name, region.servers * nics.patch_panel_nics)
    return region.ocs.build(name, region.servers * nics.optical, scale) if nics.optical else None


class FabricSpec(WiringSpec, section.Document):
    """A fabric file."""

    fabric: section.Name
    """Name of the fabric."""
    nics: NicsSpec
    """NICs of each server."""
    scale: ScaleChoice = "auto"
    """Scale of the emulation. `auto` divides rates so far that this machine can carry full NICs."""

    def errors(self) -> Iterator[section.InputError]:
        """Yield the contradictions between values that are valid by themselves."""
        yield from section.collect_errors(
            self.modelled_size_errors,
            self.size_errors,
            self.server_errors,
            lambda: self.nics.nic_errors("nics"),
            lambda: self.forwarding_errors(self.nics, "nics"),
            lambda: self.connection_errors(self.nics, "nics"),
            lambda: self.eps_errors(self.nics, self.eps, "eps"),
            self._scaled_rate_errors,
        )

    def build(self) -> Fabric:
        """Return the fabric that this file describes."""
        scale = self._auto_scale() if self.scale == "auto" else self.scale.build()
        return self.build_fabric(self.fabric, self.nics, scale, self.eps)

    def _auto_scale(self) -> Scale:
        """Return a scale of 1, 2 or 5 times a power of ten at which full NICs leave cores idle."""
        nics = self.nics.circuit_nics + self.nics.electrical
        number = nics * (self.server_count + self.backups)
        full_bps = min(FASTEST_BPS, machine_speed().full_nic_bps(number, usable_cores()))
        fastest_bps = max([self.nic_rate, *self.own_nic_rates.values()])
        factors = (step * 10.0**power for power in range(13) for step in (1, 2, 5))
        return Scale(next(factor for factor in factors if fastest_bps / factor <= full_bps))

    def _scaled_rate_errors(self) -> Iterator[section.InputError]:
        if self.scale != "auto":
            yield from self.rate_errors(self.scale.build(), "nic_rate")
