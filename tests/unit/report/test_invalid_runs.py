"""Measurements of invalid fabrics are marked in every table and picture, and compared with none."""

import json
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from markupsafe import Markup

from moefabric.report import run_tables
from moefabric.report.bars import first_all_to_alls_picture
from moefabric.report.page import page
from moefabric.report.pictures import DRAWINGS
from moefabric.report.run_changes import run_changes
from moefabric.report.summary import FabricSummary, summaries
from moefabric.report.table import text
from moefabric.report.tables import Table, html_table
from moefabric.results.model import RunResult
from tests.support.paths import GOLDEN
from tests.support.report_sample import sample

LOST = "2 transfers were lost"
NOT_MEASURED = {"wiring", "demand", "circuits", "expert_loads"}
"""Pictures of what was ordered or chosen, which no fabric measures."""


def document(invalid: str = "mixnet") -> dict[str, Any]:
    """Return a run with all that pictures show, whose fabric of this name is invalid."""
    run: dict[str, Any] = sample()
    for fabric in run["results"]:
        fabric["fidelity"] = {
            "verdict": "invalid" if fabric["fabric"] == invalid else "pass",
            "reasons": [LOST] if fabric["fabric"] == invalid else [],
            "completion_errors": {
                "flow": {"n": 3, "min": -0.1, "p5": -0.1, "p50": 0.0, "p95": 0.1, "max": 0.2,
                         "abs_p50": 0.1, "abs_p95": 0.1, "quantiles": [-0.1, 0.0, 0.2]}
            },
        }  # fmt: skip
        fabric["cost"] = {"network_usd": 1e4, "perf_per_dollar_vs_eps": 1.2}
        fabric["first_all_to_all"] = {
            "policy": "reuse", "count": 3, "exposed_s": 0.1, "predicted_exposed_s": 0.09,
            "waited_s": 0.02, "ideal_s": 0.08,
        }  # fmt: skip
        fabric["training"] = {
            "losses": [
                {"iteration": n, "model_s": n + 1.0, "loss": 5.0 - n, "text": "x"} for n in range(3)
            ],
            "tokens": [[[[1, 2], [3, 4]]]],
        }
        fabric["failures"] = [
            {"kind": "nic", "what": ["s0/e0"], "iteration": 1, "measured_s": 2.0, "slow_down": 0.2,
             "ok": True, "lanes": [{"server": "s0", "kind": "expert", "start_s": 0, "end_s": 1}]}
        ]  # fmt: skip
    return run


@pytest.fixture(scope="module")
def run() -> RunResult:
    return RunResult.model_validate(document())


@pytest.fixture(scope="module")
def fabrics(run: RunResult) -> list[FabricSummary]:
    return summaries(run)


def void(picture: str) -> list[ET.Element]:
    """Return the groups of marks that are outlined and pale."""
    return [e for e in ET.fromstring(picture).iter() if e.get("class") == "void"]


@pytest.mark.parametrize("kind", sorted({*DRAWINGS} - NOT_MEASURED))
def test_picture_names_and_marks_the_invalid_fabric(
    kind: str, fabrics: list[FabricSummary]
) -> None:
    drawn = DRAWINGS[kind](fabrics)
    assert drawn, kind
    assert "mixnet (invalid)" in drawn
    assert void(drawn)
    valid = [f for f in fabrics if not f.is_invalid]
    assert not void(DRAWINGS[kind](valid) or Markup("<svg/>"))


def test_picture_of_first_all_to_alls_for_documents_marks_the_invalid_fabric(
    run: RunResult,
) -> None:
    picture = first_all_to_alls_picture(run)
    assert "mixnet (invalid)" in picture
    assert len(void(picture)) == 1


def test_ratio_of_an_invalid_fabric_is_not_drawn(fabrics: list[FabricSummary]) -> None:
    texts = [e.text for e in ET.fromstring(DRAWINGS["comparison"](fabrics)).iter()]
    assert texts.count("invalid") == 1
    eps = summaries(RunResult.model_validate(document("eps")))
    texts = [e.text for e in ET.fromstring(DRAWINGS["comparison"](eps)).iter()]
    assert texts.count("EPS is invalid") == len(eps) - 1


TABLES = {
    "comparison": run_tables.comparison,
    "completion": run_tables.completion,
    "reconfigurations": run_tables.reconfigurations,
    "errors": run_tables.errors,
    "costs": run_tables.costs,
    "first_all_to_alls": run_tables.first_all_to_alls,
    "failures": run_tables.failures,
    "fidelity": run_tables.fidelity,
    "training": run_tables.training,
}


@pytest.mark.parametrize("name", TABLES)
def test_table_marks_the_row_of_the_invalid_fabric(name: str, fabrics: list[FabricSummary]) -> None:
    table: Table = TABLES[name](fabrics)
    [row] = [row for row in table.rows if "mixnet" in first_words(row)]
    marked = [cell for cell in row if "invalid" in str(cell)]
    assert marked, row
    others = [row for row in table.rows if "mixnet" not in first_words(row)]
    assert others
    assert not any("invalid" in str(cell) for row in others for cell in row)


def first_words(row: list[Any]) -> list[str]:
    cell = row[0]
    words: str = cell if isinstance(cell, str) else cell.text
    return words.replace(":", " ").split()


def test_figures_of_the_invalid_fabric_are_crossed_out_on_a_page(
    fabrics: list[FabricSummary],
) -> None:
    whole = html_table(run_tables.completion(fabrics))
    rows = [row for row in whole.split("<tr>") if "<td" in row]
    crossed = {row.split("<")[1].split(">")[1]: row.count('class="void"') for row in rows}
    assert crossed == {"eps": 0, "mixnet": 6, "mixnet-spill": 0, "static": 0}


def test_nothing_is_compared_with_an_invalid_baseline() -> None:
    fabrics = summaries(RunResult.model_validate(document("eps")))
    assert all(fabric["vs_eps"] is None for fabric in fabrics)
    assert all(fabric["perf_per_dollar_vs_eps"] is None for fabric in fabrics)
    assert all(fabric.iteration_vs_eps is None for fabric in fabrics)


def test_page_and_terminal_give_the_reason(run: RunResult) -> None:
    assert LOST in page(run)
    assert 'class="tile void"' in page(run)
    assert f"mixnet is invalid: {LOST}" in text(run)


@pytest.mark.parametrize("swapped", [False, True])
def test_compare_does_not_judge_figures_of_an_invalid_run(*, swapped: bool, run: RunResult) -> None:
    slow = document("none")
    for fabric in slow["results"]:
        for iteration in fabric["iterations"]:
            iteration["measured_s"] *= 2
    whole = RunResult.model_validate(slow)
    changes = run_changes([run], whole) if swapped else run_changes([whole], run)
    outcomes = {f.fabric: {one.outcome for one in f.figures} for f in changes.fabrics}
    assert outcomes["mixnet"] == {"invalid run"}
    assert outcomes["static"] & {"regression", "improvement"}
    assert changes.is_invalid


def test_stored_sample_of_the_page_is_unchanged_where_all_is_valid() -> None:
    golden = json.loads((GOLDEN / "report/sample.json").read_text())
    assert "(invalid)" not in page(RunResult.model_validate(golden))
