"""Light that goes round, as RotorNet's: every pair of servers gets its turn, whatever is owed."""

from dataclasses import dataclass
from itertools import chain
from math import gcd

from controller.planner import nics
from controller.planner.policy import Counts, Pair, afforded, counted, counts, light_first
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Split
from moefabric.topology import Fabric, Region


def turns(servers: int) -> list[list[Pair]]:
    """Matchings in which every pair of servers meets exactly once: a tournament by the circle method.

    One server stays and the others move round it; of an odd number, one rests in each turn.
    """
    seats = servers + servers % 2
    ring = list(range(1, seats))
    made = []
    for turn in range(seats - 1):
        row = [0, *ring[turn:], *ring[:turn]]
        facing = zip(row[: seats // 2], reversed(row[seats // 2 :]), strict=True)
        made.append(sorted((min(pair), max(pair)) for pair in facing if max(pair) < servers))
    return made


def slots(servers: int, degree: int) -> list[Counts]:
    """What is lit in each time slot of the cycle: as many turns as a server has optical NICs, then the next ones."""
    each = turns(servers)
    if not degree or not each:
        return []
    cycle = len(each) // gcd(len(each), degree)
    return [
        counts(
            servers,
            list(chain.from_iterable(each[(slot * degree + nic) % len(each)] for nic in range(degree))),
        )
        for slot in range(cycle)
    ]


def _within(slot: Counts, ports: list[int]) -> Counts:
    """What of a slot there are ports for."""
    pairs = [(i, j) for i, row in enumerate(slot) for j in range(i + 1, len(slot)) for _ in range(row[j])]
    return counts(len(slot), afforded(pairs, ports))


@dataclass(frozen=True)
class RoundRobin:
    """The next slot of the cycle at every change; a pair with a circuit sends by light alone, the others by the EPS (RotorNet, SIGCOMM'17)."""

    name: str = "round-robin"
    moves: bool = True

    def circuits(self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet) -> CircuitSet:  # noqa: ARG002 - demand is ignored on purpose
        """The slot after the one that is lit; the first where none of them is."""
        ports = nics.ports(fabric, region)
        cycle = [_within(slot, ports) for slot in slots(len(region.servers), max(ports))]
        if not cycle:
            return CircuitSet()
        lit = tuple(tuple(int(count) for count in row) for row in counted(region.servers, now))
        following = (cycle.index(lit) + 1) % len(cycle) if lit in cycle else 0
        return nics.circuits(fabric, region, cycle[following], now)

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:  # noqa: ARG002 - the seam's
        """Light first, else the EPS."""
        return light_first(demand, circuits)
