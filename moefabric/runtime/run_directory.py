"""Run directory and management network of a running fabric: where its processes find each other."""

import fcntl
import hashlib
import os
import pwd
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from importlib.metadata import version
from ipaddress import IPV4LENGTH, IPv4Network
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from moefabric.core.errors import ControlError, FabricError, UnsupportedError
from moefabric.core.machines import MachinePlacement
from moefabric.core.server_container import ServerContainer
from moefabric.core.server_host import ServerHost
from moefabric.core.topology import Fabric, Region
from moefabric.runtime.control_tls import ControlTls
from moefabric.runtime.environment import fabric_user

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_OPENFLOW_PORT: Final = 6653
_NORTHBOUND_PORT: Final = 8080
_FIRST_OCS: Final = 2
_FIRST_SERVER: Final = 64
_MACHINE_ADDRESSES: Final = 30
"""Last addresses of the management network: of the switches, one for each machine."""
_LONGEST_PREFIX: Final = 24
_TOKEN_BYTES: Final = 32
_IDENTITY_BYTES: Final = 16
_RANK_NAME: Final = "@moefabric-ranks"
FABRIC_VARIABLE: Final = "MOEFABRIC_FABRIC"
"""Environment variable with the fabric's name, set in every process of the fabric."""
IDENTITY_VARIABLE: Final = "MOEFABRIC_IDENTITY"
"""Environment variable with the fabric's identity, set in every process of the fabric."""


@dataclass(frozen=True)
class ManagementNetwork:
    """Addresses of a fabric's management network.

    The first address is the host's. Those of the OCSes follow from number 2, those of the servers
    from `first_server`. The last one before the broadcast address is the switches'.

    Attributes:
        subnet: a part of the benchmarking range 198.18.0.0/15 (RFC 2544): a /24, or more if the
            fabric needs more addresses (`prefix_for`).
    """

    subnet: str

    @staticmethod
    def prefix_for(fabric: Fabric) -> int:
        """Return the longest prefix, up to 24, of a subnet that has an address for everything."""
        last = first_server(fabric) + len(fabric.servers) + _MACHINE_ADDRESSES
        return min(_LONGEST_PREFIX, IPV4LENGTH - last.bit_length())

    @classmethod
    def example_for(cls, fabric: Fabric) -> Self:
        """Return a network of the fabric's size, for plans before a subnet is claimed."""
        return cls(f"198.18.0.0/{cls.prefix_for(fabric)}")

    @cached_property
    def network(self) -> IPv4Network:
        """The subnet."""
        return IPv4Network(self.subnet)

    def address(self, number: int) -> str:
        """Return the address with this host number; -1 is the broadcast address."""
        return str(self.network[number])

    def interface_address(self, address: str) -> str:
        """Return an address with the prefix length of the subnet."""
        return f"{address}/{self.network.prefixlen}"

    @property
    def host_address(self) -> str:
        """Address of the namespace that started the fabric. Controllers listen there."""
        return self.address(1)

    @property
    def switches_address(self) -> str:
        """Address from which the fabric's switches connect to their controllers."""
        return self.address(-2)

    def part_address(self, number: int) -> str:
        """Return the address from which the switches of a machine connect to their controllers.

        Args:
            number: position among the machines of a fabric; 0 is the head.
        """
        return self.address(-2 - number)

    def ocs_address(self, region: Region) -> str:
        """Return the control address of a region's OCS."""
        return self.address(_FIRST_OCS + region.index)

    def server_address(self, fabric: Fabric, server: str) -> str:
        """Return the management address of a server."""
        return self.address(first_server(fabric) + fabric.server_index[server])

    def openflow_endpoint(self, region: Region | None) -> tuple[str, int]:
        """Return host and port of a controller's OpenFlow listener; None is the EPS controller."""
        return self.host_address, _OPENFLOW_PORT + (region.index + 1 if region else 0)

    def northbound_endpoint(self, region: Region | None) -> tuple[str, int]:
        """Return host and port of a controller's HTTP API; None is the EPS controller."""
        return self.host_address, _NORTHBOUND_PORT + (region.index + 1 if region else 0)


def first_server(fabric: Fabric) -> int:
    """Return the host number of the first server: 64, or a power of two past all OCSes' numbers."""
    return max(_FIRST_SERVER, 1 << (_FIRST_OCS + len(fabric.regions) - 1).bit_length())


@cache
def own_version() -> str:
    """Return the version of this moefabric."""
    return version("moefabric")


def run_root() -> Path:
    """Return the parent of all run directories: MOEFABRIC_RUN_DIR, or /run/moefabric.

    The path is absolute and without symbolic links, so that it names one folder in every process.
    """
    return Path(os.environ.get("MOEFABRIC_RUN_DIR", "/run/moefabric")).resolve()


@dataclass(frozen=True)
class _Entry:
    """Attribute of a run directory: the path of one of its entries."""

    name: str

    def __get__(self, run: "RunDirectory", _kind: type) -> Path:
        return run.path / self.name


def owner_name(path: Path) -> str:
    """Return the user who owns a file: the name, or the number of one without a name."""
    owner = path.stat().st_uid
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return str(owner)


def give_to_user(place: Path | int) -> None:
    """Give a file or folder of root's, by its path or descriptor, to the user who called sudo."""
    if (user := fabric_user()) != os.geteuid():
        os.chown(place, user, -1)


def _write_secret(path: Path, text: str) -> None:
    """Write a new file for root, or for the user who called sudo."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        give_to_user(descriptor)


def is_locked(file: Path) -> bool:
    """Return whether a process holds the lock of a file (flock(2)); False if there is no file.

    Of files of another user's fabric nobody else can tell; they count as locked.
    """
    try:
        with file.open() as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return False
    return False


@dataclass(frozen=True)
class RunDirectory:
    """Directory of a running fabric with its wiring file, sockets, process ids and logs."""

    path: Path
    wiring_file = _Entry("fabric.json")
    """`FabricWiring` as JSON. It exists as soon as controllers may start."""
    hosts_file = _Entry("hosts")
    """Names and addresses of the fabric: /etc/hosts of its servers and OCSes."""
    control_socket = _Entry("control.sock")
    """Unix socket of the fabric process."""
    token_file = _Entry("token")
    """The fabric's token: only root and the user who started the fabric can read it."""
    machines_file = _Entry("machines.json")
    """The other machines of a fabric on several, with their secrets, at its head."""
    machines_socket = _Entry("machines.sock")
    """Unix socket of the process that holds the parts on other machines, at the head."""
    identity_file = _Entry("identity")
    """The fabric's identity; it exists from before the first to after the last process."""
    version_file = _Entry("version")
    """Version of moefabric that has made the fabric; its form is that of all versions."""
    life_file = _Entry("life")
    """File that the fabric process keeps locked (flock(2)) until its end.

    As all files that processes of a fabric lock, only root and the fabric's user can open it:
    whoever can read a file can lock it.
    """
    run_status_file = _Entry("run-status.json")
    """State of the run that uses the fabric, as JSON; absent while none does."""
    switches = _Entry("switches")
    """Directory of the electrical switches. `NAME.mgmt` is a unix socket for OpenFlow tools."""
    log_folder = _Entry("log")
    """Folder of the logs: `PROCESS.jsonl` of log lines, `PROCESS.log` of its other output."""

    @classmethod
    def of_fabric(cls, name: str) -> "RunDirectory":
        """Return the run directory of the fabric with this name."""
        return cls(run_root() / name)

    @property
    def name(self) -> str:
        """The fabric's name."""
        return self.path.name

    def make_token(self, token: str = "") -> None:
        """Write the token that requests to the fabric's control plane must carry.

        Under sudo, the file belongs to the user who called it.

        Args:
            token: the token; default: a new random one.
        """
        _write_secret(self.token_file, (token or secrets.token_hex(_TOKEN_BYTES)) + "\n")

    def read_token(self) -> str:
        """Return the fabric's token.

        Raises:
            ControlError: If the fabric has none, or the caller may not read it.
        """
        try:
            return self.token_file.read_text().strip()
        except OSError as error:
            raise ControlError(
                f"{self.token_file}: {error.strerror}; the fabric's token is for root and the user "
                "who started the fabric"
            ) from error

    def make_identity(self) -> str:
        """Write and return a new random identity, which marks all that `down` removes.

        It is a secret: `down` kills every process that has it in its environment.
        """
        identity = secrets.token_hex(_IDENTITY_BYTES)
        _write_secret(self.identity_file, identity)
        return identity

    def read_identity(self) -> str:
        """Return the fabric's identity; empty if no fabric has been made here."""
        try:
            return self.identity_file.read_text()
        except OSError:
            return ""

    def public_identity(self) -> str:
        """Return a digest of the identity, for marks that everybody sees; empty without one."""
        identity = self.read_identity()
        return hashlib.sha256(identity.encode()).hexdigest()[: len(identity)]

    def of_another_user(self) -> UnsupportedError:
        """Return the error of a fabric that belongs to another user, by name if it may be known."""
        owner = "another user"
        with suppress(PermissionError):
            owner = owner_name(self.path)
        return UnsupportedError(f"{self.name}: a fabric of {owner}'s; run with sudo")

    def write_version(self) -> None:
        """Note that this version of moefabric makes the fabric."""
        self.version_file.write_text(own_version())

    def check_version(self) -> None:
        """Check that a fabric that runs here is of this version of moefabric.

        Raises:
            FabricError: If it isn't; names its version and the remedy.
        """
        try:
            made_by = self.version_file.read_text()
        except OSError:
            made_by = ""
        if made_by != own_version() and self.is_alive():
            raise FabricError(
                f"{self.name}: made by moefabric {made_by or 'of an unknown version'}, and this is "
                f"{own_version()}: `moefabric down {self.name}` with that version, or `moefabric "
                f"down --force {self.name}`"
            )

    def has_died(self) -> bool:
        """Return whether a fabric process has run here and was killed."""
        return self.life_file.exists() and not self.is_alive()

    def is_alive(self) -> bool:
        """Return whether the fabric process runs, in this container or another one."""
        return is_locked(self.life_file)

    def ocs_socket(self, region: Region) -> Path:
        """Return the unix socket that hands a region's crossbar to its OCS process."""
        assert region.ocs is not None
        return self.path / f"{region.ocs.name}.handoff"

    def agent_socket(self, server: str) -> Path:
        """Return the unix socket of a server's agent."""
        return self.path / "agents" / f"{server}.sock"

    def rank_socket(self, server: str) -> Path:
        """Return the unix socket by which ranks on a server reach its agent."""
        return self.path / "agents" / f"{server}.ranks"

    def controller_pid_file(self, region: Region | None) -> Path:
        """Return the file with a controller's process id; None is the EPS controller.

        The file exists only while the controller runs on this machine.
        """
        return self.path / "controllers" / f"{region.name if region else 'eps'}.pid"

    def log_file(self, process: str) -> Path:
        """Return the file with the output of a process."""
        return self.log_folder / f"{process}.log"


def shared_name(names: Sequence[str]) -> str:
    """Return the name of a process by those of its parts, such as `r0-r31`."""
    return names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}"


@dataclass(frozen=True)
class ServerInterfaces:
    """Names of a server's interfaces in the fabric and in the management network."""

    host: str = "eth0"
    management: str = "mgmt0"


class ControlPlane(StrEnum):
    """Owner of the controllers that packet switches follow, as in a fabric file."""

    OWN = "own"
    EXTERNAL_EPS = "external-eps"
    """Leaves and spines follow a controller of others."""
    EXTERNAL = "external"
    """All packet switches follow controllers of others; light moves by commands to OCSes only."""


@dataclass(frozen=True)
class FabricWiring:
    """A running fabric as its controllers, agents and commands know it.

    Attributes:
        switch: datapath of the electrical switches: bpf, ovs-kernel or ovs-netdev.
        switch_why: reason why no better datapath is in use; empty if there is none.
        remarks: what this machine lacks; a run with remarks is degraded.
        containers: the servers that are containers.
        hosts: the servers that are real hosts.
        interfaces: names of the interfaces of containers, by server.
        identity: digest of the fabric's identity, which no other fabric has.
        control_tls: certificates of the control connections; None without TLS.
        placement: which machine has each part; None if one machine has all.
        shared_agents: whether agents of emulated servers share processes.
        region_processes: number of processes that the controllers of all regions share, and of
            those that all OCSes share; 0 if each has its own.
        controller: whose controllers the packet switches follow.
        version: version of moefabric that has made the fabric.
    """

    fabric: Fabric
    management: ManagementNetwork
    switch: str = "bpf"
    switch_why: str = ""
    remarks: tuple[str, ...] = ()
    containers: Mapping[str, ServerContainer] = field(default_factory=dict)
    hosts: Mapping[str, ServerHost] = field(default_factory=dict)
    interfaces: Mapping[str, ServerInterfaces] = field(default_factory=dict)
    identity: str = ""
    control_tls: ControlTls | None = None
    placement: MachinePlacement | None = None
    shared_agents: bool = True
    region_processes: int = 0
    controller: ControlPlane = ControlPlane.OWN
    version: str = ""

    @property
    def controlled(self) -> tuple[Region | None, ...]:
        """Regions with a controller of the fabric's own, and None if the EPS has one, too."""
        regions = () if self.controller is ControlPlane.EXTERNAL else self.fabric.regions
        has_eps = self.controller is ControlPlane.OWN and bool(self.fabric.leaves)
        return (*regions, *((None,) if has_eps else ()))

    def switch_controller(self, switch: str) -> tuple[str, int]:
        """Return host and port of the controller that a packet switch connects to."""
        region = self.fabric.region_of.get(switch)
        return self.management.openflow_endpoint(region if region in self.controlled else None)

    def machine_of(self, component: str) -> str:
        """Return the machine of a server, OCS or switch; empty if the head has it."""
        if self.placement is None:
            return ""
        machine = self.placement.components(self.fabric)[component]
        return "" if machine == self.placement.head.name else machine

    @property
    def region_groups(self) -> tuple[tuple[Region, ...], ...]:
        """Regions that share a process for their controllers, and one for their OCSes.

        Those of different machines share none.
        """
        by_machine = dict[str, list[Region]]()
        for region in self.fabric.regions:
            machine = self.placement.regions[region.name] if self.placement else ""
            by_machine.setdefault(machine, []).append(region)
        size = (
            ceil(len(self.fabric.regions) / self.region_processes) if self.region_processes else 1
        )
        return tuple(
            tuple(local[start : start + size])
            for local in by_machine.values()
            for start in range(0, len(local), size)
        )

    @property
    def switch_addresses(self) -> list[str]:
        """Addresses from which switches connect to their controllers, of each machine."""
        machines = self.placement.machines if self.placement else ("",)
        return [self.management.part_address(number) for number, _ in enumerate(machines)]

    def interfaces_of(self, server: str) -> ServerInterfaces:
        """Return the names of a server's interfaces."""
        return self.interfaces.get(server, ServerInterfaces())

    def rank_address(self, server: str, run_dir: RunDirectory | None = None) -> str:
        """Return the address at which ranks on a server reach its agent, for MOEFABRIC_AGENT.

        A container doesn't see the run directory, but has the agent's network namespace.

        Args:
            run_dir: the fabric's run directory. Default: the one of its name.
        """
        if server in self.containers:
            return _RANK_NAME
        return str((run_dir or RunDirectory.of_fabric(self.fabric.name)).rank_socket(server))

    def to_json(self) -> str:
        """Return the contents of the wiring file."""
        return _wiring_adapter().dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "FabricWiring":
        """Return the wiring from the contents of a wiring file."""
        return _wiring_adapter().validate_json(text)


@cache
def _wiring_adapter() -> "TypeAdapter[FabricWiring]":
    from pydantic import TypeAdapter  # takes 0.3 s, which programs that only need an address avoid

    return TypeAdapter(FabricWiring)
