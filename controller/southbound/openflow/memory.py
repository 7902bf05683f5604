"""Packet switches in memory: flow tables that a packet can be walked through, without a kernel, a switch or Ryu."""

from controller.southbound.openflow.entries import Entry, entry
from moefabric.circuits import CircuitSet
from moefabric.errors import ControlError
from moefabric.fluid import Link
from moefabric.rules import Rule, RuleChange, eps_rules, server_rules
from moefabric.topology import Fabric, Nic, dscp

_MOST_HOPS = 8


class MemorySwitches:
    """All packet switches of a fabric, with the rules that need no light in place from the start.

    They keep OpenFlow's rules: one entry a match, the highest priority wins, what no entry takes is dropped. `gone` are switches that don't answer.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.gone: set[str] = set()
        self.confirmed: list[RuleChange] = []
        """Every change made, in order."""
        self._tables: dict[str, dict[tuple[int, int, int, int | None], Entry]] = {
            name: {} for name in fabric.switches
        }
        base = [server_rules(fabric, region) for region in fabric.regions] + [eps_rules(fabric)]
        for rule in frozenset[Rule]().union(*base):
            self._put(rule)
        self.light: frozenset[Rule] = frozenset()
        """The light rules in force."""

    def change(self, change: RuleChange) -> None:
        """Make the change. ControlError if one of the switches is gone; the others have made it by then."""
        for rule in change.delete:
            if rule.switch not in self.gone:
                self._tables[rule.switch].pop(entry(self.fabric, rule).match, None)
                self.light -= {rule}
        for rule in change.add:
            if rule.switch not in self.gone:
                self._put(rule)
                self.light = frozenset(r for r in self.light if r.match != rule.match) | {rule}
        if absent := sorted(self.gone & set(change.switches)):
            raise ControlError(f"{', '.join(absent)}: not connected")
        self.confirmed.append(change)

    def _put(self, rule: Rule) -> None:
        made = entry(self.fabric, rule)
        self._tables[rule.switch][made.match] = made

    def way(self, source: str, to: str, path: str | None, lit: CircuitSet | None = None) -> tuple[Link, ...]:
        """The directed links that a packet marked for `path` crosses from server to server while `lit` has light; empty if it is dropped.

        The last link ends at the server's NIC, as in `moefabric.fluid.route`.
        """
        light = lit or CircuitSet()
        address = int(self.fabric.prefix(to).network_address) + 1
        mark = dscp(path) if path else 0
        switch, arrived_by, links = source, "host", list[Link]()
        for _ in range(max(_MOST_HOPS, len(self.fabric.servers))):
            out = self._out(switch, address, mark)
            if out == "host":
                return tuple(links) if switch == to else ()
            if out is None or out == arrived_by:
                return ()
            hop = self._across(switch, out, light)
            if hop is None:
                return ()
            crossed, switch, arrived_by = hop
            links += crossed
        return ()

    def _out(self, switch: str, address: int, mark: int) -> str | None:
        taking = [e for e in self._tables[switch].values() if e.takes(address, mark)]
        if not taking:
            return None
        port = max(taking, key=lambda e: e.priority).port
        return next(name for name, number in self.fabric.ports(switch).items() if number == port)

    def _across(self, switch: str, out: str, light: CircuitSet) -> tuple[list[Link], str, str] | None:
        """The wire behind a port: the links it makes, the switch at its far end and the port it arrives by. None where it is dark."""
        if "/" not in out:
            return [(switch, out)], out, switch
        nic = Nic.parse(out)
        if switch != nic.server:
            return [(switch, out)], nic.server, out
        if nic in self.fabric.electrical_nics(switch):
            leaf = self.fabric.leaf_of_nic(nic)
            return [(out, leaf)], leaf, out
        for circuit in light:
            if nic in (circuit.a, circuit.b):
                far = circuit.b if circuit.a == nic else circuit.a
                return [(out, "ocs"), ("ocs", str(far))], far.server, str(far)
        return None
