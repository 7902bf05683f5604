"""First all-to-alls in the report: on the terminal, on the page, and nowhere when there is nothing to compare."""

from typing import Any

import pytest

from moefabric.report import first, page, table


def entry(name: str, policy: str, exposed_s: float, predicted_s: float, **more: Any) -> dict[str, Any]:
    """One fabric's result, as far as its first all-to-alls go."""
    seen = {
        "policy": policy, "exposed_s": exposed_s, "predicted_exposed_s": predicted_s, "waited_s": 0.026,
        "predicted_wait_s": 0.025, "ideal_s": 0.1, **more,
    }  # fmt: skip
    moved = [{"circuits_before": [], "circuits_after": ["s0/o0~s1/o0"]}]
    return {"fabric": name, "policy": "mixnet", "first_all_to_all": seen, "reconfigurations": moved}


FORESIGHT = {
    "guessed": 6, "unguessed": 2, "top_k": 4, "top_k_hits": 0.75, "unchanged_hits": 0.2, "random_hits": 0.25,
    "wrong_guess_s": 0.004,
}  # fmt: skip
RUN = {
    "experiment": "firsts",
    "results": [
        entry("waits", "block", 0.126, 0.125),
        entry("foresees", "predict", 0.110, 0.100, foresight=FORESIGHT),
        {"fabric": "eps", "policy": "eps", "first_all_to_all": {"policy": "block", "exposed_s": 0.05}},
        {"fabric": "old", "policy": "mixnet"},
    ],
}


def test_every_fabric_that_says_is_told_with_measured_and_predicted() -> None:
    waits, foresees, eps = first.firsts(RUN)
    assert (waits.fabric, waits.policy, waits.exposed_s, waits.predicted_s) == (
        "waits",
        "block",
        0.126,
        0.125,
    )
    assert waits.error == pytest.approx(0.008)
    assert foresees.error == pytest.approx(0.1)
    assert foresees.guesses == "6 of 8"
    assert foresees.foreseen == "75.0 % of the 4 busiest experts (layer before: 20.0 %, at random: 25.0 %)"
    assert (eps.policy, eps.error, eps.foreseen) == ("\N{EN DASH}", None, "")


def test_a_run_in_which_all_block_has_nothing_to_compare() -> None:
    assert first.firsts({"results": [entry("waits", "block", 0.126, 0.125)]}) == []


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_tells_them_beneath_the_fabrics(width: int) -> None:
    said = table.text(RUN, width)
    assert max(map(len, said.splitlines())) <= width
    row = next(line for line in said.splitlines() if line.startswith("foresees") and "predict" in line)
    assert " ".join(row.split()) == "foresees predict 110 ms +10.0 % 26.0 ms 100 ms 75.0 %, +4.00 ms"


def test_the_page_draws_them() -> None:
    drawn = page.page(RUN)
    assert "The first all-to-all of a layer" in drawn
    assert "waited: 26.0 ms" in drawn
    assert "6 of 8" in drawn


def test_a_page_of_runs_without_them_says_nothing_of_them() -> None:
    assert "The first all-to-all of a layer" not in page.page({"experiment": "x", "results": []})
