"""The picture of a pipeline: a box for each micro-batch on its way through a region, and beneath what regions send each other."""

import re
from typing import Any

import pytest

from moefabric.report import pipeline, reading, regions, timeline
from moefabric.report.page import page
from moefabric.report.result import Result

REGIONS = {"r0": ["s0", "s1"], "r1": ["s2", "s3"]}


def span(server: str, kind: str, way: str, micro_batch: int, start_s: float, end_s: float) -> dict[str, Any]:
    layer = None if kind == "pipeline" else 0
    return {
        "server": server, "kind": kind, "pass": way, "layer": layer, "micro_batch": micro_batch, "start_s": start_s, "end_s": end_s
    }  # fmt: skip


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
        "fabric": "mixnet", "policy": "mixnet", "shape": {"pp": stages, "dp": 1, "micro_batches": 2}, "timeline": spans,
        "wiring": {"servers": 4, "optical_nics": 1, "electrical_nics": 1, "regions": REGIONS}, "fidelity": {"verdict": "pass"},
        "iterations": [{"measured_s": 5.0}],
    }  # fmt: skip
    return {"experiment": "pipeline", "results": [entry]}


def read(spans: list[dict[str, Any]], stages: int = 2) -> Result:
    [result] = reading.results(run(spans, stages))
    return result


def titles(drawn: str) -> list[str]:
    return re.findall(r"<title>(.*?)</title>", drawn)


def test_each_micro_batch_has_a_box_from_its_first_servers_start_to_its_last_ones_end() -> None:
    drawn = str(pipeline.picture([read(SPANS)]))
    said = titles(drawn)
    assert "r0 · micro-batch 0 forward: 2.00 s, from 0 s" in said
    assert "r0 · micro-batch 1 forward: 1.00 s, from 2.000 s" in said
    assert "r1 · micro-batch 0 backward: 1.50 s, from 2.500 s" in said
    assert re.findall(r'class="in micro"[^>]*>(\d)<', drawn) == ["0", "1", "0"]


def test_a_box_is_dark_while_any_server_computes_and_pale_while_all_wait() -> None:
    drawn = str(pipeline.picture([read(SPANS)]))
    boxes = re.findall(r'width="([\d.]+)"[^>]*class="forward( pale)?"><title>r0 · micro-batch 0', drawn)
    widths = {bool(pale): float(width) for width, pale in boxes}
    assert widths[False] / widths[True] == pytest.approx(1.5 / 2, rel=1e-3)


def test_what_regions_send_each_other_is_told_of_both_and_light_of_each_micro_batch() -> None:
    said = titles(str(pipeline.picture([read(SPANS)])))
    for region in REGIONS:
        assert f"{region} · pipeline forward, micro-batch 0: 500 ms" in said
        assert f"{region} · all-reduce backward, micro-batch 1: 1.00 s" in said
    assert sum("reconfiguration" in each for each in said) == 2


def test_rows_are_named_by_their_stage_where_there_are_several() -> None:
    assert "r1 stage 1" in str(pipeline.picture([read(SPANS)]))
    assert "stage" not in str(pipeline.picture([read(SPANS, stages=1)])).replace("another stage", "")


def test_a_run_of_one_micro_batch_has_the_picture_of_servers_and_no_other() -> None:
    plain = [each for each in SPANS if each["micro_batch"] == 0 and each["kind"] != "pipeline"]
    assert pipeline.picture([read(plain)]) == ""
    assert "server by server" in page(run(plain))
    assert "micro-batch by micro-batch" not in page(run(plain))
    assert "micro-batch by micro-batch" in page(run(SPANS))
    assert "server by server" not in page(run(SPANS))


def test_another_regions_micro_batches_are_not_taken_for_one() -> None:
    spans = [span("s2", "attention", "forward", number, 2 * number, 2 * number + 1) for number in range(2)]
    rows = [(i.server, i.start_s, i.end_s) for i in regions.timeline(read(spans))]
    assert rows == [("r1", 0, 1), ("r1", 2, 3)]


def test_a_layer_is_shown_closer_by_its_first_micro_batch() -> None:
    drawn, layer = timeline.layer([read(SPANS)])
    assert layer == 0
    assert "1.00 s, from 2" not in str(drawn)
