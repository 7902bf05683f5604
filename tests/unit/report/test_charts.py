"""Charts: each stays inside its frame and is true to its figures."""

from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from moefabric.report import marks, svg
from moefabric.report.bars import comparison_bars, reconfiguration_phases
from moefabric.report.curves import completion_cdf, error_cdf
from moefabric.report.diagrams import circuit_chords
from moefabric.report.heat_maps import demand_heatmap
from moefabric.report.summary import FabricSummary
from moefabric.report.timelines import iteration_timeline, layer_timeline, shown_layer
from tests.support.report_sample import fabrics_of, sample


def fabrics(servers: int = 4) -> list[FabricSummary]:
    return fabrics_of(sample(servers))


def read(picture: Markup) -> ET.Element:
    return ET.fromstring(picture)


def marked(picture: ET.Element, class_: str) -> list[ET.Element]:
    """Return the elements of one class, without those of the legend, which have no tooltip."""
    return [e for e in picture.iter() if class_ in (e.get("class") or "").split() and len(e)]


def title(element: ET.Element) -> str:
    return element[0].text or ""


def pictures(shown: list[FabricSummary]) -> Iterator[Markup]:
    yield from (iteration_timeline(shown), layer_timeline(shown), comparison_bars(shown))
    yield from (completion_cdf(shown), reconfiguration_phases(shown))
    yield error_cdf(with_errors(-0.021, -0.004, 0.0, 0.001, 0.3))
    for fabric in shown:
        yield from (demand_heatmap(fabric, 3e8), circuit_chords(fabric))


def levels(picture: ET.Element) -> tuple[float, float]:
    """Return the lowest and the highest horizontal line of the grid."""
    lines = [e for e in picture.iter() if e.tag.endswith("line") and e.get("class") == "grid"]
    heights = [float(e.get("y1") or 0) for e in lines if e.get("y1") == e.get("y2")]
    return max(heights), min(heights)


def boxes(picture: ET.Element) -> Iterator[tuple[float, float, float, float]]:
    """Yield left, top, right and bottom of every element; text has its estimated width."""
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
                left = at["x"] - {"middle": width / 2, "end": width}.get(
                    e.get("text-anchor") or "", 0.0
                )
                yield left, at["y"] - 9, left + width, at["y"] + 3


@pytest.mark.parametrize("servers", [4, 8, 16])
def test_charts_stay_inside_their_frames(servers: int) -> None:
    for picture in pictures(fabrics(servers)):
        drawn = read(picture)
        _, _, width, height = (float(part) for part in (drawn.get("viewBox") or "").split())
        lefts, tops, rights, bottoms = zip(*boxes(drawn), strict=True)
        assert min(*lefts, *tops) >= -0.5, drawn.get("aria-label")
        assert max(rights) <= width + 0.5, drawn.get("aria-label")
        assert max(bottoms) <= height + 0.5, drawn.get("aria-label")


def test_server_timeline_has_one_time_scale() -> None:
    """Equal times have equal lengths on every fabric."""
    shown = fabrics()
    bars_drawn = marked(read(iteration_timeline(shown)), "k-expert")
    intervals = [i for fabric in shown for i in fabric.timeline if i.kind == "expert"]
    drawn = sorted(float(bar.get("width") or 0) for bar in bars_drawn)
    spent = sorted(i.end_s - i.start_s for i in intervals)
    assert len(drawn) == len(spent)
    per_second = drawn[-1] / spent[-1]
    assert drawn == [pytest.approx(seconds * per_second, abs=0.02) for seconds in spent]


def test_layer_timeline_chooses_a_layer_with_a_reconfiguration() -> None:
    shown = fabrics()
    assert shown_layer(shown) == 3
    picture = layer_timeline(shown)
    assert {title(bar).split(" · ")[1] for bar in marked(read(picture), "k-dark")} == {
        "layer 3 forward"
    }


def test_dark_lane_does_not_cover_the_servers_activity() -> None:
    bars = marked(read(iteration_timeline(fabrics())), "k-dark")
    assert max(float(bar.get("height") or 0) for bar in bars) < 6


def test_server_timeline_sorts_servers_naturally() -> None:
    picture = read(iteration_timeline(fabrics(16)[:1]))
    names = [
        e.text
        for e in picture.iter()
        if (e.text or "").startswith("s") and (e.text or "")[1:].isdigit()
    ]
    assert names == [f"s{n}" for n in range(16)]


def test_server_timeline_shows_at_most_sixteen_servers() -> None:
    rows = [
        {"server": f"s{n}", "kind": "expert", "layer": 0, "start_s": 0, "end_s": 1}
        for n in range(40)
    ]
    shown = fabrics_of({"results": [{"fabric": "f", "timeline": rows}]})
    assert len(marked(read(iteration_timeline(shown)), "k-expert")) == 16


def test_darkest_cell_is_the_heaviest_pair() -> None:
    mixnet = fabrics()[1]
    cells = marked(read(demand_heatmap(mixnet, max(map(max, mixnet.demand)))), "cell")
    hottest = max(cells, key=lambda cell: float(cell.get("fill-opacity") or 0))
    assert title(hottest) == "s1 to s0: 265 MB, 1 circuit"
    assert len(cells) == 12


@pytest.mark.parametrize("servers", [4, 8])
@pytest.mark.parametrize("factor", [1.0, 0.02, 3e-8])
def test_figures_of_a_demand_fit_their_cells_beside_the_dots(servers: int, factor: float) -> None:
    mixnet = fabrics(servers)[1]
    mixnet.result.demand[:] = [[owed * factor for owed in row] for row in mixnet.result.demand]
    drawn = read(demand_heatmap(mixnet, max(map(max, mixnet.demand))))
    side = float(marked(drawn, "cell")[0].get("width") or 0)
    figures = [e for e in drawn.iter() if "in" in (e.get("class") or "").split()]
    assert len(figures) == servers * (servers - 1)
    dots = [e for e in drawn.iter() if e.tag.endswith("circle")]
    assert dots
    for figure in figures:
        size = 12 if "tight" in (figure.get("class") or "") else 14  # of page.css
        half = 0.64 * size * len(figure.text or "") / 2  # of a broad face
        assert 2 * half < side
        x, y = (float(figure.get(key) or 0) for key in "xy")
        for dot in dots:
            beside, r = (float(dot.get(key) or 0) for key in ("cx", "r"))
            below = float(dot.get("cy") or 0)
            is_apart = abs(beside - x) > half + r or not y - 0.75 * size - r < below < y + r
            assert is_apart, figure.text


def test_every_circuit_has_a_chord() -> None:
    mixnet = fabrics()[1]
    assert sorted(title(c) for c in marked(read(circuit_chords(mixnet)), "circuit")) == sorted(
        f"{a}~{b}" for a, b in mixnet.result.circuits
    )


def test_parallel_circuits_of_a_large_fabric_share_a_wider_chord() -> None:
    wiring = {"servers": 32, "optical_nics": 6, "electrical_nics": 2}
    lit = [["s0/o0", "s1/o0"], ["s0/o1", "s1/o1"], ["s2/o0", "s3/o0"]]
    (fabric,) = fabrics_of({"results": [{"wiring": wiring, "circuits": lit}]})
    drawn = {
        title(c): float(c.get("stroke-width") or 0)
        for c in marked(read(circuit_chords(fabric)), "circuit")
    }
    assert drawn == {"s0 and s1: 2 circuits": 2.6, "s2 and s3: 1 circuit": 1.2}


def test_chord_diagram_tells_that_there_are_no_circuits() -> None:
    texts = [e.text for e in read(circuit_chords(fabrics()[0])).iter()]
    assert "no circuits" in texts
    assert "no circuits" not in [e.text for e in read(circuit_chords(fabrics()[1])).iter()]


def test_ratio_bars_have_proportional_lengths() -> None:
    lengths = {
        title(bar): float(bar.get("width") or 0)
        for bar in marked(read(comparison_bars(fabrics())), "bar")
    }
    assert lengths["measured: 1.42x"] / lengths["measured: 1.00x"] == pytest.approx(
        1.4207, abs=0.002
    )


def test_cdf_rises_from_zero_to_one() -> None:
    """The measured and the predicted curve rise from the bottom to the top of the panel."""
    panel = read(completion_cdf(fabrics()[:1]))
    for class_ in ("measured", "predicted"):
        (line,) = [e for e in panel.iter() if class_ in (e.get("class") or "")]
        points = [
            tuple(map(float, point.split())) for point in (line.get("d") or "")[1:].split("L")
        ]
        assert (points[0][1], points[-1][1]) == levels(panel)
        assert points == sorted(points, key=lambda p: (p[0], -p[1]))


def with_errors(*errors: float) -> list[FabricSummary]:
    """Return the sample with these quantiles of its collectives' errors on the first fabric."""
    run, (p5, p50, p95) = sample(), (errors[1], errors[len(errors) // 2], errors[-2])
    run["results"][0]["fidelity"]["completion_errors"] = {
        "collective": {
            "n": 56, "min": errors[0], "p5": p5, "p50": p50, "p95": p95, "max": errors[-1],
            "abs_p50": abs(p50), "abs_p95": abs(p95), "quantiles": list(errors),
        },
    }  # fmt: skip
    return fabrics_of(run)


def test_error_curve_rises_through_zero_and_is_cut_at_the_edge_of_the_axis() -> None:
    """The axis reaches 2 %; the last step, from 1 % to 5 %, leaves it after a quarter."""
    drawn = read(error_cdf(with_errors(-0.01, -0.005, 0.0, 0.01, 0.05)))
    (line,) = [e for e in drawn.iter() if (e.get("class") or "") == "cdf e-collective"]
    points = [tuple(map(float, at.split())) for at in (line.get("d") or "")[1:].split("L")]
    height = points[0][1] - points[2][1]
    middle = (points[0][0] + points[3][0]) / 2
    assert points[2][0] == pytest.approx(middle, abs=0.1)
    assert points[2][1] == pytest.approx(sum(levels(drawn)) / 2, abs=0.1)
    assert points[-1][1] == pytest.approx(points[2][1] - height * (1 + 0.25) / 2, abs=0.1)
    texts = {e.text for e in drawn.iter() if e.tag.endswith("text")}
    assert {"-2 %", "-1 %", "0", "+1 %", "+2 %", "collective"} <= texts


def test_error_curves_need_errors() -> None:
    assert not error_cdf(fabrics())


def test_control_plane_panel_omits_settling() -> None:
    drawn = read(reconfiguration_phases(fabrics()))
    assert len(marked(drawn, "p-settle")) == 2
    assert len(marked(drawn, "p-divert")) == 4


def test_phases_of_a_bar_follow_each_other_and_end_at_the_figure() -> None:
    drawn = read(reconfiguration_phases(fabrics()[1:2]))
    parts = [e for e in drawn.iter() if (e.get("class") or "").startswith("p-") and len(e)]
    places = [(float(e.get("x") or 0), float(e.get("width") or 0)) for e in parts]
    figures = [float(e.get("x") or 0) for e in drawn.iter() if e.get("class") == "figure"]
    for bar, figure in zip((places[:7], places[7:]), figures, strict=True):
        ends = [x + width for x, width in bar]
        assert [x for x, _ in bar[1:]] == pytest.approx(ends[:-1], abs=0.02)
        assert figure == pytest.approx(ends[-1] + 8, abs=0.02)


def test_every_reconfiguration_has_a_dot_in_both_panels() -> None:
    shown = fabrics()
    count = sum(len(fabric.result.reconfigurations) for fabric in shown)
    assert len(marked(read(reconfiguration_phases(shown)), "dot")) == 2 * count


@given(st.floats(0, 1e6), st.floats(1e-6, 1e6), st.integers(2, 12))
def test_ticks_are_few_and_within_the_axis(low: float, span: float, most: int) -> None:
    high = low + span
    values = marks.ticks(low, high, most)
    assert len(values) <= most + 1
    slack = (high - low) * 1e-6 + abs(high) * 1e-12
    assert all(low - slack <= mark <= high + slack for mark in values)


def test_ticks_are_round() -> None:
    assert marks.ticks(0, 3.48, 8) == [0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert marks.ticks(12.5, 52.9, 5) == [20, 30, 40, 50]


def test_svg_escapes_text_and_attributes() -> None:
    assert svg.label(1, 2, "<b>&") == Markup('<text x="1" y="2">&lt;b&gt;&amp;</text>')
    assert svg.tag("g", class_='"><script>') == Markup('<g class="&#34;&gt;&lt;script&gt;"/>')
