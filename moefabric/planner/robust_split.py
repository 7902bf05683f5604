"""Splits in fixed proportions, which suit one or several assumed demands.

Each pair's bytes take its paths in the proportions that were computed for the assumed demands, as
if the split had been installed before the gate ran.

The best split for one demand fills every link of the busiest server exactly. Any other demand
overloads one of these links. The robust split minimizes the time of the worst of several demands,
each relative to the least time that its busiest server needs: a linear program over each pair's
circuits, the EPS and, where servers forward, the relay trees of the destination's neighbours.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Final

import numpy as np

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Share, Split, flows
from moefabric.core.forwarding import next_hops, relay_trees
from moefabric.core.paths import relay_lanes
from moefabric.core.routes import Link, route
from moefabric.core.topology import Fabric
from moefabric.planner.arrays import Array
from moefabric.simulator.fluid import bound_s, goodput_bps

_FORWARDING_COST: Final = 1e-4
"""Cost of forwarding all bytes once, relative to the time of the worst demand."""
_LEAST_PART: Final = 1e-6
"""Smaller parts of a pair's bytes are rounding errors of the solver."""
_UNIFORM_BYTES: Final = 1e9
"""Bytes of each pair of a uniform demand; proportions don't depend on them."""

PolicySplit = Callable[[Fabric, DemandMatrix, CircuitSet], Split]
"""`moefabric.planner.policy.Policy.split`."""


def assumed_split(
    fabric: Fabric,
    split: PolicySplit,
    demand: DemandMatrix,
    circuits: CircuitSet,
    assumed: Sequence[DemandMatrix],
) -> Split:
    """Split a demand in the proportions for other demands.

    Args:
        split: The policy's function that splits a demand.
        assumed: Demands between the same servers: the policy splits one, `robust_split` several.
            Empty for the demand itself.

    Returns:
        One share for each ordered pair of servers that owes something in `demand`. A pair that owes
        nothing in the assumed demands has the proportions of a uniform demand.
    """
    if not assumed or all(other == demand for other in assumed):
        return split(fabric, demand, circuits)
    if len(assumed) == 1:
        shares = _shares(split(fabric, assumed[0], circuits))
    else:
        shares = _shares(robust_split(fabric, assumed, circuits))
    owed = tuple(demand.pairs())
    if any((src, dst) not in shares for src, dst, _ in owed):
        uniform = DemandMatrix(demand.servers, np.full_like(demand.array, _UNIFORM_BYTES))
        shares = _shares(split(fabric, uniform, circuits)) | shares
    return Split(tuple(shares[src, dst].of_size(size) for src, dst, size in owed))


def _shares(split: Split) -> dict[tuple[str, str], Share]:
    return {(share.src, share.dst): share for share in split if share.bytes > 0}


@dataclass(frozen=True)
class _Path:
    """A path of a pair.

    Attributes:
        byte: The share of one byte that takes the path.
        seconds: Time of that byte on each link.
    """

    byte: Share
    seconds: tuple[tuple[Link, float], ...]

    @property
    def pair(self) -> tuple[str, str]:
        """The sending and the receiving server."""
        return self.byte.src, self.byte.dst


def robust_split(fabric: Fabric, demands: Sequence[DemandMatrix], circuits: CircuitSet) -> Split:
    """Split the sum of demands in proportions that suit each of them.

    Args:
        demands: One or more demands between the same servers.

    Returns:
        The split of the sum. If each pair's bytes take their paths in these proportions, the worst
        demand ends as soon as possible, relative to `bound_s`. Pairs without a path have no share.
    """
    servers, number = demands[0].servers, demands[0].index
    owed = {(src, dst): size for src, dst, size in DemandMatrix.sum_of(demands).pairs()}
    paths = [path for path in _paths(fabric, servers, circuits) if path.pair in owed]
    if not paths:
        return Split(())
    ends = tuple(np.array([[number[end] for end in path.pair] for path in paths]).T)
    sizes = [demand.array[ends] / (bound_s(fabric, demand) or 1.0) for demand in demands]
    used = defaultdict[tuple[str, str], list[Share]](list)
    for path, part in zip(paths, _proportions(paths, sizes), strict=True):
        if part:
            used[path.pair].append(path.byte.of_size(part * owed[path.pair]))
    return Split(tuple(map(Share.joined, used.values())))


@lru_cache(maxsize=16)
def _paths(fabric: Fabric, servers: tuple[str, ...], circuits: CircuitSet) -> tuple[_Path, ...]:
    """Return the paths of all pairs, sorted by pair; of lanes with one route, the first."""
    paths: dict[tuple[tuple[str, str], tuple[tuple[Link, float], ...]], _Path] = {}
    for src, dst in permutations(servers, 2):
        for byte in _bytes(fabric, circuits, src, dst):
            path = _Path(byte, _seconds(fabric, circuits, byte))
            paths.setdefault((path.pair, path.seconds), path)
    return tuple(paths.values())


def _bytes(fabric: Fabric, circuits: CircuitSet, src: str, dst: str) -> Iterator[Share]:
    """Yield one byte of a pair on each of its paths."""
    if circuits.between(src, dst):
        yield Share(src, dst, 1.0, 0.0)
    if fabric.electrical or (fabric.has_circuits_only and (src, dst) in next_hops(circuits)):
        yield Share(src, dst, 0.0, 1.0)
    if fabric.forwarding:
        lanes = relay_lanes(fabric, fabric.region_of[src])
        for root, tree in relay_trees(circuits, lanes).items():
            if root not in {src, dst} and tree.reaches(src) and circuits.between(root, dst):
                for lane in range(lanes):
                    yield Share.over(src, dst, 0.0, 0.0, {(root, lane): 1.0})


def _seconds(fabric: Fabric, circuits: CircuitSet, byte: Share) -> tuple[tuple[Link, float], ...]:
    seconds = defaultdict[Link, float](float)
    for flow in flows(fabric, circuits, [byte]):
        for link in route(fabric, circuits, flow):
            seconds[link] += 8 * flow.bytes / goodput_bps(fabric, link)
    return tuple(seconds.items())


def _proportions(paths: Sequence[_Path], sizes: Sequence[Array]) -> list[float]:
    """Return the part of its pair's bytes that takes each path.

    Args:
        paths: The paths, sorted by pair.
        sizes: For each demand, the relative bytes of the pair of each path.
    """
    from scipy.optimize import linprog
    from scipy.sparse import block_array, csr_array, diags_array, vstack

    used = dict.fromkeys(link for path in paths for link, _ in path.seconds)
    links = {link: n for n, link in enumerate(used)}
    entries = [(s, links[link], n) for n, path in enumerate(paths) for link, s in path.seconds]
    seconds, rows, columns = (np.array(values) for values in zip(*entries, strict=True))
    load = csr_array((seconds, (rows, columns)), shape=(len(links), len(paths)))
    pairs = {pair: n for n, pair in enumerate(dict.fromkeys(path.pair for path in paths))}
    pair_of = np.array([pairs[path.pair] for path in paths])
    pair_sum = csr_array((np.ones(len(paths)), (pair_of, np.arange(len(paths)))))
    worst = csr_array(-np.ones((len(links), 1)))
    mean = np.mean(sizes, axis=0)
    forwarded = np.array([path.byte.forwarded_bytes for path in paths])
    every = mean[np.unique(pair_of, return_index=True)[1]].sum()
    solution = linprog(
        np.append(_FORWARDING_COST * forwarded * mean / every, 1.0),
        A_ub=vstack([block_array([[load @ diags_array(size), worst]]) for size in sizes]),
        b_ub=np.zeros(len(sizes) * len(links)),
        A_eq=block_array([[pair_sum, csr_array((len(pairs), 1))]]),
        b_eq=np.ones(len(pairs)),
        method="highs",
    )
    parts: Array = np.where(solution.x[:-1] < _LEAST_PART, 0.0, solution.x[:-1])
    return [float(part) for part in parts / np.bincount(pair_of, parts)[pair_of]]
