"""The tasks of jobs, their prediction, and the result of a run in memory."""

import json
import os
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from moefabric.config.loader import load_experiment
from moefabric.config.model import preset
from moefabric.core.circuits import CircuitSet
from moefabric.core.machine_speed import MachineSpeed
from moefabric.core.units import Scale
from moefabric.execution.executor import ControlSettings, Executor, RunSettings
from moefabric.planner.mixnet import MIXNET
from moefabric.planner.sending.flow_pacing import merge_circuits
from moefabric.prediction.control_time import ControlPrediction
from moefabric.prediction.experiment import experiment_scale, predict_all, predict_fabrics
from moefabric.prediction.first_all_to_all import first_dispatches, predicted_first_all_to_alls
from moefabric.prediction.job_prediction import TaskPlanner
from moefabric.prediction.jobs import Jobs
from moefabric.prediction.workload_loader import workload_on
from moefabric.results.verdict.fabric_result import fabric_result
from moefabric.results.verdict.first_all_to_all import measured_first_all_to_alls
from moefabric.simulator.fluid import goodput_share
from moefabric.workload.iterations.iteration import (
    AllReduce,
    Collective,
    Compute,
    DispatchLight,
    Transfer,
)
from moefabric.workload.iterations.substitution import Substitutions
from moefabric.workload.iterations.tasks import Task
from tests.support.memory_testbed import (
    MemoryAgents,
    MemoryController,
    VirtualClock,
    VirtualTimeExecutor,
    instruments_in_memory,
)
from tests.support.paths import EXAMPLES

PIPELINE = EXAMPLES / "pipeline.yaml"


def jobs(*settings: str) -> Jobs:
    spec = load_experiment(PIPELINE, settings)
    fabric = spec.build_fabric(spec.fabrics[1], "test", Scale())
    return Jobs(fabric, workload_on(spec, fabric, EXAMPLES), spec.training.shape)


@pytest.mark.parametrize("name", ["prototype", "region", "training", "first-all-to-all"])
def test_one_region_and_micro_batch_last_as_long_in_both_schedules(name: str) -> None:
    """The simulation of tasks, and the walk through operations, are two ways to the same."""

    def seconds(regions: str) -> list[dict[str, Any]]:
        spec = load_experiment(EXAMPLES / f"{name}.yaml", [f"training.schedule={regions}"])
        outcome = predict_fabrics(spec, EXAMPLES).to_json()["fabrics"]
        keys = ("iteration_s", "compute_s", "all_to_all_s", "light_share", "reconfigurations")
        return [
            {key: each[key] for key in keys} | flat(each["first_all_to_all"]) for each in outcome
        ]

    def flat(measured: dict[str, Any]) -> dict[str, Any]:
        every = {**measured, **measured.get("foresight", {})}
        return {key: each for key, each in every.items() if isinstance(each, float)}

    for apart, lockstep in zip(seconds("independent"), seconds("lockstep"), strict=True):
        assert apart == pytest.approx(lockstep, rel=1e-6)


def test_memory_lengthens_predicted_computation() -> None:
    flops, roofline = (
        sum(
            task.work.slowest_s
            for task in made.tasks(made.all[0], 0, Substitutions())
            if isinstance(task.work, Compute) and task.work.kind != "optimiser"
        )
        for made in (jobs(), jobs("training.compute=roofline"))
    )
    assert 1.02 < roofline / flops < 1.2


def test_settling_shrinks_in_model_time_as_dilation_grows() -> None:
    """The optical switch takes its own time, whatever a testbed does with the model's."""
    plain = jobs()
    stretched = replace(plain, fabric=replace(plain.fabric, scale=Scale(dilation=10)))
    moved = [
        {
            task.step.seconds
            for iteration in TaskPlanner(
                made.fabric, MIXNET, CircuitSet(), moves=True, control=ControlPrediction(0.0, 0.0)
            ).plan([made.tasks(made.all[0], 0, Substitutions())])
            for task in iteration
            if task.reconfigured
        }
        for made in (plain, stretched)
    ]
    assert moved == [{0.025}, {0.0025}]


@pytest.mark.parametrize(("count", "last"), [(4, {2, 3}), (3, {2})])
def test_stage_has_its_own_layers_and_replica_all_of_them(count: int, last: set[int]) -> None:
    made = jobs(f"model.layers={count}")
    [job] = made.all
    layers: dict[str, set[int]] = {}
    for task in made.tasks(job, 0, Substitutions()):
        if isinstance(task.work, Collective):
            layers.setdefault(task.region, set()).add(task.work.layer)
    assert layers == {"r0": {0, 1}, "r1": last, "r2": {0, 1}, "r3": last}


def test_permanent_circuits_are_for_the_layers_of_their_stage() -> None:
    work = jobs("model.layers=4").work
    whole = work.total_demand()
    for region in range(4):
        servers = tuple(f"s{4 * region + i}" for i in range(4))
        own = sum(work.layer_of(0, n, region).demand.array for n in ([0, 1], [2, 3])[region % 2])
        assert whole.submatrix(servers).array == pytest.approx(own)


def test_tasks_of_an_iteration_of_the_example() -> None:
    made = jobs()
    [job] = made.all
    kinds = Counter(type(task.work).__name__ for task in made.tasks(job, 0, Substitutions()))
    assert kinds == {
        "Compute": 64 + 8 + 4,  # the head of each micro-batch and replica, an optimiser a region
        "Collective": 64,
        "Reconfigure": 24,
        "Transfer": 16,
        "AllReduce": 2,
    }


def test_only_neighbouring_stages_and_replicas_are_connected() -> None:
    found = set(jobs().server_pairs_between_regions)
    assert len(found) == 2 * 4 * 2 + 2 * 4 * 2
    assert {("s0", "s4"), ("s4", "s0"), ("s0", "s8"), ("s8", "s0"), ("s15", "s11")} <= found
    assert ("s0", "s12") not in found
    assert jobs("training.pp=1", "training.dp=1").server_pairs_between_regions == ()


def test_transfers_are_between_connected_pairs() -> None:
    made = jobs("training.dp=4", "training.pp=1")
    [job] = made.all
    sent = {
        pair
        for task in made.tasks(job, 0, Substitutions())
        if isinstance(task.work, Transfer | AllReduce)
        for pair in task.work.pairs
    }
    assert sent == set(made.server_pairs_between_regions)


PROTOTYPE, MIXTRAL = EXAMPLES / "prototype.yaml", preset("mixtral-8x7b")
LAST_BYTES = 1.5 * 2 * (MIXTRAL.replicated_weights + 7 / 32 * MIXTRAL.head_weights)
"""2 (n - 1) / n times two bytes of the weights of attention and router and, as 7 of 32 layers are
replayed, of 7/32 of the embeddings."""


def sums_of(*settings: str) -> list[tuple[Task, Task | None]]:
    """Return the sums of gradients of the prototype, each with the work beside which it runs."""
    spec = load_experiment(PROTOTYPE, settings)
    wired = spec.build_fabric(spec.fabrics[1], "test", Scale())
    made = Jobs.of(spec, wired, workload_on(spec, wired, EXAMPLES))
    [job] = made.all
    tasks = made.tasks(job, 0, Substitutions())
    beside = {task.after: task for task in tasks if isinstance(task.work, Compute)}
    return [(t, beside.get(t.after)) for t in tasks if isinstance(t.work, AllReduce)]


@pytest.mark.parametrize("schedule", ["lockstep", "independent"])
def test_servers_of_one_replica_sum_gradients_in_a_ring_beside_experts(schedule: str) -> None:
    *hidden, (last, beside_last) = sums_of(f"training.schedule={schedule}")
    assert [task.work.layer for task, _ in hidden] == [6, 5, 4, 3, 2, 1]
    for task, beside in hidden:
        assert beside is not None
        assert isinstance(beside.work, Compute)
        assert (beside.work.kind, beside.work.direction) == ("expert", "backward")
        assert beside.work.layer + 1 == task.work.layer
    assert (last.work.layer, beside_last) == (0, None), "nothing hides the sum of the last layer"
    assert isinstance(last.work, AllReduce)
    assert last.work.pairs == (("s0", "s1"), ("s1", "s2"), ("s2", "s3"), ("s3", "s0"))
    assert last.work.bytes == pytest.approx(LAST_BYTES)
    [second] = {task.work.bytes for task, _ in hidden[1:] if isinstance(task.work, AllReduce)}
    assert second == pytest.approx(1.5 * 2 * MIXTRAL.replicated_weights)


def test_sums_of_gradients_can_be_left_out() -> None:
    assert sums_of("training.gradient_sums=false") == []


def test_iteration_lasts_longer_by_the_sum_of_the_last_layer() -> None:
    lasts = [
        {
            f["fabric"]: f["iteration_s"]
            for f in predict_fabrics(spec, EXAMPLES).to_json()["fabrics"]
        }
        for spec in (
            load_experiment(PROTOTYPE),
            load_experiment(PROTOTYPE, ["training.gradient_sums=false"]),
        )
    ]
    bits = 8 * LAST_BYTES / goodput_share(1500)
    for name, nics in (("eps", 4), ("mixnet", 1)):
        assert lasts[0][name] - lasts[1][name] == pytest.approx(bits / (nics * 100e9), rel=1e-6)


def test_sums_within_a_region_choose_no_scale() -> None:
    """They are short against all-to-alls, and would multiply the wall time of a run."""
    scales = [
        experiment_scale(load_experiment(PROTOTYPE, settings), EXAMPLES, "bpf")
        for settings in ([], ["training.gradient_sums=false"])
    ]
    assert scales[0].by_fabric == scales[1].by_fabric


def test_micro_batches_differ_where_gates_are_noisy() -> None:
    work = jobs().work
    assert work.layer_of(0, 0, 0, 1) != work.layer_of(0, 0, 0, 2)
    assert work.layer_of(0, 0, 0, 0) == work.layer_of(0, 0, 0)
    still = jobs("gating.noise=0.0").work
    assert still.layer_of(0, 0, 0, 1) == still.layer_of(0, 0, 0, 2)


def test_pipeline_overlaps_computing_and_communication() -> None:
    fabrics = predict_fabrics(load_experiment(PIPELINE), EXAMPLES).to_json()["fabrics"]
    assert len(fabrics) == 4
    for each in fabrics:
        assert each["compute_s"] < each["iteration_s"]
        assert each["exposed_comm_s"] == pytest.approx(each["iteration_s"] - each["compute_s"])
        busiest = 4 * 4 * each["all_to_all_s"] * 2
        assert each["exposed_comm_s"] < 1.5 * busiest


def test_scale_is_proposed_for_the_servers_that_start_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = tmp_path / "machine.json"
    machine.write_text(
        json.dumps(asdict(MachineSpeed(start_flow_s=1e-3)) | {"cores": os.cpu_count()})
    )
    monkeypatch.setenv("MOEFABRIC_MACHINE", str(machine))
    alone = "training.pp=1", "training.dp=1", "training.micro_batches=1"
    apart, four = (
        experiment_scale(
            load_experiment(PIPELINE, [*alone, f"training.schedule={schedule}"]), EXAMPLES, "bpf"
        ).slowest.scale
        for schedule in ("independent", "lockstep")
    )
    assert apart.dilation < four.dilation / 1.5


@pytest.fixture(scope="module")
def outcome() -> dict[str, Any]:
    """The example, in memory, on its second fabric without light that moves."""
    made = jobs()
    clock = VirtualClock()
    agents = MemoryAgents(made.fabric, CircuitSet, clock)
    executor = Executor(
        made.fabric,
        MIXNET,
        agents,
        {},
        CircuitSet(),
        settings=RunSettings(control=ControlSettings(control_s=0.0)),
        instruments=instruments_in_memory(clock),
    )
    runs = executor.run(made.programmes, 1)
    entry = fabric_result(made.fabric, "mixnet", "mixnet", runs, cpu_idle=(), remarks=()).to_json()
    measured: dict[str, Any] = json.loads(json.dumps(entry))
    return measured


def test_result_separates_transfers_from_all_to_alls(outcome: dict[str, Any]) -> None:
    assert len(outcome["collectives"]) == 64
    assert Counter(each["kind"] for each in outcome["transfers"]) == {
        "pipeline": 16,
        "all-reduce": 2,
    }
    assert {each["micro_batch"] for each in outcome["collectives"]} == {0, 1, 2, 3}
    assert {each["layer"] for each in outcome["transfers"] if each["kind"] == "pipeline"} == {None}
    assert {each["kind"] for each in outcome["timeline"]} == {
        "attention",
        "expert",
        "dispatch",
        "combine",
        "pipeline",
        "all-reduce",
        "head",
        "optimiser",
    }


def test_integrity_counts_transfers_too(outcome: dict[str, Any]) -> None:
    sent = sum(each["bytes"] for each in (*outcome["collectives"], *outcome["transfers"]))
    assert (
        outcome["integrity"]["bytes_sent"]
        == outcome["integrity"]["bytes_received"]
        == pytest.approx(sent, rel=1e-6)
    )


def test_iteration_is_compared_with_the_simulation_of_its_tasks(outcome: dict[str, Any]) -> None:
    [iteration] = outcome["iterations"]
    assert iteration["job"] == 0
    assert iteration["predicted_s"] == pytest.approx(iteration["measured_s"], rel=0.1)
    assert 0 < iteration["compute_s"] < iteration["predicted_s"]
    assert outcome["fidelity"]["completion_error_p50"] < 0.02


@pytest.mark.parametrize("first", ["block", "reuse", "divert"])
def test_first_all_to_alls_of_independent_regions_are_as_predicted(first: DispatchLight) -> None:
    """In memory, nothing takes time but bytes, circuits and 5.2 ms of arming."""
    made = jobs("training.pp=1", "training.dp=1", "training.micro_batches=2")
    made = replace(made, work=made.work.with_first_all_to_alls(first))
    clock, own = VirtualClock(), VirtualClock()
    lights = {
        region.name: MemoryController(made.fabric, MIXNET, own, region) for region in made.regions
    }
    agents = MemoryAgents(
        made.fabric, lambda: merge_circuits(each.lit for each in lights.values()), clock
    )
    executor = Executor(
        made.fabric,
        MIXNET,
        agents,
        lights,
        CircuitSet(),
        settings=RunSettings(arming_ns=0, control=ControlSettings(control_s=0.0)),
        instruments=instruments_in_memory(clock, VirtualTimeExecutor(clock, own)),
    )
    measured = measured_first_all_to_alls(
        first, first_dispatches(made.fabric, "mixnet", executor.run(made.programmes, 1))
    ).to_json()
    planner = TaskPlanner(
        made.fabric, MIXNET, CircuitSet(), moves=True, control=ControlPrediction(0.0, 0.0)
    )
    expected = predicted_first_all_to_alls(
        [each.dispatches for each in predict_all(made, planner, 1)]
    ).to_json()
    assert measured["count"] == 4 * 2 * 2
    assert measured["ideal_s"] == pytest.approx(expected["ideal_s"], rel=1e-6)
    for key in ("predicted_exposed_s", "predicted_wait_s"):
        assert measured[key] == pytest.approx(expected[key], rel=0.02, abs=1e-5)
    assert measured["exposed_s"] == pytest.approx(expected["predicted_exposed_s"], abs=5.3e-3)
    assert bool(measured["moved_now"]) is (first == "divert")
