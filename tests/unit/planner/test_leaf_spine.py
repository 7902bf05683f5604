"""Whatever its NICs and spines, a leaf-spine carries a demand as fast as any routing could."""

from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps, EpsKind
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region, uplink_rate_bps
from moefabric.planner.arrays import Array
from moefabric.planner.plan import Plan, plan
from moefabric.simulator.fluid import bound_s, goodput_share
from tests.support.policies import POLICIES

SHAPES = [
    pytest.param(4, 2, 3, EpsKind.LEAF_SPINE, id="4-nics-on-3-spines"),
    pytest.param(1, 2, 2, EpsKind.LEAF_SPINE, id="1-nic-on-2-spines"),
    pytest.param(2, 2, 4, EpsKind.LEAF_SPINE, id="2-nics-on-4-spines"),
    pytest.param(3, 1, 2, EpsKind.LEAF_SPINE, id="3-nics-on-2-spines"),
    pytest.param(8, 4, 3, EpsKind.LEAF_SPINE, id="8-nics-on-3-spines"),
    pytest.param(2, 3, 2, EpsKind.RAIL, id="2-rails-on-2-spines"),
]


def fabric(
    electrical: int, per_leaf: int, spines: int, kind: EpsKind, *, ratio: float = 1.0
) -> Fabric:
    names = tuple(f"s{i}" for i in range(6))
    region = Region("r0", 0, names, Ocs("ocs0", 18))
    return Fabric("f", (region,), 8, 3, electrical, 100e9, Eps(per_leaf, spines, ratio, kind))


def demand(wired: Fabric, seed: int) -> DemandMatrix:
    """Random bytes, or everything from each server to one other: the hardest for fixed routes."""
    draw = np.random.default_rng(seed)
    owed = draw.pareto(1.2, (6, 6)) * 1e8
    if seed % 2:
        owed = np.zeros((6, 6))
        owed[np.arange(6), np.roll(np.arange(6), seed)] = 1e9
    return DemandMatrix(wired.servers, owed)


def least_seconds(planned: Plan) -> float:
    """Solve a linear program in which every byte may take any NIC and any spine.

    Its variables are each pair's bytes by each rail and spine (one rail unless the EPS has rails;
    no spine below a leaf), its bytes by light, and the time. Units are 1 GB and a NIC's rate.
    """
    wired = planned.fabric
    rails = range(wired.electrical if wired.eps_wiring.rail_optimised else 1)
    nics, uplink = wired.electrical / len(rails), uplink_rate_bps(wired) / wired.nic_rate_bps
    rows: defaultdict[tuple[object, ...], dict[int, float]] = defaultdict(dict)
    owed: list[tuple[dict[int, float], float]] = []
    variables = 1  # the first one is the time
    for a, b, size in planned.demand.pairs():
        across = wired.eps_wiring.leaf_of(a) != wired.eps_wiring.leaf_of(b)
        pair = {variables: 1.0}
        rows["light", a, b] |= {0: -len(planned.circuits.between(a, b)), variables: 1.0}
        for rail, spine in product(rails, wired.spines if across else (None,)):
            variables += 1
            pair[variables] = 1.0
            ends: list[tuple[str | int, ...]] = [("from", a, rail), ("to", b, rail)]
            if spine:
                ends += [("up", wired.eps_wiring.leaf_of(a), rail, spine)]
                ends += [("down", wired.eps_wiring.leaf_of(b), rail, spine)]
            for link in ends:
                rows[link] |= {0: -uplink if len(link) == 4 else -nics, variables: 1.0}
        variables += 1
        owed.append((pair, size / 1e9))
    solution = linprog(
        [1.0] + [0.0] * (variables - 1),
        A_ub=_matrix([*rows.values()], variables),
        b_ub=np.zeros(len(rows)),
        A_eq=_matrix([pair for pair, _ in owed], variables),
        b_eq=[size for _, size in owed],
    )
    assert solution.success, solution.message
    return float(solution.fun) * 8e9 / (wired.nic_rate_bps * goodput_share(wired.mtu))


def _matrix(rows: list[dict[int, float]], columns: int) -> Array:
    matrix = np.zeros((len(rows), columns))
    for number, row in enumerate(rows):
        matrix[number, list(row)] = list(row.values())
    return matrix


@pytest.mark.parametrize(("electrical", "per_leaf", "spines", "kind"), SHAPES)
@pytest.mark.parametrize("ratio", [1.0, 3.0], ids=["non-blocking", "oversubscribed"])
def test_eps_and_spill_are_as_fast_as_any_routing(
    electrical: int, per_leaf: int, spines: int, kind: EpsKind, ratio: float
) -> None:
    wired = fabric(electrical, per_leaf, spines, kind, ratio=ratio)
    for seed, policy in product(range(4), ("eps", "spill")):
        owed = demand(wired, seed)
        planned = plan(wired, wired.regions[0], owed, POLICIES[policy], CircuitSet())
        assert planned.predicted_s == pytest.approx(least_seconds(planned), rel=1e-6)


@pytest.mark.parametrize(("electrical", "per_leaf", "spines", "kind"), SHAPES)
def test_one_to_one_leaf_spine_does_not_block(
    electrical: int, per_leaf: int, spines: int, kind: EpsKind
) -> None:
    wired = fabric(electrical, per_leaf, spines, kind)
    for seed in range(8):
        owed = demand(wired, seed)
        planned = plan(wired, wired.regions[0], owed, POLICIES["eps"], CircuitSet())
        nics = (wired.optical + wired.electrical) / wired.electrical
        assert planned.predicted_s == pytest.approx(bound_s(wired, owed) * nics, rel=1e-9)
