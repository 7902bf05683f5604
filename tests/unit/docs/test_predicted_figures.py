"""Predictions on pages are those that the commands beside them print today."""

import re
from pathlib import Path
from statistics import median
from typing import Any, Final

import pytest
from click.testing import CliRunner

from moefabric.ui.cli.main import main
from tests.support.predictions import predicted_fabrics
from tests.unit.docs.test_readme_figures import table, text_of

ROOT: Final = Path(__file__).parents[3]
DEEPSEEK: Final = ("model.layers=58", "training.iterations=1")


def rows_of(page: str, first: str) -> list[list[str]]:
    """Return the cells of the rows of a page's table whose first heading is this one."""
    lines = (ROOT / page).read_text().splitlines()
    (start,) = (n for n, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    assert rows
    return rows


def first_s(fabric: dict[str, Any]) -> float:
    seconds: float = fabric["first_all_to_all"]["predicted_exposed_s"]
    return seconds


def test_training_has_the_predicted_time_inside_servers() -> None:
    whole, none, pcie = (
        predicted_fabrics("prototype", *changes)
        for changes in (
            (),
            ("wiring.server_paths.gather=none",),
            ("wiring.server_paths.gather=pcie",),
        )
    )
    total, *parts = (1e3 * one["mixnet"]["all_to_all_s"] for one in (whole, none, pcie))
    bare, by_pcie = parts
    text = f"gathering and scattering take {total - bare:.1f} ms of the {total:.0f} ms of an"
    text += " all-to-all of `mixnet`, and none of the EPS's"
    page = text_of("docs/training.md")
    assert text in page
    assert f"By PCIe they would take {by_pcie - bare:.0f} ms." in page
    assert whole["eps"]["all_to_all_s"] == none["eps"]["all_to_all_s"]


@pytest.mark.nightly
def test_training_has_the_predicted_first_all_to_alls_of_each_mode() -> None:
    for batch, settling, control, *cells in rows_of("docs/training.md", "micro-batch"):
        fabrics = predicted_fabrics(
            "first-all-to-all",
            f"training.micro_batch={batch}",
            f"wiring.regions=[{{servers: 8, ocs: {{settle: {settling.replace(' ', '')}}}}}]",
            f"control_time={control.replace(' ', '')}",
        )
        modes = ("block", "reuse", "predict", "divert")
        times = [f"{1e3 * first_s(fabrics[f'mixnet-{mode}']):.0f}" for mode in modes]
        assert cells == times, (batch, settling, control)


@pytest.mark.nightly
def test_forwarding_has_the_predicted_times_of_each_forwarding_rate() -> None:
    lines = (ROOT / "docs/forwarding.md").read_text().splitlines()
    (start,) = (n for n, line in enumerate(lines) if line.startswith("| `forwarding_rate` of"))
    heads, cells = ([c.strip() for c in lines[n].strip("|").split("|")] for n in (start, start + 2))
    plain = predicted_fabrics("forwarding-hosts")
    for head, cell in zip(heads[1:], cells[1:], strict=True):
        match head:
            case "none forwards":
                seconds = plain["uniform"]["all_to_all_s"]
            case "no limit":
                seconds = plain["host"]["all_to_all_s"]
            case _:
                change = f"fabrics[2].forwarding_rate={head.replace(' ', '')}"
                seconds = predicted_fabrics("forwarding-hosts", change)["host-20g"]["all_to_all_s"]
        assert cell == f"{1e3 * seconds:.1f} ms", head


@pytest.mark.nightly
def test_forwarding_has_the_predicted_cost_of_not_knowing() -> None:
    fabrics = predicted_fabrics("forwarding-knowledge", "training.iterations=40", "model.layers=4")
    eps = fabrics["eps"]
    first = {name: first_s(one) / first_s(eps) for name, one in fabrics.items()}
    whole = {name: one["iteration_s"] / eps["iteration_s"] for name, one in fabrics.items()}
    rows = rows_of("docs/forwarding.md", "split for")
    shown = [(a, b) for _, a, b in rows]
    assert shown == [(f"{first[name]:.2f}", f"{whole[name]:.3f}") for name in fabrics]
    page = text_of("docs/forwarding.md")
    loss = {name: round(100 * (first[name] / first["known"] - 1)) for name in fabrics}
    small, large = loss["wrong-10"], loss["wrong-20"]
    assert f"An error of 10 % costs {small} %, one of 20 % costs {large} %" in page
    lost = round(100 * (whole["recent"] / whole["known"] - 1))
    assert f"then {loss['recent']} % of it is lost, {lost} % of an iteration" in page
    assert f"the split of 160 layers takes {first['last']:.2f} times the EPS's time" in page
    assert f"the split for an even demand takes {first['none']:.2f} times the EPS's" in page
    longer = round(100 * (whole["mixnet-divert"] / whole["recent"] - 1))
    assert f"make iterations {longer} % longer than those of `recent`" in page


def test_forwarding_has_the_simulated_times_of_other_transports() -> None:
    names = "paced", "CUBIC, 1,000 packets", "DCTCP, 1,000 packets"
    paced, cubic, dctcp, fair = map(multihop_to_eps, (*names, f"{names[-1]}, fair hosts"))
    text = f"takes {paced} times as long as on the EPS if senders are paced, {cubic} with CUBIC"
    assert f"{text} and {dctcp} with DCTCP, {fair} if hosts queue" in text_of("docs/forwarding.md")


def multihop_to_eps(transport: str) -> str:
    mesh, eps = (
        table("truth", group="forwarding", transport=transport, fabric=fabric)
        for fabric in ("multihop", "eps")
    )
    pairs = zip(mesh, eps, strict=True)
    return f"{median(float(a['last_s']) / float(b['last_s']) for a, b in pairs):.2f}"


def test_compare_fabrics_has_the_predicted_cost_of_a_nic_per_gpu() -> None:
    whole = predicted_fabrics("prototype")
    bound = predicted_fabrics("prototype", "fabrics[0].eps.nic_per_gpu=true")
    (pooled, mixnet), (own, same) = (
        [1e3 * one[name]["all_to_all_s"] for name in ("eps", "mixnet")] for one in (whole, bound)
    )
    assert mixnet == same
    text = f"take {own:.1f} ms instead of {pooled:.1f} ms, and those of `mixnet`"
    text += f" {mixnet / own:.2f} instead of {mixnet / pooled:.2f} times as long"
    assert text in text_of("docs/guides/compare-fabrics.md")


@pytest.mark.nightly
def test_guides_have_the_predicted_all_to_alls_of_deepseek() -> None:
    recorded = predicted_fabrics("beyond-paper-deepseek-r1", *DEEPSEEK)
    generated = predicted_fabrics(
        "beyond-paper-deepseek-r1", *DEEPSEEK, "gating={generator: deepseek-prefill}"
    )
    mixnet, joint = (
        f"{recorded[name]['all_to_all_vs_eps']:.2f}" for name in ("mixnet", "mixnet-joint")
    )
    page = text_of("docs/guides/models-and-gating.md")
    assert f"`mixnet` takes {mixnet} times as long" in page
    assert f"`joint` {joint} times" in page
    gating = text_of("docs/guides/gating.md")
    assert f"and {mixnet} times with recorded loads" in gating
    again = f"{generated['mixnet']['all_to_all_vs_eps']:.2f}"
    assert f"takes {again} times the non-blocking EPS's with generated gating" in gating


STATISTICS: Final = {
    "busiest expert, to the mean": ["max over mean"],
    "coefficient of variation": ["variation"],
    "entropy": ["entropy"],
    "distance of two ranks": ["row distance"],
    "energy of rank 1": ["rank1 energy"],
    "busiest pair, to the mean": ["pair max over mean"],
    "correlation of layers": ["layer correlation"],
    "distance of two steps": ["step distance"],
    "correlation of steps 1 apart; 10 apart": ["lag1 correlation", "lag10 correlation"],
}
"""Rows of the page, and what the command calls them."""


@pytest.mark.nightly
@pytest.mark.parametrize("column", range(5))
def test_gating_has_the_statistics_that_its_commands_print(
    column: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/guides/gating.md").read_text()
    commands = re.findall(r"^moefabric (trace generate .* --replicas \d+)$", page, re.MULTILINE)
    monkeypatch.chdir(ROOT)
    outcome = CliRunner().invoke(main, commands[column].split())
    assert outcome.exit_code == 0, outcome.output
    printed = {
        name.strip(): [float(number) for number in (recorded, least, greatest)]
        for name, recorded, _, least, greatest in re.findall(
            r"^([a-z].*?) {2,}([-\d.]+) +([-\d.]+) +([-\d.]+) +([-\d.]+)$",
            outcome.output,
            re.MULTILINE,
        )
        if recorded != "-"
    }
    for statistic, *cells in rows_of("docs/guides/gating.md", "statistic"):
        parts = cells[column].split("; ") if cells[column] else []
        for name, part in zip(STATISTICS[statistic], parts, strict=bool(parts)):
            shown = re.findall(r"-?\d+\.\d+", part)
            for text, value in zip(shown, printed[name], strict=True):
                digits = len(text.partition(".")[2])
                assert float(text) == pytest.approx(value, abs=0.51 * 10**-digits), (name, part)
