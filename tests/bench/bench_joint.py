"""How far `joint` ends from the optimum, and for how long it plans.

The optima are written to `tests/golden/planner` if the file is missing.
"""

import json
from collections.abc import Callable
from functools import partial
from time import process_time

import numpy as np
import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.planner.mixnet import MIXNET
from tests.bench.recording import record
from tests.support.joint_cases import OPTIMA, SPLITS, joint_cases
from tests.support.planner_cases import demand_matrix, fabric
from tests.support.policies import POLICIES

ROUNDS = 40
"""Demands of each shape and number of servers whose planning is timed."""


def cpu_seconds(function: Callable[[], object]) -> float:
    start = process_time()
    function()
    return process_time() - start


def test_distribution_of_the_distance_from_the_optimum() -> None:
    cases = list(joint_cases())
    optima = [case.optimum_s() for case in cases]
    if not OPTIMA.exists():
        OPTIMA.parent.mkdir(exist_ok=True)
        OPTIMA.write_text(json.dumps([float(f"{seconds:.8g}") for seconds in optima]) + "\n")
    assert optima == pytest.approx(json.loads(OPTIMA.read_text()), rel=2e-4)
    print("\nlater than the optimum, %: median, p95, p99, most; cases over 0.1 %, 1 %, of all")
    distances: dict[tuple[str, str], list[float]] = {}
    for case, optimum_s in zip(cases, optima, strict=True):
        for name in ("spill", "joint"):
            policy, region = POLICIES[name], case.wired.regions[0]
            chosen = policy.circuits(case.wired, region, case.demand, case.lit)
            later = 100 * (case.end_s(chosen) / optimum_s - 1)
            for group in ("all", case.split, case.shape):
                distances.setdefault((name, group), []).append(later)
    for (name, group), distance in sorted(distances.items()):
        quantiles = " ".join(f"{q:6.2f}" for q in np.quantile(distance, [0.5, 0.95, 0.99, 1]))
        if group == "all":
            ends = [share / 100 for share in distance]
            most = 0.01 if name == "joint" else None
            record(f"end after the optimum, median: {name}", "%", samples=ends)
            record(
                f"end after the optimum, greatest: {name}",
                "%",
                max(ends),
                n=len(ends),
                at_most=most,
            )
        over = " ".join(f"{sum(x > limit for x in distance):3d}" for limit in (0.1, 1))
        print(f"  {name:5s} {group:8s} {quantiles}   {over} of {len(distance)}")
    assert max(distances["joint", "all"]) <= 1.0


@pytest.mark.parametrize("servers", [4, 8, 16])
def test_planning_time_with_joint(servers: int) -> None:
    """Times are CPU milliseconds; Algorithm 1, which ends later, is the measure for both."""
    joint, mixnet = [], []
    for optical, electrical in SPLITS:
        wired = fabric(1, servers, optical, electrical)
        for shape in ("skewed", "pareto", "sparse"):
            for seed in range(ROUNDS // len(SPLITS)):
                rows = demand_matrix(servers, seed, shape)
                demand = DemandMatrix(wired.servers, rows)
                arguments = wired, wired.regions[0], demand, CircuitSet()
                joint.append(cpu_seconds(partial(POLICIES["joint"].circuits, *arguments)))
                mixnet.append(cpu_seconds(partial(MIXNET.circuits, *arguments)))
    middle, most = (1e3 * q for q in np.quantile(joint, [0.5, 0.95]))
    reference = 1e3 * float(np.median(mixnet))
    print(f"\njoint, {servers} servers: p50 {middle:.1f} ms, p95 {most:.1f} ms,", end=" ")
    print(
        f"{middle / reference:.0f} and {most / reference:.0f} times Algorithm 1's {reference:.2f}"
    )
    name, end = "planning of `joint`, CPU", f"{servers} servers"
    record(f"{name}, p50: {end}", "ms", samples=joint, at_most=0.01)
    record(f"{name}, p95: {end}", "ms", most / 1e3, n=len(joint), at_most=0.06)
    assert middle <= 10
    assert most <= 60
