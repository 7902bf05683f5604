"""Cost and performance per dollar in the table, on the page and in predictions."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from moefabric.report.page import page
from moefabric.report.table import text
from moefabric.results.comparison import network_cost, with_cost_ratios
from moefabric.results.model import FabricResult, NetworkCost, RunResult
from moefabric.results.parts import IterationResult
from moefabric.ui.cli.run import predict
from tests.support.fabrics import fabric
from tests.support.paths import EXAMPLES


def run(*entries: tuple[str, NetworkCost, float]) -> RunResult:
    """Return a run of fabrics with these names, costs and durations of an iteration."""
    results = [
        FabricResult.model_validate({"fidelity": {"verdict": "pass"}}).model_copy(
            update={
                "fabric": name,
                "policy": name,
                "cost": cost,
                "iterations": [IterationResult(measured_s=seconds, predicted_s=seconds)],
            }
        )
        for name, cost, seconds in entries
    ]
    return RunResult(experiment="x", results=with_cost_ratios(results))


@pytest.fixture
def compared() -> RunResult:
    """4 servers of 4 NICs of 100 Gb/s: one electrical, and all; the first is a tenth slower."""
    return run(
        ("mixnet", network_cost(fabric(3, 1), 2.2), 2.2),
        ("eps", network_cost(fabric(0, 4), 2.0), 2.0),
    )


def test_table_and_page_have_performance_per_dollar(compared: RunResult) -> None:
    rows = [line.split() for line in text(compared, 80).splitlines()]
    assert ["mixnet", "$", "27.7", "k", "16.4", "1.39x"] in rows
    assert ["eps", "$", "42.2", "k", "11.8", "1.00x"] in rows
    assert "$ 27.7 k</td><td>16.4</td><td>1.39x" in page(compared)


def test_table_and_page_tell_why_a_rate_has_no_price() -> None:
    unpriced = run(("eps", network_cost(replace(fabric(3, 1), nic_rate_bps=50e9), 1.0), 1.0))
    for printed in (text(unpriced), page(unpriced)):
        assert "not priced: nic rate: 50Gb/s has no prices" in printed


def test_run_without_costs_has_no_such_table() -> None:
    silent = run(("eps", NetworkCost(), 1.0))
    assert "M$" not in text(silent)
    assert "dollar" not in page(silent)


def test_predict_has_costs() -> None:
    runner, file = CliRunner(), str(EXAMPLES / "prototype.yaml")
    document = json.loads(runner.invoke(predict, [file, "--json"]).output)
    costs = {entry["fabric"]: entry["cost"] for entry in document["fabrics"]}
    assert costs["eps"]["perf_per_dollar_vs_eps"] == 1.0
    assert costs["mixnet"]["perf_per_dollar_vs_eps"] > 1.0
    printed = runner.invoke(predict, [file], env={"COLUMNS": "120"}).output
    assert "$ 27.7 k" in printed
