"""Aurora's deployments with packets: what is compared, and what is made of replays."""

from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from moefabric_studies.systems.aurora.deployment import Deployments, typical
from moefabric_studies.systems.aurora.packets import (
    ASSIGNED,
    EVEN,
    MISLED,
    SMALL,
    UNEVEN,
    Comparison,
    Replayed,
    comparisons,
    deployment_grid,
    deployment_measures,
    server_fabric,
)
from moefabric_studies.systems.aurora.pictures import phases_picture
from moefabric_studies.systems.aurora.study import ORDERS, other_demands, zipf_demands

from moefabric.execution.programs.replay import ReplayResult
from moefabric.results.model import FabricResult, FidelityResult, Verdict

RATES = np.array([1.0, 1.0, 0.8, 0.8, 0.5, 0.5, 0.4, 0.4])
TRAFFIC = tuple(np.random.default_rng(seed).random((8, 8)) for seed in range(3))
DEPLOYMENTS = Deployments(TRAFFIC, RATES, 1.0, 0.1, 0.75)


def replay(seconds: float, verdict: str = "pass") -> ReplayResult:
    """Return a replay that took this long, and a fiftieth longer than its simulation."""
    simulated = seconds / 1.02
    return ReplayResult(
        "", "lab", 8, 8, "eps", (seconds,), simulated, simulated, (), 0.0, 1.0, 0.0, 0, 1.0, 1.0,
        (), fidelity=FidelityResult(verdict=Verdict(verdict)),
    )  # fmt: skip


def sent(one: Comparison, error: float, verdict: str = "pass") -> Replayed:
    """Return a comparison whose second deployment takes longer than in the model."""
    ours, other = replay(one.ours.seconds()), replay((1 + error) * one.other.seconds(), verdict)
    return Replayed(one, (ours, other), 1.0)


def test_each_layer_and_pair_is_compared_with_the_median_of_its_rivals() -> None:
    pairs = list(comparisons(DEPLOYMENTS, 2))
    kinds = [ASSIGNED] * 2 + [EVEN] * 2 + [UNEVEN] * 2 + [SMALL, MISLED]
    assert [one.kind for one in pairs] == kinds
    assert [one.is_even for one in pairs] == [kind == EVEN for kind in kinds]
    ours, others = DEPLOYMENTS.assignments(DEPLOYMENTS.layers[0])
    times = sorted(one.seconds() for one in others)
    assert pairs[0].ours.seconds() == ours.seconds()
    assert median(times) <= typical(others).seconds() == pairs[0].other.seconds() <= times[26]
    assert pairs[-2].other.seconds() >= pairs[-2].ours.seconds(), "nothing beats the best"


def test_measures_have_the_values_with_packets_and_notes_those_of_the_model() -> None:
    results = [sent(one, 0.05) for one in comparisons(DEPLOYMENTS, 2)]
    modelled = DEPLOYMENTS.measures()
    measures = deployment_measures(modelled, results)
    assert measures.keys() == modelled.keys()
    ratios = [1.05 * one.modelled for one in results[:2]]
    assert measures["random_over_sorted"].samples == pytest.approx(ratios)
    assert "+5.0 % with packets" in measures["random_over_sorted"].note
    assert measures["colocated_over_best"].value == modelled["colocated_over_best"].value
    assert "spot check" in measures["loss_by_wrong_traffic"].note


def test_invalid_replay_leaves_its_measure_without_a_value() -> None:
    results = [sent(one, 0.0) for one in comparisons(DEPLOYMENTS, 2)]
    results[1] = replace(results[1], results=(results[1].results[0], replay(1.0, "invalid")))
    measures = deployment_measures(DEPLOYMENTS.measures(), results)
    assert measures["random_over_sorted"].value is None
    assert measures["lina_over_colocated"].value is not None


def test_table_has_signed_errors_against_the_model_and_the_event_simulation() -> None:
    results = [sent(one, -0.1) for one in comparisons(DEPLOYMENTS, 1)]
    rows = deployment_grid(results).rows
    assert len(rows) == 5
    assert [row[-4:] for row in rows] == [("+0.0 %", "-10.0 %", "+2.0 %", "+2.0 %")] * 5


def test_servers_are_as_fast_as_their_gpus() -> None:
    wiring = {"gpus_per_server": 1, "nic_rate": "100Gb/s", "regions": [{"servers": 8}]}
    fabric = server_fabric("lab", {"wiring": wiring, "scale": {"bytes": 1000}}, RATES)
    assert fabric.rates_bps == pytest.approx((100e9 * RATES).tolist())


def test_other_demands_have_a_row_each_and_zipf_is_more_uneven_with_its_exponent() -> None:
    grid = other_demands(zipf_demands(8, 1.0)[0], [0.5, 1.5])
    assert [row[0] for row in grid.rows] == [
        "MixNet's matrix", "Zipf, exponent 0.5", "Zipf, exponent 1.5",
    ]  # fmt: skip
    assert list(grid.header) == ["demand", "concurrent", *ORDERS]
    even, hot = (zipf_demands(8, s)[0].sum(axis=0) for s in (0.0, 2.0))
    assert hot.max() / hot.sum() > 2 * even.max() / even.sum()


def test_phases_follow_each_other_with_their_barriers() -> None:
    place = {"kind": "dispatch", "pass": "forward", "layer": 0}
    phases = [
        {**place, "measured_s": 1.0, "phase": n, "phases": 2, "pause_s": 0.5} for n in range(2)
    ]
    times = {"path": "e0", "bytes": 1, "start_s": 0.0, "end_s": 1.0, "predicted_end_s": 1.0}
    ends = (("s0", "s1", 0), ("s1", "s0", 1))
    flows = [{**place, **times, "src": a, "dst": b, "phase": n} for a, b, n in ends]
    flows.append({**flows[0], "kind": "combine"})
    result = FabricResult.model_validate(
        {"fabric": "aurora", "collectives": phases, "flows": flows}
    )
    picture = phases_picture([result], 2.0)
    assert "aurora: 2 phases, 2.50 s" in picture
    assert "s1 to s0, phase 1: 1.00 s" in picture
    assert picture.count("phase 0:") == 1
