"""The pictures: every one inside its frame, and true to its figures."""

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from moefabric.report import bars, distribution, heatmap, phases, reading, ring, svg, timeline
from moefabric.report.result import Result

GOLDEN = Path(__file__).parents[1] / "golden" / "report"
sample = runpy.run_path(str(GOLDEN / "build_sample.py"))["sample"]


def results(servers: int = 4) -> list[Result]:
    return reading.results(sample(servers))


def read(picture: Markup) -> ET.Element:
    return ET.fromstring(picture)


def marked(picture: ET.Element, class_: str) -> list[ET.Element]:
    """Its elements of one class, those of the legend left out: they have no tooltip."""
    return [e for e in picture.iter() if class_ in (e.get("class") or "").split() and len(e)]


def title(element: ET.Element) -> str:
    return element[0].text or ""


def pictures(shown: list[Result]) -> Iterator[Markup]:
    yield from (timeline.iteration(shown), timeline.layer(shown)[0], bars.bars(shown))
    yield from (distribution.distribution(shown), phases.phases(shown))
    for result in shown:
        yield from (heatmap.heatmap(result, 3e8), ring.ring(result))


def boxes(picture: ET.Element) -> Iterator[tuple[float, float, float, float]]:
    """Left, top, right, bottom of all that is drawn; words by the width they are counted with."""
    for e in picture.iter():
        at = {
            key: float(e.get(key) or 0)
            for key in ("x", "y", "width", "height", "cx", "cy", "r", "x1", "x2", "y1", "y2")
        }
        match e.tag.rpartition("}")[2]:
            case "rect":
                yield at["x"], at["y"], at["x"] + at["width"], at["y"] + at["height"]
            case "circle":
                yield at["cx"] - at["r"], at["cy"] - at["r"], at["cx"] + at["r"], at["cy"] + at["r"]
            case "line":
                yield (
                    min(at["x1"], at["x2"]),
                    min(at["y1"], at["y2"]),
                    max(at["x1"], at["x2"]),
                    max(at["y1"], at["y2"]),
                )
            case "text" if e.get("transform") is None:
                width = svg.text_width(e.text or "", 13)
                left = at["x"] - {"middle": width / 2, "end": width}.get(e.get("text-anchor") or "", 0.0)
                yield left, at["y"] - 9, left + width, at["y"] + 3


@pytest.mark.parametrize("servers", [4, 8, 16])
def test_nothing_is_drawn_outside_its_picture(servers: int) -> None:
    for picture in pictures(results(servers)):
        drawn = read(picture)
        _, _, width, height = (float(part) for part in (drawn.get("viewBox") or "").split())
        for left, top, right, bottom in boxes(drawn):
            assert left >= -0.5, drawn.get("aria-label")
            assert top >= -0.5, drawn.get("aria-label")
            assert right <= width + 0.5, drawn.get("aria-label")
            assert bottom <= height + 0.5, drawn.get("aria-label")


def test_fabrics_share_one_scale_of_time() -> None:
    """Equal times are equally long, whichever fabric they were spent on."""
    shown = results()
    bars_drawn = marked(read(timeline.iteration(shown)), "k-expert")
    intervals = [i for result in shown for i in result.timeline if i.kind == "expert"]
    drawn = sorted(float(bar.get("width") or 0) for bar in bars_drawn)
    spent = sorted(i.end_s - i.start_s for i in intervals)
    assert len(drawn) == len(spent)
    per_second = drawn[-1] / spent[-1]
    assert drawn == [pytest.approx(seconds * per_second, abs=0.02) for seconds in spent]


def test_the_closer_layer_is_one_in_which_light_changed() -> None:
    shown = results()
    picture, layer = timeline.layer(shown)
    assert layer == 3
    assert {title(bar).split(" · ")[1] for bar in marked(read(picture), "k-dark")} == {"layer 3 forward"}


def test_dark_and_reconfiguration_never_hide_what_a_server_does() -> None:
    for bar in marked(read(timeline.iteration(results())), "k-dark"):
        assert float(bar.get("height") or 0) < 6


def test_servers_stand_in_their_natural_order() -> None:
    picture = read(timeline.iteration(results(16)[:1]))
    names = [
        e.text for e in picture.iter() if (e.text or "").startswith("s") and (e.text or "")[1:].isdigit()
    ]
    assert names == [f"s{n}" for n in range(16)]


def test_more_servers_than_can_be_seen_are_left_out() -> None:
    rows = [{"server": f"s{n}", "kind": "expert", "layer": 0, "start_s": 0, "end_s": 1} for n in range(40)]
    shown = reading.results({"results": [{"fabric": "f", "timeline": rows}]})
    assert len(marked(read(timeline.iteration(shown)), "k-expert")) == 16


def test_the_hottest_cell_is_the_heaviest_pair() -> None:
    mixnet = results()[1]
    cells = marked(read(heatmap.heatmap(mixnet, max(map(max, mixnet.demand)))), "cell")
    hottest = max(cells, key=lambda cell: float(cell.get("fill-opacity") or 0))
    assert title(hottest) == "s1 to s0: 265 MB, 1 circuit"
    assert len(cells) == 12


def test_every_circuit_is_a_line_between_its_nics() -> None:
    mixnet = results()[1]
    assert sorted(title(c) for c in marked(read(ring.ring(mixnet)), "circuit")) == sorted(
        f"{a}~{b}" for a, b in mixnet.circuits
    )


def test_parallel_circuits_of_a_large_fabric_are_one_thicker_line() -> None:
    wiring = {"servers": 32, "optical_nics": 6, "electrical_nics": 2}
    lit = [["s0/o0", "s1/o0"], ["s0/o1", "s1/o1"], ["s2/o0", "s3/o0"]]
    (result,) = reading.results({"results": [{"wiring": wiring, "circuits": lit}]})
    drawn = {title(c): float(c.get("stroke-width") or 0) for c in marked(read(ring.ring(result)), "circuit")}
    assert drawn == {"s0 and s1: 2 circuits": 2.6, "s2 and s3: 1 circuit": 1.2}


def test_a_fabric_without_circuits_says_so() -> None:
    said = [e.text for e in read(ring.ring(results()[0])).iter()]
    assert "no light" in said
    assert "no light" not in [e.text for e in read(ring.ring(results()[1])).iter()]


def test_bars_are_as_long_as_their_ratios() -> None:
    lengths = {title(bar): float(bar.get("width") or 0) for bar in marked(read(bars.bars(results())), "bar")}
    assert lengths["measured: 1.42x"] / lengths["measured: 1.00x"] == pytest.approx(1.4207, abs=0.002)


def test_the_distribution_ends_at_the_last_completion() -> None:
    """Both staircases of a panel rise from none to all."""
    panel = read(distribution.distribution(results()[:1]))
    for class_ in ("measured", "predicted"):
        (line,) = [e for e in panel.iter() if class_ in (e.get("class") or "")]
        points = [tuple(map(float, point.split())) for point in (line.get("d") or "")[1:].split("L")]
        assert (points[0][1], points[-1][1]) == (220.0, 50.0)
        assert points == sorted(points, key=lambda p: (p[0], -p[1]))


def test_the_control_planes_own_panel_leaves_settling_out() -> None:
    drawn = read(phases.phases(results()))
    assert len(marked(drawn, "p-settle")) == 2
    assert len(marked(drawn, "p-divert")) == 4


def test_every_change_of_light_has_its_dot_in_both_panels() -> None:
    shown = results()
    count = sum(len(result.reconfigurations) for result in shown)
    assert len(marked(read(phases.phases(shown)), "dot")) == 2 * count


@given(st.floats(0, 1e6), st.floats(1e-6, 1e6), st.integers(2, 12))
def test_ticks_are_few_even_and_within_the_axis(low: float, span: float, most: int) -> None:
    high = low + span
    marks = svg.ticks(low, high, most)
    assert len(marks) <= most + 1
    slack = (high - low) * 1e-6 + abs(high) * 1e-12
    assert all(low - slack <= mark <= high + slack for mark in marks)


def test_ticks_are_round() -> None:
    assert svg.ticks(0, 3.48, 8) == [0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert svg.ticks(12.5, 52.9, 5) == [20, 30, 40, 50]


def test_words_in_a_picture_are_escaped() -> None:
    assert svg.label(1, 2, "<b>&") == Markup('<text x="1" y="2">&lt;b&gt;&amp;</text>')
    assert svg.tag("g", class_='"><script>') == Markup('<g class="&#34;&gt;&lt;script&gt;"/>')


def test_the_sample_is_what_its_builder_makes() -> None:
    written: dict[str, Any] = json.loads((GOLDEN / "sample.json").read_text())
    assert written == json.loads(json.dumps(sample()))
