"""CPU cores and memory that the parts of an emulated fabric need.

A part is a region with its servers, agents, server switches and OCS, or the packet switches of the
EPS, or the head with all controllers. `tests/bench/bench_needs.py` measures memory and cores at
rest again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from moefabric.core.machine_speed import IDLE_SHARE, MachineSpeed
from moefabric.core.topology import Fabric, Region

RELAYED_BPS: Final = 120e6
"""Traffic of NICs whose links a relay passes on: 20,000 packets a second, each over two links."""

EPS: Final = "eps"
"""Name of the part with the packet switches, as of their controller."""
_PART_CORES: Final = 0.05
"""Cores of a part at rest: fabric process, switches and OCS."""
_SERVER_CORES: Final = 0.005
"""Cores of a server at rest."""
_MB: Final = 1_000_000
_PART_BYTES: Final = 170 * _MB
"""Memory of a part: fabric process, switches, OCS, machine service and Ray's process."""
_CONTROLLER_CORES: Final = 0.05
"""Cores of a controller that reconfigures circuits."""
_CONTROLLER_BYTES: Final = 35 * _MB
"""Memory of a controller."""
_COMMAND_BYTES: Final = 200 * _MB
"""Memory of the program that commands a fabric, `moefabric run`."""
_SERVER_BYTES: Final = 12 * _MB
"""Memory of a server: agent with buffers of its connections, namespaces, switch."""


@dataclass(frozen=True)
class ResourceNeeds:
    """Resources of a machine that a part of a fabric reserves.

    Attributes:
        cores: CPU cores, in part.
        memory_bytes: Memory in bytes.
    """

    cores: float
    memory_bytes: int

    def __add__(self, other: "ResourceNeeds") -> "ResourceNeeds":
        return ResourceNeeds(self.cores + other.cores, self.memory_bytes + other.memory_bytes)

    def __sub__(self, other: "ResourceNeeds") -> "ResourceNeeds":
        return ResourceNeeds(self.cores - other.cores, self.memory_bytes - other.memory_bytes)

    def __str__(self) -> str:
        cores = f"{self.cores:.3g} core{'' if self.cores == 1 else 's'}"
        return f"{cores} and {self.memory_bytes / _MB:.0f} MB"

    def fit_in(self, free: "ResourceNeeds") -> bool:
        """Return whether free resources are enough."""
        return self.cores <= free.cores and self.memory_bytes <= free.memory_bytes


def total_needs(needs: Iterable[ResourceNeeds]) -> ResourceNeeds:
    """Return the sum of the needs of several parts."""
    return sum(needs, ResourceNeeds(0.0, 0))


def region_needs(fabric: Fabric, region: Region) -> ResourceNeeds:
    """Return the needs of a region at the scale of its fabric.

    The cores carry the bytes of all NICs at their emulated rate and leave a third of their time,
    which the processes of the control plane need.

    Args:
        fabric: The fabric, with its scale.
        region: One of its regions.
    """
    nics_bps = sum(len(fabric.nics(server)) * fabric.rate_bps(server) for server in region.servers)
    carrying, servers = _carrying_cores(fabric, nics_bps), len(region.servers)
    cores = max(_PART_CORES + servers * _SERVER_CORES, carrying)
    return ResourceNeeds(cores, _PART_BYTES + servers * _SERVER_BYTES)


def _carrying_cores(fabric: Fabric, nics_bps: float) -> float:
    """Return the cores that carry NICs' bytes over two links of "bpf", and leave a third idle."""
    return MachineSpeed().cores(fabric, 2 * nics_bps, "bpf") / (1 - IDLE_SHARE)


def eps_needs(fabric: Fabric) -> ResourceNeeds:
    """Return the needs of the leaves and spines of a fabric, without its regions."""
    nics_bps = fabric.electrical * sum(fabric.rates_bps)
    relays = fabric.scale.rate_bps(nics_bps) / RELAYED_BPS if fabric.eps_link else 0.0
    cores = max(_PART_CORES, _carrying_cores(fabric, nics_bps) / 2 + relays)
    return ResourceNeeds(cores, _PART_BYTES)


def head_needs(fabric: Fabric) -> ResourceNeeds:
    """Return the needs of a fabric's controllers and of the program that commands the fabric."""
    controllers = len(fabric.regions) + (fabric.eps is not None)
    return ResourceNeeds(
        _PART_CORES + controllers * _CONTROLLER_CORES,
        _PART_BYTES + _COMMAND_BYTES + controllers * _CONTROLLER_BYTES,
    )


def fabric_needs(fabric: Fabric) -> dict[str, ResourceNeeds]:
    """Return the needs of each part of a fabric but the head: regions by name, and `EPS` if any."""
    parts = {region.name: region_needs(fabric, region) for region in fabric.regions}
    return parts | ({EPS: eps_needs(fabric)} if fabric.eps is not None else {})
