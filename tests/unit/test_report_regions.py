"""The report of several regions: one shown in full, the others as wholes, and each one's errors and light."""

from typing import Any

import pytest

from moefabric.report import reading, regions
from moefabric.report.page import page
from moefabric.report.result import Result

REGIONS = {"r0": ["s0", "s1"], "r1": ["s2", "s3"]}


def collective(region: str, kind: str, way: str, measured_s: float) -> dict[str, Any]:
    return {
        "region": region, "iteration": 0, "layer": 0, "kind": kind, "pass": way, "measured_s": measured_s, "predicted_s": 0.1,
        "dark_s": 0.025, "bytes_by_light": 1, "bytes_by_eps": 1,
    }  # fmt: skip


def span(server: str, kind: str, start_s: float, end_s: float) -> dict[str, Any]:
    return {"server": server, "kind": kind, "pass": "forward", "layer": 0, "start_s": start_s, "end_s": end_s}


def run(wiring: dict[str, Any] | None = None) -> dict[str, Any]:
    """Two regions of two servers, of which the second sends longer than the first, and than predicted."""
    collectives = [
        collective(region, kind, way, 0.1 if region == "r0" else 0.12)
        for way, kind in (("forward", "dispatch"), ("forward", "combine"), ("backward", "combine"))
        for region in REGIONS
    ]
    spans = [span("s0", "dispatch", 0, 1), span("s1", "dispatch", 0, 2)]
    spans += [span("s2", "dispatch", 0, 1), span("s3", "dispatch", 0.5, 3)]
    return {
        "experiment": "two",
        "results": [
            {
                "fabric": "mixnet", "policy": "mixnet", "wiring": wiring or {"servers": 4, "optical_nics": 1, "electrical_nics": 1, "regions": REGIONS},
                "iterations": [{"measured_s": 1.0}], "collectives": collectives, "timeline": spans,
                "circuits": ["s0/o0~s1/o0", "s2/o0~s3/o0"], "demand": [[0, 1], [1, 0]],
                "fidelity": {"verdict": "pass"},
            }
        ],
    }  # fmt: skip


@pytest.fixture
def result() -> Result:
    (read,) = reading.results(run())
    return read


def test_the_first_regions_servers_have_a_row_each_and_every_other_region_has_one(
    result: Result,
) -> None:
    rows = {(i.server, i.start_s, i.end_s) for i in regions.timeline(result)}
    assert rows == {("s0", 0, 1), ("s1", 0, 2), ("r1", 0, 3)}


def test_the_first_region_is_shown_with_its_own_light(result: Result) -> None:
    alone = regions.first(result)
    assert alone.circuits == (("s0/o0", "s1/o0"),)
    assert alone.wiring["servers"] == 2


def test_dark_time_is_a_regions_and_not_the_sum_of_all(result: Result) -> None:
    assert result.dark_s == pytest.approx(3 * 0.025)


def test_every_all_to_all_of_every_region_has_a_cell_that_tells_its_error(result: Result) -> None:
    drawn = str(regions.errors([result]))
    assert drawn.count("<title>") == 6
    assert "r1 · layer 0 backward · combine: 120 ms, +20.0 % of 100 ms" in drawn
    assert str(regions.rings(result)).count("circle") >= 4


def test_a_page_of_several_regions_says_how_they_fared() -> None:
    assert "Region by region" in page(run())


@pytest.mark.parametrize(
    "wiring",
    [
        pytest.param({"servers": 4}, id="none-told"),
        pytest.param({"servers": 4, "regions": {"r0": ["s0"]}}, id="one"),
        pytest.param({"servers": 4, "regions": "many"}, id="nonsense"),
    ],
)
def test_without_several_regions_nothing_is_said_of_them(wiring: dict[str, Any]) -> None:
    (read,) = reading.results(run(wiring))
    assert read.regions == {}
    assert regions.first(read) is read
    assert "Region by region" not in page(run(wiring))
