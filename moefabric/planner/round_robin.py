"""Circuits in rotation, as RotorNet has them: every pair gets its turn, whatever the demand."""

from dataclasses import dataclass
from math import gcd

import numpy as np

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.topology import Fabric, Region
from moefabric.planner.arrays import circuit_counts, circuit_matrix
from moefabric.planner.nic_assignment import assign_nics, usable_ports
from moefabric.planner.pair_order import Pair, affordable_pairs
from moefabric.planner.policy import PolicyTraits


def tournament(servers: int) -> list[list[Pair]]:
    """Return matchings in which every two servers meet exactly once, by the circle method.

    One server stays and the others rotate around it. With an odd number of servers, one server has
    no partner in each round.
    """
    seats = servers + servers % 2
    ring = list(range(1, seats))
    rounds = []
    for turn in range(seats - 1):
        row = [0, *ring[turn:], *ring[:turn]]
        facing = zip(row[: seats // 2], reversed(row[seats // 2 :]), strict=True)
        rounds.append(sorted((min(pair), max(pair)) for pair in facing if max(pair) < servers))
    return rounds


def slots(servers: int, degree: int) -> list[list[Pair]]:
    """Return the pairs of each time slot of the cycle.

    Each slot has `degree` rounds of the tournament (one for each optical NIC of a server), and the
    next slot goes on with the following rounds.
    """
    rounds = tournament(servers)
    if not degree or not rounds:
        return []
    cycle = len(rounds) // gcd(len(rounds), degree)
    return [
        [pair for nic in range(degree) for pair in rounds[(slot * degree + nic) % len(rounds)]]
        for slot in range(cycle)
    ]


@dataclass(frozen=True)
class RoundRobin(PolicyTraits):
    """The next slot of the cycle at every reconfiguration (RotorNet, SIGCOMM'17)."""

    name: str = "round-robin"

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, current: CircuitSet
    ) -> CircuitSet:
        """Choose the slot after the one that is lit; the first if none of them is lit."""
        ports, servers = usable_ports(fabric, region), len(region.servers)
        cycle = [
            circuit_counts(servers, affordable_pairs(sorted(pairs), ports))
            for pairs in slots(servers, max(ports))
        ]
        if not cycle:
            return CircuitSet()
        counts = circuit_matrix(region.servers, current)
        lit = [number for number, slot in enumerate(cycle) if np.array_equal(slot, counts)]
        following = (lit[0] + 1) % len(cycle) if lit else 0
        return assign_nics(fabric, region, cycle[following], current)
