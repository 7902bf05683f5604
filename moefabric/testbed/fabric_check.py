"""Check of a running fabric: every pair of servers connects, and light moves in every region."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Final

from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.nic import Nic, NicKind
from moefabric.core.paths import dscp
from moefabric.core.port_counts import INTO_OCS, counted_nics
from moefabric.core.protocols import PortCounters
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric.datagrams import FabricSockets, Pair
from moefabric.emulator.fabric.run_directories import sole_check
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.testbed.testbed import port_counters, region_controllers

_TRIES: Final = 3
_SHOWN: Final = 5
Send = Callable[[Collection[Pair], int], list[Pair]]
"""Sends a datagram for each pair, with a mark; returns the pairs whose datagram is lost."""


@dataclass(frozen=True)
class FabricCheck:
    """Findings of a check.

    Attributes:
        servers: Number of servers that sent and received.
        pairs: Number of ordered pairs of them.
        unconnected: Pairs such as `s0 to s1` without any arrived datagram.
        regions: Number of regions whose light was moved.
        circuits: Number of circuits that were lit, in two matchings in turn.
        unlit: Circuits of these that datagrams don't pass in both directions.
        standing: Number of circuits that the controllers had been asked for before the check.
        lost: Circuits of these that datagrams didn't pass in both directions.
    """

    servers: int
    pairs: int
    unconnected: tuple[str, ...] = ()
    regions: int = 0
    circuits: int = 0
    unlit: tuple[str, ...] = ()
    standing: int = 0
    lost: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """True if all pairs connect and all circuits have carried their datagrams."""
        return not (self.unconnected or self.unlit or self.lost)

    def lines(self) -> Iterator[str]:
        """Yield the findings as text."""
        if self.standing:
            lit = self.standing - len(self.lost)
            yield f"before the check: {lit} of {self.standing} circuits carried packets"
        connected = self.pairs - len(self.unconnected)
        yield f"{self.servers} servers: {connected} of {self.pairs} pairs connect"
        if self.circuits:
            lit = self.circuits - len(self.unlit)
            yield f"{self.regions} regions: {lit} of {self.circuits} circuits carry packets"
        yield from _named("not connected", self.unconnected)
        yield from _named("dark before the check", self.lost)
        yield from _named("dark", self.unlit)

    def to_json(self) -> dict[str, Any]:
        """Return the check as a JSON object."""
        return {"passed": self.passed, **asdict(self)}


def _named(label: str, names: tuple[str, ...]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        yield f"{label}: {', '.join(names[:_SHOWN])}{more}"


def rounds(servers: Sequence[str]) -> list[Pair]:
    """Return all ordered pairs of servers; in each round, every server sends once."""
    count = len(servers)
    return [
        (servers[place], servers[(place + distance) % count])
        for distance in range(1, count)
        for place in range(count)
    ]


def matching(fabric: Fabric, region: Region, turn: int) -> list[Circuit]:
    """Return circuits that join a region's servers in pairs; the next turn joins other pairs.

    Args:
        region: A region with an OCS.
        turn: 0 or more: shifts the pairs, and chooses the number of the NICs.
    """
    servers, number = region.servers, turn % fabric.optical
    nics = [
        Nic(servers[(place + turn) % len(servers)], NicKind.OPTICAL, number)
        for place in range(len(servers) // 2 * 2)
    ]
    return [Circuit(a, b) for a, b in zip(nics[::2], nics[1::2], strict=True)]


def check_fabric(wiring: FabricWiring) -> FabricCheck:
    """Check a running fabric with packets; it has its earlier circuits afterwards.

    First a datagram passes each circuit that the controllers have been asked for, whatever they
    know of its light. Then the circuits are removed, and every server sends a datagram to every
    other one, over the EPS. Then the controllers light two matchings in each region, one after the
    other. A datagram passes each circuit in both directions, and the counter of the OCS port at
    which it enters counts it.
    Datagrams that don't arrive are sent again, twice. A patch panel's circuits stay as they are.

    Raises:
        FabricError: If the fabric doesn't run, or another process checks it.
        ControlError: If a controller doesn't answer.
    """
    fabric = wiring.fabric
    with ExitStack() as undo:
        undo.enter_context(sole_check(RunDirectory.of_fabric(fabric.name)))
        controllers = undo.enter_context(closing(region_controllers(wiring)))
        sockets = undo.enter_context(FabricSockets(wiring))
        counters = undo.enter_context(port_counters(fabric))
        standing = list(controllers.requested_circuits()) if fabric.optical else []
        lost_light = _dark(fabric, standing, sockets.lost, counters) if standing else []
        regions = list(fabric.ocses) if fabric.optical and not fabric.patch_panel else []
        if regions:
            undo.callback(controllers.restore, fabric, CircuitSet(frozenset(standing)))
            controllers.clear_circuits()
        pairs = rounds(sockets.servers)
        lost = _lost(sockets.lost, pairs, 0)
        lit_count, dark = 0, list[Circuit]()
        for turn in range(2 if regions else 0):
            circuits = [c for region in regions for c in matching(fabric, region, turn)]
            controllers.restore(fabric, CircuitSet(frozenset(circuits)))
            lit_count += len(circuits)
            dark += _dark(fabric, circuits, sockets.lost, counters)
    return FabricCheck(
        len(sockets.servers),
        len(pairs),
        tuple(f"{source} to {target}" for source, target in lost),
        len(regions),
        lit_count,
        tuple(map(str, dark)),
        len(standing),
        tuple(map(str, lost_light)),
    )


def _lost(send: Send, pairs: Collection[Pair], mark: int) -> list[Pair]:
    """Send datagrams up to `_TRIES` times, and return the pairs without an arrived one."""
    lost = list(pairs)
    for _ in range(_TRIES):
        if lost:
            lost = send(lost, mark)
    return lost


def _dark(
    fabric: Fabric, circuits: Sequence[Circuit], send: Send, counters: PortCounters
) -> list[Circuit]:
    """Return the circuits that a datagram doesn't pass in both directions."""
    rows = {nic: row for row, nic in enumerate(counted_nics(fabric))}
    before, lost = counters.read(), set[Pair]()
    ways = [(near, far) for circuit in circuits for near, far in circuit.directions]
    for path, group in groupby(sorted(ways, key=lambda way: way[0].path), lambda way: way[0].path):
        pairs = [(near.server, far.server) for near, far in group]
        lost |= set(_lost(send, pairs, dscp(fabric, path)))
    after = counters.read()
    passed = after.frames[:, INTO_OCS] > before.frames[:, INTO_OCS]
    return [
        circuit
        for circuit in circuits
        if any(
            (near.server, far.server) in lost or not passed[rows[near]]
            for near, far in circuit.directions
        )
    ]
