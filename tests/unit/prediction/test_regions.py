"""Several regions: each is planned, predicted and measured by itself, and all start together."""

import pytest

from moefabric.config.loader import load_experiment
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.flows import Flow
from moefabric.core.units import Scale
from moefabric.execution.executor import ControlSettings, Executor, RunSettings
from moefabric.planner.mixnet import MIXNET
from moefabric.planner.sending.flow_pacing import LEAST_HEADROOM
from moefabric.planner.sending.task_flows import TaskFlows, region_by_server
from moefabric.prediction.experiment import experiment_scale, predict_fabrics
from moefabric.prediction.workload_loader import workload_on
from moefabric.results.parts import Json
from moefabric.results.verdict.fabric_result import fabric_result
from moefabric.simulator.fluid import predict, predict_regions
from moefabric.workload.iterations.iteration import Collective, Compute, Operation, Reconfigure
from tests.support.fabrics import fabric
from tests.support.memory_testbed import (
    MemoryAgents,
    MemoryController,
    VirtualClock,
    instruments_in_memory,
)
from tests.support.paths import EXAMPLES

TENTH = 0.1 * 100e9 / 8 * 1448 / 1514
MADE = fabric(1, 1, regions=(2, 2))
DEMAND = DemandMatrix(
    MADE.servers, [[0.0, TENTH, 0.0, 0.0], [0.0] * 4, [0.0, 0.0, 0.0, 2 * TENTH], [0.0] * 4]
)
OPERATIONS: tuple[Operation, ...] = (
    Reconfigure("forward", 0, DEMAND),
    Collective("dispatch", "forward", 0, DEMAND),
    Compute("expert", "forward", 0, (10.0,) * 4),
    Collective("combine", "forward", 0, DEMAND.combine()),
)


def replayed() -> tuple[Json, int]:
    """Two regions of two servers in memory, and how long that took on their clock."""
    clock = VirtualClock()
    lights = {region.name: MemoryController(MADE, MIXNET, clock, region) for region in MADE.regions}

    def lit() -> CircuitSet:
        return CircuitSet(frozenset(c for light in lights.values() for c in light.lit.circuits))

    executor = Executor(
        MADE,
        MIXNET,
        MemoryAgents(MADE, lit, clock),
        lights,
        CircuitSet(),
        settings=RunSettings(arming_ns=6_000_000, control=ControlSettings(control_s=0.0)),
        instruments=instruments_in_memory(clock),
    )
    run = executor.iteration(0, OPERATIONS)
    return fabric_result(
        MADE, "mixnet", "mixnet", [run], cpu_idle=[0.5], remarks=[]
    ).to_json(), clock.now_ns()


def test_each_region_is_measured_and_predicted_by_itself() -> None:
    result, _ = replayed()
    measured = {
        (c["kind"], c["region"]): (c["measured_s"], c["predicted_s"], c["bytes"])
        for c in result["collectives"]
    }
    assert measured["dispatch", "r0"] == (pytest.approx(0.1), pytest.approx(0.1), round(TENTH))
    assert measured["dispatch", "r1"] == (pytest.approx(0.2), pytest.approx(0.2), round(2 * TENTH))
    (reason,) = result["fidelity"]["reasons"]
    assert reason.endswith("collectives were judged; a 95th percentile needs 20")


def test_each_controller_receives_the_demand_of_its_region() -> None:
    result, _ = replayed()
    moved = {r["region"]: r["circuits_after"] for r in result["reconfigurations"]}
    assert moved == {"r0": ["s0/o0~s1/o0"], "r1": ["s2/o0~s3/o0"]}


def test_iteration_waits_for_its_slowest_region() -> None:
    [iteration] = replayed()[0]["iterations"]
    assert iteration["predicted_s"] == pytest.approx(0.025 + 0.2 + 10 + 0.2)
    assert iteration["compute_s"] == 10


def test_computation_is_reported_but_not_waited_for() -> None:
    result, took_ns = replayed()
    [iteration] = result["iterations"]
    assert iteration["measured_s"] == pytest.approx(10.425, abs=0.001)
    assert took_ns < 1e9, "0.4 s of sending, 50 ms of light, and 0.02 of 10 s of computing"
    [shared] = {c["harness_s"] for c in result["collectives"] if c["kind"] == "dispatch"}
    assert iteration["harness_s"] == pytest.approx(shared), "once for both regions"
    assert iteration["skipped_s"] == pytest.approx(9.943, abs=0.01)


def test_regions_share_only_uplinks() -> None:
    flows = [Flow("s0", "s1", "e0", TENTH), Flow("s2", "s3", "e0", TENTH)]
    apart = predict_regions(fabric(0, 1, regions=(2, 2)), CircuitSet(), flows)
    assert {name: p.seconds for name, p in apart.items()} == {
        "r0": pytest.approx(0.1),
        "r1": pytest.approx(0.1),
    }
    crossing = fabric(0, 1, regions=(2, 2), eps=Eps(1, 1, 1.0))
    assert predict_regions(crossing, CircuitSet(), flows)["r0"].seconds == pytest.approx(0.1)
    leaves = fabric(
        0, 1, regions=(3, 3), eps=Eps(2, 1, 4.0)
    )  # s2 and s3 share a leaf, and its one slow uplink
    both = [Flow("s2", "s0", "e0", TENTH), Flow("s3", "s4", "e0", TENTH)]
    shared = predict_regions(leaves, CircuitSet(), both)
    assert shared["r0"].seconds == pytest.approx(
        2 * predict(leaves, CircuitSet(), both[:1]).seconds
    )


def test_region_without_flows_has_no_prediction() -> None:
    assert set(predict_regions(MADE, CircuitSet(), [Flow("s0", "s1", "e0", 1.0)])) == {"r0"}


def test_submatrix_and_block_diagonal_are_inverse() -> None:
    parts = [DEMAND.submatrix(region.servers) for region in MADE.regions]
    assert parts[1].array.tolist() == [[0, 2 * TENTH], [0, 0]]
    assert DemandMatrix.block_diagonal(parts) == DEMAND


def test_paper_scale_is_predicted_as_one_region_and_needs_long_collectives() -> None:
    alone = "training={ep: 8, tp: 8, sequence: 4096, micro_batch: 8, iterations: 1}"
    settings = ["gating.noise=0", "model.layers=1", alone, "wiring.eps={servers_per_leaf: 16}"]
    settings += ["wiring.server_paths.gather=none"]
    spec = load_experiment(EXAMPLES / "paper-scale.yaml", settings)
    result = {
        entry["fabric"]: entry for entry in predict_fabrics(spec, EXAMPLES).to_json()["fabrics"]
    }
    assert result["mixnet"]["all_to_all_vs_eps"] == pytest.approx(1.284, abs=2e-3), (
        "8 servers, 6 optical NICs"
    )
    assert result["mixnet-spill"]["all_to_all_vs_eps"] == pytest.approx(1.001, abs=2e-3)
    scale = experiment_scale(spec, EXAMPLES, "bpf").slowest.scale
    assert result["eps"]["all_to_all_s"] * scale.dilation > 2.0
    assert 1e6 < scale.rate_bps(100e9) < 10e6


def test_noise_makes_regions_and_layers_differ() -> None:
    spec = load_experiment(EXAMPLES / "paper-scale.yaml")
    wired = spec.build_fabric(spec.fabrics[1], "paper", Scale())
    assert (len(wired.servers), len(wired.regions), wired.gpus * len(wired.servers)) == (
        128,
        16,
        1024,
    )
    first, second, *_ = (layer.demand for layer in workload_on(spec, wired, EXAMPLES).layers(0))
    regions = [first.submatrix(region.servers).array.tolist() for region in wired.regions]
    assert all(regions[0] != other for other in regions[1:])
    assert first != second
    assert first.total_bytes == pytest.approx(
        sum(first.submatrix(r.servers).total_bytes for r in wired.regions)
    )


def test_flows_of_a_region_are_paced_to_end_together() -> None:
    planned = (Flow("s0", "s1", "e0", TENTH), Flow("s2", "s3", "e0", 2 * TENTH))
    lit = CircuitSet()
    predictions = predict_regions(MADE, lit, planned)
    paced = TaskFlows(MADE, planned, lit, predictions, region_by_server(MADE.ep_groups)).paced()
    rates_bps = [LEAST_HEADROOM * 100e9 * 1448 / 1514] * 2
    assert [flow.rate_bps for flow in paced] == pytest.approx(rates_bps, rel=1e-5)
