"""Tables of the paper: verdicts, summary line, page, and golden values of the rows."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from markupsafe import escape
from moefabric_studies.commands.paper import paper as command
from moefabric_studies.paper import text
from moefabric_studies.paper.growth import growth_points
from moefabric_studies.paper.loader import TableSpec, load_jobs, load_published, load_section
from moefabric_studies.paper.page import document_pictures, document_text, page
from moefabric_studies.paper.results import PaperResults, predict_tables
from moefabric_studies.paper.rows import CALIBRATED, OUTSIDE, Counts, contains
from moefabric_studies.paper.text import text_lines

from moefabric.api.networks import ServerPaths
from moefabric.core.errors import SpecError
from tests.support.paths import EXAMPLES

GOLDEN = Path(__file__).parents[2] / "golden/paper"

PAPER = EXAMPLES / "paper"
COUNTS = ("rows", "inside", "null_inside", "reproduced", "distance", "null_distance")
ROOT = EXAMPLES.parent


def test_values_equal_golden_rows(predicted: PaperResults) -> None:
    """After a change of the model: check `moefabric paper`, run `write_rows.py`."""
    values = {
        f"{table.name}: {row.name}, {row.subject}": row.value
        for table in (*predicted.tables, predicted.aims)
        for row in table.rows
    }
    expected = json.loads((GOLDEN / "rows.json").read_text())
    assert list(values) == list(expected)
    assert values == pytest.approx(expected, rel=5e-3, abs=0.05)


def test_verdict_says_whether_value_is_in_band(predicted: PaperResults) -> None:
    judged = [row for table in predicted.tables for row in table.rows if row.is_judged]
    assert len(judged) == 118
    for row in judged:
        assert row.band is not None
        assert row.value is not None
        assert (row.verdict != OUTSIDE) == contains(row.band, row.value)


def test_calibrated_column_is_not_judged(predicted: PaperResults) -> None:
    calibrated = [
        row for table in predicted.tables for row in table.rows if row.verdict == CALIBRATED
    ]
    assert len([row for row in calibrated if row.name == "fat-tree"]) == 16
    judged = [row for row in predicted.rows("iteration") if row.is_judged]
    assert len(judged) == 48
    assert not any(row.name == "fat-tree" for row in judged)


def test_tables_explain_rows_outside_their_bands(predicted: PaperResults) -> None:
    outside = [t for t in predicted.tables if any(row.verdict == OUTSIDE for row in t.rows)]
    assert outside
    assert [table.name for table in outside if not table.why] == []


def test_joint_planner_all_to_all_is_as_fast_as_non_blocking_eps(predicted: PaperResults) -> None:
    aims = predicted.aims
    ratios = {
        row.subject: row.value or 0.0 for row in aims.rows if row.name == "mixnet-joint: all-to-all"
    }
    assert len(ratios) == 5
    assert max(ratios.values()) <= 1.02


def test_joint_planner_overlapped_iteration_is_within_one_per_cent_of_eps_for_large_models(
    predicted: PaperResults,
) -> None:
    aims = predicted.aims
    ratios = {
        row.subject: row.value or 0.0
        for row in aims.rows
        if row.name == "mixnet-joint overlapped: iteration"
    }
    small = {"llama-moe", "qwen-moe"}
    assert set(ratios) == small | {"mixtral-8x22b", "mixtral-8x7b", "deepseek-r1"}
    assert max(ratio for job, ratio in ratios.items() if job not in small) <= 1.01
    assert 1.01 < max(ratios[job] for job in small) <= 1.011


def test_rows_of_the_paper_and_aims_are_never_in_one_sum(predicted: PaperResults) -> None:
    counts, aims = predicted.counts, len(predicted.aims.rows)
    document = predicted.to_json()
    assert document["paper"]["rows"] == counts.rows
    assert (document["aims"]["rows"], document["aims"]["met"]) == (aims, predicted.aims_met)
    assert counts.rows == sum(table.counts.rows for table in predicted.tables)
    shown = "\n".join((*text_lines(predicted), page(predicted), document_text(predicted)))
    assert f"{counts.reproduced} of {counts.rows} " in shown
    for total in (counts.rows + aims, counts.reproduced + predicted.aims_met):
        assert f"{total} rows" not in shown
        assert f"of {total} " not in shown


def test_last_lines_count_rows_and_aims(predicted: PaperResults) -> None:
    rows, aims = list(text_lines(predicted))[-2:]
    distance = f"the median distance to the paper is {predicted.counts.distance:.1f} %, "
    assert rows.startswith(f"the paper's rows: {distance}the null model's ")
    assert f"; {predicted.counts.reproduced} of {predicted.counts.rows} rows are " in rows
    assert aims.startswith(f"aims of this project: {predicted.aims_met} of ")


def test_document_is_that_of_the_predicted_tables(predicted: PaperResults) -> None:
    """After a change of the model: run `make paper`, which writes the page."""
    assert (ROOT / "docs/paper.md").read_text() == document_text(predicted)
    for name, picture in document_pictures(predicted).items():
        assert (ROOT / "docs" / name).read_text() == picture


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("gather", "tree_flows", "option"),
    [
        ("nvswitch", "pooled", r"`moefabric paper --gather nvswitch`\), (\d+) .* and (\d+) are"),
        ("none", "nic-per-gpu", r"`--tree-flows nic-per-gpu`\) (\d+) and (\d+),"),
        ("none", "hashed", r"\(`hashed`\) (\d+) and (\d+)\."),
    ],
)
def test_page_counts_rows_of_other_assumptions(gather: Any, tree_flows: Any, option: str) -> None:
    counts = predict_tables(PAPER, ServerPaths(gather=gather), tree_flows).counts
    shown = " ".join((ROOT / "docs/paper.md").read_text().split())
    assert re.findall(option, shown) == [(str(counts.reproduced), str(counts.inside))]


def test_prices_and_performance_grow_alike_to_65536_gpus(predicted: PaperResults) -> None:
    fat_tree, mixnet = (
        growth_points(predicted.evaluation, name) for name in ("fat-tree", "mixnet")
    )
    assert [point.gpus for point in mixnet] == [1024 << power for power in range(7)]
    for small, large in ((fat_tree[0], fat_tree[-1]), (mixnet[0], mixnet[-1])):
        assert large.million_usd == pytest.approx(64 * small.million_usd)
        assert 1 <= large.relative / small.relative < 1.01
    assert {point.efficiency for point in fat_tree} == {1.0}
    assert all(1.9 < point.efficiency < 2.5 for point in mixnet)


def test_page_has_every_table_and_figure_and_is_reproducible(predicted: PaperResults) -> None:
    html = page(predicted)
    assert html == page(predicted)
    titles = [table.title for table in (*predicted.tables, predicted.aims)]
    for title in (*titles, *(grid.title for grid in predicted.grids)):
        assert str(escape(title)) in html
    assert html.count("<svg") == 17
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")


@pytest.fixture
def short_trace(tmp_path: Path) -> Path:
    """Copy the examples with 60 steps of the training trace, which suffice for every table."""
    shutil.copytree(PAPER, tmp_path / "paper")
    (tmp_path / "data").mkdir()
    recorded = ("gating-8x8.json", "deepseek-r1-prefill-4096.json.gz", "mixtral-8x7b-domains.npz")
    for name in recorded:
        shutil.copy(EXAMPLES / "data" / name, tmp_path / "data")
    with np.load(EXAMPLES / "data/training-1200-steps.npz") as trace:
        arrays = {
            name: trace[name][:60] if name == "counts" else trace[name] for name in trace.files
        }
    np.savez(tmp_path / "data/training-1200-steps.npz", **arrays)
    return tmp_path / "paper"


@pytest.mark.nightly
def test_command_writes_rows_and_page(short_trace: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    result = CliRunner().invoke(
        command,
        [
            str(short_trace),
            "--json",
            str(tmp_path / "out/p.json"),
            "--report",
            str(tmp_path / "out/p.html"),
            "--document",
            str(tmp_path / "out/p.md"),
        ],
    )
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "out/p.json").read_text())
    paper, aims = document["paper"], document["aims"]
    assert result.output.splitlines()[-2:] == [
        f"the paper's rows: {text.counts_line(Counts(**{key: paper[key] for key in COUNTS}))}",
        f"aims of this project: {aims['met']} of {aims['rows']} are met",
    ]
    assert (tmp_path / "out/p.md").read_text().startswith("# The MixNet paper")
    assert (tmp_path / "out/p.html").read_text().startswith("<!doctype html>")


def test_published_file_has_64_values() -> None:
    figures = load_published(PAPER / "normalised-iteration.csv")
    assert len(figures) == 64
    assert figures["mixtral-8x22b", 400e9, "mixnet"] == pytest.approx(1.1138412705)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": []}, None),
        ({"titel": "x"}, r"t\.yaml: titel: is not a key here"),
        ({"precision": "much"}, r"t\.yaml: precision: a number is needed, 'much' given"),
        (
            {"rows": [{"row": "a", "paper": 1, "measure": "luck", "rates": []}]},
            r"rows\[0\]\.measure: .* is needed, 'luck' given",
        ),
    ],
)
def test_load_section_names_place_of_fault(
    tmp_path: Path, change: dict[str, object], message: str | None
) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(
        yaml.safe_dump({"table": "t", "title": "T", "source": "s", "rows": []} | change)
    )
    if message is None:
        assert load_section(TableSpec, file).rows == []
        return
    with pytest.raises(SpecError, match=message):
        load_section(TableSpec, file)


def test_loaders_name_missing_files(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"jobs\.yaml: No such file or directory"):
        load_jobs(tmp_path / "jobs.yaml")
    with pytest.raises(SpecError, match=r"n\.csv: No such file or directory"):
        load_published(tmp_path / "n.csv")


def test_only_needs_emulated() -> None:
    result = CliRunner().invoke(command, [str(PAPER), "--only", "llama-moe"])
    assert result.exit_code == 2
    assert "--only needs --emulated" in result.output
