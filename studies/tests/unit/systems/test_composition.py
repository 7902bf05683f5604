"""Combinations of systems: which there are, and how gains multiply."""

from xml.etree import ElementTree as ET

import pytest
from moefabric_studies.systems.composition.picture import HeatMap, heat_maps
from moefabric_studies.systems.composition.study import (
    CompositionStudy,
    PolicyChoice,
    Setup,
    System,
    Times,
    combined,
    document,
)
from moefabric_studies.systems.study import StudyContext, load_study

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
    context = StudyContext(EXAMPLES / "systems", PlainProgressReporter())
    spec = context.experiment(document(setup, whole))
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
    rows: list[tuple[str, list[float | None]]] = [("none", [1.0, None]), ("a + b", [2.0, 0.5])]
    picture = heat_maps("Gains", [HeatMap("one", ["eps", "spill"], rows)] * 2)
    texts = [element.text for element in ET.fromstring(picture).iter() if element.text]
    assert texts.count("2.00x") == 2
    assert texts.count("a + b") == 1
    assert sum(text.endswith("x") and text[0].isdigit() for text in texts) == 6
