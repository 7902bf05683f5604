"""What a run's networks cost, in its JSON, its table, its page and its prediction."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from moefabric.commands.run import predict
from moefabric.experiment.costs import Json, against_eps, cost
from moefabric.report.page import page
from moefabric.report.table import text
from moefabric.topology import Eps
from tests.fabrics import fabric

EXAMPLES = Path(__file__).parents[2] / "examples"


def entry(name: str, policy: str, priced: Json, iteration_s: float) -> Json:
    return {
        "fabric": name,
        "policy": policy,
        "cost": priced,
        "iterations": [{"measured_s": iteration_s, "predicted_s": iteration_s}],
        "fidelity": {"verdict": "pass", "reasons": []},
    }


@pytest.fixture
def compared() -> list[Json]:
    """4 servers of 4 NICs of 100 Gb/s: all electrical, and one of them; the latter's iteration is a tenth longer."""
    eps, mixnet = fabric(0, 4), fabric(3, 1)
    entries = [entry("mixnet", "mixnet", cost(mixnet, 2.2), 2.2), entry("eps", "eps", cost(eps, 2.0), 2.0)]
    against_eps(entries)
    return entries


def test_a_dollar_is_compared_with_a_dollar_of_the_eps_of_the_same_run(compared: list[Json]) -> None:
    """An electrical NIC is 659 + 6 x 99 + 5 x 187 + 3 x 150 = 2,638 USD, an optical one 659 + 99 + 520 + 150 = 1,428."""
    mixnet, eps = (each["cost"] for each in compared)
    assert eps["network_usd"] == 4 * 4 * 2638
    assert mixnet["network_usd"] == 4 * (3 * 1428 + 2638)
    assert eps["performance_per_dollar"] == pytest.approx(1 / (2.0 * 42208))
    assert eps["to_eps"] == pytest.approx(1.0)
    assert mixnet["to_eps"] == pytest.approx(2.0 / 2.2 * 42208 / 27688)


def test_an_oversubscribed_eps_is_cheaper_where_it_has_spines() -> None:
    one_leaf, two = (fabric(0, 4, eps=Eps(width, 2, 3.0)) for width in (4, 2))
    assert cost(two, 1.0)["network_usd"] < cost(one_leaf, 1.0)["network_usd"] == 42208


def test_a_run_without_eps_has_prices_and_no_comparison(compared: list[Json]) -> None:
    alone = [entry("mixnet", "mixnet", cost(fabric(3, 1), 2.2), 2.2)]
    against_eps(alone)
    assert alone[0]["cost"]["network_usd"] == 27688
    assert alone[0]["cost"]["to_eps"] is None


def test_a_rate_without_prices_is_said() -> None:
    priced = cost(replace(fabric(3, 1), nic_rate_bps=50e9), 1.0)
    assert priced["network_usd"] is priced["performance_per_dollar"] is priced["to_eps"] is None
    assert priced["why"] == "nic rate: 50Gb/s has no prices; 100Gb/s, 200Gb/s, 400Gb/s, 800Gb/s have"
    run = {"experiment": "x", "results": [entry("eps", "eps", priced, 1.0)]}
    for said in (text(run), page(run)):
        assert "not priced: nic rate: 50Gb/s has no prices" in said


def test_table_and_page_tell_what_a_dollar_buys(compared: list[Json]) -> None:
    run = {"experiment": "x", "results": compared}
    lines = [line.split() for line in text(run, 80).splitlines()]
    assert ["mixnet", "$", "27.7", "k", "16.4", "1.39x"] in lines
    assert ["eps", "$", "42.2", "k", "11.8", "1.00x"] in lines
    assert "$ 27.7 k</td><td>16.4</td><td>1.39x" in page(run)


def test_a_run_that_says_nothing_of_costs_has_no_such_table() -> None:
    silent = entry("eps", "eps", {}, 1.0)
    del silent["cost"]
    run = {"experiment": "x", "results": [silent]}
    assert "million $" not in text(run)
    assert "dollar" not in page(run)


def test_predict_tells_it_too() -> None:
    done = CliRunner().invoke(predict, [str(EXAMPLES / "prototype.yaml"), "--json"])
    told = {each["fabric"]: each["cost"] for each in json.loads(done.output)["fabrics"]}
    assert told["eps"]["to_eps"] == 1.0
    assert told["mixnet"]["to_eps"] > 1.0
    shown = CliRunner().invoke(predict, [str(EXAMPLES / "prototype.yaml")], env={"COLUMNS": "120"}).output
    assert "$ 27.7 k" in shown
