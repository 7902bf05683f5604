"""Blocks of pages: what they show of stored results, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
from moefabric_studies.result_blocks import StoredResults, filled

from moefabric.core.errors import SpecError
from moefabric.report.formatting import MISSING

COLUMNS = "fabric, nics, iteration_s, iteration_vs_eps, vs_eps, verdict"
TABLE = f"<!-- results: run ({COLUMNS}) -->\nold\n<!-- /results -->\n"
LOST = "2 transfers were lost"


def fabric(name: str, seconds: float, verdict: str = "pass", **figures: float) -> dict[str, Any]:
    return {
        "fabric": name,
        "policy": name,
        "fidelity": {"verdict": verdict, "reasons": [LOST] if verdict != "pass" else []},
        "figures": {"iteration_s": seconds, "error": seconds / 1000, **figures},
        "wiring": {"optical_nics": 0 if name == "eps" else 3, "electrical_nics": 1},
    }


def written(folder: Path, *fabrics: dict[str, Any]) -> StoredResults:
    """Store a result, and return the results of its folder."""
    source = {"commit": "c0ffee00aa", "cpu": "Fast CPU", "remark": "n = 2"}
    manifest = {"cores": 2, "started": "2026-11-29T10:00:00", "provenance": source}
    document = {"experiment": "run", "manifest": manifest, "results": fabrics}
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps(document))
    return StoredResults(folder)


@pytest.fixture
def results(tmp_path: Path) -> StoredResults:
    """An EPS, and a fabric that takes twice as long."""
    return written(tmp_path / "results", fabric("eps", 1.0), fabric("mixnet", 2.0, moves=3))


def test_table_has_figures_verdicts_and_origin(tmp_path: Path, results: StoredResults) -> None:
    text = filled(TABLE, tmp_path / "page.md", results)
    assert "| `eps` | 1 | 1.000 s | 1.000 |" in text
    assert "| `mixnet` | 3 + 1 | 2.000 s | 2.000 |" in text
    origin = "* [run](results/run.json): commit c0ffee00, 2026-11-29, 2 cores of Fast CPU; n = 2."
    assert origin in text
    assert filled(text, tmp_path / "page.md", results) == text
    assert "old" not in text


def test_value_is_that_of_a_fabric_or_the_range_of_all(
    tmp_path: Path, results: StoredResults
) -> None:
    text = "<!-- result: run {} -->?<!-- /result -->"
    page, end = tmp_path / "page.md", "<!-- /result "
    shown = {
        place: filled(text.format(place), page, results).split("-->")[1].removesuffix(end)
        for place in ("mixnet iteration_s", "* iteration_s", "* error", "* verdict")
    }
    assert list(shown.values()) == ["2.000 s", "1.000 to 2.000 s", "+0.1 to +0.2 %", "`pass`"]


def test_predictions_stand_in_brackets_in_tables_alone(tmp_path: Path) -> None:
    eps = fabric("eps", 1.0, predicted_iteration_s=0.9)
    own = written(tmp_path / "results", eps, fabric("mixnet", 2.0))
    text = filled(TABLE, tmp_path / "p.md", own)
    assert "| iteration (predicted) | iteration vs EPS | vs EPS | verdict |" in text
    assert "| 1.000 s (900.0 ms) |" in text
    assert "| 2.000 s |" in text
    value = "<!-- result: run eps iteration_s --><!-- /result -->"
    assert "-->1.000 s<!--" in filled(value, tmp_path / "p.md", own)


def test_invalid_fabric_has_dashes_and_its_reason_and_is_no_baseline(tmp_path: Path) -> None:
    bad = fabric("mixnet", 2.0, "invalid", vs_eps=1.5)
    text = filled(TABLE, tmp_path / "p.md", written(tmp_path / "results", fabric("eps", 1.0), bad))
    assert f"| `mixnet` | 3 + 1 | {MISSING} | {MISSING} | {MISSING} | invalid |" in text
    assert f"* `mixnet` is invalid: {LOST}." in text
    eps = fabric("eps", 1.0, "invalid")
    own = written(tmp_path / "results", eps, fabric("mixnet", 2.0, vs_eps=2.0))
    text = filled(TABLE, tmp_path / "p.md", own)
    assert f"| `mixnet` | 3 + 1 | 2.000 s | {MISSING} | {MISSING} | pass |" in text


def test_fabrics_with_equal_reasons_share_a_line(tmp_path: Path) -> None:
    fabrics = [fabric(name, 1.0, "degraded") for name in ("eps", "mixnet")]
    text = filled(TABLE, tmp_path / "p.md", written(tmp_path / "results", *fabrics))
    assert f"* `eps`, `mixnet` are degraded: {LOST}." in text


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ("<!-- result: run mixnet iteration_s -->1 s<!-- /result -->", "mixnet is invalid: 2 tr"),
        ("<!-- result: run * iteration_s --><!-- /result -->", "mixnet is invalid"),
        ("<!-- result: run spill iteration_s --><!-- /result -->", "no such fabric"),
        ("<!-- result: run eps seconds --><!-- /result -->", "seconds is no column"),
        ("<!-- result: gone eps iteration_s --><!-- /result -->", "gone.json"),
        ("<!-- results: run -->\n<!-- /results -->", "wrong head, or no end"),
        ("<!-- result: run eps iteration_s -->1 s", "wrong head, or no end"),
    ],
)
def test_block_that_shows_what_nobody_measured_is_an_error(
    tmp_path: Path, block: str, fault: str
) -> None:
    own = written(tmp_path / "results", fabric("eps", 1.0), fabric("mixnet", 2.0, "invalid"))
    with pytest.raises(SpecError, match=fault):
        filled(block, tmp_path / "page.md", own)
