"""Several regions at once: each is planned, moved, predicted and timed by itself, and all start together."""

from pathlib import Path

import pytest

from controller.planner.mixnet import MIXNET
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.experiment.memory import AtOnce, MemoryAgents, MemoryLight, VirtualClock
from moefabric.experiment.predict import predicted, proposed_scale
from moefabric.experiment.replay import Replay
from moefabric.experiment.results import Json, result
from moefabric.experiment.sending import paced
from moefabric.experiment.workload import workload_on
from moefabric.flows import Flow
from moefabric.fluid import predict, predict_regions
from moefabric.iteration import Collective, Compute, Operation, Reconfigure
from moefabric.spec import load
from moefabric.topology import Eps
from tests.fabrics import fabric

EXAMPLES = Path(__file__).parents[2] / "examples"
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
    lights = {region.name: MemoryLight(MADE, MIXNET, clock, region) for region in MADE.regions}
    lit = lambda: CircuitSet(frozenset(c for light in lights.values() for c in light.lit.circuits))  # noqa: E731
    replay = Replay(
        MADE, MIXNET, MemoryAgents(MADE, lit, clock), lights, CircuitSet(), clock=clock, background=AtOnce(),
        arming_ns=6_000_000, stolen=lambda: (0, 0),
    )  # fmt: skip
    run = replay.iteration(0, OPERATIONS)
    return result(MADE, "mixnet", "mixnet", [run], cpu_idle=[], remarks=[]), clock.now_ns()


def test_each_region_is_timed_and_predicted_by_itself() -> None:
    said, _ = replayed()
    told = {
        (c["kind"], c["region"]): (c["measured_s"], c["predicted_s"], c["bytes"]) for c in said["collectives"]
    }
    assert told["dispatch", "r0"] == (pytest.approx(0.1), pytest.approx(0.1), round(TENTH))
    assert told["dispatch", "r1"] == (pytest.approx(0.2), pytest.approx(0.2), round(2 * TENTH))
    assert said["fidelity"]["verdict"] == "pass"


def test_each_regions_controller_is_told_its_own_demand() -> None:
    said, _ = replayed()
    moved = {r["region"]: r["circuits_after"] for r in said["reconfigurations"]}
    assert moved == {"r0": ["s0/o0~s1/o0"], "r1": ["s2/o0~s3/o0"]}


def test_an_iteration_waits_for_its_slowest_region() -> None:
    [iteration] = replayed()[0]["iterations"]
    assert iteration["predicted_s"] == pytest.approx(0.025 + 0.2 + 10 + 0.2)
    assert iteration["compute_s"] == 10


def test_long_computing_is_told_but_not_waited_for() -> None:
    said, took_ns = replayed()
    [iteration] = said["iterations"]
    assert iteration["measured_s"] == pytest.approx(10.456, abs=0.03)
    assert took_ns < 1e9, "0.4 s of sending, 50 ms of light, and 0.25 of 10 s of computing"
    assert iteration["skipped_s"] == pytest.approx(9.75, abs=0.01)


def test_regions_share_nothing_but_uplinks() -> None:
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
    assert shared["r0"].seconds == pytest.approx(2 * predict(leaves, CircuitSet(), both[:1]).seconds)


def test_a_region_that_sends_nothing_has_no_prediction() -> None:
    assert set(predict_regions(MADE, CircuitSet(), [Flow("s0", "s1", "e0", 1.0)])) == {"r0"}


def test_a_part_of_demand_is_what_some_servers_owe_each_other_and_parts_make_the_whole() -> None:
    parts = [DEMAND.of(region.servers) for region in MADE.regions]
    assert parts[1].array.tolist() == [[0, 2 * TENTH], [0, 0]]
    assert DemandMatrix.apart(parts) == DEMAND


def test_the_papers_scale_is_predicted_as_one_region_is_and_wants_long_collectives() -> None:
    spec = load.experiment(EXAMPLES / "paper-scale.yaml", ["gating.noise=0", "model.layers=1"])
    said = {entry["fabric"]: entry for entry in predicted(spec, EXAMPLES)["fabrics"]}
    assert said["mixnet"]["all_to_all_vs_eps"] == pytest.approx(1.284, abs=2e-3), "8 servers, 6 optical NICs"
    assert said["mixnet-spill"]["all_to_all_vs_eps"] == pytest.approx(1.001, abs=2e-3)
    scale = proposed_scale(spec, EXAMPLES, "bpf")
    assert said["eps"]["all_to_all_s"] * scale.dilation > 2.0
    assert 1e6 < scale.rate_bps(100e9) < 10e6


def test_noise_makes_regions_and_layers_differ() -> None:
    spec = load.experiment(EXAMPLES / "paper-scale.yaml")
    made = spec.wired(spec.fabrics[1], "paper", proposed_scale(spec, EXAMPLES, "bpf"))
    assert (len(made.servers), len(made.regions), made.gpus * len(made.servers)) == (128, 16, 1024)
    first, second = (each.demand for each in workload_on(spec, made, EXAMPLES).layers(0))
    regions = [first.of(region.servers).array.tolist() for region in made.regions]
    assert all(regions[0] != other for other in regions[1:])
    assert first != second
    assert first.total_bytes == pytest.approx(sum(first.of(r.servers).total_bytes for r in made.regions))


def test_each_regions_flows_are_paced_to_end_together_when_it_does() -> None:
    planned = [Flow("s0", "s1", "e0", TENTH), Flow("s2", "s3", "e0", 2 * TENTH)]
    told = paced(MADE, planned, predict_regions(MADE, CircuitSet(), planned))
    assert [flow.rate_bps for flow in told] == pytest.approx([1.03 * 100e9 * 1448 / 1514] * 2)
