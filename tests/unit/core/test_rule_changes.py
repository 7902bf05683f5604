"""No packet of a relay tree circulates while switches change its rules one after the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from random import Random

import pytest

from moefabric.controller.recovery.relays import select_relays
from moefabric.controller.southbound.openflow.flow_entries import (
    FlowEntry,
    flow_entry,
    ordered_rules,
)
from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.forwarding import circuit_rules, relay_trees, rule_changes
from moefabric.core.nic import Nic, NicKind
from moefabric.core.paths import dscp, relay_lanes, relay_path
from moefabric.core.rules import Rule, RuleChange, server_rules
from moefabric.core.topology import Fabric
from tests.support.fabrics import MESH, fabric
from tests.support.memory_switches import matches

Table = Mapping[tuple[int, int, int, int | None], FlowEntry]
RuleChanges = Callable[[frozenset[Rule], frozenset[Rule]], Sequence[RuleChange]]
DELIVERED, DROPPED, LOST, CIRCULATES = "delivered", "dropped", "lost", "circulates"


@dataclass(frozen=True)
class Region:
    """Server switches of one region whose circuits carry traffic, and the EPS.

    Attributes:
        fabric: The fabric without failed NICs.
        lit: The circuits that have light.
        relays: The circuit to the relay of each server without electrical NICs.
    """

    fabric: Fabric
    lit: CircuitSet
    relays: Mapping[str, Circuit]

    @property
    def base(self) -> frozenset[Rule]:
        return server_rules(self.fabric, self.fabric.regions[0], self.relays)

    @cached_property
    def far_ends(self) -> dict[str, Nic]:
        return {str(near): far for circuit in self.lit for near, far in circuit.directions}

    def fates(
        self, tables: Mapping[str, Sequence[Table]], dst: str, mark: str
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield what can happen to a packet from each server, and the switches that it crosses.

        Args:
            tables: The tables that each switch has one after the other. Any of them may meet any
                table of another switch. A loop without repeated switches meets one table of each.
            dst: The packet's destination.
            mark: Its mark.
        """
        address = self._address(dst)
        marked = dscp(self.fabric, mark)
        ports = {
            switch: {self._port(table, switch, address, marked) for table in listed}
            for switch, listed in tables.items()
        }

        def follow(
            switch: str, arrived: str, crossed: tuple[str, ...]
        ) -> Iterator[tuple[str, tuple[str, ...]]]:
            if switch in crossed:
                yield CIRCULATES, (*crossed[crossed.index(switch) :], switch)
                return
            crossed = (*crossed, switch)
            for port in ports[switch]:
                if port == "host":
                    yield DELIVERED, crossed
                elif port is None or port == arrived:
                    yield DROPPED, crossed
                elif (hop := self._hop(port, dst)) is None:
                    yield LOST, crossed
                else:
                    yield from follow(*hop, crossed)

        for server in self.fabric.regions[0].servers:
            if server != dst:
                yield from follow(server, "host", ())

    def _port(self, table: Table, switch: str, address: int, marked: int) -> str | None:
        matching = [e for e in table.values() if matches(e, address, marked)]
        number = max(matching, key=lambda e: e.priority).port if matching else None
        ports = self.fabric.openflow.ports(switch).items()
        return next((name for name, port in ports if port == number), None)

    def _hop(self, port: str, dst: str) -> tuple[str, str] | None:
        """Return the switch behind a port and the port at which packets arrive; None if dark."""
        if Nic.parse(port).kind is NicKind.OPTICAL:
            far = self.far_ends.get(port)
            return (far.server, str(far)) if far else None
        below = self.relays[dst].far_end(dst).server if dst in self.relays else dst
        return below, f"{below}/e0"

    def tables(self, held: frozenset[Rule], change: RuleChange) -> dict[str, list[Table]]:
        """Return the tables of each switch before, during and after a change, in order."""
        result = dict[str, list[Table]]()
        for switch in self.fabric.regions[0].servers:
            table = {
                entry.match: entry
                for rule in self.base | held
                if rule.switch == switch
                for entry in [flow_entry(self.fabric, rule)]
            }
            result[switch] = [dict(table)]
            for rule, added in ordered_rules(self.fabric, change).get(switch, ()):
                entry = flow_entry(self.fabric, rule)
                table.pop(entry.match, None)
                table |= {entry.match: entry} if added else {}
                result[switch].append(dict(table))
        return result

    def _leading(self, tables: Mapping[str, list[Table]], dst: str) -> dict[str, list[Table]]:
        """Return the tables without the entries of other destinations."""
        address = self._address(dst)
        return {
            switch: [
                {match: e for match, e in table.items() if matches(e, address, e.dscp or 0)}
                for table in listed
            ]
            for switch, listed in tables.items()
        }

    def _address(self, server: str) -> int:
        return int(self.fabric.addressing.prefix(server).network_address) + 1

    def all_fates(
        self, held: frozenset[Rule], changes: Sequence[RuleChange]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the fates of all packets of all trees while these changes are made."""
        servers = self.fabric.regions[0].servers
        lanes = relay_lanes(self.fabric, self.fabric.regions[0])
        for change in changes:
            tables = self.tables(held, change)
            for dst in servers:
                leading = self._leading(tables, dst)
                for root, lane in product(servers, range(lanes)):
                    yield from self.fates(leading, dst, relay_path(self.fabric, root, lane))
            replaced = {rule.match for rule in change.add}
            left = (rule for rule in held - change.delete if rule.match not in replaced)
            held = frozenset(left) | change.add


def forwarding(optical: int, servers: int, electrical: int = 1) -> Fabric:
    wired = fabric(optical, electrical, regions=(servers,))
    return replace(wired, forwarding=True, patch_panel=not electrical)


Case = tuple[Fabric, CircuitSet, CircuitSet]
"""A fabric, the circuits that carry traffic, and those of them that stay."""


def cases(number: int, electrical: int = 1) -> Iterator[Case]:
    """Yield small regions whose optical NICs all have circuits, and lose some of them."""
    random = Random(number)
    for servers, optical in ((3, 2), (3, 3), (4, 2), (4, 3), (5, 2), (5, 3)):
        wired = forwarding(optical, servers, electrical)
        nics = [nic for server in wired.servers for nic in wired.optical_nics(server)]
        random.shuffle(nics)
        pairs = zip(nics[::2], nics[1::2], strict=False)
        before = CircuitSet(frozenset(Circuit(a, b) for a, b in pairs if a.server != b.server))
        for lost in before:
            yield wired, before, CircuitSet(before.circuits - {lost})
        yield wired, before, CircuitSet(frozenset(random.sample([*before], len(before) // 2)))


def circulating(
    region: Region, before: CircuitSet, after: CircuitSet, changes: RuleChanges
) -> list[tuple[str, ...]]:
    held, target = (circuit_rules(region.fabric, lit) for lit in (before, after))
    fates = region.all_fates(held, changes(held, target))
    return [crossed for fate, crossed in fates if fate == CIRCULATES]


def at_once(held: frozenset[Rule], target: frozenset[Rule]) -> tuple[RuleChange, ...]:
    return (RuleChange.between(held, target),)


with_drops = partial(rule_changes, drop=True)


@pytest.mark.parametrize("number", range(4))
def test_no_packet_circulates_after_a_failure(number: int) -> None:
    for wired, before, after in cases(number):
        region = Region(wired, after, {})
        assert not circulating(region, before, after, rule_changes)
        assert not circulating(region, before, after, with_drops)


def test_packets_would_circulate_if_all_rules_changed_at_once() -> None:
    every = [case for number in range(4) for case in cases(number)]
    loops = [
        case for case in every if circulating(Region(case[0], case[2], {}), *case[1:], at_once)
    ]
    assert len(loops) > 0.02 * len(every)


@pytest.mark.parametrize("number", range(4))
def test_every_packet_of_a_tree_arrives_while_circuits_move(number: int) -> None:
    for wired, before, kept in cases(number):
        region, held = Region(wired, before, {}), circuit_rules(wired, before)
        target = circuit_rules(wired, kept)
        divert = region.all_fates(held, rule_changes(held, target))
        assert {fate for fate, _ in divert} == {DELIVERED}
        admit = region.all_fates(target, rule_changes(target, held))
        assert {fate for fate, _ in admit} == {DELIVERED}


def relayed(number: int) -> Iterator[tuple[Region, CircuitSet]]:
    """Yield regions in which a server has lost its electrical NIC, and their earlier circuits."""
    random = Random(number)
    for whole, before, after in cases(number):
        wired = whole.without_nics(whole.electrical_nics(random.choice(whole.servers)))
        relays = select_relays(wired, wired.regions[0], after, {})
        lit = {server: circuit for server, circuit in relays.items() if circuit in after.circuits}
        yield Region(wired, after, lit), before


@pytest.mark.parametrize("number", range(4))
def test_no_packet_circulates_by_way_of_a_relay(number: int) -> None:
    for region, before in relayed(number):
        assert not circulating(region, before, region.lit, with_drops)


def test_packets_would_circulate_by_way_of_a_relay_if_none_were_dropped() -> None:
    every = [case for number in range(4) for case in relayed(number)]
    assert any(circulating(region, before, region.lit, rule_changes) for region, before in every)


@pytest.mark.parametrize("number", range(4))
def test_no_packet_circulates_without_an_eps(number: int) -> None:
    for wired, before, after in cases(number, electrical=0):
        assert not circulating(Region(wired, after, {}), before, after, with_drops)


def test_change_leaves_trees_alone_that_stay_as_they_are() -> None:
    wired, mesh = forwarding(3, 4), CircuitSet.of(MESH)
    left = CircuitSet.of(MESH[1:])  # without s0~s3
    held, target = circuit_rules(wired, mesh), circuit_rules(wired, left)
    changes = rule_changes(held, target)
    assert len(changes) == 2
    touched = {rule.path for change in changes for rule in change.delete | change.add}
    roots = {root for root in wired.servers if relay_trees(mesh)[root] != relay_trees(left)[root]}
    assert roots == {"s0", "s3"}
    assert {path for path in touched if path and path[0] == "r"} == {"r0", "r3"}


@pytest.mark.parametrize("drop", [False, True])
def test_no_change_is_one_empty_change(drop: bool) -> None:
    held = circuit_rules(forwarding(3, 4), CircuitSet.of(MESH))
    assert [change.is_empty for change in rule_changes(held, held, drop=drop)] == [True]
