"""The failures of a run, as its table, its page and its picture tell them."""

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree as ET

from rich.console import Console

from moefabric.report import failures
from moefabric.report.page import page
from moefabric.report.table import text

FAILED: dict[str, Any] = {
    "kind": "nic", "what": ["s0/e0", "s0/e1"], "iteration": 4, "injected_s": 1.0, "detected_s": 0.002, "recovered_s": 0.010,
    "cleared_s": 8.0, "detected_by": "its region's controller", "action": "s2 relays for s0", "slow_down": 0.258, "slow_down_after": None,
    "ok": True, "measured_s": 1.3, "marks": {"injected": 0.2, "detected": 0.2002, "recovered": 0.201},
    "lanes": [
        {"server": "s0", "kind": "attention", "start_s": 0.0, "end_s": 0.1},
        {"server": "s0", "kind": "dispatch", "start_s": 0.1, "end_s": 0.6},
        {"server": "s0", "kind": "tensor", "start_s": 0.6, "end_s": 1.2},
    ],
}  # fmt: skip
UNSEEN: dict[str, Any] = {
    **FAILED, "kind": "server", "what": ["s<3>"], "detected_s": None, "recovered_s": None, "ok": False, "slow_down": None, "marks": {}
}  # fmt: skip


def run(*listed: dict[str, Any]) -> dict[str, Any]:
    return {
        "experiment": "x",
        "results": [{"fabric": "mixnet", "policy": "mixnet", "failures": list(listed)}],
    }


def printed(*listed: dict[str, Any]) -> str:
    console = Console(width=140, color_system=None, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123 - as long as the test
    console.print(failures.terminal(failures.failed(run(*listed))))
    console.file.close()
    return console.export_text()


def test_a_failure_is_a_row_with_when_it_was_seen_and_what_it_cost() -> None:
    row = next(line for line in printed(FAILED).splitlines() if line.startswith("nic"))
    assert " ".join(row.split()) == "nic s0/e0 s0/e1 4 2.00 ms 10.0 ms +25.8 % \N{EN DASH} s2 relays for s0"


def test_what_was_never_seen_to_recover_is_said() -> None:
    row = next(line for line in printed(UNSEEN).splitlines() if line.startswith("server"))
    assert row.rstrip().endswith("not seen to recover")


def test_a_run_without_failures_says_nothing_of_them() -> None:
    assert "failure" not in text(run())
    assert "What broke" not in page(run())
    assert failures.picture([]) == ""


def test_the_page_has_them_escaped() -> None:
    made = page(run(FAILED, UNSEEN))
    assert "What broke, and how the job went on" in made
    assert "server s&lt;3&gt;" in made
    assert "s<3>" not in made.partition('<script type="application/json"')[0]


def shapes(picture: ET.Element) -> Iterator[tuple[ET.Element, float, float]]:
    for each in picture.iter():
        if each.tag.endswith("rect") or each.tag.endswith("line"):
            first = float(each.get("x", each.get("x1", 0)))
            yield each, first, first + float(each.get("width", 0))


def test_the_picture_is_inside_its_frame_and_marks_stand_where_things_happened() -> None:
    drawn = ET.fromstring(failures.picture(failures.failed(run(FAILED, UNSEEN))))
    width, height = (float(drawn.get(side, 0)) for side in ("width", "height"))
    assert all(0 <= start <= end <= width for _, start, end in shapes(drawn))
    assert all(0 <= float(e.get("y", 0)) + float(e.get("height", 0)) <= height for e, _, _ in shapes(drawn))
    lanes = [(s, e) for each, s, e in shapes(drawn) if each.get("class") == "lane"]
    [broke] = [
        s for each, s, _ in shapes(drawn) if each.get("class") == "m-injected" and each.tag.endswith("line")
    ]
    left, right = lanes[0]
    assert abs((broke - left) / (right - left) - 0.2 / 1.3) < 0.01
    assert len([1 for each, _, _ in shapes(drawn) if each.get("class") == "k-tensor"]) == 3, (
        "two lanes, and the legend"
    )
