"""Figures of the README and of the pages that it names are those of their sources."""

import csv
import json
import math
import re
from pathlib import Path
from statistics import median
from typing import Final

import pytest
import yaml
from moefabric_studies.paper.frontier.results import geometric_mean
from moefabric_studies.raw_tables import read_table
from moefabric_studies.result_blocks import StoredResults

from moefabric.config.loader import load_experiment
from moefabric.core.network_cost import FIBRE_USD, PRICES, NetworkInventory, network_usd
from moefabric.report.summary import summaries
from tests.sabotage.faults import SABOTAGE
from tests.support.predictions import predicted_fabrics

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


def test_readme_has_the_gains_of_occult() -> None:
    stored = json.loads((ROOT / "docs/results/systems/occult.json").read_text())
    claims = {claim["id"]: claim for claim in stored["claims"]}
    own, copies = (claims[name] for name in ("O3", "O13"))
    shown = f"iterations {own['value']:.2f} times as fast, less than the copies alone"
    shown += f" ({copies['value']:.2f}; both `degraded`)"
    assert [own["runs_verdict"], copies["runs_verdict"]] == ["degraded"] * 2
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


def table(name: str, **wanted: str) -> list[dict[str, str]]:
    """Return the rows of a stored table whose columns have these values."""
    _, rows = read_table(ROOT / f"docs/results/{name}.csv")
    return [row for row in rows if wanted.items() <= row.items()]


def test_readme_has_the_performance_per_dollar_of_the_frontier() -> None:
    names = {"eps-tapered": "EPS with", "mixnet": "`mixnet`, whose circuits move in no time"}
    names |= {"spill-even": "the mesh, without", "multihop": "the mesh, with forwarding"}
    readme = (ROOT / "README.md").read_text()
    for policy, name in names.items():
        cells = []
        for rate in ("100", "400"):
            rows = table("frontier", servers="8", rate_gbps=rate, policy=policy)
            assert len(rows) == 5
            cells.append(f"{geometric_mean(float(row['efficiency']) for row in rows):.2f}")
        low, high = cells
        line = rf"^\| {name}[^|]* \| {low} \| {high} \|$"
        assert re.search(line, readme, re.MULTILINE), policy


def test_forwarding_has_the_price_of_the_tapered_eps_relative_to_the_mesh() -> None:
    tapered, mesh = NetworkInventory(1, 8, oversubscription=8), NetworkInventory(1, 1, 0, 7)
    as_listed, with_copper = [], []
    for rate_bps in (100e9, 400e9):
        price = PRICES[rate_bps]
        usd, mesh_usd = (network_usd(network, rate_bps) for network in (tapered, mesh))
        leaf_usd = 2 * price.transceiver + FIBRE_USD
        panel_usd = price.transceiver + price.patch_port + FIBRE_USD
        as_listed.append(f"{usd / mesh_usd:.2f}")
        with_copper.append(f"{(usd - 8 * leaf_usd) / (mesh_usd - leaf_usd - 7 * panel_usd):.2f}")
    page = text_of("docs/forwarding.md")
    assert f"which is {' and '.join(as_listed)} times as much: the ratio of their prices" in page
    copper = f"without transceivers, fibres and panel, it would be {' and '.join(with_copper)}"
    assert copper in page


def test_readme_has_the_score_of_the_papers_rows() -> None:
    page, readme = text_of("docs/paper.md"), text_of("README.md")
    (found,) = re.findall(
        r"%\*\*; (\d+ of \d+) rows are reproduced; \d+ are inside .*? null model in (\d+)", page
    )
    assert f"{found[0]} rows of its tables are reproduced; null models" in readme
    assert f"null models that know no network fit {found[1]}" in readme
    (distance,) = re.findall(r"\*\*The (median distance to the paper is .*? %)\*\*", page)
    assert f"The {distance}. " in readme
    (testbed,) = re.findall(r"holds in (\d of \d) rows: they take ([\d.]+ to [\d.]+) times", page)
    assert "holds for {} models: {} times as long".format(*testbed) in readme
    speeds = re.findall(r"\| [a-z]+-moe \| ([\d.]+) of 312 Tflop/s \|", page)
    assert f"published times need GPUs at {' and '.join(speeds)} times their peak" in readme


def test_page_of_faults_names_the_culprit_of_each_and_readme_has_their_number() -> None:
    faults, _, _ = (ROOT / "docs/sabotage.md").read_text().partition("## The same run")
    _, _, table = faults.partition("|---|---|---|---|\n")
    cells = re.findall(r"^\| (\S+) \| (.*) \| (\w+) \| (.*) \|$", table, re.MULTILINE)
    rows = {name: (fault, verdict, reason) for name, fault, verdict, reason in cells}
    assert [*rows] == ["none", *(one.name for one in SABOTAGE)]
    for one in SABOTAGE:
        fault, verdict, reason = rows[one.name]
        assert (fault, verdict in {"degraded", "invalid"}) == (one.fault, True)
        assert re.search(one.culprit, reason.replace("\\|", "|")), one.name
    shown = f"{len(SABOTAGE)} faults in real runs: verdicts catch and name all"
    assert shown in text_of("README.md")


def test_readme_has_the_simulated_times_of_greedy_senders() -> None:
    times = []
    for transport in ("CUBIC", "DCTCP", "CUBIC, warm", "DCTCP, warm"):
        control, *warm = transport.split(", ")
        name = ", ".join([control, "1,000 packets", *warm])
        of_eps, of_mesh = (
            {
                row["demand"]: float(row["last_s"])
                for row in table("truth", group="forwarding", transport=name, fabric=fabric)
            }
            for fabric in ("eps", "multihop")
        )
        assert of_eps.keys() == of_mesh.keys()
        times.append(f"{median(of_mesh[demand] / of_eps[demand] for demand in of_eps):.2f}")
    cubic, dctcp, warm_cubic, warm_dctcp = times
    shown = f"take {cubic} (CUBIC) or {dctcp} times (DCTCP) as long over the mesh as over the EPS"
    shown += f" in ns-3; over connections as warm as a run's, {warm_cubic} or {warm_dctcp} times"
    assert shown in text_of("README.md")


def test_page_of_simulators_has_the_stored_times_of_forwarding() -> None:
    _, _, page = (ROOT / "docs/truth.md").read_text().partition("\n## Forwarding by servers\n")
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    head, *shown = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[:5])
    assert len(shown) == 4
    for column in range(head.index("paced"), len(head)):
        ends = {
            (row["fabric"], row["demand"]): float(row["last_s"])
            for row in table("truth", group="forwarding", transport=head[column])
        }
        for row in shown:
            fabric = row[0].strip("`")
            ratios = [s / ends["eps", demand] for (one, demand), s in ends.items() if one == fabric]
            assert len(ratios) == 4
            text = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            assert row[column] == text, (fabric, head[column])


def runs_of_commit(name: str) -> dict[str, list[dict[str, str]]]:
    """Return the rows of all quiet runs of a stored result's example and commit, by their start."""
    source = STORED[name].manifest.provenance
    assert source is not None
    runs: dict[str, list[dict[str, str]]] = {}
    with (ROOT / "docs/results/quiet-runs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            of_example = row["command"] == f"examples/{name}.yaml"
            if of_example and str(source.commit).startswith(row["commit"]):
                runs.setdefault(row["started"], []).append(row)
    return dict(sorted(runs.items()))


def test_readme_says_which_of_three_runs_of_the_prototype_it_shows() -> None:
    runs = runs_of_commit("prototype")
    assert len(runs) == 3
    assert next(iter(runs)) == STORED["prototype"].manifest.started
    assert [row["verdict"] for rows in runs.values() for row in rows] == ["pass"] * 12
    text = "the first of three in a row; all twelve fabrics of these are `pass`"
    assert text in text_of("README.md")


def test_readme_says_which_of_two_runs_of_moving_light_it_shows() -> None:
    first, second = (runs := runs_of_commit("moving-light"))
    assert second == STORED["moving-light"].manifest.started
    assert {row["verdict"] for row in runs[second]} == {"pass"}
    (late,) = (row for row in runs[first] if row["verdict"] != "pass")
    assert (late["fabric"], late["verdict"]) == ("joint", "degraded")
    text = "in the first, `joint` was `degraded`, because its iterations took"
    text += f" {float(late['iteration']):.1f} % longer than predicted"
    assert text in text_of("README.md")


def test_readme_says_how_later_runs_of_the_demo_ended() -> None:
    last: dict[str, list[str]] = {}
    with (ROOT / "docs/results/quiet-runs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["commit"] == "dea1f7a7" and row["command"].startswith("examples/"):
                last.setdefault(row["command"], []).append(row["verdict"])
                assert (
                    row["verdict"] == "pass" or "not judged (failures, CPU steal)" in row["reasons"]
                )
    assert [sorted(verdicts) for verdicts in last.values()] == [
        ["invalid", "pass", "pass", "pass"],
        ["degraded", "degraded", "degraded", "pass"],
    ]
    text = "three `pass` and one `invalid` (`static`), and one of the second experiment one `pass`"
    assert f"{text} and three `degraded`" in text_of("README.md")


def test_runs_take_as_many_minutes_as_readme_says() -> None:
    with (ROOT / "docs/results/quiet-runs.csv").open(newline="") as file:
        latest = {row["command"]: round(float(row["seconds"]) / 60) for row in csv.DictReader(file)}
    readme = (ROOT / "README.md").read_text()
    minutes = dict(re.findall(r"moefabric run (\S+) +# .*; (\d+) minutes$", readme, re.MULTILINE))
    assert len(minutes) == len(re.findall(r"\d+ minutes", readme)) == 2
    assert {name: latest[name] for name in minutes} == {k: int(v) for k, v in minutes.items()}


def test_readme_has_the_range_of_five_models_with_packets() -> None:
    times, gains = list[float](), list[float]()
    for file in (ROOT / "docs/results").glob("forwarding-*-*.json"):
        by_name = {one.name: one for one in summaries(STORED[file.stem])}
        mesh, eps = by_name["multihop"], by_name["eps"]
        assert not mesh.is_invalid
        assert not eps.is_invalid
        times.append((mesh["iteration_s"] or math.inf) / (eps["iteration_s"] or 0))
        gains.append(mesh["perf_per_dollar_vs_eps"] or math.inf)
    assert len(times) == 5
    text = f"{min(times):.3f} to {max(times):.3f} times as long, at"
    text += f" {min(gains):.2f} to {max(gains):.2f} times the performance"
    assert text in text_of("README.md")


def test_readme_has_the_ranges_of_the_frontier() -> None:
    frontier, readme = (ROOT / "docs/frontier.md").read_text(), text_of("README.md")
    mesh = table("frontier", servers="8", policy="multihop")
    iterations = [float(row["iteration"]) for row in mesh if row["rate_gbps"]]
    assert len(iterations) == 20
    times = f"{min(iterations):.2f} to {max(iterations):.2f} times as long as on the EPS"
    assert f"Iterations take {times}" in readme
    skewed, *larger = (
        float(row["all_to_all"])
        for servers in ("8", "16", "32")
        for row in table("frontier", servers=servers, policy="spill-even")
        if row["model"] == "recorded run, most" or (servers != "8" and row["rate_gbps"])
    )
    low, high = round(min(larger)), round(max(larger))
    times = f"up to {skewed:.1f} times as long as the EPS's, and {low} to {high} times in"
    assert times in readme
    (networks,) = re.findall(r"compares (\d+ networks, each with) 5 models", frontier)
    assert f"{networks} five models" in readme


def test_readme_has_the_gain_with_servers_in_the_dollar() -> None:
    by_name = {one.name: one for one in summaries(STORED["forwarding"])}
    (text,) = re.findall(r"With ([\d,]+) USD for a server", text_of("README.md"))
    server_usd = float(text.replace(",", ""))

    def dollar_seconds(fabric: str) -> float:
        one = by_name[fabric]
        network_usd, seconds = one["network_usd"] or math.nan, one["iteration_s"] or math.nan
        return (server_usd + network_usd / (one.result.wiring.servers or 1)) * seconds

    gain = dollar_seconds("eps") / dollar_seconds("multihop")
    assert f"the mesh of the run below has {gain:.2f} times the EPS's" in text_of("README.md")


def predicted(example: str, *changes: str) -> dict[str, tuple[float, str, int]]:
    """Return the predicted iteration, performance per dollar as text, and moves of each fabric."""
    return {
        name: (
            one["iteration_s"],
            f"{one['cost']['perf_per_dollar_vs_eps']:.2f}",
            one["reconfigurations"],
        )
        for name, one in predicted_fabrics(example, *changes).items()
    }


FIXED: Final = {"static", "uniform", "topoopt"}
MADE_UP: Final = "moving-light"
BOTH: Final = ["fabrics", "forwarding", "forwarding-knowledge", "prototype", "training"]
"""Examples with `mixnet` and with circuits that never move, whose demand was not made up."""


def test_examples_with_moving_and_with_fixed_circuits_are_those_that_the_readme_counts() -> None:
    found = set()
    for file in (ROOT / "examples").glob("*.yaml"):
        fabrics = yaml.safe_load(file.read_text()).get("fabrics", ())
        used = {fabric["policy"] for fabric in fabrics}
        if "mixnet" in used and used & FIXED:
            found.add(file.stem)
    assert found == {*BOTH, MADE_UP}
    assert "In all five of `examples/` that have both" in text_of("README.md")


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(name, marks=[pytest.mark.nightly] * (name == "forwarding-knowledge"))
        for name in BOTH
    ],
)
def test_circuits_that_move_give_less_per_dollar_than_fixed_ones_in_the_examples_of_the_readme(
    example: str,
) -> None:
    fabrics = load_experiment(ROOT / f"examples/{example}.yaml").fabrics
    dollars = {name: float(dollar) for name, (_, dollar, _) in predicted(example).items()}
    fixed = [dollars[f.name] for f in fabrics if f.policy in FIXED]
    moved = [dollars[f.name] for f in fabrics if f.policy == "mixnet"]
    assert max(moved) < min(fixed)


@pytest.mark.nightly
def test_forwarding_has_the_predictions_of_one_and_of_two_replicas() -> None:
    page, readme = (ROOT / "docs/forwarding.md").read_text(), text_of("README.md")
    one, two = predicted("forwarding"), predicted("forwarding", *TWO_REPLICAS)
    assert all(f"--set {change}" in page.replace("'", "") for change in TWO_REPLICAS)
    for fabric, (one_s, dollar, _) in one.items():
        two_s, dollars, _ = two[fabric]
        cells = f"{one_s:.3f} s | {two_s:.3f} s | {two_s / two['eps'][0]:.3f}"
        row = rf"^\| `{fabric}`[^|]* \| {re.escape(cells)} \| {dollar} \| {dollars} \|$"
        assert re.search(row, page, re.MULTILINE), (fabric, cells, dollar, dollars)
    assert f"predicted: {one['multihop'][1]} and {one['uniform'][1]} times" in readme
    longer = two["multihop"][0] / two["eps"][0] - 1
    dollars = two["multihop"][1]
    assert f"take {100 * longer:.0f} % longer than on the EPS, at {dollars} times its" in readme
