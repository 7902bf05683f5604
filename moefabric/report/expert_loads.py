"""Loads of experts over a job: a heat map for each layer, a row for each expert."""

from typing import Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from moefabric.report import svg
from moefabric.report.demand_heatmap import colour_key, opacity

_LEFT, _TOP, _GAP, _MAP_HEIGHT, _FOOT = 62.0, 64.0, 34.0, 150.0, 44.0
_COLUMNS: Final = 3
"""Layers side by side."""
_MOST_CELLS: Final = 80
"""Columns of a map; more iterations are drawn as means of several."""
_MOST_NAMES: Final = 12
"""Experts up to which each one has its number."""


def expert_loads(tokens: NDArray[np.int64]) -> Markup:
    """Draw the loads of experts, relative to even ones.

    Args:
        tokens: Tokens [iteration, layer, rank, expert]; empty arrays draw nothing.
    """
    if not tokens.size:
        return Markup()
    counts = tokens.sum(axis=2, dtype=np.float64)
    loads = counts / np.maximum(counts.mean(axis=-1, keepdims=True), 1e-300)
    layers = loads.shape[1]
    columns = min(layers, _COLUMNS)
    width = (svg.WIDTH - _LEFT - 8 - _GAP * (columns - 1)) / columns
    pitch = _MAP_HEIGHT + _FOOT + 34
    largest = float(loads.max())
    drawn = [
        svg.label(_LEFT, 14, "tokens of an expert, relative to the mean of its layer", "small")
    ]
    drawn += colour_key(_LEFT + 370, 5, f"{largest:.1f} x")
    for layer in range(layers):
        x, y = _LEFT + layer % columns * (width + _GAP), _TOP + layer // columns * pitch
        drawn += _map(loads[:, layer], largest, (x, y), width, named=layer % columns == 0)
        drawn.append(svg.label(x, y - 10, f"layer {layer}", "strong"))
        drawn.append(svg.label(x + width, y - 10, _busiest(loads[:, layer]), "small", "end"))
    height = _TOP + -(-layers // columns) * pitch - 34
    return svg.picture(svg.WIDTH, height, "Loads of experts", drawn)


def _busiest(loads: NDArray[np.float64]) -> str:
    iteration, expert = np.unravel_index(int(loads.argmax()), loads.shape)
    return f"busiest: expert {expert}, {loads.max():.1f} x in iteration {iteration}"


def _map(
    loads: NDArray[np.float64], largest: float, place: tuple[float, float], width: float, *,
    named: bool,
) -> list[Markup]:  # fmt: skip
    """Draw the loads [iteration, expert] of a layer at a place (x, y)."""
    left, top = place
    iterations, experts = loads.shape
    across = svg.LinearScale(0, iterations, left, left + width)
    row = _MAP_HEIGHT / experts
    gap = 1.0 if row > 5 else 0.0
    drawn = []
    for part in np.array_split(np.arange(iterations), min(iterations, _MOST_CELLS)):
        first, last = int(part[0]), int(part[-1])
        when = f"iteration {first}" if first == last else f"iterations {first} to {last}"
        start, end = across(first), across(last + 1)
        for expert, load in enumerate(loads[part].mean(axis=0)):
            title, y = f"{when}, expert {expert}: {load:.2f} x", top + expert * row
            shade = opacity(load / largest)
            drawn.append(
                svg.rect(start, y, end - start, row - gap, "cell", title=title, opacity=shade)
            )
    if named:
        step = 1 if experts <= _MOST_NAMES else 8
        for expert in range(0, experts, step):
            y = top + (expert + 0.5) * row + 4
            drawn.append(svg.label(left - 8, y, str(expert), "tick", "end"))
        drawn.append(svg.label(14, top + _MAP_HEIGHT / 2, "expert", "small", "middle", turn=-90))
    for mark in svg.ticks(0, iterations - 1, 6):
        if mark == int(mark):
            x, y = across(mark + 0.5), top + _MAP_HEIGHT
            drawn.append(svg.label(x, y + 16, f"{mark:g}", "tick", "middle"))
    drawn.append(svg.label(left + width, top + _MAP_HEIGHT + 32, "iteration", "small", "end"))
    return drawn
