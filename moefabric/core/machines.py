"""Machines that carry one fabric together, and the machine of each part of the fabric."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from moefabric.core.errors import SpecError
from moefabric.core.topology import Fabric

LEASE_S = 20.0
"""Silence of the head after which a machine ends its part of a fabric."""


class Strategy(StrEnum):
    """Strategies to spread parts over nodes; the values are Ray's, in lower case."""

    PACK = "pack"
    """On few nodes; on several if one isn't enough."""
    SPREAD = "spread"
    """On many nodes; several parts on a node if there are too few."""
    STRICT_PACK = "strict-pack"
    """On one node."""
    STRICT_SPREAD = "strict-spread"
    """Each part on a node of its own."""


@dataclass(frozen=True)
class Machine:
    """Machine that carries a part of a fabric.

    Attributes:
        name: Unique among the machines of a fabric.
        address: IPv4 address at which the other machines' tunnels reach it.
        port: TCP port of its machine service at that address; 0 for the head.
        secret: Shared secret, by which its machine service and the head authenticate each other.
    """

    name: str
    address: str
    port: int = 0
    secret: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True)
class MachinePlacement:
    """The machine of each part of a fabric. A region is never split.

    Attributes:
        machines: All machines. The first is the head, which has all controllers.
        regions: Machine of each region's servers, server switches and OCS, by region.
        switches: Machine of each leaf and spine, by switch.
    """

    machines: tuple[Machine, ...]
    regions: Mapping[str, str]
    switches: Mapping[str, str]

    @classmethod
    def of(
        cls, fabric: Fabric, machines: Iterable[Machine], regions: Mapping[str, str], eps: str = ""
    ) -> Self:
        """Return a placement.

        Args:
            machines: The machines, the head first.
            regions: Machine by region.
            eps: Machine of all leaves and spines. Default: the head.

        Raises:
            SpecError: With all regions that have no machine, and machines that there are not.
        """
        listed, names = tuple(machines), (*fabric.leaves, *fabric.spines)
        placement = cls(listed, dict(regions), dict.fromkeys(names, eps or listed[0].name))
        if faults := list(placement._faults(fabric)):
            raise SpecError(faults)
        return placement

    @property
    def head(self) -> Machine:
        """The machine with the controllers, from which the fabric is commanded."""
        return self.machines[0]

    @property
    def others(self) -> tuple[Machine, ...]:
        """All machines but the head."""
        return self.machines[1:]

    def machine(self, name: str) -> Machine:
        """Return the machine of this name."""
        return next(machine for machine in self.machines if machine.name == name)

    def components(self, fabric: Fabric) -> dict[str, str]:
        """Return the machine of each server, OCS, leaf and spine."""
        placed = {
            name: self.regions[region.name]
            for region in fabric.regions
            for name in (*region.servers, *((region.ocs.name,) if region.ocs else ()))
        }
        return placed | dict(self.switches)

    def without_secrets(self) -> "MachinePlacement":
        """Return the placement without the machines' secrets, for the fabric's processes."""
        return replace(
            self, machines=tuple(replace(machine, secret="") for machine in self.machines)
        )

    def _faults(self, fabric: Fabric) -> Iterator[tuple[str, str]]:
        names = [machine.name for machine in self.machines]
        listed_names = ", ".join(names)
        if len(set(names)) < len(names):
            yield "machines", f"{listed_names}: each machine needs a name of its own"
        expected = [region.name for region in fabric.regions]
        for name in expected:
            if name not in self.regions:
                yield f"regions.{name}", f"has no machine; the machines are {listed_names}"
        for kind, places in (("regions", self.regions), ("switches", self.switches)):
            for name, machine in places.items():
                if kind == "regions" and name not in expected:
                    yield f"regions.{name}", f"is not one of {', '.join(expected)}"
                elif machine not in names:
                    yield f"{kind}.{name}", f"{machine} is not one of {listed_names}"
