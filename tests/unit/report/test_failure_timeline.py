"""Failures of a run in the table, on the page and in the timeline."""

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree as ET

from moefabric.report.page import page
from moefabric.report.summary import summaries
from moefabric.report.table import text
from moefabric.report.timelines import failure_timeline
from moefabric.results.model import RunResult

FAILED: dict[str, Any] = {
    "kind": "nic",
    "what": ["s0/e0", "s0/e1"],
    "iteration": 4,
    "injected_s": 1.0,
    "detected_s": 0.002,
    "recovered_s": 0.010,
    "cleared_s": 8.0,
    "detected_by": "its region's controller",
    "action": "s2 relays for s0",
    "slow_down": 0.258,
    "slow_down_after": None,
    "ok": True,
    "measured_s": 1.3,
    "marks": {"injected": 0.2, "detected": 0.2002, "recovered": 0.201},
    "lanes": [
        {"server": "s0", "kind": "attention", "start_s": 0.0, "end_s": 0.1},
        {"server": "s0", "kind": "dispatch", "start_s": 0.1, "end_s": 0.6},
        {"server": "s0", "kind": "tensor", "start_s": 0.6, "end_s": 1.2},
    ],
}
UNSEEN: dict[str, Any] = {
    **FAILED,
    "kind": "server",
    "what": ["s<3>"],
    "detected_s": None,
    "recovered_s": None,
    "ok": False,
    "slow_down": None,
    "marks": {},
}


def run(*failures: dict[str, Any]) -> RunResult:
    judged = {"fidelity": {"verdict": "pass"}}
    result = {"fabric": "mixnet", "policy": "mixnet", "failures": list(failures), **judged}
    return RunResult.model_validate({"experiment": "x", "results": [result]})


def row(first_word: str, *failures: dict[str, Any]) -> str:
    """Return the row of the table that starts with a word, with single spaces."""
    lines = text(run(*failures), 140).splitlines()
    return " ".join(next(line for line in lines if line.startswith(first_word)).split())


def picture(*failures: dict[str, Any]) -> ET.Element:
    return ET.fromstring(failure_timeline(summaries(run(*failures))))


def test_table_has_a_row_with_detection_recovery_and_slow_down() -> None:
    expected = "nic s0/e0 s0/e1 4 2.00 ms 10.0 ms +25.8 % \N{EN DASH} s2 relays for s0"
    assert row("nic", FAILED) == expected


def test_table_names_failures_without_recovery() -> None:
    assert row("server", UNSEEN).endswith("not seen to recover")


def test_run_without_failures_has_neither_table_nor_section() -> None:
    assert "failure" not in text(run())
    assert "Failures and recovery" not in page(run())
    assert failure_timeline([]) == ""


def test_page_escapes_names_of_failures() -> None:
    html = page(run(FAILED, UNSEEN))
    assert "Failures and recovery" in html
    assert "server s&lt;3&gt;" in html
    assert "s<3>" not in html.partition('<script type="application/json"')[0]


def shapes(drawn: ET.Element) -> Iterator[tuple[ET.Element, float, float]]:
    """Yield rectangles and lines with their left and right ends."""
    for element in drawn.iter():
        if element.tag.endswith("rect") or element.tag.endswith("line"):
            left = float(element.get("x", element.get("x1", 0)))
            yield element, left, left + float(element.get("width", 0))


def test_timeline_stays_inside_its_frame_and_marks_stand_at_their_times() -> None:
    drawn = picture(FAILED, UNSEEN)
    width, height = (float(drawn.get(side, 0)) for side in ("width", "height"))
    assert all(0 <= start <= end <= width for _, start, end in shapes(drawn))
    assert all(
        0 <= float(e.get("y", 0)) + float(e.get("height", 0)) <= height for e, _, _ in shapes(drawn)
    )
    left, right = next((s, e) for shape, s, e in shapes(drawn) if shape.get("class") == "lane")
    [injected] = [
        start
        for shape, start, _ in shapes(drawn)
        if shape.get("class") == "m-injected" and shape.tag.endswith("line")
    ]
    assert abs((injected - left) / (right - left) - 0.2 / 1.3) < 0.01
    assert len([1 for shape, _, _ in shapes(drawn) if shape.get("class") == "k-tensor"]) == 3, (
        "one in each strip, and one in the legend"
    )
