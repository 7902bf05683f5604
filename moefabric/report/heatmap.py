"""The heat map: bytes owed from server to server in one dispatch, and how many circuits each pair has for them."""

from collections import Counter
from collections.abc import Sequence

from markupsafe import Markup

from moefabric.report import heat, svg, words
from moefabric.report.result import Result

SIZE = 270.0
"""Width and height of the matrix itself."""

_LEFT, _TOP = 44.0, 44.0
_WRITTEN = 8
"""Servers up to which every cell has room for its figure."""


def heatmap(result: Result, largest: float) -> Markup:
    """The demand of one fabric; `largest` bytes make the darkest cell and settle the unit."""
    n = len(result.demand)
    if n == 0:
        return Markup()
    side = SIZE / n
    pairs = Counter(frozenset(end.split("/")[0] for end in circuit) for circuit in result.circuits)
    drawn = [
        svg.label(_LEFT + SIZE / 2, 12, "to", "small", "middle"),
        svg.label(11, _TOP + SIZE / 2, "from", "small", "middle", turn=-90),
        *_names(n, side),
    ]
    for i in range(n):
        for j in range(n):
            drawn += _cell(
                result.demand, i, j, side, largest=largest, lit=pairs[frozenset((f"s{i}", f"s{j}"))]
            )
    drawn.append(_key(largest, lit=bool(result.circuits)))
    return svg.picture(
        _LEFT + SIZE + 4, _TOP + SIZE + 40, f"Demand matrix of {words.printable(result.name)}", drawn
    )


def _names(n: int, side: float) -> list[Markup]:
    """Server names along both edges; every other one where they would touch."""
    every = 1 if side >= 22 else 2
    drawn = []
    for i in range(0, n, every):
        at = (i + 0.5) * side
        drawn.append(svg.label(_LEFT + at, _TOP - 8, f"s{i}", "tick", "middle"))
        drawn.append(svg.label(_LEFT - 8, _TOP + at + 4, f"s{i}", "tick", "end"))
    return drawn


def _cell(
    demand: Sequence[Sequence[float]], i: int, j: int, side: float, *, largest: float, lit: int
) -> list[Markup]:
    x, y, owed = _LEFT + j * side, _TOP + i * side, demand[i][j]
    if i == j:
        title = f"s{i} to itself: {words.amount(owed)} stay on the server"
        return [svg.rect(x + 1, y + 1, side - 2, side - 2, "cell-self", title=title, radius=3)]
    share = min(1.0, owed / largest) if largest else 0.0
    title = f"s{i} to s{j}: {words.amount(owed)}, {words.counted(lit, 'circuit') if lit else 'no circuit'}"
    box = svg.tag(
        "rect", svg.tag("title", title), x=x + 1, y=y + 1, width=side - 2, height=side - 2, rx=3, class_="cell",
        fill_opacity=heat.opacity(share),
    )  # fmt: skip
    drawn = [box]
    if len(demand) <= _WRITTEN:
        factor, _ = words.thousands(largest)
        shade = "on-hot" if share > 0.72 else "on-cool"
        size, drop = ("", 5.0) if side > 50 else (" tight", 7.0)
        figure = words.significant(owed / factor, 3)
        drawn.append(svg.label(x + side / 2, y + side / 2 + drop, figure, f"in {shade}{size}", "middle"))
    return drawn + _dots(len(demand), x, y, side, lit)


def _dots(n: int, x: float, y: float, side: float, lit: int) -> list[Markup]:
    """A dot a circuit in the cell's corner; in a small cell one dot in its middle, larger for more."""
    if n > _WRITTEN:
        radius = min(side / 2 - 2, 1.8 + 0.9 * lit)
        return (
            [svg.tag("circle", cx=x + side / 2, cy=y + side / 2, r=radius, class_="lit-dot")] if lit else []
        )
    radius = 3.0 if side > 50 else 2.2
    right, top = x + side - 4 - radius, y + 4 + radius
    return [
        svg.tag("circle", cx=right - k * 2.5 * radius, cy=top, r=radius, class_="lit-dot")
        for k in range(min(lit, 4))
    ]


def _key(largest: float, *, lit: bool) -> Markup:
    """What the heat of a cell means, and its dots."""
    y = _TOP + SIZE + 14
    factor, prefix = words.thousands(largest)
    drawn = heat.scale(_LEFT + 16, y, f"{words.significant(largest / factor, 3)} {prefix}B")
    if lit:
        drawn.append(svg.tag("circle", cx=_LEFT + SIZE - 86, cy=y + 4.5, r=3, class_="lit-dot"))
        drawn.append(svg.label(_LEFT + SIZE, y + 9, "a circuit lit", "tick", "end"))
    return svg.tag("g", *drawn)
