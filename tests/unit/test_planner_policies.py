"""What every policy keeps, whatever is owed; and the published figures for the prototype."""

import json
from collections.abc import Mapping
from dataclasses import replace
from math import inf, isclose
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from controller.planner.plan import POLICIES, Plan, plan, policy_named
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import SpecError
from moefabric.flows import Share, Split, flows
from moefabric.fluid import goodput_share, predict
from moefabric.topology import Eps, Fabric, Ocs, Region

VECTORS = json.loads((Path(__file__).parents[1] / "golden/algorithm1_vectors.json").read_text())
ALMOST = 1 + 1e-9


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
    return Fabric("f", (region,), 8, optical, electrical, 100e9, Eps(per_leaf, spines, oversubscription))


@st.composite
def situations(draw: st.DrawFn) -> tuple[Fabric, DemandMatrix, CircuitSet]:
    """A fabric, some of whose optical NICs may be out, what its servers owe, and what is lit before."""
    servers = draw(st.integers(2, 7))
    made = fabric(
        servers,
        draw(st.integers(1, 4)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 4)),
        draw(st.integers(0, 3)),
        draw(st.sampled_from([1.0, 3.0])),
    )
    owed = st.one_of(st.just(0.0), st.floats(1, 1e12), st.sampled_from([1e9, 2e9]))
    rows = st.lists(st.lists(owed, min_size=servers, max_size=servers), min_size=servers, max_size=servers)
    wired = [nic for server in made.servers for nic in made.optical_nics(server)]
    made = made.without(draw(st.lists(st.sampled_from(wired), max_size=3)))
    before = plan(
        made, made.regions[0], DemandMatrix(made.servers, draw(rows)), POLICIES["mixnet"], CircuitSet()
    ).circuits
    return made, DemandMatrix(made.servers, draw(rows)), before


def plans(situation: tuple[Fabric, DemandMatrix, CircuitSet]) -> Mapping[str, Plan]:
    made, owed, before = situation
    return {name: plan(made, made.regions[0], owed, policy, before) for name, policy in POLICIES.items()}


@given(situations())
@settings(max_examples=30, deadline=None)
def test_no_plan_exceeds_a_port_or_leaves_the_region(
    situation: tuple[Fabric, DemandMatrix, CircuitSet],
) -> None:
    made, _, _ = situation
    there = {nic for server in made.servers for nic in made.usable_optical(server)}
    for planned in plans(situation).values():
        ends = [nic for circuit in planned.circuits for nic in (circuit.a, circuit.b)]
        assert len(set(ends)) == len(ends)
        assert set(ends) <= there
        assert min(planned.leftover_ports) >= 0
        assert [sum(row) for row in planned.counts] == [
            len(made.usable_optical(server)) - left
            for server, left in zip(made.servers, planned.leftover_ports, strict=True)
        ]
        assert np.array_equal(planned.counts, np.transpose(planned.counts))


@given(situations())
@settings(max_examples=30, deadline=None)
def test_a_split_conserves_bytes_and_sends_by_light_only_where_there_is_some(
    situation: tuple[Fabric, DemandMatrix, CircuitSet],
) -> None:
    _, owed, _ = situation
    for planned in plans(situation).values():
        assert {(s.src, s.dst) for s in planned.split} == {(a, b) for a, b, _ in owed.pairs()}
        due = {(a, b): due for a, b, due in owed.pairs()}
        for share in planned.split:
            assert isclose(share.light_bytes + share.eps_bytes, due[share.src, share.dst])
            assert min(share.light_bytes, share.eps_bytes) >= 0
            assert share.light_bytes == 0 or planned.circuits.between(share.src, share.dst)


@given(situations())
@settings(max_examples=30, deadline=None)
def test_no_policy_predicts_better_than_the_bound_and_spill_is_never_worse_than_mixnet(
    situation: tuple[Fabric, DemandMatrix, CircuitSet],
) -> None:
    made = plans(situation)
    for planned in made.values():
        assert planned.predicted_s * ALMOST >= planned.bound_s
    assert made["spill"].circuits == made["mixnet"].circuits
    assert made["spill"].predicted_s <= made["mixnet"].predicted_s * ALMOST
    # Light that is there may stay though it is a hundredth slower than the best.
    assert made["joint"].predicted_s <= made["spill"].predicted_s * 1.01 * ALMOST
    wired, owed, _ = situation
    anew = plan(wired, wired.regions[0], owed, POLICIES["joint"], CircuitSet())
    assert anew.predicted_s <= made["spill"].predicted_s * ALMOST


@given(situations())
@settings(max_examples=25, deadline=None)
def test_equal_demand_gives_equal_circuits_and_then_nothing_moves(
    situation: tuple[Fabric, DemandMatrix, CircuitSet],
) -> None:
    made, owed, before = situation
    for policy in POLICIES.values():
        first = policy.circuits(made, made.regions[0], owed, before)
        assert (
            policy.circuits(made, made.regions[0], DemandMatrix(owed.servers, owed.array.tolist()), before)
            == first
        )
        if policy.name != "round-robin":
            assert policy.circuits(made, made.regions[0], owed, first) == first
        assert policy.circuits(made, made.regions[0], owed.combine(), before) == first


@given(situations(), situations())
@settings(max_examples=30, deadline=None)
def test_static_light_never_moves(
    one: tuple[Fabric, DemandMatrix, CircuitSet], other: tuple[Fabric, DemandMatrix, CircuitSet]
) -> None:
    made, owed, _ = one
    lit = POLICIES["static"].circuits(made, made.regions[0], owed, CircuitSet())
    array = np.resize(other[1].array, owed.array.shape)
    assert POLICIES["static"].circuits(made, made.regions[0], DemandMatrix(owed.servers, array), lit) == lit


@given(situations())
@settings(max_examples=25, deadline=None)
def test_spill_is_the_best_of_all_splits_over_its_circuits(
    situation: tuple[Fabric, DemandMatrix, CircuitSet],
) -> None:
    """Against a linear program: least T such that light and every link of the EPS carry their part within T."""
    made, owed, before = situation
    planned = plan(made, made.regions[0], owed, POLICIES["spill"], before)
    pairs = list(owed.pairs())
    best = least_seconds(made, planned, pairs)
    assert isclose(planned.predicted_s, best, rel_tol=1e-6, abs_tol=1e-12)


@pytest.mark.parametrize(
    ("electrical", "per_leaf", "spines"),
    [
        pytest.param(1, 1, 2, id="one-nic-and-spines-by-destination"),
        pytest.param(2, 1, 2, id="a-spine-a-nic"),
        pytest.param(3, 2, 2, id="spines-loaded-unevenly"),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_spill_is_the_best_split_where_the_leaves_uplinks_are_narrow(
    electrical: int, per_leaf: int, spines: int, seed: int
) -> None:
    made = fabric(5, 2, electrical, per_leaf, spines, 6.0)
    owed = DemandMatrix(made.servers, np.random.default_rng(seed).pareto(1.0, (5, 5)) * 1e9)
    planned = plan(made, made.regions[0], owed, POLICIES["spill"], CircuitSet())
    assert planned.predicted_s == pytest.approx(least_seconds(made, planned, list(owed.pairs())), rel=1e-6)


def least_seconds(made: Fabric, planned: Plan, pairs: list[tuple[str, str, float]]) -> float:
    """The optimum, by scipy's linear programming: each pair's bytes by the EPS and T, in parts of the largest debt and of what a NIC takes for it."""
    if not pairs:
        return 0.0
    largest = max(owed for _, _, owed in pairs)
    rows, limits = [], []
    load: dict[tuple[str, str], np.ndarray] = {}
    for number, (a, b, _) in enumerate(pairs):
        one = flows(made, planned.circuits, Split((Share(a, b, 0.0, 1.0),)))
        for link, part in predict(made, planned.circuits, one).load.items():
            load.setdefault(link, np.zeros(len(pairs) + 1))[number] += part
    for link, row in load.items():
        between = all(end.startswith(("leaf", "spine")) for end in link)
        row[-1] = -made.uplink_rate_bps / made.nic_rate_bps if between else -1.0
        rows.append(row)
        limits.append(0.0)
    for number, (a, b, owed) in enumerate(pairs):
        row = np.zeros(len(pairs) + 1)
        row[number], row[-1] = -1.0, -float(len(planned.circuits.between(a, b)))
        rows.append(row)
        limits.append(-owed / largest)
    bounds = [(0.0, owed / largest) for _, _, owed in pairs] + [(0.0, None)]
    cost = [0.0] * len(pairs) + [1.0]
    done = linprog(cost, A_ub=np.array(rows), b_ub=limits, bounds=bounds, method="highs")
    assert done.success, done.message
    return float(done.fun) * largest * 8 / (made.nic_rate_bps * goodput_share(made.mtu))


def prototype(policy: str, servers: int, optical: int, electrical: int) -> Plan:
    case = {4: "testbed_mixtral8x7B_4servers_alpha3", 8: "mixtral8x22B_tp8_8servers_alpha6"}[servers]
    made = fabric(servers, optical, electrical)
    owed = DemandMatrix(made.servers, np.array(VECTORS[case]["demand_tokens"]) * 8192.0)
    return plan(made, made.regions[0], owed, policy_named(policy), CircuitSet())


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
def test_the_fluid_prediction_relative_to_a_non_blocking_eps(
    policy: str, servers: int, optical: int, electrical: int, ratio: float
) -> None:
    eps = prototype("eps", servers, 0, optical + electrical)
    assert eps.predicted_s == pytest.approx(eps.bound_s)
    assert prototype(policy, servers, optical, electrical).predicted_s / eps.predicted_s == pytest.approx(
        ratio, abs=0.0005
    )


def test_a_plan_as_json_has_the_names_that_others_rely_on() -> None:
    made = fabric(2, 1, 1)
    owed = DemandMatrix(made.servers, [[5.0, 3e9], [0.0, 5.0]])
    seconds = 3e9 * 8 / (200e9 * 1448 / 1514)
    assert plan(made, made.regions[0], owed, POLICIES["spill"], CircuitSet()).to_json() == {
        "policy": "spill",
        "circuits": [[0, 1], [1, 0]],
        "leftover_ports": [0, 0],
        "split": [
            {"from": "s0", "to": "s1", "light_bytes": pytest.approx(1.5e9), "eps_bytes": pytest.approx(1.5e9)}
        ],
        "predicted_s": pytest.approx(seconds),
        "bound_s": pytest.approx(seconds),
    }


def test_spill_leaves_to_light_what_light_carries_in_time() -> None:
    made = fabric(3, 2, 1)
    owed = DemandMatrix(made.servers, [[0.0, 3e9, 1e9], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    planned = plan(made, made.regions[0], owed, POLICIES["spill"], CircuitSet())
    assert [(s.dst, round(s.light_bytes), round(s.eps_bytes)) for s in planned.split] == [
        ("s1", 1_500_000_000, 1_500_000_000),
        ("s2", 1_000_000_000, 0),
    ]


def test_without_an_eps_a_pair_without_light_never_ends() -> None:
    made = replace(fabric(3, 1, 0), eps=None)
    owed = DemandMatrix(made.servers, [[0, 2, 1], [0, 0, 0], [0, 0, 0]])
    planned = plan(made, made.regions[0], owed, POLICIES["spill"], CircuitSet())
    assert planned.predicted_s == inf
    assert planned.to_json()["predicted_s"] is None


def test_an_unknown_policy_is_told_the_known_ones() -> None:
    with pytest.raises(
        SpecError,
        match="policy: 'best' is not one of mixnet, mixnet-htsim, spill, mixnet-spill, joint, matching, round-robin, topoopt",
    ):
        policy_named("best")


def test_demand_of_other_servers_is_refused() -> None:
    made = fabric(2, 1, 1)
    with pytest.raises(SpecError, match="servers: s0, s9 are not the servers of r0, s0, s1"):
        plan(
            made,
            made.regions[0],
            DemandMatrix(("s0", "s9"), [[0, 1], [1, 0]]),
            POLICIES["mixnet"],
            CircuitSet(),
        )


def test_demand_is_as_it_was_after_planning() -> None:
    made, rows = fabric(3, 2, 1), np.array([[9.0, 3.0, 1.0], [2.0, 9.0, 1.0], [0.0, 4.0, 9.0]])
    owed = DemandMatrix(made.servers, rows)
    for policy in POLICIES.values():
        plan(made, made.regions[0], owed, policy, CircuitSet())
    assert owed.array.tolist() == rows.tolist() == [[9.0, 3.0, 1.0], [2.0, 9.0, 1.0], [0.0, 4.0, 9.0]]
