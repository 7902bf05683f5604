"""An experiment's jobs: what its regions do, what the simulation foresees of them, and what a run of them tells."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.planner.mixnet import MIXNET
from moefabric.circuits import CircuitSet
from moefabric.experiment.apart import Apart
from moefabric.experiment.first import first_foretold, first_told
from moefabric.experiment.jobs import Jobs, planned
from moefabric.experiment.jobs import predicted as predicted_apart
from moefabric.experiment.memory import AtOnce, InTime, MemoryAgents, MemoryLight, VirtualClock
from moefabric.experiment.predict import predicted, proposed_scale
from moefabric.experiment.results import result
from moefabric.experiment.sending import lit_together
from moefabric.experiment.workload import workload_on
from moefabric.iteration import Collective, First
from moefabric.schedule.tasks import AllReduce, Transfer
from moefabric.spec import load
from moefabric.topology import Scale

EXAMPLES = Path(__file__).parents[2] / "examples"
PIPELINE = EXAMPLES / "pipeline.yaml"


def jobs(*settings: str) -> Jobs:
    spec = load.experiment(PIPELINE, settings)
    fabric = spec.wired(spec.fabrics[1], "test", Scale())
    return Jobs(fabric, workload_on(spec, fabric, EXAMPLES), spec.training.shape)


@pytest.mark.parametrize("name", ["prototype", "region", "training", "first-all-to-all"])
def test_one_region_and_one_micro_batch_take_as_long_apart_as_in_lockstep(name: str) -> None:
    """The simulation of tasks, and the walk through operations, are two ways to the same."""

    def seconds(regions: str) -> list[dict[str, Any]]:
        spec = load.experiment(EXAMPLES / f"{name}.yaml", [f"training.regions={regions}"])
        said = predicted(spec, EXAMPLES)["fabrics"]
        keys = ("iteration_s", "compute_s", "all_to_all_s", "light_share", "reconfigurations")
        return [{key: each[key] for key in keys} | flat(each["first_all_to_all"]) for each in said]

    def flat(told: dict[str, Any]) -> dict[str, Any]:
        every = {**told, **told.get("foresight", {})}
        return {key: each for key, each in every.items() if isinstance(each, float)}

    for apart, lockstep in zip(seconds("apart"), seconds("lockstep"), strict=True):
        assert apart == pytest.approx(lockstep, rel=1e-6)


def test_settling_is_as_much_less_of_a_models_time_as_that_is_stretched() -> None:
    """The optical switch takes its own time, whatever a testbed does with the model's."""
    plain = jobs()
    stretched = replace(plain, fabric=replace(plain.fabric, scale=Scale(dilation=10)))
    moved = [
        {
            each.step.seconds
            for job in planned(made.fabric, MIXNET, [made.tasks(made.all[0], 0)], CircuitSet(), moves=True)
            for each in job
            if each.moved
        }
        for made in (plain, stretched)
    ]
    assert moved == [{0.025}, {0.0025}]


def test_each_stage_has_its_own_layers_and_each_replica_all_of_them() -> None:
    made = jobs("model.layers=4")
    [job] = made.all
    layers: dict[str, set[int]] = {}
    for task in made.tasks(job, 0):
        if isinstance(task.work, Collective):
            layers.setdefault(task.region, set()).add(task.work.layer)
    assert layers == {"r0": {0, 1}, "r1": {2, 3}, "r2": {0, 1}, "r3": {2, 3}}


def test_light_that_is_laid_once_is_laid_for_the_layers_of_its_stage() -> None:
    work = jobs("model.layers=4").work
    whole = work.whole_demand()
    for region in range(4):
        servers = tuple(f"s{4 * region + i}" for i in range(4))
        own = sum(work.layer_of(0, n, region).demand.array for n in ([0, 1], [2, 3])[region % 2])
        assert whole.of(servers).array == pytest.approx(own)


def test_an_iteration_of_the_example_is_so_many_tasks() -> None:
    made = jobs()
    [job] = made.all
    kinds = Counter(type(task.work).__name__ for task in made.tasks(job, 0))
    assert kinds == {"Compute": 64, "Collective": 64, "Reconfigure": 24, "Transfer": 16, "AllReduce": 2}


def test_servers_of_neighbouring_stages_and_of_replicas_are_joined_and_no_others() -> None:
    found = set(jobs().beyond)
    assert len(found) == 2 * 4 * 2 + 2 * 4 * 2
    assert {("s0", "s4"), ("s4", "s0"), ("s0", "s8"), ("s8", "s0"), ("s15", "s11")} <= found
    assert ("s0", "s12") not in found
    assert jobs("training.pp=1", "training.dp=1").beyond == ()


def test_what_is_sent_is_between_pairs_that_are_joined() -> None:
    made = jobs("training.dp=4", "training.pp=1")
    [job] = made.all
    sent = {
        pair
        for task in made.tasks(job, 0)
        if isinstance(task.work, Transfer | AllReduce)
        for pair in task.work.pairs
    }
    assert sent == set(made.beyond)


def test_micro_batches_differ_where_gates_are_noisy() -> None:
    work = jobs().work
    assert work.layer_of(0, 0, 0, 1) != work.layer_of(0, 0, 0, 2)
    assert work.layer_of(0, 0, 0, 0) == work.layer_of(0, 0, 0)
    still = jobs("gating.noise=0.0").work
    assert still.layer_of(0, 0, 0, 1) == still.layer_of(0, 0, 0, 2)


def test_a_pipeline_takes_longer_than_its_computing_and_less_than_all_one_after_the_other() -> None:
    for each in predicted(load.experiment(PIPELINE), EXAMPLES)["fabrics"]:
        assert each["compute_s"] < each["iteration_s"]
        assert each["exposed_comm_s"] == pytest.approx(each["iteration_s"] - each["compute_s"])
        busiest = 4 * 4 * each["all_to_all_s"] * 2
        assert each["exposed_comm_s"] < 1.5 * busiest


def test_a_scale_is_proposed_for_the_servers_that_start_together() -> None:
    apart = proposed_scale(load.experiment(PIPELINE), EXAMPLES, "bpf")
    four = proposed_scale(
        load.experiment(PIPELINE, ["training.pp=1", "training.dp=1", "training.micro_batches=1"]),
        EXAMPLES,
        "bpf",
    )
    assert apart.dilation < four.dilation / 1.5


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    """The example, in memory, on its second fabric without light that moves."""
    made = jobs()
    clock = VirtualClock()
    agents = MemoryAgents(made.fabric, CircuitSet, clock)
    apart = Apart(
        made.fabric, MIXNET, agents, {}, CircuitSet(), clock=clock, background=AtOnce(), stolen=lambda: (0, 0)
    )
    runs = apart.run(made.programmes, 1)
    entry = result(made.fabric, "mixnet", "mixnet", runs, cpu_idle=(), remarks=())
    told: dict[str, Any] = json.loads(json.dumps(entry))
    return told


def test_a_run_tells_transfers_apart_from_all_to_alls_and_each_by_its_micro_batch(
    said: dict[str, Any],
) -> None:
    assert len(said["collectives"]) == 64
    assert Counter(each["kind"] for each in said["transfers"]) == {"pipeline": 16, "all-reduce": 2}
    assert {each["micro_batch"] for each in said["collectives"]} == {0, 1, 2, 3}
    assert {each["layer"] for each in said["transfers"] if each["kind"] == "pipeline"} == {None}
    assert {each["kind"] for each in said["timeline"]} == {
        "attention", "expert", "dispatch", "combine", "pipeline", "all-reduce"
    }  # fmt: skip


def test_what_is_sent_beside_the_all_to_alls_is_counted_too(said: dict[str, Any]) -> None:
    sent = sum(each["bytes"] for each in (*said["collectives"], *said["transfers"]))
    assert (
        said["integrity"]["bytes_sent"]
        == said["integrity"]["bytes_received"]
        == pytest.approx(sent, rel=1e-6)
    )


def test_an_iteration_is_held_against_the_simulation_of_the_same_tasks(said: dict[str, Any]) -> None:
    [iteration] = said["iterations"]
    assert iteration["job"] == 0
    assert iteration["predicted_s"] == pytest.approx(iteration["measured_s"], rel=0.1)
    assert 0 < iteration["compute_s"] < iteration["predicted_s"]
    assert said["fidelity"]["completion_error_p50"] < 0.02


@pytest.mark.parametrize("first", ["block", "reuse", "divert"])
def test_first_all_to_alls_of_regions_apart_are_as_foretold(first: First) -> None:
    """In memory, where nothing takes time but bytes, light, and 5.2 ms of telling the agents, and with nothing beside the all-to-alls."""
    made = jobs("training.pp=1", "training.dp=1", "training.micro_batches=2")
    made = replace(made, work=made.work.under(first))
    clock, own = VirtualClock(), VirtualClock()
    lights = {region.name: MemoryLight(made.fabric, MIXNET, own, region) for region in made.regions}
    agents = MemoryAgents(made.fabric, lambda: lit_together(each.lit for each in lights.values()), clock)
    apart = Apart(
        made.fabric, MIXNET, agents, lights, CircuitSet(), clock=clock, background=InTime(clock, own),
        arming_ns=0, stolen=lambda: (0, 0),
    )  # fmt: skip
    told = first_told(made.fabric, "mixnet", first, apart.run(made.programmes, 1), {})
    foretold = first_foretold(
        [each.firsts for each in predicted_apart(made, MIXNET, CircuitSet(), 1, moves=True)]
    )
    assert told["count"] == 4 * 2 * 2
    assert told["ideal_s"] == pytest.approx(foretold["ideal_s"], rel=1e-6)
    for key in ("predicted_exposed_s", "predicted_wait_s"):
        assert told[key] == pytest.approx(foretold[key], rel=0.02, abs=1e-5)
    assert told["exposed_s"] == pytest.approx(foretold["predicted_exposed_s"], abs=5.3e-3)
    assert bool(told["moved_now"]) is (first == "divert")
