"""The ledger of fuzz runs: what is written, and which targets it names."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzz.ledger import FuzzRun, note, read
from tests.fuzz.targets import targets

OUTPUT = """#2 INITED cov: 40 ft: 50 corp: 1/1b
#1000 DONE   cov: 321 ft: 456 corp: 20/1234b lim: 33 exec/s: 100 rss: 90Mb
stat::number_of_executed_units: 1000
stat::average_exec_per_sec:     100
"""


def test_run_takes_the_place_of_the_last_one_of_its_target(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.csv"
    run = FuzzRun.of_output("yaml", OUTPUT)
    assert (run.inputs, run.coverage, run.features) == (1000, 321, 456)
    older = FuzzRun("yaml", "2026-01-01", "abc", 1, 2, 3)
    other = FuzzRun("scpi", "2026-01-01", "abc", 4, 5, 6)
    for one in (older, other, run):
        note(one, ledger)
    assert read(ledger) == [other, run]


def test_output_without_statistics_is_no_run() -> None:
    with pytest.raises(ValueError, match="printed no statistics"):
        FuzzRun.of_output("yaml", "Traceback")


def test_ledger_names_targets_that_exist() -> None:
    runs = read()
    assert runs
    elsewhere = set() if find_spec("pyarrow") else {"traces-routes-parquet"}
    assert {run.target for run in runs} - elsewhere <= {target.name for target in targets()}
