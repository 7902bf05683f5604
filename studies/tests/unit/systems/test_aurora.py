"""The study of Aurora: its file, and what it takes from a run."""

import numpy as np
import pytest
from moefabric_studies.systems.aurora.deployment import Deployments
from moefabric_studies.systems.aurora.pictures import orders_picture
from moefabric_studies.systems.aurora.study import (
    AuroraStudy,
    Setup,
    _document,
    _order_measures,
    _shallow,
    order_seconds,
)
from moefabric_studies.systems.study import load_study

from moefabric import Result
from moefabric.config.loader import experiment_of
from moefabric.results.model import FabricResult
from tests.support.paths import EXAMPLES

STUDY = EXAMPLES / "systems/aurora.yaml"


def fabric(name: str, *phases_s: float, pause_s: float = 0.0) -> FabricResult:
    """Return a result with one all-to-all of these phases, before which there are pauses."""
    collectives = [
        {
            "kind": "dispatch",
            "pass": "forward",
            "layer": 0,
            "measured_s": seconds,
            "planned_s": 1.0,
            "phase": number,
            "phases": len(phases_s),
            "pause_s": pause_s,
            "retransmits": 1,
        }
        for number, seconds in enumerate(phases_s)
    ]
    return FabricResult.model_validate({"fabric": name, "collectives": collectives})


def test_study_asks_for_every_measure_that_it_makes() -> None:
    spec, study, setup = load_study(STUDY)
    assert isinstance(study, AuroraStudy)
    document = _document(setup, 0.001)
    built = experiment_of(document)
    assert [choice.name for choice in built.fabrics][:2] == ["concurrent", "aurora"]
    run = Result(results=[fabric(choice.name, 1.0) for choice in built.fabrics])
    shallow = experiment_of(_shallow(setup, document))
    assert [choice.name for choice in shallow.fabrics] == ["concurrent-tcp", "aurora-tcp"]
    assert str(shallow.wiring.queue) == "20 packets"
    traffic = tuple(np.random.default_rng(seed).random((8, 8)) for seed in range(3))
    deployments = Deployments(traffic, np.array(setup.rates), 1.0, 0.1, 0.75)
    made = {**_order_measures(run, 0.1), **deployments.measures()}
    assert {claim.measure for claim in spec.claims} - {""} == {*made, "shallow_tcp_over_aurora"}


def test_phases_count_with_barriers_and_without_the_time_to_compute_them() -> None:
    assert order_seconds(fabric("aurora", 0.4, 0.5, pause_s=0.1)) == [pytest.approx(1.0)]
    assert order_seconds(fabric("concurrent", 1.0)) == [1.0]


def test_time_to_compute_phases_is_added_once_to_each_all_to_all() -> None:
    names = ("concurrent", "sjf", "rcs", "concurrent-tcp", "aurora-tcp")
    run = Result(results=[*(fabric(name, 2.0) for name in names), fabric("aurora", 0.4, 0.6)])
    measures = _order_measures(run, 0.25)
    assert measures["sjf_over_aurora"].value == pytest.approx(2.0)
    assert measures["aurora_over_bound"].value == pytest.approx(1.0)
    assert measures["aurora_solved_over_bound"].value == pytest.approx(1.25)
    assert "aurora 2" in measures["tcp_over_aurora"].note


def test_wrong_traffic_costs_nothing_if_none_is_wrong() -> None:
    traffic = tuple(np.random.default_rng(seed).random((8, 8)) for seed in range(3))
    rates = np.array([1.0, 1.0, 0.8, 0.8, 0.5, 0.5, 0.4, 0.4])
    right = Deployments(traffic, rates, 1.0, 0.1, wrong=0.0).measures()["loss_by_wrong_traffic"]
    assert right.value == pytest.approx(0.0)


def test_picture_has_a_point_for_each_all_to_all() -> None:
    picture = orders_picture({"aurora": [1.0, 1.0]}, {"aurora": [1.1], "sjf": [1.5]})
    assert "sjf, all-to-all 0: 1.500" in picture
    assert picture.count("<circle") == 2 + 1 + 1 + 1 + 1 + 1


def test_setup_refuses_unknown_sizes() -> None:
    with pytest.raises(ValueError, match="servers"):
        Setup.model_validate({"servers": 4})
