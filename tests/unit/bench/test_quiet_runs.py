"""Counts of passes and reasons in a table of runs."""

from pathlib import Path

from tests.bench.quiet_runs import COLUMNS, append, passes


def fabric(command: str, reasons: str) -> list[str]:
    """Return a fabric's row."""
    values = {"command": command, "reasons": reasons}
    return [values.get(column, "") for column in COLUMNS]


def test_passes_counts_an_experiments_runs_by_their_settings(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    busy = "least idle share of the CPU {} is under 35%"
    runs = [
        fabric("a.yaml", ""),
        fabric("a.yaml --set transport=tcp", busy.format("12.1%")),
        fabric("a.yaml --set transport=tcp", f"{busy.format('30%')} | 2 of 9 changes failed (r0)"),
        fabric("a.yaml --set transport=tcp", ""),
        fabric("other.yaml", ""),
    ]
    append(table, runs[:1])
    append(table, runs[1:])
    assert passes(table, "a.yaml").splitlines()[2:] == [
        "| none | 1 | 1 |  |",
        (
            "| `transport=tcp` | 3 | 1 | least idle share of the CPU n is under n (2), "
            "n of n changes failed (1) |"
        ),
    ]
