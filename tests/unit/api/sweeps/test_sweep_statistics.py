"""Means, intervals, ratios, and the page that shows them."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from moefabric.api.sweeps.outcome import axis_names, sweep_outcome
from moefabric.api.sweeps.page import figure_cell, ratio_cell, sweep_page, sweep_pictures
from moefabric.api.sweeps.results import RunRecord
from moefabric.api.sweeps.summary import Sample, SweepResult, point_fabrics
from tests.support.sweep_runs import RATES, sweep_spec

SETTLE = "wiring.regions[0].ocs.settle"


def record(
    point: int, values: dict[str, Any], times: dict[str, float], verdict: str = "pass", **more: Any
) -> RunRecord:
    """Return a run whose fabrics have these iteration times."""
    fabrics = [
        {"fabric": name, "policy": name, "verdict": verdict, "figures": {"iteration_s": time}}
        for name, time in times.items()
    ]
    common = {"run": "x", "point": point, "values": values, "seed": 1, "repetition": 0}
    attempts = [{"host": "here"}]
    return RunRecord.model_validate(common | {"attempts": attempts, "fabrics": fabrics} | more)


def test_interval_has_the_quantile_of_students_t() -> None:
    sample = Sample((10.0, 12.0, 14.0, 16.0))
    low, high = sample.interval or (0.0, 0.0)
    assert (sample.n, sample.mean) == (4, 13.0)
    assert low == pytest.approx(13 - 4.1083, abs=1e-3)
    assert high == pytest.approx(13 + 4.1083, abs=1e-3)
    assert Sample((1.0,)).interval is None
    assert (Sample(()).mean, Sample(()).to_json()["n"]) == (None, 0)


def test_ratios_are_paired_by_run_and_invalid_fabrics_are_left_out() -> None:
    records = [
        record(0, {}, {"eps": 2.0, "mixnet": 1.0}),
        record(0, {}, {"eps": 4.0, "mixnet": 3.0}),
        record(0, {}, {"eps": 9.0, "mixnet": 9.0}, "invalid"),
    ]
    eps, mixnet = point_fabrics(records, ["iteration_s"], "eps")
    assert mixnet.figures["iteration_s"].values == (1.0, 3.0)
    assert mixnet.ratios["iteration_s"].values == (0.5, 0.75)
    assert (eps.ratios, eps.invalid, mixnet.invalid) == ({}, 1, 1)


def test_cells_have_mean_and_half_of_the_interval() -> None:
    assert figure_cell("iteration_s", Sample((1.0, 1.0, 1.0))) == "1.000 s ± 0 s"
    assert figure_cell("iteration_s", Sample((0.5,))) == "500.0 ms"
    assert figure_cell("fidelity.cpu_idle_min", Sample((0.25, 0.35))) == "0.300 ± 0.635"
    assert ratio_cell(Sample((0.5, 0.6))) == "0.55x ± 0.64"
    assert ratio_cell(None) == ""


def summary(**keys: Any) -> SweepResult:
    rates, settles = ["100Gb/s", "400Gb/s"], ["1ms", "25ms"]
    spec = sweep_spec(grid={RATES: rates, SETTLE: settles}, figures=["iteration_s"], **keys)
    records = [
        record(
            2 * i + j,
            {RATES: rate, SETTLE: settle},
            {"eps": 2.0 + k / 10, "<mixnet>": 1.0 + (i + j + k) / 10},
        )
        for i, rate in enumerate(rates)
        for j, settle in enumerate(settles)
        for k in range(3)
    ]
    failed = record(0, {RATES: "100Gb/s", SETTLE: "1ms"}, {}, attempts=[{"error": "<no> room"}])
    return SweepResult(spec, "1.0", 13, [*records, failed])


def test_picture_has_a_chart_for_each_value_of_the_other_axes() -> None:
    shown = summary()
    (picture,) = sweep_pictures(shown.points, shown.spec.axes, ["iteration_s"])
    drawn = str(picture.svg)
    assert ("settle 1ms" in drawn, "settle 25ms" in drawn) == (True, True)
    assert drawn.count("100Gb/s") == 2  # a tick in each chart
    assert drawn.count(" sample") == 24  # each run
    assert "eps: 2.100 s, 1.852 s to 2.348 s (95 %, 3 runs)" in drawn
    assert "&lt;mixnet&gt;" in drawn


def test_outcome_names_the_fastest_its_greatest_lead_and_doubts() -> None:
    assert sweep_outcome(summary()) == (
        "Least iteration time: <mixnet> at 4 of 4 points. The greatest lead is that of <mixnet> at "
        "nic_rate 100Gb/s, settle 1ms: 47.6 % less than eps."
    )
    noisy = [
        record(0, {}, {"eps": eps, "mixnet": mixnet})
        for eps, mixnet in ((2.0, 1.9), (2.0, 2.3), (2.3, 1.9))
    ]
    spec = sweep_spec(grid={}, figures=["vs_eps", "iteration_s"])
    for one in noisy:
        for fabric in one.fabrics:
            fabric.figures["vs_eps"] = None
    assert sweep_outcome(SweepResult(spec, "1.0", 3, noisy)) == (
        "Least iteration time: mixnet at 1 of 1 point. The greatest lead is that of mixnet: "
        "3.2 % less than eps. At 1 point the lead is less than its interval of 95 %."
    )
    alike = SweepResult(spec, "1.0", 1, [record(0, {}, {"eps": 2.0, "mixnet": 2.0})])
    for fabric in alike.records[0].fabrics:
        fabric.figures["vs_eps"] = None
    assert sweep_outcome(alike) == "Least iteration time: two alike at 1 of 1 point."
    assert sweep_outcome(SweepResult(spec, "1.0", 1, [])) == ""


def test_axes_have_their_last_key_as_name_unless_two_end_alike() -> None:
    eps = "fabrics[0].electrical"
    assert axis_names([SETTLE, eps]) == {SETTLE: "settle", eps: "electrical"}
    other = "fabrics[1].electrical"
    assert axis_names([other, eps]) == {other: other, eps: eps}


def placed(values: Sequence[Any], **times: Sequence[float]) -> tuple[ET.Element, list[float]]:
    """Return the picture of a sweep over one axis, and where the means of its first fabric are."""
    records = [
        record(n, {"axis": value}, {name: own[n] for name, own in times.items()})
        for n, value in enumerate(values)
    ]
    points = point_fabrics(records, ["iteration_s"])
    (picture,) = sweep_pictures(points, ["axis"], ["iteration_s"])
    drawn = ET.fromstring(picture.svg)
    dots = [e for e in drawn.iter() if e.tag.endswith("circle") and e.get("class") == "t0"]
    return drawn, [float(dot.get("cx") or "nan") for dot in dots]


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        pytest.param([0, 0.25, 0.5, 1, 2], [1, 1, 2, 4], id="numbers"),
        pytest.param(["100Gb/s", "200Gb/s", "400Gb/s"], [1, 2], id="rates"),
        pytest.param(["5ms", "0.01s", "25ms"], [1, 3], id="times"),
        pytest.param(["10us", "1ms", "100ms"], [1, 1], id="logarithms"),
        pytest.param(["mixnet", "joint", "static"], [1, 1], id="names"),
        pytest.param([2, 1, 4], [1, 2], id="in-order-of-their-values"),
    ],
)
def test_numbers_are_at_their_true_distances(values: Sequence[Any], steps: Sequence[float]) -> None:
    _, xs = placed(values, eps=[1.0] * len(values))
    distances = [b - a for a, b in pairwise(xs)]
    assert [one / distances[0] for one in distances] == pytest.approx(
        [step / steps[0] for step in steps], rel=0.01
    )


def test_equal_curves_are_drawn_on_each_other_and_named() -> None:
    drawn, xs = placed([1, 2], eps=[2.0, 3.0], greedy=[2.0, 3.0], static=[2.0, 3.1])
    lines = [e for e in drawn.iter() if str(e.get("class")).startswith("curve ")]
    eps, greedy, static = (line.get("d") for line in lines)
    assert eps == greedy != static
    assert ["null" in str(line.get("class")) for line in lines] == [False, True, False]
    assert len(xs) == 2
    assert "eps = greedy" in [e.text for e in drawn.iter() if e.tag.endswith("text")]


def test_curve_that_would_hide_another_is_dashed_and_not_named_as_equal() -> None:
    drawn, _ = placed([1, 2], eps=[2.0, 3.0], greedy=[2.04, 3.06], static=[1.0, 1.5])
    lines = [str(e.get("class")) for e in drawn.iter() if str(e.get("class")).startswith("curve ")]
    assert ["null" in line for line in lines] == [False, True, False]
    assert not any(" = " in (e.text or "") for e in drawn.iter())


def test_intervals_and_runs_at_one_place_stand_beside_each_other() -> None:
    names = [f"f{number}" for number in range(3)]
    records = [record(0, {}, dict.fromkeys(names, 2.0 + k / 10)) for k in range(3)]
    (picture,) = sweep_pictures(point_fabrics(records, ["iteration_s"]), [], ["iteration_s"])
    drawn = ET.fromstring(picture.svg)
    bars = [str(e.get("d")) for e in drawn.iter() if str(e.get("class")).startswith("curve ")]
    xs = [float(bar[1:].split()[0]) for bar in bars]
    assert [b - a for a, b in pairwise(xs)] == [8, 8]
    dots = [e for e in drawn.iter() if str(e.get("class")).endswith(" sample")]
    assert {float(dot.get("cx") or "nan") for dot in dots} == {x + 4 for x in xs}


def test_page_is_one_file_that_lists_failures(tmp_path: Path) -> None:
    page = sweep_page(summary(baseline="eps"))
    assert "2.100 s ± 248.4 ms" in page
    assert "&lt;no&gt; room" in page
    assert "0.52x" in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert sweep_page(summary(baseline="eps")) == page


def test_page_of_failures_alone_has_no_picture() -> None:
    failed = record(0, {RATES: "100Gb/s"}, {}, attempts=[{"error": "no room"}])
    page = sweep_page(SweepResult(sweep_spec(), "1.0", 2, [failed]))
    assert "no room" in page
    assert "<figure" not in page
