"""IPv4 and MAC addresses of GPUs, hosts and regions: functions of their positions in the fabric."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Network
from typing import Final

GATEWAY_MAC: Final = "02:00:0a:ff:ff:fe"
"""Destination MAC address of the frames that servers send to other regions."""
_NET: Final = 10


@dataclass(frozen=True)
class Addressing:
    """The addresses of a fabric.

    Example:
        >>> addressing = Addressing({"r0": ("s0", "s1"), "r1": ("s2", "s3")}, gpus=2)
        >>> addressing.addresses("s3")
        ('10.1.1.1', '10.1.1.2')
        >>> addressing.mac("s3"), addressing.gateway("s3"), str(addressing.prefix("r1"))
        ('02:00:0a:01:01:01', '10.1.255.254', '10.1.0.0/16')

    Attributes:
        servers: The servers of each region, by its name, in order.
        gpus: GPUs of a server; each has an address.
    """

    servers: Mapping[str, tuple[str, ...]]
    gpus: int

    def prefix(self, place: str) -> IPv4Network:
        """Return the addresses of a GPU (`s0/3`), a server (`s0`), a region (`r0`) or all (`*`)."""
        server, _, gpu = place.partition("/")
        return IPv4Network(self._addresses[server][int(gpu)]) if gpu else self._prefixes[place]

    @cached_property
    def _prefixes(self) -> dict[str, IPv4Network]:
        prefixes = {"*": IPv4Network("10.0.0.0/8")}
        for index, (region, servers) in enumerate(self.servers.items()):
            prefixes[region] = IPv4Network(f"10.{index}.0.0/16")
            for position, server in enumerate(servers):
                prefixes[server] = IPv4Network(f"10.{index}.{position}.0/24")
        return prefixes

    def addresses(self, server: str) -> tuple[str, ...]:
        """Return the address of each GPU: `10.<region>.<server in region>.<gpu + 1>`."""
        return self._addresses[server]

    @cached_property
    def _addresses(self) -> dict[str, tuple[str, ...]]:
        return {
            server: tuple(f"10.{index}.{position}.{gpu + 1}" for gpu in range(self.gpus))
            for index, servers in enumerate(self.servers.values())
            for position, server in enumerate(servers)
        }

    def server_with(self, address: int) -> str | None:
        """Return the server with an IPv4 address, given as a number; None if no server has it."""
        net, region, position, gpu = address.to_bytes(4, "big")
        if net != _NET or region >= len(self.servers) or not 1 <= gpu <= self.gpus:
            return None
        servers = tuple(self.servers.values())[region]
        return servers[position] if position < len(servers) else None

    def gateway(self, server: str) -> str | None:
        """Return the next hop of a server to other regions; None in a fabric of one region.

        One entry in a server's neighbour table stands for all other regions. The server switch of
        the receiver gives frames the receiver's MAC address.
        """
        if len(self.servers) == 1:
            return None
        net, region = self.prefix(server).network_address.packed[:2]
        return f"{net}.{region}.255.254"

    def mac(self, server: str) -> str:
        """Return the MAC address of a server's host, the same for all its GPUs."""
        return self._macs[server]

    @cached_property
    def _macs(self) -> dict[str, str]:
        octets = {server: self.prefix(server).network_address.packed for server in self._addresses}
        return {server: f"02:00:{packed[:3].hex(':')}:01" for server, packed in octets.items()}
