"""The first all-to-all of a layer under each `dispatch_light`: start, paths and waits."""

from typing import get_args

import pytest

from moefabric.config.loader import load_experiment
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import SpecError
from moefabric.core.failures import Failure
from moefabric.core.topology import Fabric
from moefabric.core.units import Scale
from moefabric.execution.executor import ControlSettings, Executor, RunSettings
from moefabric.execution.failure_monitor import FailureInjector
from moefabric.planner.horizon import Horizon
from moefabric.planner.mixnet import MIXNET, SPILL
from moefabric.planner.policy import EpsOnly, Policy
from moefabric.planner.sending.flow_pacing import LEAST_HEADROOM
from moefabric.prediction.experiment import predict_fabrics
from moefabric.prediction.first_all_to_all import first_dispatches
from moefabric.prediction.workload_loader import workload_on
from moefabric.results.parts import FirstAllToAll, Json
from moefabric.results.records.records import CircuitChange, IterationRun
from moefabric.results.verdict.fabric_result import fabric_result
from moefabric.results.verdict.first_all_to_all import (
    GatingPredictionQuality,
    demand_prediction,
    measured_first_all_to_alls,
)
from moefabric.workload.iterations.iteration import (
    Collective,
    Compute,
    DispatchLight,
    Operation,
    Reconfigure,
)
from tests.support.fabrics import fabric
from tests.support.memory_testbed import (
    TENTH,
    ImmediateExecutor,
    MemoryAgents,
    MemoryController,
    VirtualClock,
    demand,
    instruments_in_memory,
)
from tests.support.paths import EXAMPLES

MS = 1_000_000
NEAR = 2000
ARMING_MS = 6


NEIGHBOURS, CROSSED = demand((0, 1), (2, 3)), demand((0, 2), (1, 3))
EXACT = Reconfigure("forward", 0, NEIGHBOURS)


def passed(
    first: DispatchLight, guess: DemandMatrix | None = None, expert_s: float = 0.050
) -> list[Operation]:
    """The forward pass of a layer whose attention takes 40 ms."""
    foreseen = Reconfigure("forward", 0, guess) if guess is not None else None
    return [
        Compute("attention", "forward", 0, (0.040,) * 4, foreseen if first == "predict" else None),
        *([EXACT] if first == "block" else []),
        Collective("dispatch", "forward", 0, NEIGHBOURS, EXACT if first == "divert" else None),
        Compute(
            "expert",
            "forward",
            0,
            (expert_s,) * 4,
            EXACT if first in ("reuse", "predict") else None,
        ),
        Collective("combine", "forward", 0, NEIGHBOURS.combine()),
    ]


class Unlit(MemoryController):
    """A light that goes dark for a change and doesn't come back."""

    def reconfigure(self, demand: DemandMatrix, horizon: Horizon) -> CircuitChange:
        """As any, but nothing is lit afterwards."""
        moved = super().reconfigure(demand, horizon)
        self.lit = CircuitSet()
        return CircuitChange(moved.before, CircuitSet(), moved.phases, moved.after)


class Bench:
    """Servers of one optical and one electrical NIC in memory, with circuits from before."""

    def __init__(
        self,
        made: Fabric | None = None,
        policy: Policy = MIXNET,
        lit: DemandMatrix | None = CROSSED,
        light: type[MemoryController] = MemoryController,
        faults: FailureInjector | None = None,
    ) -> None:
        self.fabric, self.policy, self.clock = made or fabric(1, 1), policy, VirtualClock()
        self.light = light(self.fabric, policy, self.clock)
        if lit is not None and self.fabric.optical:
            self.light.lit = policy.circuits(self.fabric, self.fabric.regions[0], lit, CircuitSet())
        self.executor = Executor(
            self.fabric,
            policy,
            MemoryAgents(self.fabric, lambda: self.light.lit, self.clock),
            {"r0": self.light} if self.fabric.optical else {},
            self.light.lit,
            settings=RunSettings(arming_ns=ARMING_MS * MS, control=ControlSettings(control_s=0.0)),
            instruments=instruments_in_memory(self.clock),
            observer=faults,
        )

    def run(self, operations: list[Operation], number: int = 0) -> IterationRun:
        return self.executor.iteration(number, operations)


@pytest.mark.parametrize(
    ("first", "guess", "starts_ms", "ends_ms", "combined_ms"),
    [
        pytest.param("block", None, 40 + 25, 165, 315, id="block"),
        pytest.param("reuse", None, 40, 140, 290, id="reuse"),
        pytest.param("predict", NEIGHBOURS, 40, 140, 290, id="predict-rightly"),
        pytest.param("predict", CROSSED, 40, 140, 290, id="predict-wrongly"),
        pytest.param("divert", None, 40, 105.5, 255.5, id="divert"),
    ],
)
def test_start_and_end_of_a_first_all_to_all(
    first: DispatchLight,
    guess: DemandMatrix | None,
    starts_ms: float,
    ends_ms: float,
    combined_ms: float,
) -> None:
    """100 ms of bytes a pair, by light or by the EPS.

    Diverted, by the EPS for 31 ms of settling and telling, then by both.
    """
    dispatch, combine = Bench().run(passed(first, guess)).collectives
    assert dispatch.start_ns == pytest.approx(starts_ms * MS, abs=NEAR)
    assert dispatch.end_ns == pytest.approx(ends_ms * MS, abs=NEAR)
    assert combine.end_ns == pytest.approx(combined_ms * MS, abs=NEAR)
    assert {record.path for record in combine.records} == {"o0"}, "by then the light is right"


@pytest.mark.parametrize(
    ("first", "guess", "paths"),
    [
        pytest.param("block", None, {"o0"}, id="block"),
        pytest.param("reuse", None, {"e0"}, id="reuse"),
        pytest.param("predict", NEIGHBOURS, {"o0"}, id="predict-rightly"),
        pytest.param("predict", CROSSED, {"e0"}, id="predict-wrongly"),
        pytest.param("divert", None, {"e0", "o0"}, id="divert"),
    ],
)
def test_paths_of_a_first_all_to_all(
    first: DispatchLight, guess: DemandMatrix | None, paths: set[str]
) -> None:
    dispatch, _ = Bench().run(passed(first, guess)).collectives
    assert {record.path for record in dispatch.records} == paths
    assert sum(record.bytes for record in dispatch.records) == pytest.approx(2 * TENTH, abs=4)


@pytest.mark.parametrize("first", get_args(DispatchLight))
def test_first_all_to_all_is_measured_as_predicted_with_its_wait(first: DispatchLight) -> None:
    bench = Bench()
    dispatch, combine = bench.run(passed(first, NEIGHBOURS)).collectives
    waits = {"block": (25, 25), "reuse": (0, 0), "predict": (0, 0), "divert": (0, 0)}[first]
    assert (dispatch.waited_ns / MS, dispatch.predicted_wait_s * 1e3) == pytest.approx(waits)
    assert (combine.waited_ns, combine.predicted_wait_s) == (0, 0)
    for part in (dispatch, combine):
        took_s = (part.end_ns - part.start_ns) / 1e9
        assert took_s == pytest.approx(part.predicted_s, rel=1e-4)


def test_wrong_prediction_behind_a_short_attention_is_waited_for() -> None:
    attention = Compute("attention", "forward", 0, (0.010,) * 4, EXACT)
    dispatch = Collective("dispatch", "forward", 0, NEIGHBOURS)
    [part] = Bench().run([attention, dispatch]).collectives
    assert part.waited_ns == (25 - 10) * MS
    assert part.predicted_wait_s == pytest.approx(0.015)


def test_offload_reconfigures_afterwards_where_that_is_sooner() -> None:
    """200 ms of settling don't pay within 100 ms; behind the experts, they are hidden."""
    run = Bench(fabric(1, 1, settle_ns=200 * MS)).run(passed("divert", expert_s=0.250))
    [light], [dispatch, combine] = run.reconfigurations, run.collectives
    assert {record.path for record in dispatch.records} == {"e0"}
    assert not dispatch.reconfigured_meanwhile
    assert light.start_ns == pytest.approx(dispatch.end_ns, abs=NEAR)
    assert combine.start_ns == pytest.approx(dispatch.end_ns + 250 * MS, abs=NEAR)


def test_combine_waits_for_a_reconfiguration_under_way() -> None:
    run = Bench(fabric(1, 1, settle_ns=200 * MS)).run(passed("divert", expert_s=0.020))
    dispatch, combine = run.collectives
    assert combine.start_ns == pytest.approx(dispatch.end_ns + 200 * MS, abs=NEAR)
    assert {record.path for record in combine.records} == {"o0"}
    assert combine.waited_ns == pytest.approx(180 * MS, abs=NEAR)
    assert combine.predicted_wait_s == pytest.approx(0.180, abs=1e-5)


class CollectiveStarts(FailureInjector):
    """A schedule without failures that keeps the starts of collectives."""

    def __init__(self) -> None:
        super().__init__([], _ignore, _ignore, VirtualClock(), Scale(), ImmediateExecutor())
        self.starts: list[int] = []

    def collective_began(self, start_ns: int) -> None:
        self.starts.append(start_ns)


def _ignore(_failure: Failure) -> None:
    pass


def test_offload_counts_as_one_collective() -> None:
    """Failures are planned by the number of collectives that have started."""
    faults = CollectiveStarts()
    run = Bench(faults=faults).run(passed("divert"))
    assert len(run.collectives) == len(faults.starts) == 2
    # Starts are on the wall clock, which shows no skipped wait.
    assert faults.starts[-1] == pytest.approx(
        run.collectives[-1].start_ns - run.skipped_ns, abs=NEAR
    )


def test_late_flows_are_paced_to_end_with_the_others() -> None:
    """It has 34.5 ms of the 65.5 left, all of which its circuit needs."""
    dispatch, _ = Bench().run(passed("divert")).collectives
    full_bps = LEAST_HEADROOM * 8 * TENTH / 0.1
    paces = {record.path: record.rate_bps for record in dispatch.records}
    assert paces["o0"] == pytest.approx(full_bps, rel=1e-3)


def test_late_flows_use_the_eps_if_circuits_do_not_come() -> None:
    run = Bench(light=Unlit).run(passed("divert"))
    dispatch, combine = run.collectives
    assert {record.path for part in (dispatch, combine) for record in part.records} == {"e0"}
    assert sum(record.bytes for record in dispatch.records) == pytest.approx(2 * TENTH, abs=4)
    assert len(dispatch.records) == 4, "two flows at once, and two that were to go by light"


def test_kept_circuits_carry_from_the_start() -> None:
    bench = Bench(policy=SPILL, lit=NEIGHBOURS)
    run = bench.run(passed("divert"))
    [light], [dispatch, _] = run.reconfigurations, run.collectives
    assert light.change.before == light.change.after
    assert dispatch.end_ns - dispatch.start_ns == pytest.approx(50 * MS, abs=NEAR)
    assert len({record.collective for record in dispatch.records}) == 1


def test_fabric_without_circuits_offloads_nothing() -> None:
    run = Bench(fabric(0, 1), EpsOnly()).run(passed("divert"))
    assert run.reconfigurations == []
    assert {record.path for part in run.collectives for record in part.records} == {"e0"}


def test_dilation_stretches_all_times_alike() -> None:
    made = fabric(1, 1, scale=Scale(100, 2), settle_ns=50 * MS)
    bench = Bench(made)
    dispatch, _ = bench.run(passed("divert")).collectives
    model_s = (dispatch.end_ns - dispatch.start_ns) / 1e9 / 2
    assert model_s == pytest.approx((0.1 + 0.025 + 0.003) / 2, abs=1e-4), (
        "3 ms of the model's for 6 ms of telling"
    )
    assert model_s == pytest.approx(dispatch.predicted_s, abs=1e-4)


def result_of(first: DispatchLight, guess: DemandMatrix | None = None) -> Json:
    bench = Bench()
    runs = [bench.run(passed(first, guess), number) for number in range(1)]
    entry = fabric_result(bench.fabric, first, "mixnet", runs, cpu_idle=[0.5], remarks=[]).to_json()
    assert entry["fidelity"]["reasons"][-1].endswith(
        "collectives were judged; a 95th percentile needs 20"
    )
    return entry | {
        "first_all_to_all": measured_first_all_to_alls(
            first, first_dispatches(bench.fabric, "mixnet", runs)
        ).to_json()
    }


@pytest.mark.parametrize(
    ("first", "exposed_ms", "predicted_ms"),
    [
        pytest.param("block", 125, 125, id="block"),
        pytest.param("reuse", 100, 100, id="reuse"),
        pytest.param("divert", 65.5, 65.5, id="divert"),
    ],
)
def test_result_tells_the_exposure_of_first_all_to_alls(
    first: DispatchLight, exposed_ms: float, predicted_ms: float
) -> None:
    said = result_of(first)
    summary, dispatch = said["first_all_to_all"], said["collectives"][0]
    assert summary["policy"] == first
    assert summary["exposed_s"] * 1e3 == pytest.approx(exposed_ms, abs=0.01)
    assert summary["predicted_exposed_s"] * 1e3 == pytest.approx(predicted_ms, abs=0.01)
    assert summary["ideal_s"] == pytest.approx(0.1), (
        "mixnet sends by light alone where there is any"
    )
    assert dispatch["waited_s"] + dispatch["measured_s"] == pytest.approx(summary["exposed_s"])
    assert dispatch["moved_now"] is (first == "divert")


def test_run_without_first_all_to_alls_has_an_empty_summary() -> None:
    assert measured_first_all_to_alls("predict", []) == FirstAllToAll()


def test_prediction_without_history_says_so() -> None:
    assert result_of("predict")["first_all_to_all"]["foresight"]["guessed"] == 0


def test_predictions_are_summarised_without_the_dispatches_that_had_none() -> None:
    quality = GatingPredictionQuality(k=2, hits=0.8, persistence_hits=0.6, random_hits=0.2)
    summary = demand_prediction([(None, 9.0), (quality, 0.5)])
    assert (summary.guessed, summary.unguessed, summary.top_k) == (1, 1, 2)
    assert (summary.top_k_hits, summary.unchanged_hits, summary.random_hits) == (0.8, 0.6, 0.2)
    assert summary.wrong_guess_s == summary.worst_guess_s == 0.5


@pytest.fixture(scope="module")
def example_predictions() -> dict[str, Json]:
    spec = load_experiment(EXAMPLES / "first-all-to-all.yaml", ["control_time=2ms"])
    said = predict_fabrics(spec, EXAMPLES).to_json()
    return {entry["fabric"]: entry for entry in said["fabrics"]}


def test_divert_is_predicted_best_and_block_worst_for_the_example(
    example_predictions: dict[str, Json],
) -> None:
    exposed = {
        name: entry["first_all_to_all"]["predicted_exposed_s"]
        for name, entry in example_predictions.items()
    }
    assert (
        exposed["mixnet-divert"]
        < exposed["mixnet-predict"]
        < exposed["mixnet-reuse"]
        < exposed["mixnet-block"]
    )
    assert example_predictions["mixnet-block"]["first_all_to_all"][
        "predicted_wait_s"
    ] == pytest.approx(0.027)
    assert exposed["spill-divert"] <= exposed["mixnet-divert"]


def test_circuits_move_as_often_whenever_they_are_exact(
    example_predictions: dict[str, Json],
) -> None:
    moves = {name: entry["reconfigurations"] for name, entry in example_predictions.items()}
    assert moves["mixnet-block"] == moves["mixnet-reuse"] == moves["mixnet-divert"] > 10
    assert moves["mixnet-predict"] > moves["mixnet-block"], "a wrong guess is corrected"


def test_predictor_learns_by_iteration_and_beats_persistence() -> None:
    spec = load_experiment(EXAMPLES / "first-all-to-all.yaml")
    work = workload_on(
        spec, spec.build_fabric(spec.fabrics[1], "x", Scale()), EXAMPLES
    ).with_first_all_to_alls("predict")
    assert work.predictions(0) == (None,) * 4
    guesses = [guess for guess in work.predictions(3)[1:] if guess is not None]
    assert len(guesses) == 3
    assert {(guess.k, guess.random_hits) for guess in guesses} == {(4, 0.25)}
    assert sum(guess.hits for guess in guesses) > sum(guess.persistence_hits for guess in guesses)
    with pytest.raises(ValueError, match="iteration 1: the predictor has learned 3 iterations"):
        work.predictions(1)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        pytest.param(
            "fabrics=[{name: a, optical: 0, electrical: 4, policy: eps, dispatch_light: divert}]",
            "fabrics[0].dispatch_light: divert needs changing circuits, "
            "which eps has not: leave it out",
            id="no-light",
        ),
        pytest.param(
            "fabrics=[{name: a, optical: 3, electrical: 1, policy: static, dispatch_light: reuse}]",
            "fabrics[0].dispatch_light: reuse needs changing circuits, "
            "which static has not: leave it out",
            id="light-that-stays",
        ),
        pytest.param(
            "fabrics=[{name: a, optical: 3, electrical: 1, policy: mixnet, dispatch_light: hope}]",
            "fabrics[0].dispatch_light: ",
            id="no-such-policy",
        ),
    ],
)
def test_dispatch_light_is_refused_where_circuits_do_not_change(setting: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_experiment(EXAMPLES / "first-all-to-all.yaml", [setting])
    assert said in str(refused.value)
