"""Random demands of random regions, and the least time in which any paths carry one of them."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.topology import Fabric
from moefabric.planner.arrays import Array, Ints
from moefabric.planner.even_circuits import EVEN
from tests.support.fabrics import fabric
from tests.support.planner_cases import demand_matrix

SHAPES = ("even", "skewed", "pareto", "sparse")
MOST_OPTICAL = 16


@dataclass(frozen=True)
class Case:
    """A demand of a region whose circuits are spread evenly.

    Attributes:
        fabric: The fabric; switches of servers forward.
        circuits: The circuits.
        demand: The demand.
        text: Servers, NICs and shape of the demand.
    """

    fabric: Fabric
    circuits: CircuitSet
    demand: DemandMatrix
    text: str


def forwarding_fabric(
    servers: int, optical: int, electrical: int, eps: Eps | None = None
) -> Fabric:
    """Return a fabric of one region, by default below one leaf, whose servers forward."""
    wired = fabric(optical, electrical, regions=(servers,), eps=eps, settle_ns=0)
    return replace(wired, forwarding=True)


def even_circuits(wired: Fabric) -> CircuitSet:
    """Return the circuits of the policy `multihop`."""
    nothing = DemandMatrix(wired.servers, np.zeros((len(wired.servers),) * 2))
    return EVEN.circuits(wired, wired.regions[0], nothing, CircuitSet())


def random_case(seed: int) -> Case:
    """Return a region of 4 to 16 servers and a demand.

    Optical NICs are 4 fewer to 3 more than a full mesh needs, at least 3; electrical NICs 0 to 2.
    """
    draw = np.random.RandomState(seed)
    servers = draw.randint(4, 17)
    optical = min(MOST_OPTICAL, max(3, servers - 1 + draw.randint(-4, 4)))
    electrical, shape = draw.randint(3), SHAPES[draw.randint(len(SHAPES))]
    if shape == "even":
        owed = 1e9 * (1.0 + 0.1 * draw.random_sample((servers, servers)))
        np.fill_diagonal(owed, 0.0)
    else:
        owed = demand_matrix(servers, seed, shape)
    if not owed.any():
        owed[0, 1] = 1e9
    wired = forwarding_fabric(servers, optical, electrical)
    text = f"{servers} servers of {optical} + {electrical} NICs, {shape}, seed {seed}"
    return Case(wired, even_circuits(wired), DemandMatrix(wired.servers, owed), text)


def any_paths_s(owed: Array, counts: Ints, electrical: int, rate: float) -> float:
    """Return the least time if bytes may take any path of circuits and the EPS.

    It is a flow of several commodities, one for each source. The EPS is one more node.

    Args:
        owed: Bytes [from, to], diagonal empty.
        counts: Circuits [server, server].
        electrical: Electrical NICs of each server.
        rate: Bytes per second of a NIC.
    """
    servers, eps = len(owed), len(owed)
    arcs = [(a, b, counts[a, b]) for a, b in product(range(servers), repeat=2) if counts[a, b]]
    for server in range(servers) if electrical else ():
        arcs += [(server, eps, electrical), (eps, server, electrical)]
    tail, head, capacity = (np.array(values) for values in zip(*arcs, strict=True))
    source, arc = np.divmod(np.arange(servers * len(arcs)), len(arcs))
    time, nodes = len(source), servers + 1
    ones = np.ones(time)
    kept = coo_array(
        (
            np.concatenate([ones, -ones]),
            (
                np.concatenate([source * nodes + head[arc], source * nodes + tail[arc]]),
                np.tile(np.arange(time), 2),
            ),
        ),
        shape=(servers * nodes, time + 1),
    ).tocsr()
    carried = coo_array(
        (
            np.concatenate([ones, -capacity]),
            (
                np.concatenate([arc, np.arange(len(arcs))]),
                np.concatenate([np.arange(time), np.full(len(arcs), time)]),
            ),
        ),
        shape=(len(arcs), time + 1),
    )
    due = np.zeros((servers, nodes))
    due[:, :servers] = owed / owed.sum()
    others = ~np.eye(servers, nodes, dtype=bool).ravel()
    solution = linprog(
        np.append(np.zeros(time), 1.0),
        A_ub=carried,
        b_ub=np.zeros(len(arcs)),
        A_eq=kept[others],
        b_eq=due.ravel()[others],
        method="highs",
    )
    assert solution.success, solution.message
    return float(solution.fun) * float(owed.sum()) / rate
