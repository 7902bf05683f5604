"""Grammar of charts: axes, marks, and the layout of panels."""

import math
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.report import svg
from moefabric.report.chart import NARROW_WIDTH, Figure, Panel, figure, responsive
from moefabric.report.marks import Axis, Box, Dot, Line, Mark, Rule, cell, curve

UNIT = Axis(0, 10), Axis(0, 1)


def drawn(*marks: Mark, x: Axis = UNIT[0], y: Axis = UNIT[1]) -> ET.Element:
    """Return a figure of one panel that is 1,000 pixels wide and 100 high, at (0, 4)."""
    panel = Panel(x, y, marks, height=100, right=0)
    return ET.fromstring(figure("test", [panel], width=1000))


def only(picture: ET.Element, tag: str) -> ET.Element:
    (element,) = [e for e in picture.iter() if e.tag.endswith(tag)]
    return element


def numbers(element: ET.Element, *names: str) -> tuple[float, ...]:
    return tuple(float(element.get(name) or "nan") for name in names)


def texts(picture: ET.Element) -> list[str]:
    return [e.text or "" for e in picture.iter() if e.tag.endswith("text")]


@pytest.mark.parametrize(
    ("axis", "value", "share"),
    [
        pytest.param(Axis(0, 4), 1, 0.25, id="linear"),
        pytest.param(Axis(4, 0), 1, 0.75, id="reversed"),
        pytest.param(Axis(1, 100, logarithmic=True), 10, 0.5, id="logarithmic"),
        pytest.param(Axis(0, 4), 9, 1.0, id="beyond"),
        pytest.param(Axis(1, 100, logarithmic=True), 0, 0.0, id="logarithm-of-zero"),
        pytest.param(Axis(3, 3), 3, 0.0, id="without-length"),
        pytest.param(Axis.rows(["a", "b"]), 0.5, 0.75, id="first-row-is-on-top"),
    ],
)
def test_axis_places_values(axis: Axis, value: float, share: float) -> None:
    assert axis.share(value) == pytest.approx(share)


def test_axis_of_times_names_its_unit_once() -> None:
    assert list(Axis.seconds(0, 0.02, 4).ticks.values()) == ["0", "5", "10", "15", "20 ms"]


def test_narrow_figure_has_its_panels_one_below_the_other_with_their_names() -> None:
    names = Axis.rows(["a name", "another"], class_="strong")
    legend = [(f"t{n}", f"an entry of the legend {n}") for n in range(5)]
    x = Axis.numbers(0, 1)
    panels = [
        Panel(x, axis, [], heading=f"A heading of some length {n}", legend=legend[:2])
        for n, axis in enumerate((names, names.untitled, names.untitled))
    ]
    picture = figure("test", panels, columns=3, legend=legend)
    assert isinstance(picture, Figure)
    wide, narrow = ET.fromstring(picture), ET.fromstring(picture.narrow)
    assert texts(wide).count("another") == 1
    assert texts(narrow).count("another") == 3
    assert float(narrow.get("width") or 0) == NARROW_WIDTH
    for text in (e for e in narrow.iter() if e.tag.endswith("text")):
        x1, width = numbers(text, "x")[0], svg.text_width(text.text or "", 12)
        left = {"end": x1 - width, "middle": x1 - width / 2}.get(text.get("text-anchor") or "", x1)
        assert left >= 0, text.text
        assert left + width <= NARROW_WIDTH, text.text
    both = str(responsive(picture))
    assert both.index('class="broad"') < both.index('class="narrow"')
    assert responsive(figure("test", panels[:1])) == figure("test", panels[:1])


def test_box_stands_at_its_values() -> None:
    box = only(drawn(Box((2, 5), (0.0, 0.25), "bar", "tip")), "rect")
    assert numbers(box, "x", "y", "width", "height") == (200, 79, 300, 25)
    assert box[0].text == "tip"


def test_box_is_at_least_as_wide_as_asked_and_smaller_by_its_gap() -> None:
    narrow = only(drawn(Box((2, 2), (0, 1), "target", least=2.5)), "rect")
    assert numbers(narrow, "x", "width") == (200, 2.5)
    apart = only(drawn(cell(2, 0, 0.5, "tip", gap=3), y=Axis(1, 0)), "rect")
    assert numbers(apart, "x", "y", "width", "height") == (203, 7, 94, 94)


@pytest.mark.parametrize(
    ("end", "text"),
    [
        pytest.param(2.0, "reconfiguration", id="long"),
        pytest.param(0.5, "recon", id="short"),
        pytest.param(0.1, None, id="none"),
    ],
)
def test_box_has_the_first_text_that_fits(end: float, text: str | None) -> None:
    box = Box((0, end), (0, 1), "bar", texts=["reconfiguration", "recon"])
    assert texts(drawn(box)) == ([] if text is None else [text])


def test_line_is_cut_where_it_leaves_the_axis_and_comes_back() -> None:
    points = [(-10, 0.0), (5, 0.6), (20, 0.0), (5, 0.3)]
    path = only(drawn(Line(points, "curve")), "path").get("d")
    assert path == "M0 64L500 44L1000 64L1000 84L500 74"


def test_line_that_crosses_the_whole_axis_backwards_keeps_its_direction() -> None:
    path = only(drawn(Line([(20, 1.0), (-10, 0.0)], "curve")), "path").get("d")
    assert path == "M1000 37.33L0 70.67"


def test_line_without_points_on_the_axis_is_left_out() -> None:
    picture = drawn(Line([], "a"), Line([(20, 0), (30, 1)], "b"))
    assert not [e for e in picture.iter() if e.tag.endswith("path")]


def test_rule_crosses_the_panel_and_a_tooltip_gives_it_a_flag() -> None:
    plain = drawn(Rule("reference", y=0.25))
    assert numbers(only(plain, "line"), "x1", "y1", "x2", "y2") == (0, 79, 1000, 79)
    flagged = drawn(Rule("m-injected", x=4, title="injected"))
    assert numbers(only(flagged, "line"), "x1", "x2") == (400, 400)
    assert only(flagged, "title").text == "injected"


def test_curve_has_a_line_and_dots_as_asked() -> None:
    points = [(1.0, 0.5, "one"), (2.0, 0.75, "two")]
    assert [type(mark) for mark in curve(3, points)] == [Line, Dot, Dot]
    assert [type(mark) for mark in curve(3, points, joined=False)] == [Dot, Dot]
    assert [type(mark) for mark in curve(3, points, marks=False)] == [Line]
    assert next(iter(curve(3, points, dashed=True))) == Line([(1, 0.5), (2, 0.75)], "curve c3 null")


@given(st.lists(st.text("abcW0", min_size=1, max_size=12), min_size=1, max_size=60))
def test_labels_of_ticks_never_overlap(names: list[str]) -> None:
    picture = ET.fromstring(figure("test", [Panel(Axis.names(names), Axis(), [])], width=600))
    labels = [e for e in picture.iter() if e.tag.endswith("text")]
    assert labels
    end = -math.inf
    for label in labels:
        (middle,) = numbers(label, "x")
        half = svg.text_width(label.text or "", 12) / 2
        assert middle - half >= end
        end = middle + half


def test_panels_of_a_column_begin_at_the_same_place_and_rows_stand_apart() -> None:
    wide = Axis(0, 1, {0: "a long text", 1: ""})
    panels = [Panel(UNIT[0], y, [Box((0, 10), (0, 1), "bar")]) for y in (wide, UNIT[1])] * 2
    picture = ET.fromstring(figure("test", panels, columns=2, width=600))
    bars = [e for e in picture.iter() if e.tag.endswith("rect")]
    places = [numbers(bar, "x", "y", "width", "height") for bar in bars]
    (first, second, third, fourth) = places
    assert (first[0], second[0]) == (third[0], fourth[0])
    assert {width for _, _, width, _ in places} == {first[2]}
    assert first[0] >= svg.text_width("a long text", 12)
    assert second[0] > first[0] + first[2]
    assert third[1] > first[1] + first[3]


def test_legend_continues_on_further_lines() -> None:
    legend = [(f"t{n}", f"a fabric with a long name {n}") for n in range(8)]
    picture = ET.fromstring(figure("test", [Panel(*UNIT, [])], legend=legend, width=600))
    labels = [e for e in picture.iter() if (e.text or "").startswith("a fabric")]
    assert [e.text for e in labels] == [name for _, name in legend]
    assert len({e.get("y") for e in labels}) > 1
    ends = [numbers(e, "x")[0] + svg.text_width(e.text or "", 12) for e in labels]
    assert max(ends) <= 600


def test_figure_without_panels_is_empty() -> None:
    assert figure("nothing", []) == ""
