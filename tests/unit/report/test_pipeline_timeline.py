"""Pipeline timeline: micro-batches in every region, and transfers between regions."""

import re
from typing import Any

import pytest

from moefabric.report import page as report_page
from moefabric.report.summary import FabricSummary
from moefabric.report.timelines import by_server, layer_timeline, pipeline_timeline, shown_layer
from moefabric.results.model import RunResult
from tests.support.report_sample import fabrics_of

REGIONS = {"r0": ["s0", "s1"], "r1": ["s2", "s3"]}


def span(
    server: str, kind: str, way: str, micro_batch: int, start_s: float, end_s: float
) -> dict[str, Any]:
    layer = None if kind == "pipeline" else 0
    return {
        "server": server,
        "kind": kind,
        "pass": way,
        "layer": layer,
        "micro_batch": micro_batch,
        "start_s": start_s,
        "end_s": end_s,
    }


SPANS = [
    span("s0", "attention", "forward", 0, 0, 1),
    span("s1", "attention", "forward", 0, 0, 1.5),
    span("s0", "dispatch", "forward", 0, 1.5, 2),
    span("s0", "attention", "forward", 1, 2, 3),
    span("s0", "pipeline", "forward", 0, 2, 2.5),
    span("s2", "pipeline", "forward", 0, 2, 2.5),
    span("s2", "expert", "backward", 0, 2.5, 4),
    span("s0", "all-reduce", "backward", 1, 4, 5),
    span("s2", "all-reduce", "backward", 1, 4, 5),
    span("s0", "reconfiguration", "forward", 0, 1, 1.5),
    span("s0", "reconfiguration", "forward", 1, 3, 3.5),
]


def run(spans: list[dict[str, Any]], stages: int = 2) -> dict[str, Any]:
    entry = {
        "fabric": "mixnet",
        "policy": "mixnet",
        "shape": {"pp": stages, "dp": 1, "micro_batches": 2},
        "timeline": spans,
        "wiring": {"servers": 4, "optical_nics": 1, "electrical_nics": 1, "regions": REGIONS},
        "fidelity": {"verdict": "pass"},
        "iterations": [{"measured_s": 5.0}],
    }
    return {"experiment": "pipeline", "results": [entry]}


def read(spans: list[dict[str, Any]], stages: int = 2) -> FabricSummary:
    [fabric] = fabrics_of(run(spans, stages))
    return fabric


def page(spans: list[dict[str, Any]]) -> str:
    return report_page.page(RunResult.model_validate(run(spans)))


def titles(drawn: str) -> list[str]:
    return re.findall(r"<title>(.*?)</title>", drawn)


def test_box_lasts_from_the_first_servers_start_to_the_last_servers_end() -> None:
    drawn = str(pipeline_timeline([read(SPANS)]))
    hints = titles(drawn)
    assert "r0 · micro-batch 0 forward: 2.00 s, from 0 s" in hints
    assert "r0 · micro-batch 1 forward: 1.00 s, from 2.000 s" in hints
    assert "r1 · micro-batch 0 backward: 1.50 s, from 2.500 s" in hints
    assert re.findall(r'class="in micro"[^>]*>(\d)<', drawn) == ["0", "1", "0"]


def test_box_is_dark_while_a_server_computes_and_pale_while_all_wait() -> None:
    drawn = str(pipeline_timeline([read(SPANS)]))
    boxes = re.findall(
        r'width="([\d.]+)"[^>]*class="forward( pale)?"><title>r0 · micro-batch 0', drawn
    )
    widths = {bool(pale): float(width) for width, pale in boxes}
    assert widths[False] / widths[True] == pytest.approx(1.5 / 2, rel=1e-3)


def test_transfers_are_drawn_in_both_regions_and_reconfigurations_per_micro_batch() -> None:
    hints = titles(str(pipeline_timeline([read(SPANS)])))
    for region in REGIONS:
        assert f"{region} · pipeline forward, micro-batch 0: 500 ms" in hints
        assert f"{region} · all-reduce backward, micro-batch 1: 1.00 s" in hints
    assert sum("reconfiguration" in hint for hint in hints) == 2


def test_rows_are_named_by_their_stage_if_there_are_several() -> None:
    assert "r1 stage 1" in str(pipeline_timeline([read(SPANS)]))
    assert "stage" not in str(pipeline_timeline([read(SPANS, stages=1)])).replace(
        "another stage", ""
    )


def test_page_of_one_micro_batch_has_the_server_timeline_instead() -> None:
    plain = [span for span in SPANS if span["micro_batch"] == 0 and span["kind"] != "pipeline"]
    assert pipeline_timeline([read(plain)]) == ""
    assert "Server timeline" in page(plain)
    assert "Pipeline timeline" not in page(plain)
    assert "Pipeline timeline" in page(SPANS)
    assert "Server timeline" not in page(SPANS)


def test_region_row_keeps_micro_batches_apart() -> None:
    spans = [
        span("s2", "attention", "forward", number, 2 * number, 2 * number + 1)
        for number in range(2)
    ]
    rows = [(i.server, i.start_s, i.end_s) for i in by_server(read(spans))]
    assert rows == [("r1", 0, 1), ("r1", 2, 3)]


def test_layer_timeline_shows_the_first_micro_batch() -> None:
    fabrics = [read(SPANS)]
    assert shown_layer(fabrics) == 0
    assert "1.00 s, from 2" not in str(layer_timeline(fabrics))
