"""Flow entries: a rule as an OpenFlow table holds it, with its priority, match and port as numbers."""

from dataclasses import dataclass
from typing import Final

from moefabric.rules import Rule
from moefabric.topology import Fabric, dscp

ARP_PRIORITY: Final = 0xFFFF
"""Above every rule: a server switch hands ARP from its host to its controller."""
PROBE_PRIORITY: Final = 0xFFFE
"""A server switch hands probes of light to its controller."""
_LOCAL, _LIGHT, _MARKED, _BASE = 0x4000, 0x2000, 0x1000, 0x0800


@dataclass(frozen=True, order=True)
class Entry:
    """IPv4 packets to `network`/`length` (both as numbers), of a DSCP unless that is None, leave by `port`."""

    priority: int
    network: int
    length: int
    dscp: int | None
    port: int

    @property
    def match(self) -> tuple[int, int, int, int | None]:
        """What OpenFlow calls the same entry: adding another of it replaces it, in one step."""
        return self.priority, self.network, self.length, self.dscp

    def takes(self, address: int, mark: int) -> bool:
        """Whether a packet to that address, with that DSCP, is one of its own."""
        return (address ^ self.network) >> (32 - self.length) == 0 and self.dscp in (None, mark)


def priority(rule: Rule, length: int) -> int:
    """A rule's priority: what is for the switch's own server first, then light, then marked flows, then the longer prefix.

    Marks come before prefixes, since a sender's choice of NIC holds for all servers; the own server before both, since a packet that has arrived
    still carries its mark.
    """
    return (
        _BASE
        + (_LOCAL if rule.out == "host" else 0)
        + (_LIGHT if rule.light else 0)
        + (_MARKED if rule.path else 0)
        + length
    )


def entry(fabric: Fabric, rule: Rule) -> Entry:
    """The flow entry of a rule on its switch. A light rule without a path takes unmarked packets only: marked ones chose the EPS, or other light."""
    network = fabric.prefix(rule.to)
    unmarked = 0 if rule.light else None
    return Entry(
        priority=priority(rule, network.prefixlen),
        network=int(network.network_address),
        length=network.prefixlen,
        dscp=dscp(rule.path) if rule.path else unmarked,
        port=fabric.ports(rule.switch)[rule.out],
    )
