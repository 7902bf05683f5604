"""Tables of a run for the terminal."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from moefabric.report import table
from moefabric.results.model import RunResult, Verdict
from tests.support.paths import GOLDEN
from tests.support.report_sample import sample


def text(run: dict[str, Any], width: int = 120) -> str:
    return table.text(RunResult.model_validate(run), width)


@pytest.fixture
def run() -> dict[str, Any]:
    return sample()


def judged(run: dict[str, Any], index: int, verdict: str, *reasons: str) -> dict[str, Any]:
    """Return the run with another verdict of one fabric."""
    run["results"][index]["fidelity"] = {"verdict": verdict, "reasons": list(reasons)}
    return run


@pytest.mark.parametrize("width", [120, 80])
def test_table_equals_its_golden_file(run: dict[str, Any], width: int) -> None:
    """Both tables end with the reasons of the fabric that does not pass."""
    judged(run, 3, "degraded", "CPU idle fell to 4 % (10 % needed)")
    assert text(run, width) == (GOLDEN / "report" / f"table-{width}.txt").read_text()


@pytest.mark.parametrize("width", [80, 100, 112, 120, 200])
def test_lines_fit_the_terminal_without_truncation(run: dict[str, Any], width: int) -> None:
    lines = text(run, width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)


def test_every_reason_has_its_own_line(run: dict[str, Any]) -> None:
    judged(run, 1, "invalid", "3 transfers were lost", "CPU idle fell to 0 %")
    lines = text(run).splitlines()
    assert lines[0] == "prototype  invalid"
    assert lines[-2:] == [
        "mixnet is invalid: 3 transfers were lost",
        "mixnet is invalid: CPU idle fell to 0 %",
    ]


def test_control_plane_has_its_distribution(run: dict[str, Any]) -> None:
    run["results"][1]["control_time"] = {
        "count": 42, "p50_s": 0.0072, "p95_s": 0.0091,
        "unchanged_count": 6, "unchanged_p50_s": 0.004,
    }  # fmt: skip
    assert (
        "mixnet: control plane p50 7.20 ms, p95 9.10 ms of 42 changes, p50 4.00 ms of 6 requests "
        "that changed nothing; 0 s of wall time for orders to agents left out" in text(run, 200)
    )


def test_errors_keep_their_sign(run: dict[str, Any]) -> None:
    run["results"][0]["fidelity"]["completion_errors"] = {
        kind: {
            "n": 56, "min": -0.0042, "p5": -0.003, "p50": 0.0012, "p95": 0.01, "max": 0.0312,
            "abs_p50": 0.002, "abs_p95": 0.0123,
        }
        for kind in ("flow", "collective")
    }  # fmt: skip
    lines = [line.split() for line in text(run).splitlines()]
    figures = ["56", "-0.42", "-0.30", "+0.12", "+1.00", "+3.12", "1.23"]
    assert ["eps", "flow", *figures] in lines
    assert ["collective", *figures] in lines


def test_passing_run_has_no_reasons(run: dict[str, Any]) -> None:
    assert not any(f"is {verdict}" in text(run) for verdict in Verdict)


def test_markup_in_names_is_literal_and_control_characters_are_removed(run: dict[str, Any]) -> None:
    run["results"][0]["fabric"] = "[red]x\x1b[2J"
    printed = text(run)
    assert "[red]x" in printed
    assert "\x1b" not in printed


def test_table_has_colour_on_a_terminal(run: dict[str, Any]) -> None:
    console = Console(
        width=120, force_terminal=True, color_system="standard", record=True, file=StringIO()
    )
    console.print(table.RunTables(RunResult.model_validate(run)))
    assert "\x1b[32mpass" in console.export_text(styles=True)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"results": [{}]}, id="empty-result"),
        pytest.param(
            {"results": [{"fabric": "eps", "collectives": [], "iterations": []}]},
            id="no-collectives",
        ),
        pytest.param(
            {"results": [{"fabric": "f", "iterations": [{"measured_s": None}]}]}, id="nulls"
        ),
    ],
)
def test_incomplete_run_has_a_table(run: dict[str, Any]) -> None:
    for width in (80, 120):
        assert "invalid" in text(run, width)
