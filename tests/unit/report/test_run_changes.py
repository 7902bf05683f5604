"""Changes between runs: figures, their spread, verdicts, and what counts as a regression."""

import copy
import random
from typing import Any

import pytest

from moefabric.core.errors import SpecError
from moefabric.report.run_changes import FabricChange, FigureChange, fabric_changes, run_changes
from moefabric.results.model import InputDigest, RunResult, read_run
from tests.support.paths import GOLDEN

SAMPLE = read_run(GOLDEN / "report" / "sample.json")
TIMES = {
    "results": [
        {key: result[key] for key in ("fabric", "policy", "iterations", "collectives", "fidelity")}
        for result in SAMPLE.to_json()["results"][:2]
    ]
}
NOISE = 0.003


def rerun(
    seed: int, *, slower: float = 1.0, noise: float = NOISE, fabric: str = "mixnet"
) -> RunResult:
    """Return two fabrics of the sample with measurement noise, and one of them slower."""
    rng, document = random.Random(seed), copy.deepcopy(TIMES)
    for result in document["results"]:
        factor = slower if result["fabric"] == fabric else 1.0
        for part in (*result["collectives"], *result["iterations"]):
            part["measured_s"] = part["predicted_s"] * factor * rng.gauss(1, noise)
            part.pop("error", None)
    return RunResult.model_validate(document)


def changed(document: dict[str, Any], fabric: str, **values: Any) -> dict[str, Any]:
    results = [r | values if r["fabric"] == fabric else r for r in document["results"]]
    return document | {"results": results}


def figures(changes: Any, fabric: str = "mixnet") -> dict[str, FigureChange]:
    (found,) = [entry for entry in changes.fabrics if entry.fabric == fabric]
    return {figure.figure: figure for figure in found.figures}


def test_equal_runs_have_no_change() -> None:
    changes = run_changes([SAMPLE], SAMPLE)
    assert not changes.is_regression
    assert not changes.is_invalid
    itself = "a run is compared with itself: the files have the same results"
    assert changes.remarks == (itself,)
    assert run_changes([SAMPLE, SAMPLE], rerun(1)).remarks[0] == itself
    assert run_changes([rerun(1)], rerun(2)).remarks == ()
    assert {f.change for entry in changes.fabrics for f in entry.figures} == {0.0}


def test_fabric_is_not_compared_with_itself() -> None:
    with pytest.raises(SpecError, match=r"^fabrics: mixnet is given twice: name two fabrics of"):
        fabric_changes(SAMPLE, "mixnet", "mixnet")


def test_other_policy_with_the_same_circuits_is_remarked() -> None:
    document = SAMPLE.to_json()
    again = RunResult.model_validate(changed(document, "mixnet", policy="greedy"))
    remark = "mixnet: the same circuits in all all-to-alls by mixnet before and greedy now"
    assert run_changes([SAMPLE], again).remarks == (remark,)


def test_slower_fabric_is_a_regression_with_its_amount() -> None:
    changes = run_changes([rerun(1)], rerun(2, slower=1.05))
    assert [entry.fabric for entry in changes.fabrics if entry.is_regression] == ["mixnet"]
    change = figures(changes)["all-to-all"]
    assert change.outcome == "regression"
    assert change.change == pytest.approx(0.05, abs=0.005)
    assert change.samples == 84
    assert change.exceeds_spread
    back = figures(run_changes([rerun(2, slower=1.05)], rerun(1)))["all-to-all"]
    assert back.outcome == "improvement"
    assert back.change == pytest.approx(1 / 1.05 - 1, abs=0.005)


def test_times_before_and_after_are_those_of_the_iterations_that_both_runs_have() -> None:
    before, after = rerun(1).to_json(), rerun(2, slower=1.05).to_json()
    [mixnet] = [r for r in before["results"] if r["fabric"] == "mixnet"]
    slow = {**mixnet["iterations"][-1], "iteration": 99, "measured_s": 1000.0}
    mixnet["iterations"] += [slow, {**slow, "iteration": 100}]
    changes = run_changes([RunResult.model_validate(before)], RunResult.model_validate(after))
    change = figures(changes)["iteration"]
    assert change.before is not None
    assert change.after is not None
    assert change.after / change.before - 1 == change.change
    assert change.outcome == "regression"
    assert change.samples_before == change.samples + 2
    assert change.samples_after == change.samples


def test_change_below_the_threshold_is_none() -> None:
    change = figures(run_changes([rerun(1)], rerun(2, slower=1.015)))["all-to-all"]
    assert (change.outcome, change.exceeds_spread) == ("same", True)
    strict = run_changes([rerun(1)], rerun(2, slower=1.015), threshold=0.01)
    assert figures(strict)["all-to-all"].outcome == "regression"


def test_change_within_the_spread_is_no_regression() -> None:
    noisy = [rerun(seed, noise=0.1) for seed in (1, 2)]
    change = figures(run_changes(noisy[:1], noisy[1], threshold=0.0))["iteration"]
    assert change.outcome == "within spread"
    assert change.exceeds_spread is False


def test_spread_covers_nineteen_of_twenty_repetitions() -> None:
    pairs = [(rerun(n), rerun(n + 1)) for n in range(1000, 1200, 2)]
    changes = [figures(run_changes([before], after)) for before, after in pairs]
    for figure in ("iteration", "all-to-all"):
        exceeded = [change[figure].exceeds_spread for change in changes]
        assert 0 < sum(map(bool, exceeded)) < 0.1 * len(pairs)


def test_several_earlier_runs_show_how_much_runs_differ() -> None:
    drifting = [rerun(seed, slower=slower) for seed, slower in ((1, 0.98), (2, 1.0), (3, 1.02))]
    alone = figures(run_changes(drifting[1:2], rerun(4, slower=1.05)))["all-to-all"]
    change = figures(run_changes(drifting, rerun(4, slower=1.05)))["all-to-all"]
    assert alone.outcome == "regression"
    assert change.outcome == "within spread", "runs of the same thing differ as much"
    assert alone.spread is not None
    assert change.spread is not None
    assert change.spread == pytest.approx(4.303 * 0.02 * (4 / 3) ** 0.5, rel=0.1)
    far = figures(run_changes(drifting, rerun(4, slower=1.2)))["all-to-all"]
    assert far.outcome == "regression"


def test_less_light_is_a_regression() -> None:
    document = SAMPLE.to_json()
    entry = document["results"][1]
    collectives = [
        c | {"bytes_by_light": c["bytes_by_light"] // 2, "bytes_by_eps": c["bytes_by_light"] // 2}
        for c in entry["collectives"]
    ]
    less = RunResult.model_validate(changed(document, "mixnet", collectives=collectives))
    change = figures(run_changes([SAMPLE], less))["optical share"]
    assert change.outcome == "regression"
    assert change.change == pytest.approx(-0.5, abs=1e-3)
    assert figures(run_changes([less], SAMPLE))["optical share"].outcome == "improvement"


@pytest.mark.parametrize(
    ("before", "after", "regression"),
    [("pass", "degraded", True), ("pass", "invalid", True), ("invalid", "pass", False)],
)
def test_worse_verdict_is_a_regression(before: str, after: str, regression: bool) -> None:
    runs = [
        RunResult.model_validate(changed(SAMPLE.to_json(), "eps", fidelity={"verdict": verdict}))
        for verdict in (before, after)
    ]
    changes = run_changes(runs[:1], runs[1])
    assert changes.is_regression is regression
    assert changes.is_invalid is ("invalid" in (before, after))


def test_missing_fabric_is_a_regression_and_a_new_one_is_none() -> None:
    fewer = SAMPLE.model_copy(update={"results": SAMPLE.results[:-1]})
    changes = run_changes([SAMPLE], fewer)
    assert changes.fabrics[-1] == FabricChange("static", SAMPLE.results[-1].fidelity.verdict, None)
    assert changes.is_regression
    more = run_changes([fewer], SAMPLE)
    assert more.fabrics[-1].before is None
    assert not more.is_regression


def test_runs_of_another_kind_are_remarked() -> None:
    manifest = SAMPLE.manifest.model_copy(update={"host": "other", "seed": 9})
    other = SAMPLE.model_copy(update={"experiment": "training", "manifest": manifest})
    assert run_changes([SAMPLE], other).remarks == (
        "the experiments differ: prototype before, training now",
        f"the machines differ: {SAMPLE.manifest.host} before, other now",
        f"the seeds differ: {SAMPLE.manifest.seed} before, 9 now",
    )


def with_inputs(**digests: str) -> RunResult:
    """Return a run whose files, by key, have these digests."""
    inputs = [
        InputDigest(key=f"gating.{key}", file=f"{key}.npz", sha256=digest * 64)
        for key, digest in digests.items()
    ]
    manifest = SAMPLE.manifest.model_copy(update={"inputs": inputs})
    return SAMPLE.model_copy(update={"manifest": manifest})


def test_runs_of_other_inputs_are_remarked_with_the_key_and_the_file() -> None:
    before = with_inputs(trace="a", fit="b")
    assert "inputs" not in str(run_changes([before], with_inputs(trace="a", fit="b")).remarks)
    assert run_changes([before], SAMPLE).remarks == (), "a file without digests"
    assert run_changes([before], with_inputs(trace="c", fit="b")).remarks == (
        "the inputs differ: gating.trace trace.npz is aaaaaaaaaaaa before, cccccccccccc now",
    )


def test_runs_of_other_code_of_a_policy_are_remarked_with_module_and_version() -> None:
    def run(file: str, digest: str) -> RunResult:
        inputs = [InputDigest(key="code mine", file=file, sha256=digest * 64)]
        manifest = SAMPLE.manifest.model_copy(update={"inputs": inputs})
        return SAMPLE.model_copy(update={"manifest": manifest})

    before = run("mine.py of mine 1", "a")
    assert "inputs" not in str(run_changes([before], before).remarks)
    start = "the inputs differ: code mine mine.py of mine 1 is aaaaaaaaaaaa before"
    assert run_changes([before], run("mine.py of mine 1", "b")).remarks == (
        f"{start}, bbbbbbbbbbbb now",
    )
    assert run_changes([before], run("mine.py of mine 2", "a")).remarks == (
        f"{start}, mine.py of mine 2 aaaaaaaaaaaa now",
    )


def test_figures_that_were_not_measured_are_named_so() -> None:
    empty = RunResult.model_validate(changed(SAMPLE.to_json(), "mixnet", iterations=[]))
    change = figures(run_changes([SAMPLE], empty))["iteration"]
    assert (change.outcome, change.change, change.samples) == ("not measured", None, 0)


def test_earlier_runs_are_needed_and_share_a_fabric() -> None:
    with pytest.raises(SpecError, match="an earlier run is needed"):
        run_changes([], SAMPLE)
    halves = [SAMPLE.model_copy(update={"results": SAMPLE.results[n : n + 1]}) for n in (0, 1)]
    with pytest.raises(SpecError, match="no fabric in common"):
        run_changes(halves, SAMPLE)
