"""Figures of the README and of the pages that it names are those of their sources."""

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from moefabric_studies.result_blocks import StoredResults

from moefabric.config.loader import load_experiment
from moefabric.report.summary import summaries
from moefabric.ui.cli.main import main

ROOT: Final = Path(__file__).parents[3]
STORED: Final = StoredResults(ROOT / "docs/results")
TWO_REPLICAS: Final = (
    "training.dp=2",
    "wiring.regions=[{servers: 8, ocs: {settle: 25ms}}, {servers: 8, ocs: {settle: 25ms}}]",
)


def text_of(page: str) -> str:
    """Return a page with single spaces instead of line breaks."""
    return " ".join((ROOT / page).read_text().split())


def test_fastest_valid_combination_is_the_one_of_the_readme() -> None:
    fabrics = [one for one in summaries(STORED["composition"]) if not one.is_invalid]
    fastest = min(fabrics, key=lambda one: one["iteration_s"] or math.inf)
    assert f"result: composition {fastest.result.fabric} speed_up" in text_of("README.md")


def test_readme_has_the_gains_of_occult_as_its_page_copied_them() -> None:
    """No raw result of these was kept."""
    occult = (ROOT / "docs/systems/occult.md").read_text()
    found = re.findall(r"^\| O(3|13) \|.*\| ([\d.]+)x \| emulated", occult, re.MULTILINE)
    own, copies = (f"{float(gain):.2f}" for _, gain in found)
    shown = f"iterations {own} times as fast, less than the copies alone ({copies})"
    assert shown in text_of("README.md")


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/systems/*.md")), ids=lambda page: page.stem)
def test_pages_of_systems_count_the_verdicts_of_their_runs(page: Path) -> None:
    _, _, table = page.read_text().partition("## Verdicts of the runs")
    verdicts = re.findall(r"^\| \S+/\S+ \| (pass|degraded|invalid) \|", table, re.MULTILINE)
    passed, degraded, invalid = map(verdicts.count, ("pass", "degraded", "invalid"))
    counts = f"Of {len(verdicts)} emulated fabrics, {passed} have the verdict `pass`, "
    counts += f"{degraded} `degraded` and {invalid} `invalid`"
    assert (counts in page.read_text()) == bool(verdicts)


def test_page_of_combinations_has_the_stored_verdicts() -> None:
    table = (ROOT / "docs/systems/composition.md").read_text().partition("## Verdicts of")[2]
    shown = dict(re.findall(r"^\| composition/(\S+) \| (\w+) \|", table, re.MULTILINE))
    run = STORED["composition"]
    assert shown == {one.fabric: one.fidelity.verdict for one in run.results}


def test_readme_has_the_performance_per_dollar_of_the_frontier() -> None:
    frontier = (ROOT / "docs/frontier.md").read_text()
    (columns,) = re.findall(r"^\| (servers \| NICs \| tapered.*) \|$", frontier, re.MULTILINE)
    by_rate = {}
    for rate in ("100Gb/s", "400Gb/s"):
        (cells,) = re.findall(rf"^\| (8 \| {rate} \| [\d.]+ \(.*) \|$", frontier, re.MULTILINE)
        row = zip(columns.split(" | "), cells.split(" | "), strict=True)
        by_rate[rate] = {column: cell.split()[0] for column, cell in row}
    names = {"tapered EPS": "EPS with", "mixnet": "`mixnet`, whose circuits move in no time"}
    names |= {"null model": "the mesh, without", "multihop": "the mesh, with forwarding"}
    readme = (ROOT / "README.md").read_text()
    for column, name in names.items():
        low, high = (figures[column] for figures in by_rate.values())
        assert re.search(rf"^\| {name}[^|]* \| {low} \| {high} \|$", readme, re.MULTILINE), column


def test_readme_has_the_score_of_the_papers_rows() -> None:
    page, readme = text_of("docs/paper.md"), text_of("README.md")
    (found,) = re.findall(
        r"(\d+ of \d+) rows are reproduced\*\*; \d+ are inside .*? null model in (\d+)", page
    )
    assert f"{found[0]} rows of its tables are reproduced; null models" in readme
    assert f"null models that know no network fit {found[1]}" in readme
    (testbed,) = re.findall(r"holds in (\d of \d) rows: they take ([\d.]+ to [\d.]+) times", page)
    assert "holds for {} models: {} times as long".format(*testbed) in readme


def test_readme_has_the_faults_that_verdicts_name() -> None:
    _, _, table = (ROOT / "docs/sabotage.md").read_text().partition("|---|---|---|---|\n")
    rows = re.findall(r"^\| ([a-z\d-]+) \| .* \| (\w+) \| (.*) \|$", table, re.MULTILINE)
    faults = [(verdict, reason) for name, verdict, reason in rows if name != "none"]
    unnamed = [reason for _, reason in faults if reason == "not named"]
    assert all(verdict in {"degraded", "invalid"} for verdict, _ in faults)
    assert len(unnamed) <= 1
    how = "catch all, and name all but one" if unnamed else "catch and name all"
    shown = f"{len(faults)} faults in real runs: verdicts {how}"
    assert shown in text_of("README.md")


def test_readme_has_the_simulated_times_of_greedy_senders() -> None:
    readme = text_of("README.md")
    simulated = (ROOT / "docs/truth.md").read_text()
    (row,) = re.findall(r"^\| `multihop` \| [\d.]+ to .*$", simulated, re.MULTILINE)
    cubic, dctcp = (cell.split()[0] for cell in row.split(" | ")[5:7])
    assert f"take {cubic} (CUBIC) or {dctcp} times (DCTCP) as long over the mesh" in readme


@cache
def predicted(example: str, *changes: str) -> dict[str, tuple[float, str]]:
    """Return the predicted iteration, and performance per dollar as text, of each fabric."""
    settings = [part for change in changes for part in ("--set", change)]
    path = str(ROOT / f"examples/{example}.yaml")
    outcome = CliRunner().invoke(main, ["predict", path, "--json", *settings])
    assert outcome.exit_code == 0, outcome.output
    return {
        one["fabric"]: (one["iteration_s"], f"{one['cost']['perf_per_dollar_vs_eps']:.2f}")
        for one in json.loads(outcome.output)["fabrics"]
    }


def test_readme_has_the_predicted_performance_per_dollar_of_its_examples() -> None:
    readme = text_of("README.md")
    prototype, training = predicted("prototype"), predicted("training")
    static, mixnet = prototype["static"][1], prototype["mixnet"][1]
    dollars = f"{static} times the performance per dollar of the EPS, `mixnet` {mixnet} times"
    assert dollars in readme
    static, mixnet = training["static"][1], training["mixnet"][1]
    assert f"`mixnet` has {mixnet} times and `static` {static} times" in readme


@pytest.mark.parametrize(
    "example",
    [
        *("prototype", "training", "fabrics", "forwarding"),
        pytest.param("forwarding-knowledge", marks=pytest.mark.nightly),
    ],
)
def test_circuits_that_move_give_less_per_dollar_than_fixed_ones_in_the_examples_of_the_readme(
    example: str,
) -> None:
    fabrics = load_experiment(ROOT / f"examples/{example}.yaml").fabrics
    dollars = {name: float(dollar) for name, (_, dollar) in predicted(example).items()}
    fixed = [dollars[f.name] for f in fabrics if f.policy in {"static", "uniform", "topoopt"}]
    moved = [dollars[f.name] for f in fabrics if f.policy == "mixnet"]
    assert max(moved) < min(fixed)


@pytest.mark.nightly
def test_forwarding_has_the_predictions_of_one_and_of_two_replicas() -> None:
    page, readme = (ROOT / "docs/forwarding.md").read_text(), text_of("README.md")
    one, two = predicted("forwarding"), predicted("forwarding", *TWO_REPLICAS)
    assert all(f"--set {change}" in page.replace("'", "") for change in TWO_REPLICAS)
    for fabric, (one_s, dollar) in one.items():
        two_s, dollars = two[fabric]
        cells = f"{one_s:.3f} s | {two_s:.3f} s | {two_s / two['eps'][0]:.3f}"
        row = rf"^\| `{fabric}`[^|]* \| {re.escape(cells)} \| {dollar} \| {dollars} \|$"
        assert re.search(row, page, re.MULTILINE), (fabric, cells, dollar, dollars)
    assert f"predicted: {one['multihop'][1]} and {one['uniform'][1]} times" in readme
    longer = two["multihop"][0] / two["eps"][0] - 1
    dollars = two["multihop"][1]
    assert f"take {100 * longer:.0f} % longer than on the EPS, at {dollars} times its" in readme
