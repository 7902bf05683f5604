"""The run on the terminal."""

import runpy
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from moefabric.report import table

GOLDEN = Path(__file__).parents[1] / "golden" / "report"
sample = runpy.run_path(str(GOLDEN / "build_sample.py"))["sample"]


@pytest.fixture
def run() -> dict[str, Any]:
    made: dict[str, Any] = sample()
    return made


def judged(run: dict[str, Any], index: int, verdict: str, *reasons: str) -> dict[str, Any]:
    """The run with one fabric's verdict changed."""
    run["results"][index]["fidelity"] = {"verdict": verdict, "reasons": list(reasons)}
    return run


@pytest.mark.parametrize("width", [120, 80])
def test_the_table_reads_as_its_golden_file(run: dict[str, Any], width: int) -> None:
    """A file for each width; both end with the reasons of the fabric that did not pass."""
    judged(run, 3, "degraded", "CPU idle fell to 4 % (10 % needed)")
    assert table.text(run, width) == (GOLDEN / f"table-{width}.txt").read_text()


@pytest.mark.parametrize("width", [80, 100, 112, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_cut(run: dict[str, Any], width: int) -> None:
    lines = table.text(run, width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)


def test_every_reason_has_a_line_of_its_own(run: dict[str, Any]) -> None:
    judged(run, 1, "invalid", "3 transfers were lost", "CPU idle fell to 0 %")
    said = table.text(run).splitlines()
    assert said[0] == "prototype  invalid"
    assert said[-2:] == [
        "mixnet is invalid: 3 transfers were lost",
        "mixnet is invalid: CPU idle fell to 0 %",
    ]


def test_a_run_that_passes_gives_no_reasons(run: dict[str, Any]) -> None:
    assert " is " not in table.text(run)


def test_a_name_with_markup_and_control_characters_is_printed_as_it_stands(run: dict[str, Any]) -> None:
    run["results"][0]["fabric"] = "[red]x\x1b[2J"
    said = table.text(run)
    assert "[red]x" in said
    assert "\x1b" not in said


def test_a_terminal_gets_colour(run: dict[str, Any]) -> None:
    console = Console(width=120, force_terminal=True, color_system="standard", record=True, file=StringIO())
    console.print(table.table(run))
    assert "\x1b[32mpass" in console.export_text(styles=True)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"results": [{}]}, id="an-empty-result"),
        pytest.param(
            {"results": [{"fabric": "eps", "collectives": [], "iterations": []}]}, id="no-collectives"
        ),
        pytest.param({"results": [{"fabric": "f", "iterations": [{"measured_s": None}]}]}, id="nulls"),
    ],
)
def test_a_run_with_little_in_it_still_has_a_table(run: Mapping[str, Any]) -> None:
    for width in (80, 120):
        assert "invalid" in table.text(run, width)
