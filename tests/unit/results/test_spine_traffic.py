"""Bytes between leaves: what crosses spines in the examples, and what uplinks count."""

from collections import defaultdict

import pytest

from moefabric.config.loader import load_experiment
from moefabric.config.policies import policy_named
from moefabric.core.circuits import CircuitSet
from moefabric.core.eps import Eps
from moefabric.core.flows import Flow
from moefabric.core.units import Scale
from moefabric.prediction.control_time import ControlPrediction
from moefabric.prediction.experiment import predict_fabrics
from moefabric.prediction.job_prediction import TaskPlanner
from moefabric.prediction.jobs import Jobs
from moefabric.prediction.workload_loader import workload_on
from moefabric.report.remarks import spine_text
from moefabric.results.model import FabricResult, FidelityResult, Verdict
from moefabric.results.parts import CollectiveResult, SpineTraffic
from moefabric.results.records.queue_readings import spine_bytes, spine_traffic, uplink_payload
from moefabric.workload.iterations.substitution import Substitutions
from tests.support.fabrics import fabric
from tests.support.paths import EXAMPLES


def sent_flows(example: str) -> dict[str, list[tuple[Flow, bool]]]:
    """Return the flows of an iteration on the first fabric, by kind of work.

    Each has a mark: whether its two servers are on different leaves.
    """
    spec = load_experiment(EXAMPLES / f"{example}.yaml", ["gating.noise=0"])
    wired = spec.build_fabric(spec.fabrics[0], "test", Scale())
    jobs = Jobs.of(spec, wired, workload_on(spec, wired, EXAMPLES))
    policy, control = policy_named(spec.fabrics[0].policy), ControlPrediction.fixed(None)
    planner = TaskPlanner(wired, policy, CircuitSet(), moves=False, control=control)
    [planned] = planner.plan([jobs.tasks(jobs.all[0], 0, Substitutions())])
    sent = defaultdict[str, list[tuple[Flow, bool]]](list)
    for task in planned:
        if task.flows is not None:
            sent[type(task.task.work).__name__] += [
                (flow, wired.eps_wiring.leaf_of(flow.src) != wired.eps_wiring.leaf_of(flow.dst))
                for flow in task.flows.flows
            ]
    marked = [flow for kind in sent.values() for flow, apart in kind if apart]
    assert spine_bytes(wired, (flow for kind in sent.values() for flow, _ in kind)) == (
        pytest.approx(sum(flow.bytes for flow in marked))
    )
    return sent


@pytest.mark.parametrize("example", ["spines", "paper-scale"])
def test_all_to_alls_transfers_and_all_reduces_of_the_large_examples_cross_spines(
    example: str,
) -> None:
    sent = sent_flows(example)
    shares = {
        kind: sum(flow.bytes for flow, apart in marked if apart)
        / sum(flow.bytes for flow, _ in marked)
        for kind, marked in sent.items()
    }
    assert shares.keys() == {"Collective", "Transfer", "AllReduce"}
    assert shares["Collective"] > 0.15
    assert shares["Transfer"] > 0.6
    assert shares["AllReduce"] > 0.9


def test_uplinks_of_the_large_example_carry_every_kind_of_traffic() -> None:
    sent = sent_flows("spines").values()
    sources = [{flow.src for flow, apart in marked if apart} for marked in sent]
    assert min(map(len, sources)) >= 8


def test_predict_tells_the_share_of_bytes_that_cross_spines() -> None:
    spines, prototype = (
        predict_fabrics(load_experiment(EXAMPLES / f"{name}.yaml"), EXAMPLES).to_json()["fabrics"]
        for name in ("spines", "prototype")
    )
    assert [entry["spine_share"] for entry in prototype] == [None] * len(prototype)
    eps, spill = (entry["spine_share"] for entry in spines)
    assert 0.3 < eps < 0.6
    assert 0 < spill < eps, "circuits take bytes off the spines"


BEFORE = {
    "leaf0 to spine0": {"packets": 10, "bytes": 1_000, "drops": 0},
    "spine0 to leaf0": {"packets": 10, "bytes": 1_000, "drops": 0},
    "leaf0 to s0/e0": {"packets": 0, "bytes": 0, "drops": 0},
}
AFTER = {
    "leaf0 to spine0": {"packets": 10 + 3, "bytes": 1_000 + 2 * 1514 + 66, "drops": 0},
    "spine0 to leaf0": {"packets": 99, "bytes": 99_000, "drops": 0},
    "leaf0 to s0/e0": {"packets": 99, "bytes": 99_000, "drops": 0},
}


def test_uplinks_count_payload_towards_spines_without_headers_and_acknowledgements() -> None:
    assert uplink_payload(BEFORE, AFTER) == 2 * 1448


def collective(kind: str, sent: int, by_spines: int) -> CollectiveResult:
    return CollectiveResult(
        kind=kind, measured_s=1.0, bytes=sent, bytes_planned_by_spines=by_spines
    )


def test_line_names_the_share_of_each_kind_and_what_uplinks_counted() -> None:
    sent = [collective("dispatch", 300, 100), collective("pipeline", 100, 100)]
    result = FabricResult(
        collectives=sent[:1],
        transfers=sent[1:],
        spines=SpineTraffic(bytes=200, share=0.5, counted_bytes=199),
        fidelity=FidelityResult(verdict=Verdict.PASS),
    )
    assert spine_text(result) == (
        "50.0 % of all bytes cross spines (dispatch 33.3 %, pipeline 100.0 %); "
        "the uplinks counted 99.50% of them"
    )


def test_counted_bytes_are_in_the_models_units() -> None:
    wired = fabric(1, 1, scale=Scale(100), eps=Eps(2, 2))
    traffic = spine_traffic(wired, [collective("dispatch", 300, 100)], 2)
    assert traffic == SpineTraffic(bytes=100, share=1 / 3, counted_bytes=200)


def test_fabric_without_spines_has_no_spine_traffic() -> None:
    assert spine_traffic(fabric(1, 1), [collective("dispatch", 300, 0)], None) is None
