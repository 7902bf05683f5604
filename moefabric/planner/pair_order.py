"""Policies that are an order of server pairs: every entry of the order is one circuit."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.topology import Fabric, Region
from moefabric.planner.arrays import Array, circuit_counts
from moefabric.planner.nic_assignment import assign_nics, usable_ports
from moefabric.planner.policy import PolicyTraits

Pair = tuple[int, int]
"""Two servers by their position in the region, the first of which is 0, in either order."""

PairOrder = Callable[[Array, Sequence[int]], list[Pair]]
"""Orders pairs of servers.

The arguments are the bytes that each pair owes, both directions together [server, server], and the
usable optical NICs of each server. The result has one entry for each circuit; a pair that is
repeated gets parallel circuits.
"""


@dataclass(frozen=True)
class PairOrderPolicy(PolicyTraits):
    """A policy that gives circuits to pairs in an order.

    Example:
        >>> from moefabric import Eps, Ocs
        >>> region = Region("r0", 0, ("s0", "s1", "s2"), Ocs("ocs0", ports=3))
        >>> fabric = Fabric("lab", (region,), 8, 1, 1, 100e9, Eps(servers_per_leaf=4))
        >>> demand = DemandMatrix(region.servers, [[0, 1, 1], [1, 0, 1], [1, 1, 0]])
        >>> policy = PairOrderPolicy("last-pair", lambda demand, ports: [(1, 2)])
        >>> str(policy.circuits(fabric, region, demand, CircuitSet()))
        's1/o0~s2/o0'

    Attributes:
        name: The name that specifications use.
        order: Gives the pairs. Pairs whose servers have no port left are left out.
        splits_by_demand: Whether bytes that circuits can't carry in time go over the EPS
            (`optimal_split`); otherwise a pair with a circuit sends over it alone.
        stays: Whether circuits that are lit stay whatever the demand.
    """

    name: str
    order: PairOrder
    stays: bool = field(default=False, kw_only=True)

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, current: CircuitSet
    ) -> CircuitSet:
        """Choose the circuits in the order of the pairs, unless lit ones stay.

        Raises:
            TypeError: If the order is no iterable.
            ValueError: If it has what isn't two different servers of the region.
        """
        if self.stays and current:
            return current
        ports = usable_ports(fabric, region)
        ordered = _checked(self.order(demand.symmetric(), ports), len(ports))
        pairs = affordable_pairs(ordered, ports)
        return assign_nics(fabric, region, circuit_counts(len(ports), pairs), current)


def _checked(order: Iterable[Pair], servers: int) -> list[Pair]:
    """Return the pairs of an order, which others may have written."""
    if not isinstance(order, Iterable):
        raise TypeError(f"order returned {type(order).__name__}, not pairs of servers")
    positions, pairs = range(servers), list(order)
    for pair in pairs:
        try:
            i, j = pair
            is_pair = positions[i] == i != j == positions[j]  # -1 is no position
        except (TypeError, ValueError, IndexError):
            is_pair = False
        if not is_pair:
            allowed = f"a pair is two different positions from 0 to {servers - 1}"
            raise ValueError(f"order returned the pair {pair!r}; {allowed}")
    return pairs


def pairs_by_demand(demand: Array) -> list[tuple[float, int, int]]:
    """Sort the pairs that owe something, largest first; ties stay in server order.

    Args:
        demand: Bytes that each pair owes, both directions together [server, server].

    Returns:
        (minus the pair's demand, i, j) of each pair.
    """
    rows, columns = np.nonzero(np.triu(demand, 1))
    negative = -demand[rows, columns]
    first = np.argsort(negative, kind="stable")
    return list(
        zip(negative[first].tolist(), rows[first].tolist(), columns[first].tolist(), strict=True)
    )


def take_ports(free: list[int], i: int, j: int) -> bool:
    """Take a free port of each of two servers if both have one; return whether both had one."""
    if free[i] and free[j]:
        free[i] -= 1
        free[j] -= 1
        return True
    return False


def affordable_pairs(pairs: Iterable[Pair], ports: Sequence[int]) -> list[Pair]:
    """Keep the pairs, in their order, for which both servers have a port left."""
    free = list(ports)
    return [pair for pair in pairs if take_ports(free, *pair)]
