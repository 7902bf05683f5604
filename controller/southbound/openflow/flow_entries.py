"""Flow entries: rules as OpenFlow priorities, matches and ports."""

from dataclasses import dataclass
from typing import Final

from moefabric.core.paths import dscp
from moefabric.core.rules import DROP, Rule, RuleChange
from moefabric.core.topology import Fabric

ARP_PRIORITY: Final = 0xFFFF
"""Above all rules: a server switch sends its server's ARP requests to the controller."""
PROBE_PRIORITY: Final = 0xFFFE
"""Priority of the entry by which a server switch sends light probes to the controller."""
_LOCAL, _CIRCUIT, _MARKED, _BASE = 0x4000, 0x2000, 0x1000, 0x0800


@dataclass(frozen=True, order=True)
class FlowEntry:
    """An IPv4 entry of a flow table.

    Attributes:
        priority: The highest that matches wins.
        network: Destination network, as a number.
        length: Its prefix length in bits.
        dscp: The DSCP of matching packets; None for any.
        port: Number of the output port; None drops packets.
        buckets: Ports with weights over which flows are spread by a group; empty without one.
        mac: MAC address that packets are sent to, as a number; None to leave theirs.
    """

    priority: int
    network: int
    length: int
    dscp: int | None
    port: int | None
    buckets: tuple[tuple[int, int], ...] = ()
    mac: int | None = None

    @property
    def match(self) -> tuple[int, int, int, int | None]:
        """The entry's identity: adding an entry replaces the one with the same identity."""
        return self.priority, self.network, self.length, self.dscp


@dataclass(frozen=True)
class RuleCounter:
    """Packets and bytes that a rule's entry has carried since it was added."""

    rule: Rule
    packets: int
    bytes: int


def flow_entry(fabric: Fabric, rule: Rule) -> FlowEntry:
    """Return the entry of a rule on its switch.

    Priorities prefer the switch's own server, then circuits, marked flows and longer prefixes.
    Marks come before prefixes, since a sender's choice of NIC holds for all servers. The switch's
    own server comes before marks, since a packet that has arrived is still marked. So does a single
    GPU, whose NIC doesn't depend on the sender's.

    A circuit's rule without a path matches unmarked packets only: marked ones chose the EPS or
    another circuit.

    Packets from other regions come with the MAC address of a gateway (`Fabric.gateway`).
    """
    network = fabric.addressing.prefix(rule.to)
    is_own = rule.out == "host"
    local = _LOCAL if is_own else 0
    is_beyond_gateway = is_own and fabric.addressing.gateway(rule.switch) is not None
    circuit = _CIRCUIT if rule.light else 0
    marked = _MARKED if rule.path or network.prefixlen == network.max_prefixlen else 0
    unmarked = 0 if rule.light else None
    ports = fabric.openflow.ports(rule.switch)
    return FlowEntry(
        priority=_BASE + local + circuit + marked + network.prefixlen,
        network=int(network.network_address),
        length=network.prefixlen,
        dscp=dscp(fabric, rule.path) if rule.path else unmarked,
        port=None if rule.out == DROP else ports[rule.out],
        buckets=tuple((ports[port], weight) for port, weight in rule.spread),
        mac=int(fabric.addressing.mac(rule.switch).replace(":", ""), 16)
        if is_beyond_gateway
        else None,
    )


def ordered_rules(fabric: Fabric, change: RuleChange) -> dict[str, list[tuple[Rule, bool]]]:
    """Return the rules of a change by switch, in their order, each with whether it is added.

    Deletions come first, so that a full table has room. A rule for many destinations is deleted
    before and added after the rules for some of them, so that it never takes their packets.
    """

    def by_prefix_length(rule: Rule) -> tuple[int, tuple[str, str, str, bool]]:
        return fabric.addressing.prefix(rule.to).prefixlen, rule.match

    ordered: dict[str, list[tuple[Rule, bool]]] = {}
    for rule in sorted(change.delete, key=by_prefix_length):
        ordered.setdefault(rule.switch, []).append((rule, False))
    for rule in sorted(change.add, key=by_prefix_length, reverse=True):
        ordered.setdefault(rule.switch, []).append((rule, True))
    return ordered
