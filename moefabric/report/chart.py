"""Charts: panels with two axes, on which marks stand at their values.

`figure` lays panels out in rows and returns an SVG. Marks (`moefabric.report.marks`) are given in
the units of the axes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from markupsafe import Markup

from moefabric.report import svg
from moefabric.report.marks import Axis, Mark, Place, Rule, opacity

WIDTH: Final = 1120.0
"""Width of a figure that spans the page, in CSS pixels at full size."""
NARROW_WIDTH: Final = 360.0
"""Width of a figure for a phone."""
_HEADING, _NOTE, _LEGEND, _TICKS, _TITLE = 22.0, 16.0, 22.0, 22.0, 18.0
"""Heights of a panel's heading, of a line of its note, its legend, tick labels, axis title."""
_NARROW_SIZE: Final = 18.0
"""Size with which a heading is as wide as in the widest usual face, where there is no room."""
_SWATCHES: Final = {"": 0.0, "target": 3.0, "heat": 72.0}
"""Widths of swatches in a legend that aren't squares."""
_SHADES: Final = 12
"""Steps of the colour scale in a legend."""

Legend = Sequence[tuple[str, str]]
"""CSS class and name of each entry; `heat` is a scale, `target` a stroke, no class a text."""


@dataclass(frozen=True)
class Panel:
    """A chart with its own axes.

    Attributes:
        height: Height between the ends of the vertical axis, in pixels.
        note: Lines of small text beneath the heading.
        top: Texts by their values above the panel.
        right: Room at the right of the horizontal axis, in pixels.
    """

    x: Axis
    y: Axis
    marks: Sequence[Mark]
    height: float = 170.0
    heading: str = ""
    note: str = ""
    legend: Legend = ()
    top: Mapping[float, str] = field(default_factory=dict)
    right: float = 8.0

    @property
    def head(self) -> float:
        """Height of the title and legend above the axes."""
        notes = len(self.note.splitlines()) * _NOTE
        legend, top = _LEGEND * bool(self.legend), _TICKS * bool(self.top)
        return _HEADING * bool(self.heading) + notes + legend + top

    @property
    def foot(self) -> float:
        """Height of the texts below."""
        return _TICKS * any(self.x.ticks.values()) + _TITLE * bool(self.x.title)

    @property
    def side(self) -> float:
        """Width of the texts at the left."""
        size = 17.0 if self.y.class_ == "strong" else 12.5
        lines = [line for text in self.y.ticks.values() for line in text.splitlines()]
        widest = max((svg.text_width(line, size) + 12 for line in lines), default=0.0)
        return widest + _TITLE * bool(self.y.title)

    @property
    def margin(self) -> float:
        """Room at the right, with half of the last text."""
        last = max(self.x.ticks, key=self.x.share, default=None)
        if last is None or self.x.share(last) < 0.9:
            return self.right
        return max(self.right, svg.text_width(self.x.ticks[last], 13) / 2 + 1)

    def draw(self, place: Place) -> Iterator[Markup]:
        """Yield the elements of the panel, whose axes are at a place."""
        y = place.top - self.head
        if self.heading:
            size = _NARROW_SIZE if place.left + place.width < NARROW_WIDTH else 16.0
            x = self._start(place, svg.text_width(self.heading, size))
            yield svg.label(x, y + 12, self.heading, "strong")
            y += _HEADING
        for line in self.note.splitlines():
            yield svg.label(place.left, y + 8, line, "small")
            y += _NOTE
        if self.legend:
            width = sum(_entry_width(*entry) for entry in self.legend)
            yield from _swatches(self._start(place, width), y + 10, self.legend)
        yield from _top_ticks(self.top, place)
        yield from _vertical_axis(place)
        yield from _horizontal_axis(place)
        yield from (mark.draw(place) for mark in self.marks)

    def _start(self, place: Place, width: float) -> float:
        """Return where a text above the axes starts: left of them if it is too wide for them."""
        return max(0.0, place.left - max(0.0, width - place.width - self.right))


def _top_ticks(texts: Mapping[float, str], place: Place) -> Iterator[Markup]:
    end = -math.inf
    for value, text in sorted(texts.items(), key=lambda item: place.x.share(item[0])):
        x, _ = place.at(value, place.y.high)
        if x >= end:
            yield svg.tag(
                "line", x1=x, x2=x, y1=place.top - 11, y2=place.top - 3, class_="tickmark"
            )
            yield svg.label(x + 4, place.top - 4, text, "faint")
            end = x + 8 + svg.text_width(text, 10.5)


def _vertical_axis(place: Place) -> Iterator[Markup]:
    axis, end = place.y, -math.inf
    right = place.left + place.width
    for value, text in sorted(axis.ticks.items(), key=lambda item: -axis.share(item[0])):
        _, y = place.at(place.x.low, value)
        if axis.grid:
            yield svg.tag("line", x1=place.left, x2=right, y1=y, y2=y, class_=axis.grid)
        lines = text.splitlines()
        if text and y >= end:
            for n, line in enumerate(lines):
                top, class_ = y + 12 - 8 * len(lines) + 16 * n, "small" if n else axis.class_
                yield svg.label(place.left - 8, top, line, class_, "end")
            end = y + 16 * len(lines) - 6
    if axis.title:
        x, y = place.left - 8, place.top + place.height / 2
        x -= max((svg.text_width(text, 12) for text in axis.ticks.values()), default=0.0) + 8
        yield svg.label(x, y, axis.title, "small", "middle", turn=-90)


def _horizontal_axis(place: Place) -> Iterator[Markup]:
    axis, end = place.x, -math.inf
    bottom = place.top + place.height
    for value, text in sorted(axis.ticks.items(), key=lambda item: axis.share(item[0])):
        x, _ = place.at(value, place.y.low)
        if axis.grid:
            yield svg.tag("line", x1=x, x2=x, y1=place.top, y2=bottom, class_=axis.grid)
        width = svg.text_width(text, 12)
        if text and x - width / 2 >= end:
            yield svg.label(x, bottom + 16, text, axis.class_, "middle")
            end = x + width / 2 + 4
    if axis.title:
        y = bottom + (_TICKS if any(axis.ticks.values()) else 0.0) + 12
        yield svg.label(place.left + place.width / 2, y, axis.title, "small", "middle")


def _swatches(x: float, y: float, entries: Legend) -> Iterator[Markup]:
    """Yield swatches with their names, left to right from (x, y)."""
    for class_, name in entries:
        width = _SWATCHES.get(class_, 14.0)
        parts = _SHADES if class_ == "heat" else 1
        for n in range(parts):
            yield svg.tag(
                "rect", x=x + n * width / parts, y=y - 10, width=width / parts, height=11,
                rx=min(2, width / 3) if parts == 1 else None,
                class_="cell" if parts > 1 else class_,
                fill_opacity=opacity(n / (parts - 1)) if parts > 1 else None,
            )  # fmt: skip
        yield svg.label(x + width + 6, y, name, "small")
        x += _entry_width(class_, name)


def _entry_width(class_: str, name: str) -> float:
    return _SWATCHES.get(class_, 14.0) + 24 + svg.text_width(name, 13)


def _legend_lines(legend: Legend, room: float) -> list[list[tuple[str, str]]]:
    """Return the entries of each line of a legend."""
    lines, width = list[list[tuple[str, str]]](), math.inf
    for entry in legend:
        width += _entry_width(*entry)
        if width > room:
            lines.append([])
            width = _entry_width(*entry)
        lines[-1].append(entry)
    return lines


class Figure(Markup):
    """An SVG of panels side by side.

    Attributes:
        narrow: The same panels one below the other, for a page that is as narrow as a phone.
    """

    narrow: Markup


def responsive(drawn: Markup) -> Markup:
    """Return a picture for a page, which shows a narrow one where there is no room."""
    if not isinstance(drawn, Figure):
        return drawn
    narrow = svg.tag("div", drawn.narrow, class_="narrow")
    return svg.tag("div", drawn, class_="broad") + narrow


def plot(
    heading: str, x: Axis, y: Axis, curves: Iterable[Iterable[Mark]],
    reference: float | None = None,
) -> Panel:  # fmt: skip
    """Return a panel of curves, with a dashed line at the height `reference`."""
    marks = [mark for one in curves for mark in one]
    rules = [] if reference is None else [Rule("reference", y=reference)]
    return Panel(x, y, [*rules, *marks], heading=heading)


def figure(
    label: str, panels: Sequence[Panel], *, columns: int = 1, legend: Legend = (),
    title: str = "", width: float = WIDTH, gap: float = 24.0,
) -> Markup:  # fmt: skip
    """Return an SVG of panels side by side and in rows; empty if there are none.

    One with several columns is a `Figure`, which has a narrow version.

    Example:
        >>> from moefabric.report.marks import Line
        >>> rising = Panel(Axis.numbers(0, 10), Axis.numbers(0, 1), [Line([(0, 0), (10, 1)], "c1")])
        >>> picture = figure("A rising line", [rising])

    Args:
        label: Text for screen readers.
        panels: The charts, row by row.
        columns: Charts of a row.
        legend: The legend above the panels.
        title: Title above the legend.
        width: Width in pixels.
        gap: Pixels between panels.
    """
    if not panels:
        return Markup()
    wide = _picture(label, panels, columns, legend, title, width, gap)
    if columns == 1:
        return wide
    drawn = Figure(wide)
    stacked = list(_with_names(panels, columns))
    drawn.narrow = _picture(label, stacked, 1, legend, title, NARROW_WIDTH, gap)
    return drawn


def _with_names(panels: Sequence[Panel], columns: int) -> Iterator[Panel]:
    """Yield panels that have the texts of the first one of their row, which names them all."""
    for n, panel in enumerate(panels):
        first, axis = panels[n - n % columns].y, panel.y
        bare = not any(axis.ticks.values()) and axis.ticks.keys() == first.ticks.keys()
        yield replace(panel, y=first) if bare else panel


def _picture(
    label: str, panels: Sequence[Panel], columns: int, legend: Legend, title: str, width: float,
    gap: float,
) -> Markup:  # fmt: skip
    """Return an SVG of at least one panel."""
    drawn, y = list[Markup](), 4.0
    if title:
        drawn.append(svg.label(0, 14, title, "strong"))
        y += 24
    by_column = (panels[column::columns] for column in range(columns))
    sides = [max((panel.side for panel in column), default=0.0) for column in by_column]
    start = sides[0] if width > NARROW_WIDTH else 0.0
    for line in _legend_lines(legend, width - start):
        drawn += _swatches(start, y + 10, line)
        y += _LEGEND
    y += 10 * bool(legend)
    for row in range(0, len(panels), columns):
        shown = panels[row : row + columns]
        margin = max(panel.margin for panel in shown)
        inner = (width - sum(sides) - columns * margin - (columns - 1) * gap) / columns
        y, x = y + max(panel.head for panel in shown), 0.0
        for panel, side in zip(shown, sides, strict=False):
            drawn += panel.draw(Place(panel.x, panel.y, x + side, y, inner, panel.height))
            x += side + inner + margin + gap
        y += max(panel.height + panel.foot for panel in shown) + gap
    return svg.picture(width, y - gap + 6, label, drawn)
