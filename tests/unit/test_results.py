"""A replay's results, in the model's seconds and bytes whatever the scale."""

import json
from dataclasses import replace
from itertools import chain, repeat

import pytest

from controller.planner.mixnet import MIXNET
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.experiment.memory import AtOnce, MemoryAgents, MemoryLight, VirtualClock
from moefabric.experiment.replay import Replay
from moefabric.experiment.results import Json, _lateness, _link_rate_errors, ratios, result
from moefabric.experiment.runs import CollectiveRun, IterationRun
from moefabric.flows import Flow
from moefabric.fluid import Prediction
from moefabric.iteration import Collective, Compute, Operation, Reconfigure
from moefabric.records import FlowRecord
from moefabric.topology import Scale
from tests.fabrics import fabric

SERVERS = ("s0", "s1", "s2", "s3")
TENTH = 0.1 * 100e9 / 8 * 1448 / 1514
DEMAND = DemandMatrix(
    SERVERS, [[0.0, TENTH, 0.0, 0.0], [0.0] * 4, [0.0, 0.0, 0.0, TENTH], [0.0, TENTH / 2, 0.0, 0.0]]
)
OPERATIONS: tuple[Operation, ...] = (
    Compute("attention", "forward", 0, (0.010,) * 4),
    Reconfigure("forward", 0, DEMAND),
    Collective("dispatch", "forward", 0, DEMAND),
    Compute("expert", "forward", 0, (0.020, 0.010, 0.010, 0.010)),
    Collective("combine", "forward", 0, DEMAND.combine()),
)


def replayed(scale: Scale, iterations: int = 2, stolen: tuple[tuple[int, int], ...] = ()) -> Json:
    """What comes of a few iterations in memory; `stolen` ticks, and all, are seen before and after the first collectives."""
    seen = chain(stolen, repeat((0, 0)))
    made, clock = fabric(1, 1, scale=scale, settle_ns=scale.wall_ns(25_000_000)), VirtualClock(now_ns=10**12)
    light = MemoryLight(made, MIXNET, clock)
    agents = MemoryAgents(made, lambda: light.lit, clock)
    replay = Replay(
        made, MIXNET, agents, {"r0": light}, CircuitSet(), clock=clock, background=AtOnce(), arming_ns=6_000_000,
        stolen=lambda: next(seen),
    )  # fmt: skip
    runs = [replay.iteration(number, OPERATIONS) for number in range(iterations)]
    return result(made, "mixnet", "mixnet", runs, cpu_idle=[0.5], remarks=[])


@pytest.mark.parametrize(
    "scale", [Scale(), Scale(500), Scale(1000, 2)], ids=["real-size", "bytes", "dilated"]
)
def test_results_are_the_models_whatever_the_scale(scale: Scale) -> None:
    said = replayed(scale)
    dispatch, combine = said["collectives"][:2]
    assert (
        dispatch["measured_s"]
        == pytest.approx(dispatch["predicted_s"], rel=1e-4)
        == pytest.approx(0.1, rel=1e-4)
    )
    assert dispatch["bytes"] == round(2.5 * TENTH)
    assert (dispatch["bytes_by_light"], dispatch["bytes_by_eps"]) == (round(2 * TENTH), round(0.5 * TENTH))
    assert (dispatch["dark_s"], combine["dark_s"]) == (pytest.approx(0.025), 0)
    assert said["iterations"][0]["compute_s"] == pytest.approx(0.030)
    assert said["reconfigurations"][0]["settle_s"] == pytest.approx(0.025)


def test_an_iteration_is_predicted_with_its_computing_and_its_waiting_for_light() -> None:
    first, second = replayed(Scale())["iterations"]
    assert first["predicted_s"] == pytest.approx(0.030 + 0.2 + 0.025)
    assert second["predicted_s"] == pytest.approx(0.030 + 0.2), "the light is where it should be"
    assert first["exposed_comm_s"] == pytest.approx(first["measured_s"] - 0.030)
    assert first["measured_s"] == pytest.approx(0.030 + 0.2 + 0.025 + 0.006), "and 6 ms of telling the agents"


def test_a_result_is_plain_json_with_the_names_that_scripts_rely_on() -> None:
    said = json.loads(json.dumps(replayed(Scale(), iterations=1)))
    assert {
        "fabric",
        "policy",
        "iterations",
        "collectives",
        "reconfigurations",
        "integrity",
        "fidelity",
    } <= said.keys()
    assert set(said["iterations"][0]) >= {"measured_s", "predicted_s", "compute_s", "exposed_comm_s"}
    assert set(said["collectives"][0]) >= {
        "iteration", "layer", "kind", "measured_s", "predicted_s", "bytes", "bytes_by_light", "bytes_by_eps", "dark_s"
    }  # fmt: skip
    assert set(said["reconfigurations"][0]) >= {
        "region", "reason", "circuits_before", "circuits_after", "demand_s", "plan_s", "divert_s", "command_s",
        "settle_s", "verify_s", "admit_s", "total_s",
    }  # fmt: skip
    assert said["reconfigurations"][0]["circuits_after"] == ["s0/o0~s1/o0", "s2/o0~s3/o0"]
    integrity = said["integrity"]
    assert integrity["bytes_sent"] == integrity["bytes_received"] == pytest.approx(2 * 2.5 * TENTH)
    assert (integrity["corrupt"], integrity["lost_transfers"]) == (0, 0)
    assert said["fidelity"]["verdict"] == "pass"
    assert said["fidelity"]["reasons"] == []
    assert said["fidelity"]["completion_error_p95"] < 1e-3


def test_the_timeline_is_of_the_last_iteration_in_which_light_moved() -> None:
    said = replayed(Scale(), iterations=2)["timeline"]
    assert {entry["iteration"] for entry in said} == {0}, "in the second, what is needed is lit"
    assert min(entry["start_s"] for entry in said) == 0
    assert [e["kind"] for e in said if e["server"] == "s3"] == [
        "attention", "reconfiguration", "dark", "dispatch", "expert", "combine",
    ]  # fmt: skip


def test_a_run_in_which_nothing_was_sent_is_invalid() -> None:
    idle = IterationRun(0, 0, end_ns=10)
    assert (
        result(fabric(), "f", "mixnet", [idle], cpu_idle=[], remarks=[])["fidelity"]["verdict"] == "invalid"
    )


def record(src: str, path: str, size: int, end_ns: int) -> FlowRecord:
    return FlowRecord(1, src, "s3", path, size, None, 100, end_ns, 150, end_ns, 0, ok=True)


@pytest.mark.parametrize(
    ("records", "errors"),
    [
        pytest.param([record("s0", "o0", 11955, 1100)], [0.0], id="as-planned"),
        pytest.param([record("s0", "o0", 11955, 2100)], [-0.5], id="twice-the-time-is-half-the-rate"),
        pytest.param(
            [record("s0", "o0", 11955, 1100), record("s1", "o0", 11238, 600)],
            [0.0],
            id="not-full-doesnt-count",
        ),
        pytest.param(
            [record("s0", "o0", 11955, 1100), record("s1", "o0", 11477, 600)],
            [0.0, 1.0],
            id="nearly-full-does",
        ),
        pytest.param(
            [record("s0", "o0", 5978, 600), record("s0", "o0", 5978, 1100)], [0.0], id="flows-share-a-nic"
        ),
        pytest.param(
            [record("s0", "e0", 5978, 600), record("s1", "e0", 5978, 1100)], [0.0], id="and-a-receiving-one"
        ),
        pytest.param([record("s0", "o0", 11955, 100)], [], id="no-time-no-rate"),
    ],
)
def test_full_nics_are_held_against_their_planned_rate(
    records: list[FlowRecord], errors: list[float]
) -> None:
    """In a microsecond, a NIC of 100 Gb/s carries 11,955 bytes of payload."""
    operation = Collective("dispatch", "forward", 0, DEMAND)
    planned = Prediction(1000e-9, (), None, {})
    run = CollectiveRun(0, operation, planned, (Flow("s0", "s3", "o0", 11955),), tuple(records), 0)
    assert _link_rate_errors(fabric(), run) == pytest.approx(errors)


def test_ratios_compare_like_with_like() -> None:
    def entry(policy: str, measured: list[float]) -> Json:
        collectives = [
            {
                "iteration": 0,
                "layer": layer,
                "kind": "dispatch",
                "pass": "forward",
                "measured_s": s,
                "predicted_s": 2 * s,
            }
            for layer, s in enumerate(measured)
        ]
        return {"policy": policy, "collectives": collectives}

    eps, mixnet = entry("eps", [1.0, 2.0, 4.0]), entry("mixnet", [1.5, 2.0, 8.0])
    ratios([mixnet, eps])
    assert mixnet["ratios"] == {"measured_vs_eps": 1.5, "predicted_vs_eps": 1.5}
    assert eps["ratios"] == {"measured_vs_eps": 1.0, "predicted_vs_eps": 1.0}


def test_without_an_eps_there_is_nothing_to_compare_with() -> None:
    alone: Json = {"policy": "mixnet", "collectives": []}
    ratios([alone])
    assert "ratios" not in alone


def test_a_collective_while_others_had_the_machine_is_told_but_not_judged() -> None:
    said = replayed(Scale(), stolen=((0, 100), (10, 200)))
    assert [c["stolen_cpu"] for c in said["collectives"]] == [0.1, 0, 0, 0]
    assert said["fidelity"]["disturbed"] == 0.25
    quiet = replayed(Scale(), stolen=((0, 100), (3, 200)))
    assert quiet["fidelity"]["disturbed"] == 0, "three hundredths are let pass"


def test_bytes_that_were_to_go_later_are_not_late() -> None:
    """What waits for light has a start of its own; only those that were told the same start are compared."""
    operation = Collective("dispatch", "forward", 0, DEMAND)
    now = [record("s0", "e0", 1000, 1100), record("s1", "e0", 1000, 1100)]
    later = [replace(record("s2", "o0", 1000, 1100), collective=2, first_sent_ns=600)]
    run = CollectiveRun(0, operation, Prediction(1e-6, (), None, {}), (), (*now, *later), 0)
    assert _lateness(run) == 0
    tardy = replace(run, records=(*now, replace(later[0], collective=1)))
    assert _lateness(tardy) == pytest.approx(0.5)
