"""Packet switches in memory: flow tables that route a packet without kernel, switch or Ryu."""

from ipaddress import IPv4Address

from moefabric.controller.southbound.openflow.flow_entries import FlowEntry, flow_entry
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import UnconfirmedError
from moefabric.core.nic import Nic
from moefabric.core.paths import arrival_number, dscp, nic_address
from moefabric.core.routes import Link
from moefabric.core.rules import Rule, RuleChange, eps_rules, server_rules
from moefabric.core.topology import Fabric

_MOST_HOPS = 8


def matches(entry: FlowEntry, address: int, mark: int) -> bool:
    """Return whether an entry matches a packet with this destination and DSCP."""
    is_destination = (address ^ entry.network) >> (32 - entry.length) == 0
    return is_destination and entry.dscp in (None, mark)


class MemorySwitches:
    """All packet switches of a fabric, with the rules that need no circuits.

    They follow OpenFlow: one entry per match, the highest priority wins, and a packet that matches
    no entry is dropped.

    Attributes:
        gone: Switches that don't answer.
        circuit_rules: The rules in force that changes have added.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.gone: set[str] = set()
        self.circuit_rules: frozenset[Rule] = frozenset()
        self._tables: dict[str, dict[tuple[int, int, int, int | None], FlowEntry]] = {
            name: {} for name in fabric.switches
        }
        base = [server_rules(fabric, region) for region in fabric.regions] + [eps_rules(fabric)]
        for rule in frozenset[Rule]().union(*base):
            self._add(rule)

    def prepare(self, change: RuleChange) -> None:
        """Do nothing: a change in memory needs no messages."""

    def apply(self, change: RuleChange) -> None:
        """Change rules on all switches that answer.

        Raises:
            UnconfirmedError: if others are concerned.
        """
        for rule in change.delete:
            if rule.switch not in self.gone:
                self._tables[rule.switch].pop(flow_entry(self.fabric, rule).match, None)
                self.circuit_rules -= {rule}
        for rule in change.add:
            if rule.switch not in self.gone:
                self._add(rule)
                self.circuit_rules = frozenset(
                    r for r in self.circuit_rules if r.match != rule.match
                ) | {rule}
        if absent := sorted(self.gone & {rule.switch for rule in change.delete | change.add}):
            raise UnconfirmedError(f"{', '.join(absent)}: not connected", absent)

    def _add(self, rule: Rule) -> None:
        entry = flow_entry(self.fabric, rule)
        self._tables[rule.switch][entry.match] = entry

    def route(
        self, source: str, to: str, path: str | None, lit: CircuitSet | None = None
    ) -> tuple[Link, ...]:
        """Return the directed links that a packet crosses from server to server.

        Args:
            source: The sending server.
            to: The receiving server.
            path: The path that the packet is marked for; None for an unmarked packet.
            lit: The circuits that have light.

        Returns:
            The links, the last of which ends at the server's NIC as in
            `moefabric.core.routes.route`; none if the packet is dropped.
        """
        nic = arrival_number(path) if path else 0
        address = int(IPv4Address(nic_address(self.fabric, to, nic)))
        mark = dscp(self.fabric, path) if path else 0
        switch, in_port, links = source, "host", list[Link]()
        for _ in range(max(_MOST_HOPS, len(self.fabric.servers))):
            out_port = self._out_port(switch, address, mark)
            if out_port == "host":
                return tuple(links) if switch == to else ()
            if out_port is None or out_port == in_port:
                return ()
            hop = self._hop(switch, out_port, lit or CircuitSet())
            if hop is None:
                return ()
            crossed, switch, in_port = hop
            links += crossed
        return ()

    def _out_port(self, switch: str, address: int, mark: int) -> str | None:
        matching = [e for e in self._tables[switch].values() if matches(e, address, mark)]
        if not matching:
            return None
        port = max(matching, key=lambda e: e.priority).port
        ports = self.fabric.openflow.ports(switch).items()
        return next((name for name, number in ports if number == port), None)

    def _hop(
        self, switch: str, out_port: str, lit: CircuitSet
    ) -> tuple[list[Link], str, str] | None:
        """Return the links behind a port, the switch at the far end and its port; None if dark."""
        if "/" not in out_port:
            return [(switch, out_port)], out_port, switch
        nic = Nic.parse(out_port)
        if switch != nic.server:
            return [(switch, out_port)], nic.server, out_port
        if nic in self.fabric.electrical_nics(switch):
            leaf = self.fabric.eps_wiring.leaf_of_nic(nic)
            return [(out_port, leaf)], leaf, out_port
        for circuit in lit:
            if nic in (circuit.a, circuit.b):
                far = circuit.far_end(switch)
                return [(out_port, "ocs"), ("ocs", str(far))], far.server, str(far)
        return None
