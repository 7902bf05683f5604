"""Circuits and splits of an iteration, when demands of later iterations are others."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from moefabric.config.loader import load_experiment
from moefabric.core.circuits import CircuitSet
from moefabric.core.flows import Flow
from moefabric.core.units import Scale
from moefabric.planner.policy import KnownDemand, Policy, known_demand
from moefabric.prediction.experiment import predict_fabrics
from moefabric.prediction.jobs import Jobs
from moefabric.prediction.workload_loader import workload_of, workload_on
from moefabric.report.remarks import FUTURE_TOTAL, remarks
from moefabric.report.summary import FabricSummary
from moefabric.results.model import FabricResult, FidelityResult, Verdict
from moefabric.workload.iterations.substitution import Substitutions
from tests.support.paths import EXAMPLES
from tests.support.policies import POLICIES

SPEC = load_experiment(EXAMPLES / "training.yaml", ["training.iterations=3"])
CHOICE = next(choice for choice in SPEC.fabrics if choice.optical)
WIRED = SPEC.build_fabric(CHOICE, "test", Scale())
DEMAND = workload_on(SPEC, WIRED, EXAMPLES).total_demand()
Plan = list[tuple[CircuitSet, tuple[Flow, ...]]]


def first_plans(policy: Policy, later: int, **choices: object) -> Plan:
    """Return circuits and flows of all tasks of the first two of three iterations.

    Args:
        policy: Chooses circuits and splits.
        later: Distance of the rank to which nearly all tokens of the third iteration go.
        choices: Keys of the fabric in the experiment.
    """
    work = workload_on(SPEC, WIRED, EXAMPLES)
    tokens = np.array(work.gating.source)[:3]
    ranks, experts = tokens.shape[2:]
    for rank in range(ranks):
        tokens[2, :, rank, (rank + later) * (experts // ranks) % experts] = 100 * tokens.max()
    work = replace(work, gating=replace(work.gating, source=tokens))
    jobs = Jobs.of(SPEC, WIRED, workload_of(CHOICE.model_copy(update=choices), work))
    first = CHOICE.model_copy(update=choices).first_policy
    planner, plan = jobs.planner(policy, SPEC.control_s, first), Plan()
    for number in (0, 1):
        tasks = [jobs.tasks(job, number, Substitutions()) for job in jobs.all]
        planned = chain.from_iterable(planner.plan(tasks))
        plan += [(t.flows.circuits, t.flows.flows) for t in planned if t.flows is not None]
    return plan


@pytest.mark.parametrize(
    "policy",
    [p for p in POLICIES.values() if known_demand(p, "block") is not KnownDemand.FUTURE_TOTAL],
    ids=lambda policy: policy.name,
)
def test_later_demands_change_no_plan_of_policies_that_do_not_know_them(policy: Policy) -> None:
    assert first_plans(policy, 2) == first_plans(policy, 4)


@pytest.mark.parametrize("dispatch_light", ["reuse", "predict", "divert"])
@pytest.mark.parametrize("split_demand", ["known", "last", "recent", "predicted"])
def test_later_demands_change_no_plan_for_predicted_ones(
    dispatch_light: str, split_demand: str
) -> None:
    choices = {"dispatch_light": dispatch_light, "split_demand": split_demand}
    policy = POLICIES["joint"]
    assert first_plans(policy, 2, **choices) == first_plans(policy, 4, **choices)


def test_first_all_to_all_takes_the_circuits_that_are_lit_before_the_job() -> None:
    """MixNet's appendix B.1: random circuits while the demand of the first layer is unknown."""
    alone, begun = (
        first_plans(POLICIES["mixnet"], 2, dispatch_light="reuse", start=start)
        for start in (None, "random")
    )
    lit = POLICIES["random"].circuits(WIRED, WIRED.regions[0], DEMAND, CircuitSet())
    assert lit
    circuits = [[circuits for circuits, _ in plan] for plan in (alone, begun)]
    assert (circuits[0][0], circuits[1][0]) == (CircuitSet(), lit)
    assert {lit} < {*circuits[1]}, "the policy moves them"


def test_total_demand_of_the_job_changes_circuits_that_are_set_once() -> None:
    policy = POLICIES["topoopt"]
    assert known_demand(policy, "block") is KnownDemand.FUTURE_TOTAL
    assert first_plans(policy, 2) != first_plans(policy, 4)


def test_prediction_and_report_say_which_demand_a_policy_knows() -> None:
    entries = predict_fabrics(SPEC, EXAMPLES).to_json()["fabrics"]
    known = {entry["policy"]: entry["knows"] for entry in entries}
    assert known["eps"] == "nothing"
    assert known["static"] == FUTURE_TOTAL
    assert known["mixnet"] == "own demand"
    fidelity = FidelityResult(verdict=Verdict.PASS)
    shown = [
        list(remarks(FabricSummary(FabricResult(knows=knows, fidelity=fidelity))))
        for knows in (FUTURE_TOTAL, "own demand", None)
    ]
    line = "circuits are set once for the sum of all demands of the job, known before it begins"
    assert shown == [[line], [], []]


@pytest.mark.parametrize(
    ("name", "dispatch_light", "known"),
    [
        ("eps", "block", "nothing"),
        ("static", "block", "future total"),
        ("topoopt", "block", "future total"),
        ("mixnet", "block", "own demand"),
        ("mixnet", "divert", "own demand"),
        ("joint", "predict", "predicted demand"),
    ],
)
def test_known_demand_of_policies(name: str, dispatch_light: str, known: str) -> None:
    assert known_demand(POLICIES[name], dispatch_light) == known
