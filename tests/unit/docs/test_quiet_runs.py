"""Figures of `docs/benchmarks.md` are those of the runs in `docs/results/quiet-runs.csv`."""

import csv
from collections import Counter
from statistics import median
from typing import Final

import pytest

from tests.support.paths import REPOSITORY

PAGE: Final = (REPOSITORY / "docs/benchmarks.md").read_text()
DEMO: Final = "examples/prototype.yaml"
TEN_RUNS: Final = "67396747"
"""Commit of the ten runs of the demo whose times and errors the page has."""

Row = dict[str, str]


def rows(command: str, *commits: str) -> list[Row]:
    """Return the rows of the runs of a command with these commits."""
    with (REPOSITORY / "docs/results/quiet-runs.csv").open(newline="") as file:
        return [
            row
            for row in csv.DictReader(file)
            if row["command"].startswith(command) and row["commit"] in commits
        ]


def seconds(listed: list[Row]) -> list[float]:
    """Return the durations of the runs of these rows, in order."""
    return sorted({row["started"]: float(row["seconds"]) for row in listed}.values())


def counts(listed: list[Row]) -> str:
    """Return how many fabrics have each verdict: "39 `pass`, 1 `degraded`"."""
    found = Counter(row["verdict"] for row in listed)
    return ", ".join(
        f"{found[one]} `{one}`" for one in ("pass", "degraded", "invalid") if found[one]
    )


def cells(start: str) -> list[str]:
    """Return the cells of the only row of the page that begins so."""
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_demo_has_the_duration_and_the_verdicts_of_its_runs() -> None:
    took = seconds(rows(DEMO, TEN_RUNS))
    assert len(took) == 10
    assert f"{median(took):.0f} s ({took[0]:.0f} to {took[-1]:.0f})" in cells("the demo's run")[1]
    shown = "; ".join(counts(rows(DEMO, one)) for one in (TEN_RUNS, "ed7d8e49", "563275b4"))
    assert cells("verdicts of its fabrics")[1].startswith(shown)


@pytest.mark.parametrize("fabric", ["eps", "mixnet", "mixnet-spill", "static"])
def test_errors_of_the_demo_are_those_of_ten_runs(fabric: str) -> None:
    start = "its collectives, signed median" if fabric == "eps" else f"`{fabric}` | +"
    mine = [row for row in rows(DEMO, TEN_RUNS) if row["fabric"] == fabric]
    shown = cells(start)
    pairs = zip(("median", "p95_of_absolute"), ("+", ""), shown[1].split("), "), strict=True)
    for column, sign, text in pairs:
        values = sorted(float(row[column]) for row in mine)
        assert f"({values[0]:{sign}.2f} to {values[-1]:{sign}.2f}" in text
        assert float(text.split()[0]) == pytest.approx(median(values), abs=0.0051)  # two digits
    assert shown[2] == str(sum(int(row["collectives"]) for row in mine))


@pytest.mark.parametrize(
    ("example", "start", "commits"),
    [
        ("spines", "256 GPUs over spines", ["13f1c916", "09f5a5cc"]),
        ("forwarding", "a mesh that forwards", ["13f1c916", "8b5dfa5a", "09f5a5cc"]),
        ("pipeline", "pipeline of stages", ["13f1c916"]),
        ("olmoe", "a model of one's own", ["09f5a5cc"]),
        ("region", "a region, three fabrics", ["13f1c916"]),
    ],
)
def test_other_examples_have_the_durations_and_passes_of_their_runs(
    example: str, start: str, commits: list[str]
) -> None:
    listed = rows(f"examples/{example}.yaml", *commits)
    passed = sum(row["verdict"] == "pass" for row in listed)
    shown = cells(start)[1]
    assert shown.startswith(f"{median(seconds(listed)):.0f} s")
    assert shown.endswith(f", {passed}")


@pytest.mark.parametrize(
    ("start", "example", "commit", "scale", "fabric"),
    [
        ("128, `eps`", "spines", TEN_RUNS, "120 x 29", "eps"),
        ("128, `mixnet-spill`", "spines", TEN_RUNS, "120 x 29", "mixnet-spill"),
        ("512, `eps`", "paper-scale", "2724e291", "44 x 395", "eps"),
        ("1,024, `eps`", "paper-scale", TEN_RUNS, "120 x 200", "eps"),
        ("1,024, `mixnet`,", "paper-scale", "5f954720", "120 x 200", "mixnet"),
        ("1,024, `mixnet-spill`", "paper-scale", "5f954720", "120 x 200", "mixnet-spill"),
    ],
)
def test_largest_runs_have_the_figures_of_their_rows(
    start: str, example: str, commit: str, scale: str, fabric: str
) -> None:
    listed = rows(f"examples/{example}.yaml", commit)
    [run] = [row for row in listed if (row["scale"], row["fabric"]) == (scale, fabric)]
    first, verdict, iteration, collectives, idle, took = cells(start)
    assert "the same" in first or scale in first
    assert verdict == run["verdict"]
    assert iteration == f"{float(run['iteration']):+.1f} %"
    bias, p95 = float(run["median"]), float(run["p95_of_absolute"])
    assert collectives == f"{bias:+.1f} %, {p95:.1f} % ({run['collectives']})"
    assert idle == f"{float(run['least_idle']):.0%}".replace("%", " %")
    assert took in {"the same", f"{int(run['seconds']):,} s"}
