"""Picture of recorded gating beside generated gating: tokens of ranks to experts, and loads."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from moefabric.report import svg
from moefabric.report.demand_heatmap import opacity
from moefabric.report.picture_file import WIDTH, picture_file
from moefabric.workload.gating import GatingTrace
from moefabric.workload.gating_statistics import expert_shares, max_over_mean, variation

_LEFT, _GAP, _MAPS, _MAP_HEIGHT, _CURVES, _CURVE_HEIGHT = 56.0, 64.0, 76.0, 176.0, 318.0, 190.0
_HEIGHT: Final = _CURVES + _CURVE_HEIGHT + 48
_PANEL: Final = (WIDTH - _LEFT - _GAP - 16) / 2
_POINTS: Final = 120


def gating_comparison(
    recorded: GatingTrace, replicas: Sequence[GatingTrace], title: str, name: str
) -> str:
    """Draw recorded gating and replicas of the generator as a stand-alone SVG file.

    Heat maps show the layer whose loads vary as those of the median layer, in the first iteration,
    with the busiest experts at the left. Curves show the distribution of the loads of experts of
    all layers and iterations, and how far a rank's share of an expert is from that of all ranks,
    or with one rank the busiest expert of each layer.

    Args:
        recorded: The recorded trace.
        replicas: Generated traces of the same shape.
        title: Title of the picture.
        name: Name of the generator.
    """
    maps = [_matrix(trace) for trace in (recorded, replicas[0])]
    darkest = max(float(matrix.max()) for matrix in maps)
    drawn = [svg.label(16, 26, title, "strong")]
    for column, (matrix, text) in enumerate(zip(maps, ("recorded", name), strict=True)):
        drawn += _heat_map(matrix, darkest, _LEFT + column * (_PANEL + _GAP), text)
    traces = (*replicas, recorded)
    loads = [_loads(trace) for trace in traces]
    drawn += _curves(loads, _LEFT, "load of an expert, relative to the mean")
    if recorded.tokens.shape[2] > 1:
        others = [_deviations(trace) for trace in traces]
        text = "deviation of a rank's share of an expert, relative to the mean share"
    else:
        others = [max_over_mean(expert_shares(trace)).ravel() for trace in traces]
        text = "busiest expert of a layer, relative to the mean"
    drawn += _curves(others, _LEFT + _PANEL + _GAP, text)
    legend = (("t7", "recorded"), ("t3", f"{name}, {len(replicas)} seeds"))
    drawn.append(svg.legend(_LEFT, _CURVES - 32, legend))
    return picture_file(_HEIGHT, title, drawn)


def _matrix(trace: GatingTrace) -> NDArray[np.float64]:
    """Return the tokens [rank, expert] of the median layer, relative to the mean."""
    spread = variation(expert_shares(trace)[0])
    layer = int(np.argsort(spread)[len(spread) // 2])
    tokens = trace.tokens[0, layer].astype(np.float64)
    tokens /= tokens.sum(axis=1, keepdims=True) / tokens.shape[1]
    busiest: NDArray[np.float64] = tokens[:, np.argsort(-tokens.sum(axis=0))]
    return busiest


def _loads(trace: GatingTrace) -> NDArray[np.float64]:
    loads: NDArray[np.float64] = expert_shares(trace).ravel() * trace.tokens.shape[-1]
    return loads


def _deviations(trace: GatingTrace) -> NDArray[np.float64]:
    rows = trace.tokens / np.maximum(trace.tokens.sum(axis=-1, keepdims=True), 1)
    deviations: NDArray[np.float64] = rows - rows.mean(axis=2, keepdims=True)
    deviations *= trace.tokens.shape[-1]
    return deviations.ravel()


def _heat_map(matrix: NDArray[np.float64], darkest: float, left: float, text: str) -> list[Markup]:
    ranks, experts = matrix.shape
    width, height = _PANEL / experts, _MAP_HEIGHT / ranks
    gap = 1.0 if width > 6 else 0.0
    drawn = [
        svg.label(left, _MAPS - 22, text, "strong"),
        svg.label(left + _PANEL, _MAPS - 22, f"busiest pair {matrix.max():.2g} x mean",
                  "small", "end"),
    ]  # fmt: skip
    for (rank, expert), value in np.ndenumerate(matrix):
        x, y = left + expert * width, _MAPS - 8 + rank * height
        drawn.append(
            svg.rect(x, y, width - gap, height - gap, "t1", opacity=opacity(value / darkest))
        )
    bottom = _MAPS - 8 + ranks * height
    drawn.append(svg.label(left, bottom + 16, f"{experts} experts, the busiest first", "tick"))
    middle = _MAPS - 8 + ranks * height / 2
    name = f"{ranks} ranks" if ranks > 1 else "rank"
    drawn.append(svg.label(left - 10, middle, name, "tick", "middle", turn=-90))
    return drawn


def _curves(samples: Sequence[NDArray[np.float64]], left: float, text: str) -> list[Markup]:
    """Draw cumulative distributions; the last one is the record's."""
    quantiles = np.linspace(0.0, 1.0, _POINTS + 1)
    curves = [np.quantile(values, quantiles) for values in samples]
    # Tails of replicas beyond the record's end at the edge.
    low, high = min(0.0, float(curves[-1][0])), 1.1 * float(curves[-1][-1])
    across = svg.LinearScale(low, high, left, left + _PANEL)
    up = svg.LinearScale(0.0, 1.0, _CURVES + _CURVE_HEIGHT, _CURVES)
    drawn = []
    for mark in svg.ticks(low, high, 6):
        x = across(mark)
        drawn.append(svg.line(x, up.end, x, up.start, "grid"))
        drawn.append(svg.label(x, up.start + 16, f"{mark:g}", "tick", "middle"))
    for share in (0.0, 0.5, 1.0):
        drawn.append(svg.line(left, up(share), left + _PANEL, up(share), "grid"))
        drawn.append(svg.label(left - 8, up(share) + 4, f"{share:.0%}", "tick", "end"))
    for number, curve in enumerate(curves):
        class_ = "curve c7" if number == len(curves) - 1 else "curve c3"
        inside = (curve >= low) & (curve <= high)
        points = zip(curve[inside].tolist(), quantiles[inside].tolist(), strict=True)
        drawn.append(svg.path([(across(x), up(y)) for x, y in points], class_))
    drawn.append(svg.label(left + _PANEL / 2, up.start + 36, text, "small", "middle"))
    return drawn
