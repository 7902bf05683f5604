"""Demands of many shapes on which `joint` is compared with the optimum."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.topology import Fabric
from moefabric.planner.arrays import Array, Ints, circuit_counts, circuit_matrix
from moefabric.planner.mixnet import MIXNET
from moefabric.planner.nic_assignment import assign_nics
from moefabric.planner.pair_order import take_ports
from moefabric.planner.waterfill import EpsLinks, completion_s, off_diagonal
from tests.support.fabrics import fabric
from tests.support.paths import EXAMPLES, GOLDEN
from tests.support.planner_cases import circuit_rate, demand_matrix

OPTIMA: Final = GOLDEN / "planner/joint_optima_s.json"
"""Optimal completion times of the cases in seconds, from `tests/bench/bench_joint.py`."""
CASES: Final = 500
SPLITS: Final = ((3, 1), (4, 4), (6, 2), (2, 2))
"""Optical and electrical NICs of a server."""
SHAPES: Final = ("pareto", "uniform", "even", "skewed", "hot", "sparse", "digits", "trace")


def optimal_circuits(owed: Array, ports: Ints, rate: float, links: EpsLinks) -> Ints:
    """Return optimal circuits of each pair [server, server].

    Variables: circuits of each pair (whole), what each ordered pair sends over the EPS, and tau,
    how often a second the demand could be carried. The program maximises tau such that circuits
    and EPS carry tau times what each pair owes, no server has more circuits than NICs and no link
    of the EPS is over its budget. It is linear because time isn't a variable.
    """
    n, largest = len(owed), owed.max()
    pairs = [(i, j) for i in range(n) for j in range(i) if owed[i, j] + owed[j, i]]
    senders = [(i, j) for i in range(n) for j in range(n) if owed[i, j]]
    circuits, sent = len(pairs), len(senders)
    index = {pair: number for number, (i, j) in enumerate(pairs) for pair in ((i, j), (j, i))}
    due, nics = np.zeros((sent, circuits + sent + 1)), np.zeros((n, circuits + sent + 1))
    carried = np.zeros((len(links.budget), circuits + sent + 1))
    for number, pair in enumerate(senders):
        due[number, index[pair]] = due[number, circuits + number] = -1.0
        due[number, -1] = owed[pair] / largest
        alone = np.zeros_like(owed)
        alone[pair] = 1.0
        carried[:, circuits + number] = links.loads(alone)
    for number, pair in enumerate(pairs):
        nics[list(pair), number] = 1.0
    whole = np.concatenate([np.ones(circuits), np.zeros(sent + 1)])
    limits = np.concatenate([np.zeros(sent), ports, links.budget / rate])
    solution = milp(
        np.append(np.zeros(circuits + sent), -1.0),
        constraints=LinearConstraint(np.vstack([due, nics, carried]), -np.inf, limits),
        integrality=whole,
        bounds=Bounds(0.0, np.where(whole, ports.max(), np.inf)),
        options={"mip_rel_gap": 1e-4},
    )
    assert solution.success, solution.message
    counts = np.zeros((n, n), dtype=np.int64)
    for pair, lit in zip(pairs, np.rint(solution.x[:circuits]).astype(int), strict=True):
        counts[pair] = lit
    return counts + counts.T


def end_s(owed: Array, counts: Ints, rate: float, links: EpsLinks) -> float:
    """Return when a demand ends over circuits with the best split."""
    return completion_s(owed, rate * counts.astype(np.float64), links)


@dataclass(frozen=True)
class JointCase:
    """A demand on a fabric of one region in which some circuits are lit already."""

    number: int
    shape: str
    wired: Fabric
    demand: DemandMatrix
    lit: CircuitSet

    def end_s(self, circuits: CircuitSet) -> float:
        """Return when the demand ends over circuits with the best split."""
        servers, links = self.wired.servers, EpsLinks.of(self.wired, self.wired.servers)
        counts = circuit_matrix(servers, circuits)
        return end_s(off_diagonal(self.demand), counts, circuit_rate(self.wired), links)

    def optimum_s(self) -> float:
        """Return when the demand ends over optimal circuits, by the mixed-integer program."""
        owed, servers = off_diagonal(self.demand), self.wired.servers
        ports, rate = np.full(len(servers), self.wired.optical), circuit_rate(self.wired)
        links = EpsLinks.of(self.wired, servers)
        return end_s(owed, optimal_circuits(owed, ports, rate, links), rate, links)

    @property
    def split(self) -> str:
        """Optical and electrical NICs, as `3+1`."""
        return f"{self.wired.optical}+{self.wired.electrical}"


@cache
def _trace() -> Array:
    """Return tokens [step, layer, from, to]: eight servers with two of sixteen experts each."""
    counts = np.load(EXAMPLES / "data/training-1200-steps.npz")["counts"].astype(np.float64)
    tokens: Array = counts.reshape(*counts.shape[:3], 8, 2).sum(axis=4)
    return tokens


def _owed(servers: int, draw: np.random.Generator, shape: str) -> Array:
    """Return bytes [from, to] of a shape, diagonal empty, 1 MB to 1 GB for the largest pair."""
    cells = (servers, servers)
    match shape:
        case "uniform":
            owed = draw.random(cells)
        case "even":
            owed = 1.0 + 0.02 * draw.random(cells)
        case "hot":
            busy, popular = draw.dirichlet(np.ones(servers)), draw.dirichlet(np.full(servers, 0.5))
            owed = np.outer(busy, popular) * draw.lognormal(0, 0.5, cells)
        case "digits":
            owed = draw.integers(0, 9, cells).astype(np.float64)
        case "trace":
            tokens, chosen = _trace(), draw.permutation(8)[:servers]
            step, layer = draw.integers(len(tokens)), draw.integers(tokens.shape[1])
            owed = tokens[step, layer][np.ix_(chosen, chosen)]
        case _:
            owed = demand_matrix(servers, int(draw.integers(2**31)), shape)
    np.fill_diagonal(owed, 0.0)
    if not owed.any():
        owed[0, 1] = 1.0
    scaled: Array = owed / owed.max() * 10 ** draw.uniform(6, 9)
    return scaled


def _lit(wired: Fabric, demand: DemandMatrix, draw: np.random.Generator) -> CircuitSet:
    """Return no circuits, those of Algorithm 1 for nearly this demand, or random ones."""
    servers = len(wired.servers)
    if draw.random() < 0.4:
        noise = draw.lognormal(0.0, 0.02, (servers, servers))
        before = DemandMatrix(wired.servers, demand.array * noise)
        return MIXNET.circuits(wired, wired.regions[0], before, CircuitSet())
    free, pairs = [wired.optical] * servers, []
    for _ in range(4 * servers if draw.random() < 0.75 else 0):
        i, j = sorted(draw.choice(servers, 2, replace=False).tolist())
        if take_ports(free, i, j):
            pairs.append((i, j))
    counts = circuit_counts(servers, pairs)
    return assign_nics(wired, wired.regions[0], counts, CircuitSet())


def joint_cases(numbers: range = range(CASES)) -> Iterator[JointCase]:
    """Yield cases of 3 to 8 servers; a case depends on its number only.

    Moving circuits takes no time: otherwise circuits that are lit may be the better choice.
    """
    for number in numbers:
        draw = np.random.default_rng(number)
        optical, electrical = SPLITS[number % len(SPLITS)]
        shape = SHAPES[number // len(SPLITS) % len(SHAPES)]
        regions = (int(draw.integers(3, 9)),)
        wired = fabric(optical, electrical, regions=regions, settle_ns=0)
        owed = _owed(len(wired.servers), draw, shape)
        demand = DemandMatrix(wired.servers, owed)
        yield JointCase(number, shape, wired, demand, _lit(wired, demand, draw))
