"""The management network and the run directory: where a running fabric's control planes find each other."""

import os
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Final

from moefabric.topology import Fabric, Region

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCPI_PORT: Final = 5025
"""TCP port of a Polatis switch's SCPI interface."""
OCS_PORTS: Final = {"scpi": SCPI_PORT, "tl1": 3082, "restconf": 8008}
"""TCP ports of a Polatis switch, by the language that is spoken there."""
_OPENFLOW_PORT: Final = 6653
_NORTHBOUND_PORT: Final = 8080
_FIRST_OCS: Final = 2
_FIRST_SERVER: Final = 64
MARK: Final = "MOEFABRIC_FABRIC"
"""Environment variable that every process of a fabric carries, with the fabric's name."""


@dataclass(frozen=True)
class Management:
    """A fabric's management network: a /24 of the benchmarking range 198.18.0.0/15 (RFC 2544)."""

    subnet: str

    def address(self, number: int) -> str:
        """The `number`-th address."""
        return str(IPv4Network(self.subnet)[number])

    @property
    def outer(self) -> str:
        """Where the namespace that `up` was called in stands; the controllers listen here."""
        return self.address(1)

    def ocs(self, region: Region) -> str:
        """Where a region's OCS is controlled."""
        return self.address(_FIRST_OCS + region.index)

    def server(self, fabric: Fabric, server: str) -> str:
        """Where a server is managed."""
        return self.address(_FIRST_SERVER + fabric.index[server])

    def openflow(self, region: Region | None) -> tuple[str, int]:
        """Where a region's switches find their controller; None is the EPS's."""
        return self.outer, _OPENFLOW_PORT + (region.index + 1 if region else 0)

    def northbound(self, region: Region | None) -> tuple[str, int]:
        """Where a controller takes demand and commands, over HTTP; None is the EPS's."""
        return self.outer, _NORTHBOUND_PORT + (region.index + 1 if region else 0)


def root() -> Path:
    """The folder of all run directories: MOEFABRIC_RUN_DIR, else /run/moefabric."""
    return Path(os.environ.get("MOEFABRIC_RUN_DIR", "/run/moefabric"))


@dataclass(frozen=True)
class RunDir:
    """A running fabric's folder: its wiring, its sockets and its logs."""

    path: Path

    @classmethod
    def named(cls, name: str) -> "RunDir":
        """The run directory of the fabric of that name."""
        return cls(root() / name)

    @property
    def name(self) -> str:
        """The fabric's name."""
        return self.path.name

    @property
    def wiring(self) -> Path:
        """The `Fabric` and its management subnet as JSON; it is there as soon as controllers may start."""
        return self.path / "fabric.json"

    @property
    def control(self) -> Path:
        """Unix socket of the fabric process."""
        return self.path / "control.sock"

    def plant(self, region: Region) -> Path:
        """Unix socket where a region's OCS process is handed its crossbar."""
        assert region.ocs is not None
        return self.path / f"{region.ocs.name}.plant"

    @property
    def switches(self) -> Path:
        """Folder of the electrical switches' own files; `NAME.mgmt` in it is a switch's unix socket for OpenFlow tools."""
        return self.path / "switches"

    def agent(self, server: str) -> Path:
        """Unix socket of a server's agent."""
        return self.path / "agents" / f"{server}.sock"

    def controller(self, region: Region | None) -> Path:
        """File with the process id of a region's controller, or the EPS's; it is there while that runs here."""
        return self.path / "controllers" / f"{region.name if region else 'eps'}.pid"

    def log(self, process: str) -> Path:
        """Where a process writes what it has to say."""
        return self.path / "log" / f"{process}.log"


@dataclass(frozen=True)
class Wiring:
    """What a controller, an agent or a person has to know of a running fabric."""

    fabric: Fabric
    management: Management
    switch: str = "bpf"
    """The datapath that moves the packets of the electrical switches: bpf, ovs-kernel or ovs-netdev."""
    switch_why: str = ""
    """Why it is no better one, where the kernel lacks what that needs."""
    crossbar: str = "tc-bpf"
    """What moves the light."""
    remarks: tuple[str, ...] = ()
    """What this machine could not give; a run on it is degraded."""

    def to_json(self) -> str:
        """As it stands in the run directory."""
        return _wiring().dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Wiring":
        """The inverse of `to_json`."""
        return _wiring().validate_json(text)


@cache
def _wiring() -> "TypeAdapter[Wiring]":
    from pydantic import TypeAdapter  # 0.3 s; whoever only wants an address needn't wait for it

    return TypeAdapter(Wiring)
