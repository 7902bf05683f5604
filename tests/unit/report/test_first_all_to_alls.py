"""First all-to-alls of each layer in the table and on the page."""

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from moefabric.core.errors import SpecError
from moefabric.report.bars import first_all_to_alls_picture
from moefabric.report.formatting import MISSING
from moefabric.report.page import page
from moefabric.report.summary import with_first_all_to_alls
from moefabric.report.table import text
from moefabric.results.model import RunResult
from tests.support.report_sample import fabrics_of


def entry(
    name: str, policy: str, exposed_s: float, predicted_s: float, **more: Any
) -> dict[str, Any]:
    """Return one fabric's result with its first all-to-alls only."""
    first = {
        "policy": policy,
        "exposed_s": exposed_s,
        "predicted_exposed_s": predicted_s,
        "waited_s": 0.026,
        "predicted_wait_s": 0.025,
        "ideal_s": 0.1,
        **more,
    }
    moved = [{"circuits_before": [], "circuits_after": ["s0/o0~s1/o0"]}]
    return {
        "fidelity": {"verdict": "pass"},
        "fabric": name,
        "policy": "mixnet",
        "first_all_to_all": first,
        "reconfigurations": moved,
    }


SVG = "{http://www.w3.org/2000/svg}"
FORESIGHT = {
    "guessed": 6,
    "unguessed": 2,
    "top_k": 4,
    "top_k_hits": 0.75,
    "unchanged_hits": 0.2,
    "random_hits": 0.25,
    "wrong_guess_s": 0.004,
}
RUN = {
    "experiment": "firsts",
    "results": [
        entry("waits", "block", 0.126, 0.125),
        entry("foresees", "predict", 0.110, 0.100, foresight=FORESIGHT),
        {
            "fabric": "eps",
            "policy": "eps",
            "first_all_to_all": {"policy": "block", "exposed_s": 0.05},
            "fidelity": {"verdict": "pass"},
        },
        {"fabric": "old", "policy": "mixnet"},
    ],
}


def test_every_fabric_with_first_all_to_alls_is_shown_with_measurement_and_prediction() -> None:
    waits, foresees, eps = with_first_all_to_alls(fabrics_of(RUN))
    first = waits.result.first_all_to_all
    assert (waits.name, waits.first_policy) == ("waits", "block")
    assert (first.exposed_s, first.predicted_exposed_s) == (0.126, 0.125)
    assert first.error == pytest.approx(0.008)
    assert foresees.result.first_all_to_all.error == pytest.approx(0.1)
    assert (eps.name, eps.first_policy) == ("eps", "\N{EN DASH}")
    assert eps.result.first_all_to_all.error is None


def test_nothing_is_compared_if_all_fabrics_block() -> None:
    run = {"results": [entry("waits", "block", 0.126, 0.125)]}
    assert with_first_all_to_alls(fabrics_of(run)) == []


@pytest.mark.parametrize("width", [80, 120])
def test_table_has_a_row_per_fabric(width: int) -> None:
    lines = text(RunResult.model_validate(RUN), width).splitlines()
    assert max(map(len, lines)) <= width
    row = next(line for line in lines if line.startswith("foresees") and "predict" in line)
    expected = "foresees predict 110 ms +10.0 % 26.0 ms 100 ms 75.0 %, +4.00 ms"
    assert " ".join(row.split()) == expected


def test_page_has_bars_and_the_quality_of_predictions() -> None:
    html = page(RunResult.model_validate(RUN))
    assert "First all-to-all of each layer" in html
    assert "waited: 26.0 ms" in html
    assert "6 of 8" in html
    assert "75.0 % of the 4 busiest experts (layer before: 20.0 %, at random: 25.0 %)" in html


def test_page_without_first_all_to_alls_has_no_such_section() -> None:
    html = page(RunResult.model_validate({"experiment": "x", "results": []}))
    assert "First all-to-all of each layer" not in html


def split_for(**knowledge: object) -> str:
    """Return how a table names the first all-to-alls of a static fabric."""
    fabric = {"fabric": "a", "policy": "multihop", **knowledge}
    [summary] = fabrics_of({"experiment": "x", "results": [fabric]})
    return summary.first_policy


def test_demand_of_the_split_is_named() -> None:
    assert split_for(split_demand="last") == "split: last"
    assert split_for(demand_error=0.2) == "split: known, 20.0 % wrong"
    assert split_for() == MISSING


def test_picture_shows_waiting_sending_and_prediction_relative_to_eps() -> None:
    much_longer = entry("much-longer", "block", 0.2, 0.2)
    run = {**RUN, "results": [*RUN["results"], much_longer]}
    drawn = first_all_to_alls_picture(RunResult.model_validate(run))
    root = ET.fromstring(drawn)
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert [name for name in ("waits", "foresees", "eps") if name in texts] == [
        "waits",
        "foresees",
        "eps",
    ]
    assert "old" not in texts
    assert "2.52x, +0.8 %" in texts
    assert "2.20x, +10.0 %" in texts
    widths = {
        kind: [
            float(bar.get("width", 0))
            for bar in root.iter(f"{SVG}rect")
            if bar.get("class") == kind
        ]
        for kind in ("k-reconfiguration", "k-dispatch")
    }
    _, *waiting = widths["k-reconfiguration"]
    _, *sending = widths["k-dispatch"]
    unit = sending[2]
    assert waiting == pytest.approx([0.52 * unit, 0.52 * unit, 0.0, 0.52 * unit], abs=0.01)
    cut = (3 - 0.52) * unit
    assert sending == pytest.approx([2.0 * unit, 1.68 * unit, unit, cut], abs=0.02)
    assert "4.00x, +0.0 %" in texts


def test_error_of_the_baseline_changes_no_other_bar() -> None:
    eps = {"fabric": "eps", "policy": "eps"}
    for measured_s in (0.05, 0.06):
        first = {"exposed_s": measured_s, "predicted_exposed_s": 0.05}
        results = [{**eps, "first_all_to_all": first}, entry("waits", "block", 0.1, 0.1)]
        drawn = first_all_to_alls_picture(RunResult.model_validate({"results": results}))
        assert "2.00x, +0.0 %" in drawn


def test_picture_without_a_baseline_is_refused() -> None:
    run = RunResult.model_validate({**RUN, "results": RUN["results"][:2]})
    with pytest.raises(SpecError, match="results: exposed times are relative to eps"):
        first_all_to_alls_picture(run)
