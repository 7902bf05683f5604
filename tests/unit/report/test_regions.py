"""Charts of several regions: timeline rows, errors and circuits of each region."""

from typing import Any

import pytest

from moefabric.report import diagrams, heat_maps, timelines
from moefabric.report.page import page
from moefabric.report.summary import FabricSummary
from moefabric.results.model import RunResult
from tests.support.report_sample import fabrics_of

REGIONS = {"r0": ["s0", "s1"], "r1": ["s2", "s3"]}


def collective(region: str, kind: str, way: str, measured_s: float) -> dict[str, Any]:
    return {
        "region": region,
        "iteration": 0,
        "layer": 0,
        "kind": kind,
        "pass": way,
        "measured_s": measured_s,
        "predicted_s": 0.1,
        "dark_s": 0.025,
        "bytes_by_light": 1,
        "bytes_by_eps": 1,
    }


def span(server: str, kind: str, start_s: float, end_s: float) -> dict[str, Any]:
    return {
        "server": server,
        "kind": kind,
        "pass": "forward",
        "layer": 0,
        "start_s": start_s,
        "end_s": end_s,
    }


def run(wiring: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a run of two regions; the second sends longer than the first and than predicted."""
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
                "fabric": "mixnet",
                "policy": "mixnet",
                "wiring": wiring
                or {"servers": 4, "optical_nics": 1, "electrical_nics": 1, "regions": REGIONS},
                "iterations": [{"measured_s": 1.0}],
                "collectives": collectives,
                "timeline": spans,
                "circuits": ["s0/o0~s1/o0", "s2/o0~s3/o0"],
                "demand": [[0, 1], [1, 0]],
                "fidelity": {"verdict": "pass"},
            }
        ],
    }


@pytest.fixture
def fabric() -> FabricSummary:
    (only,) = fabrics_of(run())
    return only


def test_timeline_has_a_row_per_server_of_the_first_region_and_one_per_other_region(
    fabric: FabricSummary,
) -> None:
    rows = {(i.server, i.start_s, i.end_s) for i in timelines.by_server(fabric)}
    assert rows == {("s0", 0, 1), ("s1", 0, 2), ("r1", 0, 3)}


def test_first_region_has_its_own_circuits(fabric: FabricSummary) -> None:
    first = fabric.first_region
    assert first.result.circuits == [("s0/o0", "s1/o0")]
    assert first.result.wiring.servers == 2


def test_dark_time_is_the_mean_of_the_regions(fabric: FabricSummary) -> None:
    assert fabric["dark_s"] == pytest.approx(3 * 0.025)


def test_error_map_has_a_cell_per_region_and_all_to_all(fabric: FabricSummary) -> None:
    drawn = str(heat_maps.region_errors([fabric]))
    assert drawn.count("<title>") == 6
    assert "r1 · layer 0 backward · combine: 120 ms, +20.0 % of 100 ms" in drawn
    assert str(diagrams.region_circuits(fabric)).count("circle") >= 4


def test_page_has_a_section_for_several_regions() -> None:
    assert "<h2>Regions</h2>" in page(RunResult.model_validate(run()))


@pytest.mark.parametrize(
    "wiring",
    [
        pytest.param({"servers": 4}, id="unknown"),
        pytest.param({"servers": 4, "regions": {"r0": ["s0"]}}, id="one"),
    ],
)
def test_single_region_has_no_section(wiring: dict[str, Any]) -> None:
    (fabric,) = fabrics_of(run(wiring))
    assert fabric.regions == {}
    assert fabric.first_region is fabric
    assert "<h2>Regions</h2>" not in page(RunResult.model_validate(run(wiring)))
