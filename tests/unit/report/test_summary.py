"""Figures derived from a run's JSON."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.report.summary import changes_circuits, control_s, overall_verdict
from moefabric.results.model import RunResult
from moefabric.results.parts import ServerInterval
from moefabric.results.statistics import median_of
from tests.support.report_sample import fabrics_of


def run(*results: dict[str, Any]) -> dict[str, Any]:
    return {"experiment": "e", "results": results}


def collective(
    measured: float, predicted: float, kind: str = "dispatch", way: str = "forward"
) -> dict[str, Any]:
    return {
        "iteration": 0,
        "layer": 1,
        "kind": kind,
        "pass": way,
        "measured_s": measured,
        "predicted_s": predicted,
        "bytes": 100,
        "bytes_by_light": 75,
        "bytes_by_eps": 25,
        "dark_s": 0.025,
    }


PASS = {"verdict": "pass", "reasons": []}


def test_figures_of_a_fabric_are_medians() -> None:
    iterations = [
        {"measured_s": m, "predicted_s": 1.9, "compute_s": 1.5, "exposed_comm_s": m - 1.5}
        for m in (2.0, 2.5, 9.0)
    ]
    collectives = [collective(0.011, 0.010), collective(0.024, 0.020), collective(0.012, 0.010)]
    (fabric,) = fabrics_of(
        run(
            {
                "fabric": "eps",
                "iterations": iterations,
                "fidelity": PASS,
                "collectives": collectives,
            }
        )
    )
    assert fabric["iteration_s"] == 2.5
    assert (fabric["predicted_iteration_s"], fabric["exposed_share"]) == (1.9, 0.4)
    assert (fabric["all_to_all_s"], fabric["predicted_all_to_all_s"]) == (0.012, 0.010)
    assert fabric["error"] == pytest.approx(0.2)
    assert fabric["optical_share"] == 0.75
    assert fabric["dark_s"] == pytest.approx(0.025)


def test_only_dispatch_and_combine_are_all_to_alls() -> None:
    kinds = ["dispatch", "combine", "all-reduce"]
    rows = [collective(1, 1, kind, way) for kind in kinds for way in ("forward", "backward")]
    (fabric,) = fabrics_of(run({"fabric": "eps", "fidelity": PASS, "collectives": rows}))
    assert len(fabric.all_to_alls) == 4


def test_ratios_are_those_of_the_run_or_else_of_the_medians() -> None:
    fabrics = fabrics_of(
        run(
            {
                "fabric": "eps",
                "policy": "eps",
                "collectives": [collective(0.010, 0.010)],
                "fidelity": PASS,
            },
            {"fabric": "mixnet", "collectives": [collective(0.015, 0.014)], "fidelity": PASS},
            {
                "fabric": "spill",
                "collectives": [collective(0.011, 0.010)],
                "ratios": {"measured_vs_eps": 1.02, "predicted_vs_eps": 1.0},
                "fidelity": PASS,
            },
        )
    )
    assert [(f["vs_eps"], f["predicted_vs_eps"]) for f in fabrics] == [
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
        pytest.param([], "invalid", id="no-results"),
        pytest.param(["pass", "splendid"], "invalid", id="unknown-verdict"),
        pytest.param(["pass", None], "invalid", id="no-verdict"),
    ],
)
def test_overall_verdict_is_that_of_the_worst_fabric(
    verdicts: list[str | None], worst: str
) -> None:
    results = [{"fabric": "f", "fidelity": {"verdict": verdict}} for verdict in verdicts]
    assert overall_verdict(RunResult.model_validate(run(*results))) == worst


def test_missing_verdict_is_invalid_with_a_reason() -> None:
    (fabric,) = fabrics_of(run({"fabric": "f"}))
    assert (fabric.verdict, fabric.reasons) == ("invalid", ["the run has no verdict"])


def test_timeline_begins_at_zero() -> None:
    rows = [
        {
            "server": "s0",
            "kind": "expert",
            "pass": "backward",
            "layer": 2,
            "start_s": 5.5,
            "end_s": 6,
        },
        {
            "server": "s0",
            "kind": "dispatch",
            "pass": "forward",
            "layer": 2,
            "start_s": 5,
            "end_s": 5.25,
        },
    ]
    (fabric,) = fabrics_of(run({"fabric": "f", "timeline": rows}))
    expert, dispatch = fabric.timeline
    assert expert == ServerInterval(
        server="s0", kind="expert", direction="backward", layer=2, start_s=0.5, end_s=1.0
    )
    assert (expert.backward, dispatch.backward) == (True, False)
    assert (dispatch.start_s, dispatch.end_s) == (0.0, 0.25)


def test_phases_are_medians_and_the_control_plane_is_all_but_settle() -> None:
    changes = [
        {"divert_s": d, "settle_s": 0.025, "admit_s": 0.002, "total_s": 0.027 + d}
        for d in (0.001, 0.002, 0.009)
    ]
    (fabric,) = fabrics_of(run({"fabric": "f", "reconfigurations": changes}))
    assert fabric.phase_s("divert") == 0.002
    assert fabric.phase_s("verify") is None
    assert fabric["reconfiguration_s"] == pytest.approx(0.029)
    assert control_s(fabric.result.reconfigurations[2]) == pytest.approx(0.011)


def test_only_reconfigurations_that_change_circuits_are_timed() -> None:
    """The order of circuits is no change; a reconfiguration without circuits counts as one."""
    lit = ["s0/o0~s1/o0", "s2/o0~s3/o0"]
    rows = [
        {"circuits_before": [], "circuits_after": lit, "total_s": 0.030},
        {"circuits_before": lit, "circuits_after": lit[::-1], "total_s": 0.001},
        {"total_s": 0.040},
    ]
    (fabric,) = fabrics_of(run({"fabric": "f", "reconfigurations": rows}))
    assert [changes_circuits(r) for r in fabric.result.reconfigurations] == [True, False, True]
    assert fabric.change_count == "2 of 3"
    assert fabric["reconfiguration_s"] == pytest.approx(0.035)


def test_baseline_is_known_by_its_policy() -> None:
    rows = [{"fabric": "light", "policy": "mixnet"}, {"fabric": "fat-tree", "policy": "eps"}]
    assert [f.is_baseline for f in fabrics_of(run(*rows))] == [False, True]


def test_demand_that_is_not_square_is_ignored() -> None:
    (fabric,) = fabrics_of(run({"fabric": "f", "demand": [[0, 1], [2]]}))
    assert fabric.demand == []


@given(st.lists(st.floats(-1e300, 1e300) | st.sampled_from([math.nan, math.inf, -math.inf])))
def test_medians_ignore_missing_and_infinite_figures(values: list[float]) -> None:
    median = median_of([None, *values])
    assert (median is None) == (not any(map(math.isfinite, values)))
    assert median is None or math.isfinite(median)
