"""Runs and predictions whose first all-to-alls are split for another demand."""

import json

import pytest

from moefabric.config.loader import load_experiment
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.execution.executor import Executor
from moefabric.planner.multihop import MULTIHOP
from moefabric.prediction.experiment import predict_fabrics
from moefabric.prediction.first_all_to_all import first_dispatches
from moefabric.results.parts import Json
from moefabric.results.verdict.fabric_result import fabric_result
from moefabric.results.verdict.first_all_to_all import measured_first_all_to_alls
from moefabric.workload.iterations.iteration import Collective
from tests.support.fabrics import MESH, fabric
from tests.support.memory_testbed import MemoryAgents, VirtualClock, instruments_in_memory
from tests.support.paths import EXAMPLES

SECOND = 100e9 / 8 * 1448 / 1514
"""Bytes that a NIC of 100 Gb/s carries in a second."""
NOTHING = [[0.0] * 4] * 3
SERVERS = ("s0", "s1", "s2", "s3")
SPLITS: dict[str, dict[str, str | float]] = {
    "known": {},
    "right": {"demand_error": 0.0},
    "last": {"split_demand": "last"},
    "recent": {"split_demand": "recent"},
    "predicted": {"split_demand": "predicted"},
    "none": {"split_demand": "none"},
    "slightly-wrong": {"demand_error": 0.1},
    "wrong": {"demand_error": 0.5},
}


def predicted(iterations: int) -> dict[str, Json]:
    """Return predictions of a training run on 4 servers, by the demand of the split."""
    wired = {"optical": 3, "electrical": 1, "policy": "multihop"}
    choices = [{"name": name, **wired, **split} for name, split in SPLITS.items()]
    spec = load_experiment(
        EXAMPLES / "training.yaml",
        [
            f"fabrics={json.dumps(choices)}",
            f"training.iterations={iterations}",
            "gating.first_step=300",
            "gating.step_stride=1",
            "gating.history=10",
        ],
    )
    return {
        entry["fabric"]: entry for entry in predict_fabrics(spec, EXAMPLES).to_json()["fabrics"]
    }


@pytest.fixture(scope="module")
def predictions() -> dict[str, Json]:
    return predicted(6)


def first_s(prediction: Json) -> float:
    return float(prediction["first_all_to_all"]["predicted_exposed_s"])


def test_demand_without_error_is_the_known_one(predictions: dict[str, Json]) -> None:
    known, right = predictions["known"], predictions["right"]
    names = {"fabric": "known", "same_circuits": known["same_circuits"]}
    assert {**right, **names} == known


def test_all_are_compared_with_the_split_for_the_demand_itself(
    predictions: dict[str, Json],
) -> None:
    ideal_s = [prediction["first_all_to_all"]["ideal_s"] for prediction in predictions.values()]
    assert ideal_s == pytest.approx([first_s(predictions["known"])] * len(SPLITS))


def test_what_is_not_known_costs_time(predictions: dict[str, Json]) -> None:
    seconds = {name: first_s(prediction) for name, prediction in predictions.items()}
    least = 1.01 * seconds.pop("known")
    assert seconds.pop("right") < least
    assert min(seconds.values()) > least
    assert seconds["slightly-wrong"] < seconds["wrong"]
    assert seconds["recent"] < seconds["none"]


def test_only_the_first_all_to_all_of_a_layer_takes_longer() -> None:
    predictions = predicted(1)
    known, wrong = predictions["known"], predictions["wrong"]
    assert wrong["reconfigurations"] == known["reconfigurations"]
    longer_s = wrong["iteration_s"] - known["iteration_s"]
    layers = 4
    first_longer_s = layers * (first_s(wrong) - first_s(known))
    assert longer_s == pytest.approx(first_longer_s, rel=0.2), "medians stand for means"


def test_run_sends_the_demand_in_the_proportions_of_the_other() -> None:
    wired, mesh, clock = fabric(3, 1), CircuitSet.of(MESH), VirtualClock(now_ns=10**12)
    agents = MemoryAgents(wired, lambda: mesh, clock)
    executor = Executor(
        wired,
        MULTIHOP,
        agents,
        {},
        mesh,
        instruments=instruments_in_memory(clock, counters=agents.counters),
    )
    owed = DemandMatrix(SERVERS, [[0, 0.2 * SECOND, 0, 0], *NOTHING])
    # Two circuits and the EPS each carry a third of the assumed bytes; of the true ones, half each.
    rows = [[0, 0.3 * SECOND, 0.3 * SECOND, 0], *NOTHING]
    assumed = DemandMatrix(SERVERS, rows)
    work = (Collective("dispatch", "forward", 0, owed, split_demands=(assumed,)),)
    runs = [executor.iteration(number, work) for number in range(20)]
    sent = {flow.path: flow.bytes for flow in runs[0].collectives[0].planned}
    assert sent == pytest.approx({"o2": 0.2 * SECOND * 2 / 3, "e0": 0.2 * SECOND / 3})
    result = fabric_result(wired, "f", "multihop", runs, cpu_idle=[0.5], remarks=[])
    assert result.collectives[0].measured_s == pytest.approx(0.2 * 2 / 3, rel=1e-4)
    assert result.collectives[0].predicted_s == pytest.approx(0.2 * 2 / 3, rel=1e-6)
    first = measured_first_all_to_alls("block", first_dispatches(wired, "multihop", runs))
    assert first.ideal_s == pytest.approx(0.1)
