"""The cases that other simulators judge, made from the examples."""

from __future__ import annotations

import pytest
from moefabric_studies.oracle.cases import Case, cases, sharing_cases
from moefabric_studies.oracle.own_simulators import fluid_bound_s, max_min_ends_s
from moefabric_studies.oracle.results import FORWARDING, INTO_THE_DARK

from moefabric.api.predictions import ControlPrediction
from tests.support.paths import EXAMPLES

CASES = {(case.group, case.demand, case.fabric): case for case in cases(EXAMPLES)}
DISPATCH = "0.0 dispatch"


def circuits(case: Case) -> set[tuple[str, str]]:
    """Return the circuits of a case that flows use."""
    return {cable.ends for cable in case.scenario.cables if "leaf0" not in cable.ends}


def test_fabrics_of_a_demand_carry_the_same_bytes() -> None:
    by_demand: dict[tuple[str, str], set[float]] = {}
    for (group, demand, _), case in CASES.items():
        by_demand.setdefault((group, demand), set()).add(round(case.scenario.bytes))
    assert len(by_demand) == 13
    assert all(len(sizes) == 1 for sizes in by_demand.values())


def test_prototype_has_the_predicted_ratios() -> None:
    eps = CASES["prototype", DISPATCH, "eps"].predicted_s
    assert CASES["prototype", DISPATCH, "mixnet"].predicted_s / eps == pytest.approx(1.41, abs=0.01)
    assert CASES["prototype", DISPATCH, "mixnet-spill"].predicted_s / eps == pytest.approx(1.0)


def test_circuits_are_cables_between_servers_and_eps_flows_use_all_nics() -> None:
    mixnet = CASES["prototype", DISPATCH, "mixnet"].scenario
    eps = CASES["prototype", DISPATCH, "eps"].scenario
    assert {len(flow.route) for flow in mixnet.flows} == {1}
    assert len(eps.flows) == 12 * 4
    assert len(CASES["prototype", DISPATCH, "eps, fewer flows"].scenario.flows) < 48


def test_servers_forward_for_multihop_alone_over_the_circuits_of_uniform() -> None:
    for demand in ("3.1 dispatch", "7.2 dispatch", "11.3 dispatch", "11.3 combine"):
        eps, multihop, uniform = (
            CASES[FORWARDING, demand, fabric] for fabric in ("eps", "multihop", "uniform")
        )
        forwarded = [flow for flow in multihop.scenario.flows if flow.tree]
        assert 0 < sum(flow.bytes for flow in forwarded) < 0.07 * multihop.scenario.bytes
        assert {len(flow.route) for flow in forwarded} == {2}
        assert not any(flow.tree for flow in (*eps.scenario.flows, *uniform.scenario.flows))
        assert circuits(uniform) == circuits(multihop)
        assert multihop.predicted_s == pytest.approx(eps.predicted_s, rel=0.01)
        assert uniform.predicted_s > 1.08 * multihop.predicted_s


def test_flows_on_new_circuits_start_late_or_lose_packets() -> None:
    first = {name: case for (group, _, name), case in CASES.items() if group == "first-all-to-all"}
    settle_s, control_s = 0.025, ControlPrediction().changed_s
    factor = first["block"].factor
    assert {f.start_s for f in first["block"].scenario.flows} == {(settle_s + control_s) * factor}
    assert {f.start_s for f in first["divert"].scenario.flows} == {
        0.0,
        (settle_s + control_s) * factor,
    }
    outages = first[INTO_THE_DARK].scenario.outages
    assert {outage.until_s for outage in outages} == {settle_s * factor}
    assert first["divert"].predicted_s < first["block"].predicted_s


def test_model_never_ends_a_case_before_its_bound() -> None:
    for case in CASES.values():
        assert max(max_min_ends_s(case.scenario)) > fluid_bound_s(case.scenario)


def test_sharing_scenarios_are_pipelines_and_128_servers() -> None:
    names = {scenario.name: len(scenario.steps) for scenario in sharing_cases(EXAMPLES)}
    assert names["pipeline, mixnet"] > 100
    assert names["128 servers, eps"] == 1
