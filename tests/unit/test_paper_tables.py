"""The paper's tables: verdicts, the last line, the page, and the rows as they were when they were last looked at."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from moefabric.commands.paper import paper as command
from moefabric.errors import SpecError
from moefabric.paper.page import page
from moefabric.paper.read import TablePart, checked, jobs, published
from moefabric.paper.tables import CALIBRATED, OUTSIDE, WITHIN, Paper
from moefabric.paper.text import lines

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/paper"
GOLDEN = ROOT / "tests/golden/paper/rows.json"


def test_every_row_is_as_it_was(foreseen: Paper) -> None:
    """A change of the model shows here: look at `moefabric paper`, then write `rows.json` anew (`python tests/golden/paper/write.py`)."""
    seen = {
        f"{table.name}: {row.name}, {row.on}": row.ours for table in foreseen.tables for row in table.rows
    }
    expected = json.loads(GOLDEN.read_text())
    assert list(seen) == list(expected)
    assert seen == pytest.approx(expected, rel=5e-3, abs=0.05)


def test_a_verdict_is_whether_ours_lies_in_the_band(foreseen: Paper) -> None:
    for row in foreseen.judged:
        assert row.band is not None
        assert (row.verdict == WITHIN) == (row.band[0] <= row.ours <= row.band[1])
    assert {row.verdict for row in foreseen.judged} == {WITHIN, OUTSIDE}


def test_the_calibrated_column_is_not_judged(foreseen: Paper) -> None:
    calibrated = [row for table in foreseen.tables for row in table.rows if row.verdict == CALIBRATED]
    assert {row.name for row in calibrated} == {"fat-tree"}
    assert len(calibrated) == 16
    assert not any(row.name == "fat-tree" and row.on.endswith("Gb/s") for row in foreseen.judged)


def test_rows_that_differ_say_why(foreseen: Paper) -> None:
    for table in foreseen.tables:
        if any(row.verdict == OUTSIDE for row in table.rows):
            assert table.why


def test_mixnet_s_published_iterations_are_met_for_three_of_four_models(foreseen: Paper) -> None:
    rows = [row for table in foreseen.tables if table.name == "iteration" for row in table.rows]
    met = {row.on for row in rows if row.name == "mixnet" and row.verdict == WITHIN}
    assert len([on for on in met if on.startswith(("mixtral", "llama"))]) == 12


def test_the_joint_planner_s_all_to_all_is_as_fast_as_a_non_blocking_eps_s(foreseen: Paper) -> None:
    past = next(table for table in foreseen.tables if table.name == "past")
    alone = {row.on: row.ours for row in past.rows if row.name == "mixnet-joint: all-to-all"}
    assert len(alone) == 5
    assert max(alone.values()) <= 1.02


def test_with_transfers_beside_all_to_alls_its_iterations_are_within_a_hundredth_of_an_eps_that_does_the_same(
    foreseen: Paper,
) -> None:
    past = next(table for table in foreseen.tables if table.name == "past")
    whole = {row.on: row.ours for row in past.rows if row.name == "mixnet-joint overlapped: iteration"}
    assert len(whole) == 5
    assert max(whole.values()) <= 1.01


def test_the_last_line_counts_the_rows_within_their_bands(foreseen: Paper) -> None:
    assert (
        list(lines(foreseen))[-1]
        == f"{foreseen.within} of {len(foreseen.judged)} rows are within their bands"
    )


def test_the_page_has_every_table_and_figure_and_is_the_same_again(foreseen: Paper) -> None:
    html = page(foreseen)
    assert html == page(foreseen)
    for table in foreseen.tables:
        assert table.title.replace("'", "&#39;") in html
    assert html.count("<svg") == 17
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    """The examples with 60 steps of the training trace: enough for every table."""
    shutil.copytree(EXAMPLES, tmp_path / "paper")
    (tmp_path / "data").mkdir()
    shutil.copy(ROOT / "examples/data/gating-8x8.json", tmp_path / "data")
    with np.load(ROOT / "examples/data/training-1200-steps.npz") as trace:
        held = {name: trace[name][:60] if name == "counts" else trace[name] for name in trace.files}
    np.savez(tmp_path / "data/training-1200-steps.npz", **held)
    return tmp_path / "paper"


def test_the_command_writes_rows_and_page(quick: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        command,
        [str(quick), "--json", str(tmp_path / "out/p.json"), "--report", str(tmp_path / "out/p.html")],
    )
    assert done.exit_code == 0, done.output
    said = json.loads((tmp_path / "out/p.json").read_text())
    assert done.output.splitlines()[-1] == f"{said['within']} of {said['rows']} rows are within their bands"
    assert (tmp_path / "out/p.html").read_text().startswith("<!doctype html>")


def test_the_published_figures_are_64() -> None:
    figures = published(EXAMPLES / "normalised-iteration.csv")
    assert len(figures) == 64
    assert figures["mixtral-8x22b", 400e9, "mixnet"] == pytest.approx(1.1138412705)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": []}, None),
        ({"titel": "x"}, r"t\.yaml: titel: Extra inputs are not permitted"),
        ({"relative": "much"}, r"t\.yaml: relative: Input should be a valid number"),
        (
            {"rows": [{"row": "a", "paper": 1, "measure": "luck", "rates": []}]},
            r"rows\.0\.measure: Input should be",
        ),
    ],
)
def test_a_wrong_table_is_told_with_its_place(
    tmp_path: Path, change: dict[str, object], said: str | None
) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump({"table": "t", "title": "T", "source": "s", "rows": []} | change))
    if said is None:
        assert checked(TablePart, file).rows == []
        return
    with pytest.raises(SpecError, match=said):
        checked(TablePart, file)


def test_a_folder_without_jobs_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"jobs\.yaml: can't be read: No such file or directory"):
        jobs(tmp_path / "jobs.yaml")
    with pytest.raises(SpecError, match=r"n\.csv: there is no such file"):
        published(tmp_path / "n.csv")


def test_parts_are_of_packets_only() -> None:
    done = CliRunner().invoke(command, [str(EXAMPLES), "--only", "llama-moe"])
    assert done.exit_code == 2
    assert "--only is of packets: give --emulated too" in done.output
