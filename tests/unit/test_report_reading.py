"""What is read out of a run's JSON."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.report import reading
from moefabric.report.result import Interval, baseline, overall


def run(*results: dict[str, Any]) -> dict[str, Any]:
    """A run of these results, its numbers as JSON would give them."""
    read: dict[str, Any] = json.loads(json.dumps({"experiment": "e", "results": results}))
    return read


def collective(measured: float, predicted: float, kind: str = "dispatch") -> dict[str, Any]:
    return {
        "iteration": 0, "layer": 1, "kind": kind, "measured_s": measured, "predicted_s": predicted,
        "bytes": 100, "bytes_by_light": 75, "bytes_by_eps": 25, "dark_s": 0.025,
    }  # fmt: skip


PASS = {"verdict": "pass", "reasons": []}


def test_the_figures_of_a_fabric_are_medians() -> None:
    iterations = [
        {"measured_s": m, "predicted_s": 1.9, "compute_s": 1.5, "exposed_comm_s": m - 1.5}
        for m in (2.0, 2.5, 9.0)
    ]
    (result,) = reading.results(
        run({
            "fabric": "eps", "iterations": iterations, "fidelity": PASS,
            "collectives": [collective(0.011, 0.010), collective(0.024, 0.020), collective(0.012, 0.010)],
        })
    )  # fmt: skip
    assert (result.iteration_s, result.predicted_iteration_s, result.exposed_share) == (2.5, 1.9, 0.4)
    assert (result.measured_s, result.predicted_s) == (0.012, 0.010)
    assert result.error == pytest.approx(0.2)
    assert result.light_share == 0.75
    assert result.dark_s == pytest.approx(0.025)


def test_only_dispatch_and_combine_are_all_to_alls() -> None:
    kinds = ["dispatch", "combine", "backward-dispatch", "backward-combine", "all-reduce"]
    (result,) = reading.results(
        run({"fabric": "eps", "fidelity": PASS, "collectives": [collective(1, 1, k) for k in kinds]})
    )
    assert len(result.all_to_alls) == 4


def test_the_ratio_to_eps_is_the_runs_own_or_else_that_of_the_medians() -> None:
    results = reading.results(
        run(
            {"fabric": "eps", "fidelity": PASS, "collectives": [collective(0.010, 0.010)]},
            {"fabric": "mixnet", "fidelity": PASS, "collectives": [collective(0.015, 0.014)]},
            {
                "fabric": "spill", "fidelity": PASS, "collectives": [collective(0.011, 0.010)],
                "ratios": {"measured_vs_eps": 1.02, "predicted_vs_eps": 1.0},
            },
        )
    )  # fmt: skip
    assert [(r.ratio_measured, r.ratio_predicted) for r in results] == [
        (1.0, 1.0),
        (pytest.approx(1.5), pytest.approx(1.4)),
        (1.02, 1.0),
    ]


@pytest.mark.parametrize(
    ("verdicts", "worst"),
    [
        pytest.param(["pass", "pass"], "pass", id="all-pass"),
        pytest.param(["degraded", "pass"], "degraded", id="one-degraded"),
        pytest.param(["pass", "invalid", "degraded"], "invalid", id="one-invalid"),
        pytest.param([], "invalid", id="no-results-prove-nothing"),
        pytest.param(["pass", "splendid"], "invalid", id="unknown-verdict"),
        pytest.param(["pass", None], "invalid", id="no-verdict"),
    ],
)
def test_a_run_is_as_good_as_its_worst_fabric(verdicts: list[str | None], worst: str) -> None:
    results = reading.results(run(*({"fabric": "f", "fidelity": {"verdict": v}} for v in verdicts)))
    assert overall(results) == worst


def test_a_missing_verdict_is_told_as_a_reason() -> None:
    (result,) = reading.results(run({"fabric": "f"}))
    assert (result.verdict, result.reasons) == ("invalid", ("the run carries no verdict",))


@pytest.mark.parametrize(
    "written",
    [
        pytest.param([["s0/o0", "s3/o2"]], id="pairs"),
        pytest.param(["s0/o0~s3/o2"], id="names"),
    ],
)
def test_circuits_are_read_in_both_spellings(written: list[Any]) -> None:
    (result,) = reading.results(run({"fabric": "f", "circuits": written}))
    assert result.circuits == (("s0/o0", "s3/o2"),)


def test_a_timeline_begins_at_zero_and_knows_its_pass() -> None:
    rows = [
        {
            "server": "s0",
            "kind": "backward-expert",
            "pass": "backward",
            "layer": 2,
            "start_s": 5.5,
            "end_s": 6.0,
        },
        {"server": "s0", "kind": "dispatch", "pass": "forward", "layer": 2, "start_s": 5.0, "end_s": 5.25},
        {"server": "s0", "kind": "dispatch", "pass": "forward", "layer": 2, "start_s": 5.0, "end_s": None},
    ]
    (result,) = reading.results(run({"fabric": "f", "timeline": rows}))
    assert result.timeline == (
        Interval("s0", "expert", backward=True, layer=2, start_s=0.5, end_s=1.0),
        Interval("s0", "dispatch", backward=False, layer=2, start_s=0.0, end_s=0.25),
    )


def test_phases_are_medians_and_the_control_plane_is_all_but_settle() -> None:
    changes = [
        {"divert_s": d, "settle_s": 0.025, "admit_s": 0.002, "total_s": 0.027 + d}
        for d in (0.001, 0.002, 0.009)
    ]
    (result,) = reading.results(run({"fabric": "f", "reconfigurations": changes}))
    assert result.phase_s("divert") == 0.002
    assert result.phase_s("verify") is None
    assert result.total_s == pytest.approx(0.029)
    assert result.reconfigurations[2].control_s == pytest.approx(0.011)


def test_only_reconfigurations_that_moved_light_are_timed() -> None:
    """Circuits lit already, in whatever order they are named, are no change; counts alone can't tell and are taken for one."""
    lit = ["s0/o0~s1/o0", "s2/o0~s3/o0"]
    rows = [
        {"circuits_before": [], "circuits_after": lit, "total_s": 0.030},
        {"circuits_before": lit, "circuits_after": lit[::-1], "total_s": 0.001},
        {"circuits_before": 6, "circuits_after": 6, "total_s": 0.040},
    ]
    (result,) = reading.results(run({"fabric": "f", "reconfigurations": rows}))
    assert [r.moved for r in result.reconfigurations] == [True, False, True]
    assert result.count == "2 of 3"
    assert result.total_s == pytest.approx(0.035)


def test_the_baseline_is_known_by_its_policy() -> None:
    rows = [{"fabric": "light", "policy": "mixnet"}, {"fabric": "fat-tree", "policy": "eps"}]
    base = baseline(reading.results(run(*rows)))
    assert base is not None
    assert base.name == "fat-tree"


def test_a_matrix_that_is_not_square_is_no_demand() -> None:
    (result,) = reading.results(run({"fabric": "f", "demand": [[0, 1], [2]]}))
    assert result.demand == ()


@given(st.lists(st.floats(0.001, 10), min_size=2, max_size=50))
def test_most_errors_lie_below_the_95th_percentile(measured: list[float]) -> None:
    (result,) = reading.results(run({"fabric": "f", "collectives": [collective(m, 1.0) for m in measured]}))
    limit = result.error_p95
    assert limit is not None
    above = sum(1 for m in measured if abs(m - 1.0) > limit + 1e-12)
    assert above <= math.ceil(0.05 * len(measured))
