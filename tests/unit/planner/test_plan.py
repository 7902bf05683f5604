"""Plans of registered policies keep the laws and give the published figures of the prototype."""

import json
from collections.abc import Mapping
from dataclasses import replace
from math import inf, isclose

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from moefabric.config.policies import policy_named
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.errors import SpecError
from moefabric.core.flows import Share, Split, flows
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region, uplink_rate_bps
from moefabric.planner import laws
from moefabric.planner.plan import Plan, plan
from moefabric.simulator.fluid import goodput_share, predict
from tests.support.paths import GOLDEN
from tests.support.policies import POLICIES, broken

VECTORS = json.loads((GOLDEN / "algorithm1_vectors.json").read_text())
ALMOST = 1 + 1e-9
FEWER = settings(max_examples=settings().max_examples * 2 // 5)
"""Each example plans with all policies."""

Situation = tuple[Fabric, DemandMatrix, CircuitSet]


def fabric(
    servers: int,
    optical: int,
    electrical: int,
    per_leaf: int = 99,
    spines: int = 0,
    oversubscription: float = 1.0,
) -> Fabric:
    names = tuple(f"s{i}" for i in range(servers))
    region = Region("r0", 0, names, Ocs("ocs0", servers * optical) if optical else None)
    eps = Eps(per_leaf, spines, oversubscription)
    return Fabric("f", (region,), 8, optical, electrical, 100e9, eps)


def plan_anew(wired: Fabric, demand: DemandMatrix, policy: str) -> Plan:
    return plan(wired, wired.regions[0], demand, POLICIES[policy], CircuitSet())


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """A fabric with failed optical NICs or without, its demand, and the circuits before."""
    servers = draw(st.integers(2, 7))
    wired = fabric(
        servers,
        draw(st.integers(1, 4)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 4)),
        draw(st.integers(0, 3)),
        draw(st.sampled_from([1.0, 3.0])),
    )
    cells = st.one_of(st.just(0.0), st.floats(1, 1e12), st.sampled_from([1e9, 2e9]))
    row = st.lists(cells, min_size=servers, max_size=servers)
    rows = st.lists(row, min_size=servers, max_size=servers)
    nics = [nic for server in wired.servers for nic in wired.optical_nics(server)]
    wired = wired.without_nics(draw(st.lists(st.sampled_from(nics), max_size=3)))
    wired = replace(wired, forwarding=draw(st.booleans()))
    before = plan_anew(wired, DemandMatrix(wired.servers, draw(rows)), "mixnet").circuits
    return wired, DemandMatrix(wired.servers, draw(rows)), before


def plans(situation: Situation) -> Mapping[str, Plan]:
    wired, demand, before = situation
    return {
        name: plan(wired, wired.regions[0], demand, policy, before)
        for name, policy in POLICIES.items()
    }


@FEWER
@given(situations())
def test_every_registered_policy_keeps_the_laws(situation: Situation) -> None:
    asked = laws.Situation(*situation)
    for policy in POLICIES.values():
        breaches = list(broken(policy, asked))
        assert [(law.name, why) for law, why in breaches if not law.is_advice] == []
        assert policy.name == "round-robin" or "at rest" not in {law.name for law, _ in breaches}


@FEWER
@given(situations())
def test_predictions_rank_the_policies_of_one_family(situation: Situation) -> None:
    planned = plans(situation)
    spill_s = planned["spill"].predicted_s
    assert planned["spill"].circuits == planned["mixnet"].circuits
    assert spill_s <= planned["mixnet"].predicted_s * ALMOST
    assert planned["joint"].predicted_s <= spill_s * ALMOST
    assert plan_anew(*situation[:2], "joint").predicted_s <= spill_s * ALMOST


@FEWER
@given(situations())
def test_dispatch_and_combine_share_their_circuits(situation: Situation) -> None:
    wired, demand, before = situation
    for policy in POLICIES.values():
        first = policy.circuits(wired, wired.regions[0], demand, before)
        assert policy.circuits(wired, wired.regions[0], demand.combine(), before) == first


@given(situations())
def test_spill_split_is_optimal_for_its_circuits(situation: Situation) -> None:
    """The reference is a linear program: least T such that all links carry their part within T."""
    wired, demand, before = situation
    planned = plan(wired, wired.regions[0], demand, POLICIES["spill"], before)
    assert isclose(planned.predicted_s, least_seconds(planned), rel_tol=1e-6, abs_tol=1e-12)


@pytest.mark.parametrize(
    ("electrical", "per_leaf", "spines"),
    [
        pytest.param(1, 1, 2, id="one-nic-and-two-spines"),
        pytest.param(2, 1, 2, id="one-spine-for-each-nic"),
        pytest.param(3, 2, 2, id="spines-that-share-nics"),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_spill_split_is_optimal_over_narrow_uplinks(
    electrical: int, per_leaf: int, spines: int, seed: int
) -> None:
    wired = fabric(5, 2, electrical, per_leaf, spines, 6.0)
    rows = np.random.default_rng(seed).pareto(1.0, (5, 5)) * 1e9
    planned = plan_anew(wired, DemandMatrix(wired.servers, rows), "spill")
    assert planned.predicted_s == pytest.approx(least_seconds(planned), rel=1e-6)


def least_seconds(planned: Plan) -> float:
    """Solve a linear program for each pair's bytes over the EPS and T.

    Its units are the largest demand of a pair and the time that a NIC takes for that.
    """
    wired, pairs = planned.fabric, list(planned.demand.pairs())
    if not pairs:
        return 0.0
    largest = max(owed for _, _, owed in pairs)
    rows, limits = [], []
    load: dict[tuple[str, str], np.ndarray] = {}
    for number, (a, b, _) in enumerate(pairs):
        one = flows(wired, planned.circuits, Split((Share(a, b, 0.0, 1.0),)))
        for link, part in predict(wired, planned.circuits, one).load.items():
            load.setdefault(link, np.zeros(len(pairs) + 1))[number] += part
    for link, row in load.items():
        is_uplink = all(end.startswith(("leaf", "spine")) for end in link)
        row[-1] = -uplink_rate_bps(wired) / wired.nic_rate_bps if is_uplink else -1.0
        rows.append(row)
        limits.append(0.0)
    for number, (a, b, owed) in enumerate(pairs):
        row = np.zeros(len(pairs) + 1)
        row[number], row[-1] = -1.0, -float(len(planned.circuits.between(a, b)))
        rows.append(row)
        limits.append(-owed / largest)
    bounds = [(0.0, owed / largest) for _, _, owed in pairs] + [(0.0, None)]
    cost = [0.0] * len(pairs) + [1.0]
    solution = linprog(cost, A_ub=np.array(rows), b_ub=limits, bounds=bounds, method="highs")
    assert solution.success, solution.message
    return float(solution.fun) * largest * 8 / (wired.nic_rate_bps * goodput_share(wired.mtu))


def prototype(policy: str, servers: int, optical: int, electrical: int) -> Plan:
    """Plan the paper's prototype of 4 servers, or the larger one of 8."""
    case = {4: "testbed_mixtral8x7B_4servers_alpha3", 8: "mixtral8x22B_tp8_8servers_alpha6"}
    wired = fabric(servers, optical, electrical)
    tokens = np.array(VECTORS[case[servers]]["demand_tokens"])
    return plan_anew(wired, DemandMatrix(wired.servers, tokens * 8192.0), policy)


@pytest.mark.parametrize(
    ("policy", "servers", "optical", "electrical", "ratio"),
    [
        pytest.param("mixnet", 4, 3, 1, 1.412, id="mixnet-on-the-testbed"),
        pytest.param("static", 4, 3, 1, 1.412, id="static-is-as-good-in-a-full-mesh"),
        pytest.param("spill", 4, 3, 1, 1.000, id="spill-on-the-testbed"),
        pytest.param("mixnet-spill", 4, 3, 1, 1.000, id="spill-by-its-other-name"),
        pytest.param("mixnet", 8, 6, 2, 1.284, id="mixnet-on-eight-servers"),
        pytest.param("spill", 8, 6, 2, 1.000, id="spill-on-eight-servers"),
    ],
)
def test_prediction_relative_to_a_non_blocking_eps(
    policy: str, servers: int, optical: int, electrical: int, ratio: float
) -> None:
    eps = prototype("eps", servers, 0, optical + electrical)
    planned = prototype(policy, servers, optical, electrical)
    assert eps.predicted_s == pytest.approx(eps.bound_s)
    assert planned.predicted_s / eps.predicted_s == pytest.approx(ratio, abs=0.0005)


def test_plan_json_has_the_documented_keys() -> None:
    wired = fabric(2, 1, 1)
    demand = DemandMatrix(wired.servers, [[5.0, 3e9], [0.0, 5.0]])
    seconds = 3e9 * 8 / (200e9 * 1448 / 1514)
    assert plan_anew(wired, demand, "spill").to_json() == {
        "policy": "spill",
        "circuits": [[0, 1], [1, 0]],
        "leftover_ports": [0, 0],
        "split": [
            {
                "from": "s0",
                "to": "s1",
                "light_bytes": pytest.approx(1.5e9),
                "eps_bytes": pytest.approx(1.5e9),
            }
        ],
        "predicted_s": pytest.approx(seconds),
        "bound_s": pytest.approx(seconds),
    }


def test_spill_sends_only_the_excess_over_the_eps() -> None:
    wired = fabric(3, 2, 1)
    demand = DemandMatrix(wired.servers, [[0.0, 3e9, 1e9], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    split = plan_anew(wired, demand, "spill").split
    assert [(s.dst, round(s.light_bytes), round(s.eps_bytes)) for s in split] == [
        ("s1", 1_500_000_000, 1_500_000_000),
        ("s2", 1_000_000_000, 0),
    ]


def test_prediction_is_infinite_if_a_pair_has_no_circuit_and_no_eps() -> None:
    wired = replace(fabric(3, 1, 0), eps=None)
    demand = DemandMatrix(wired.servers, [[0, 2, 1], [0, 0, 0], [0, 0, 0]])
    planned = plan_anew(wired, demand, "spill")
    assert planned.predicted_s == inf
    assert planned.to_json()["predicted_s"] is None


def test_policy_named_lists_the_known_names() -> None:
    names = ", ".join(POLICIES)
    with pytest.raises(SpecError, match=f"policy: 'best' is not one of {names}, nor package.mod"):
        policy_named("best")


def test_plan_refuses_demand_of_other_servers() -> None:
    wired = fabric(2, 1, 1)
    demand = DemandMatrix(("s0", "s9"), [[0, 1], [1, 0]])
    with pytest.raises(SpecError, match="servers: s0, s9 are not the servers of r0, s0, s1"):
        plan_anew(wired, demand, "mixnet")


def test_plan_leaves_the_demand_unchanged() -> None:
    wired, rows = fabric(3, 2, 1), [[9.0, 3.0, 1.0], [2.0, 9.0, 1.0], [0.0, 4.0, 9.0]]
    array = np.array(rows)
    demand = DemandMatrix(wired.servers, array)
    for policy in POLICIES:
        plan_anew(wired, demand, policy)
    assert demand.array.tolist() == array.tolist() == rows
