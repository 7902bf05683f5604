"""Failures: what was told of NICs and ports, what has failed by that, and by whom a server is reached that has lost its way."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from moefabric.circuits import Circuit, CircuitSet
from moefabric.topology import Fabric, Kind, Nic, Region


class Failed(StrEnum):
    """Kinds of failures, as a controller finds them out."""

    ELECTRICAL_NIC = "electrical-nic"
    OPTICAL_NIC = "optical-nic"
    OCS_PORT = "ocs-port"
    OCS = "ocs"
    """All optical NICs of a region at once."""
    SERVER = "server"
    """All NICs of a server at once."""


@dataclass(frozen=True)
class Failure:
    """Something that has failed: a NIC or the port that it is plugged into (`s0/o1`), an OCS (`ocs0`), a server (`s3`)."""

    what: str
    kind: Failed


@dataclass(frozen=True)
class News:
    """What was told of a NIC: that its link came or went, or (`port`) its port of the OCS; when (CLOCK_MONOTONIC).

    A link that `hangs` on light goes and comes with it, whether the NIC works or not.
    """

    nic: Nic
    up: bool
    at_ns: int
    port: bool = False
    hangs: bool = False


@dataclass(frozen=True)
class Condition:
    """NICs whose link is down, those whose port of the OCS is out of order, and those that lost their light while traffic relied on it."""

    down: frozenset[Nic] = frozenset()
    failed: frozenset[Nic] = frozenset()
    dark: frozenset[Nic] = frozenset()

    @property
    def out(self) -> frozenset[Nic]:
        """The NICs that carry nothing."""
        return self.down | self.failed | self.dark

    def told(self, news: Iterable[News]) -> "Condition":
        """What it is after the news, the later of which count."""
        down, failed, dark = set(self.down), set(self.failed), set(self.dark)
        for one in news:
            bad = failed if one.port else dark if one.hangs else down
            (bad.discard if one.up else bad.add)(one.nic)
        return Condition(frozenset(down), frozenset(failed), frozenset(dark))


def failures(
    fabric: Fabric, regions: Sequence[Region], before: Condition, condition: Condition
) -> tuple[Failure, ...]:
    """What has failed since `before`, in the fewest words: an OCS or a server instead of each of its NICs.

    Regions are those of whose NICs one hears everything.
    """
    left, found = set(condition.down - before.down), list[Failure]()
    for region in regions:
        lit = {nic for server in region.servers for nic in fabric.optical_nics(server)}
        if region.ocs is not None and len(lit) > 1 and lit <= condition.down and lit & left:
            found.append(Failure(region.ocs.name, Failed.OCS))
            left -= lit
        for server in region.servers:
            nics = set(fabric.nics(server))
            if len(nics) > 1 and nics <= condition.down and nics & left:
                found.append(Failure(server, Failed.SERVER))
                left -= nics
    left |= condition.dark - before.dark
    found += [Failure(str(nic), _kind(nic)) for nic in sorted(left)]
    found += [Failure(str(nic), Failed.OCS_PORT) for nic in sorted(condition.failed - before.failed)]
    return tuple(found)


def _kind(nic: Nic) -> Failed:
    return Failed.OPTICAL_NIC if nic.kind is Kind.OPTICAL else Failed.ELECTRICAL_NIC


def stands(fabric: Fabric, failure: Failure, condition: Condition) -> bool:
    """Whether something that had failed still has, though perhaps in other words: until it works again as a whole."""
    match failure.kind:
        case Failed.OCS:
            region = next(r for r in fabric.regions if r.ocs is not None and r.ocs.name == failure.what)
            nics = [nic for server in region.servers for nic in fabric.optical_nics(server)]
            return set(nics) <= condition.down
        case Failed.SERVER:
            return set(fabric.nics(failure.what)) <= condition.down
        case Failed.OCS_PORT:
            return Nic.parse(failure.what) in condition.failed
        case _:
            return Nic.parse(failure.what) in condition.down | condition.dark


def whole(circuits: Iterable[Circuit], out: Collection[Nic]) -> CircuitSet:
    """The circuits of which no end is out."""
    return CircuitSet(frozenset(c for c in circuits if c.a not in out and c.b not in out))


def relays(fabric: Fabric, region: Region, lit: CircuitSet, now: Mapping[str, Circuit]) -> dict[str, Circuit]:
    """The circuits by which servers whose electrical NICs are all out reach the EPS: each to a peer that has one, which forwards (paper section 5.4).

    Who has a relay keeps it while it works. Else one that is lit comes first, then a peer that forwards for few, has many electrical NICs, and
    comes first in the region. A circuit that isn't lit takes NICs that nothing is lit on, where there are any.
    """
    needy = [s for s in region.servers if fabric.electrical_nics(s) and not fabric.usable_electrical(s)]
    able = {s for s in region.servers if fabric.usable_electrical(s) and fabric.usable_optical(s)}
    found = {
        server: now[server]
        for server in needy
        if server in now
        and now[server].end_across(server).server in able
        and whole([now[server]], fabric.out)
    }
    for server in needy:
        if server not in found and (chosen := _chosen(fabric, region, lit, found, server, able)):
            found[server] = chosen
    return found


def _chosen(
    fabric: Fabric,
    region: Region,
    lit: CircuitSet,
    found: Mapping[str, Circuit],
    server: str,
    able: Collection[str],
) -> Circuit | None:
    """The best circuit from a server to a peer that is able to forward, beside those found for others."""
    taken = {nic for circuit in found.values() for nic in (circuit.a, circuit.b)}
    load = [circuit.end_across(needy).server for needy, circuit in found.items()]
    offers = [
        (not_lit, load.count(peer), -len(fabric.usable_electrical(peer)), region.servers.index(peer), circuit)
        for peer in able
        for not_lit, circuit in _between(fabric, lit, taken, server, peer)
    ]
    return min(offers)[-1] if offers else None


def _between(
    fabric: Fabric, lit: CircuitSet, taken: Collection[Nic], a: str, b: str
) -> Iterator[tuple[bool, Circuit]]:
    """A circuit between two servers on NICs that work and aren't taken, and whether it isn't lit yet."""
    there = [c for c in whole(lit.between(a, b), fabric.out) if not {c.a, c.b} & {*taken}]
    if there:
        yield False, there[0]
        return
    busy = {nic for circuit in lit for nic in (circuit.a, circuit.b)}
    ends = [
        min((nic in busy, -nic.index, nic) for nic in nics)[-1]
        for server in (a, b)
        if (nics := [nic for nic in fabric.usable_optical(server) if nic not in taken])
    ]
    if len(ends) == 2:
        yield True, Circuit(*ends)


def beside(held: CircuitSet, lit: Iterable[Circuit]) -> CircuitSet:
    """What is held, and of what is lit all that needs none of its NICs."""
    taken = {nic for circuit in held for nic in (circuit.a, circuit.b)}
    return CircuitSet(held.circuits | whole(lit, taken).circuits)
