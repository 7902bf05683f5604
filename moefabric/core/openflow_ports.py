"""OpenFlow datapath IDs and port numbers of a fabric's switches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from moefabric.core.eps import EpsWiring
from moefabric.core.nic import Nic

HOST_PORT: Final = 1
"""OpenFlow port of a server switch that its host is plugged into."""
_DPID_LEAF: Final = 0x10000
_DPID_SPINE: Final = 0x20000


@dataclass(frozen=True)
class OpenflowPorts:
    """The numbers by which OpenFlow knows switches and their ports.

    Example:
        >>> nics = {"s0": (Nic.parse("s0/o0"),)}
        >>> openflow = OpenflowPorts(nics, EpsWiring(None, {}, 0))
        >>> openflow.dpid("s0"), dict(openflow.ports("s0"))
        (1, {'host': 1, 's0/o0': 2})

    Attributes:
        nics: The NICs of each server, in the order of the servers.
        eps: Leaves and spines.
    """

    nics: Mapping[str, Sequence[Nic]]
    eps: EpsWiring

    def dpid(self, switch: str) -> int:
        """Return the OpenFlow datapath ID of a switch."""
        if switch in self._server_dpids:
            return self._server_dpids[switch]
        if switch.startswith("leaf"):
            return _DPID_LEAF + int(switch.removeprefix("leaf"))
        return _DPID_SPINE + int(switch.removeprefix("spine"))

    @cached_property
    def _server_dpids(self) -> dict[str, int]:
        return {server: dpid for dpid, server in enumerate(self.nics, start=1)}

    def ports(self, switch: str) -> Mapping[str, int]:
        """Return a switch's OpenFlow port numbers.

        Returns:
            Numbers by what is plugged in: `host`, a NIC (`s0/o1`) or a switch (`spine0`).
        """
        if (known := self._ports.get(switch)) is not None:
            return known
        if switch in self.nics:
            names = ["host", *map(str, self.nics[switch])]
        elif switch in self.eps.leaves:
            names = [*map(str, self.eps.nics_under(switch)), *self.eps.spines]
        else:
            names = list(self.eps.leaves)
        numbers = {name: number for number, name in enumerate(names, start=HOST_PORT)}
        return self._ports.setdefault(switch, numbers)

    @cached_property
    def _ports(self) -> dict[str, Mapping[str, int]]:
        """The port numbers of the switches that were asked for."""
        return {}
