"""Combinations of systems: which there are, and how gains multiply."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from moefabric_studies.paper.rows import INVALID
from moefabric_studies.systems.composition.study import (
    CompositionStudy,
    HeatMap,
    PolicyChoice,
    Setup,
    System,
    Times,
    combined,
    document,
    heat_maps,
)
from moefabric_studies.systems.study import Outcome, StudyContext, load_study

from moefabric.config.loader import experiment_of
from moefabric.results.progress import PlainProgressReporter
from tests.support.paths import EXAMPLES

PLACE = System(name="near", fabric={"place": "balanced"})
QUARTER = System(name="quarter", fabric={"transform": "bigmac"})
HALF = System(name="half", fabric={"transform": "fp8"}, emulated=False)


def test_a_combination_has_one_system_for_each_key() -> None:
    names = [tuple(one.name for one in chosen) for chosen in combined([PLACE, QUARTER, HALF], 3)]
    alone = [("near",), ("quarter",), ("half",)]
    assert names == [(), *alone, ("near", "quarter"), ("near", "half")]
    assert [len(chosen) for chosen in combined([PLACE, QUARTER, HALF], 1)] == [0, 1, 1, 1]


def test_every_combination_has_a_fabric_under_every_policy() -> None:
    policies = [
        PolicyChoice(name="eps", fabric={"optical": 0, "electrical": 4, "policy": "eps"}),
        PolicyChoice(name="spill", fabric={"optical": 3, "electrical": 1, "policy": "spill"}),
    ]
    setup = Setup(experiment={"experiment": "x"}, policies=policies, systems=[PLACE, QUARTER])
    fabrics = document(setup, list(combined(setup.systems, setup.largest)))["fabrics"]
    assert len({fabric["name"] for fabric in fabrics}) == len(fabrics) == 8
    assert fabrics[-1] == {
        "name": "spill-near-quarter",
        "optical": 3,
        "electrical": 1,
        "policy": "spill",
        "place": "balanced",
        "transform": "bigmac",
    }


def test_experiment_of_the_file_is_valid_with_every_combination() -> None:
    _, study, setup = load_study(EXAMPLES / "systems/composition.yaml")
    assert isinstance(study, CompositionStudy)
    whole = list(combined(setup.systems, setup.largest))
    spec = experiment_of(document(setup, whole))
    assert len(spec.fabrics) == len(setup.policies) * len(whole)


def test_product_multiplies_the_gains_of_the_parts_alone() -> None:
    seconds = {
        ((), "eps"): 12.0,
        (("near",), "eps"): 6.0,
        ((), "spill"): 4.0,
        (("near",), "spill"): 3.0,
    }
    times = Times(seconds, ((), "eps"))
    cell = ("near",), "spill"
    assert times.gain(cell) == pytest.approx(4.0)
    assert times.product(cell) == pytest.approx(6.0)
    assert times.gain_over_product(cell) == pytest.approx(4 / 6)
    assert times.parts(cell) == [(("near",), "eps"), ((), "spill")]
    assert times.product(((), "eps")) == 1
    assert times.best == cell


def test_heat_maps_show_the_cells_that_have_values() -> None:
    rows: HeatMap = {"none": [1.0, None], "a + b": [2.0, 0.5]}
    picture = heat_maps("Gains", ["eps", "spill"], {"one": rows, "other": rows})
    texts = [element.text for element in ET.fromstring(picture).iter() if element.text]
    assert texts.count("2.00x") == 2
    assert texts.count("a + b") == 1
    assert sum(text.endswith("x") and text[0].isdigit() for text in texts) == 6


def test_heat_maps_mark_invalid_cells() -> None:
    rows: HeatMap = {"none": [1.0, INVALID], "a": [None, 2.0]}
    picture = heat_maps("Gains", ["eps", "spill"], {"one": rows})
    elements = list(ET.fromstring(picture).iter())
    assert [element.text for element in elements].count("invalid") == 1
    assert [element.get("class") for element in elements].count("k-void") == 1


def outcome(folder: Path, **verdicts: str) -> Outcome:
    """Return the outcome of combinations whose fabrics have these verdicts, else `degraded`."""
    _, study, setup = load_study(EXAMPLES / "systems/composition.yaml")
    assert isinstance(study, CompositionStudy)
    small = setup.model_copy(
        update={"policies": setup.policies[:2], "systems": setup.systems[:2], "largest": 2}
    )
    whole = list(combined(small.systems, small.largest))
    fabrics = [
        {
            "fabric": one["name"],
            "policy": one["policy"],
            "fidelity": {"verdict": verdicts.get(one["name"].replace("-", "_"), "degraded")},
            "figures": {"iteration_s": 1.0 / (1 + n), "exposed_comm_s": 0.5 / (1 + n)},
        }
        for n, one in enumerate(document(small, whole)["fabrics"])
    ]
    run = {"experiment": "composition", "results": fabrics}
    (folder / "composition.json").write_text(json.dumps(run))
    context = StudyContext(EXAMPLES / "systems", PlainProgressReporter(), stored=folder)
    return study.measure(small, context)


def test_invalid_combination_is_in_no_claim_table_or_picture(tmp_path: Path) -> None:
    """The fastest fabric is the last one; without it, the one before is."""
    whole = outcome(tmp_path)
    assert "occult + bigmac under mixnet" in whole.measures["best_gain"].note
    left = outcome(tmp_path, mixnet_occult_bigmac="invalid")
    assert left.measures["best_gain"].note == "bigmac under mixnet."
    assert left.measures["best_gain"].value == pytest.approx(7.0)
    assert len(left.measures["error_median"].samples) == 7
    assert "composition/mixnet-occult-bigmac" not in (left.measures["best_gain"].runs or ())
    [row] = [row for row in left.grids[0].rows if row[0] == "occult + bigmac"]
    assert row[-1] == "invalid"
    assert ">invalid<" in left.pictures["composition"]
    assert ">invalid<" not in whole.pictures["composition"]


def test_invalid_baseline_leaves_no_gain(tmp_path: Path) -> None:
    left = outcome(tmp_path, eps="invalid")
    assert left.measures == {}
    assert {cell for row in left.grids[0].rows for cell in row[3:]} == {"invalid", "—"}
    assert not left.grids[1].rows


def test_part_that_is_invalid_leaves_no_product(tmp_path: Path) -> None:
    left = outcome(tmp_path, eps_occult="invalid")
    products = len(left.measures["gain_over_product"].samples)
    assert products == len(outcome(tmp_path).measures["gain_over_product"].samples) - 3
