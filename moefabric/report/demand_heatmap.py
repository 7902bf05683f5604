"""Heat map of a demand matrix, with the circuits of each pair of servers as dots in its cell."""

from collections import Counter
from collections.abc import Sequence

from markupsafe import Markup

from moefabric.report import formatting, svg
from moefabric.report.summary import FabricSummary

_SIZE = 270.0
"""Width and height of the matrix."""
_LEFT, _TOP = 44.0, 44.0
_MOST_FIGURES = 8
"""Number of servers up to which every cell has room for its figure."""
_FAINTEST = 0.06
_KEY_STEPS, _KEY_STEP, _KEY_HEIGHT = 24, 3, 9


def opacity(share: float) -> float:
    """Return the opacity of a cell whose value is this share of the largest one."""
    return _FAINTEST + (1 - _FAINTEST) * share


def colour_key(left: float, y: float, largest: str) -> list[Markup]:
    """Draw the colour scale from 0 to `largest`; the 0 ends 7 pixels left of the scale."""
    end = left + _KEY_STEPS * _KEY_STEP
    drawn = [
        svg.label(left - 7, y + _KEY_HEIGHT, "0", "tick", "end"),
        svg.label(end + 8, y + _KEY_HEIGHT, largest, "tick"),
    ]
    for k in range(_KEY_STEPS):
        x, shade = left + k * _KEY_STEP, opacity(k / (_KEY_STEPS - 1))
        drawn.append(svg.rect(x, y, _KEY_STEP, _KEY_HEIGHT, "cell", opacity=shade))
    return drawn


def demand_heatmap(fabric: FabricSummary, largest: float) -> Markup:
    """Draw the demand of one fabric; empty if the run has none.

    Args:
        fabric: The fabric.
        largest: Bytes of the darkest cell, which also decide the unit of the figures.
    """
    demand, circuits = fabric.demand, fabric.result.circuits
    n = len(demand)
    if n == 0:
        return Markup()
    side = _SIZE / n
    pairs = Counter(frozenset(end.split("/")[0] for end in circuit) for circuit in circuits)
    drawn = [
        svg.label(_LEFT + _SIZE / 2, 12, "to", "small", "middle"),
        svg.label(11, _TOP + _SIZE / 2, "from", "small", "middle", turn=-90),
    ]
    for i in range(0, n, 1 if side >= 22 else 2):
        middle = (i + 0.5) * side
        drawn.append(svg.label(_LEFT + middle, _TOP - 8, f"s{i}", "tick", "middle"))
        drawn.append(svg.label(_LEFT - 8, _TOP + middle + 4, f"s{i}", "tick", "end"))
    for i in range(n):
        for j in range(n):
            drawn += _cell(demand, i, j, largest, pairs[frozenset((f"s{i}", f"s{j}"))])
    factor, prefix = formatting.decimal_prefix(largest)
    y, text = _TOP + _SIZE + 14, f"{formatting.significant(largest / factor, 3)} {prefix}B"
    drawn += colour_key(_LEFT + 16, y, text)
    if circuits:
        drawn.append(svg.circle(_LEFT + _SIZE - 58, y + 4.5, 3, "lit-dot"))
        drawn.append(svg.label(_LEFT + _SIZE, y + 9, "circuit", "tick", "end"))
    label = f"Demand matrix of {fabric.name}"
    return svg.picture(_LEFT + _SIZE + 4, _TOP + _SIZE + 40, label, drawn)


def _cell(
    demand: Sequence[Sequence[float]], i: int, j: int, largest: float, circuits: int
) -> list[Markup]:
    """Draw one cell with its figure, and a dot per circuit in its corner.

    A small cell has one dot in its middle, larger for more circuits.
    """
    n, owed, side = len(demand), demand[i][j], _SIZE / len(demand)
    x, y, size = _LEFT + j * side, _TOP + i * side, formatting.data_size(owed)
    if i == j:
        title = f"s{i} to itself: {size} stay on the server"
        return [svg.rect(x + 1, y + 1, side - 2, side - 2, "cell-self", title=title, radius=3)]
    share = min(1.0, owed / largest) if largest else 0.0
    count = formatting.counted(circuits, "circuit") if circuits else "no circuit"
    title = f"s{i} to s{j}: {size}, {count}"
    drawn = [
        svg.rect(
            x + 1, y + 1, side - 2, side - 2, "cell", title=title, radius=3, opacity=opacity(share)
        )
    ]
    if n > _MOST_FIGURES:
        radius = min(side / 2 - 2, 1.8 + 0.9 * circuits)
        dot = svg.circle(x + side / 2, y + side / 2, radius, "lit-dot")
        return [*drawn, dot] if circuits else drawn
    factor, _ = formatting.decimal_prefix(largest)
    shade = "on-hot" if share > 0.72 else "on-cool"
    class_, drop = ("", 5.0) if side > 50 else (" tight", 7.0)
    figure = formatting.significant(owed / factor, 3)
    class_ = f"in {shade}{class_}"
    drawn.append(svg.label(x + side / 2, y + side / 2 + drop, figure, class_, "middle"))
    radius = 3.0 if side > 50 else 2.2
    right, top = x + side - 4 - radius, y + 4 + radius
    return drawn + [
        svg.circle(right - k * 2.5 * radius, top, radius, "lit-dot")
        for k in range(min(circuits, 4))
    ]
