"""Pictures of Occult's study."""

from collections.abc import Mapping, Sequence

from moefabric.report import svg
from moefabric.report.small_charts import Axis, Chart, Curve, charts_picture
from moefabric.systems.line_fit import fit_line
from moefabric.systems.occult_structure import StructureGain

Points = Sequence[tuple[float, float]]
"""CT, and seconds."""


def time_points(panels: Mapping[str, Mapping[str, Points]]) -> str:
    """Draw the time of all-to-alls by CT, a chart for each number of servers.

    Args:
        panels: Points of each way to send tokens, by number of servers.
    """
    names = list(next(iter(panels.values())))
    highest = max(y for ways in panels.values() for points in ways.values() for _, y in points)
    charts = [
        Chart(
            f"{servers} servers, ms",
            _axis(0.0, 8.5, "copies of a token (CT)"),
            _axis(0.0, 1.05e3 * highest, ""),
            [
                _line([point for points in ways.values() for point in points]),
                *(_marks(names.index(name), name, points) for name, points in ways.items()),
            ],
            reference=None,
        )
        for servers, ways in panels.items()
    ]
    legend = [(f"t{n}", name) for n, name in enumerate(names)]
    return charts_picture("Time of an all-to-all by copies of a token (CT)", charts, legend, 2)


def gain_curves(generated: Sequence[StructureGain], recorded: Sequence[StructureGain]) -> str:
    """Draw the CT that placements save by the structure of the routes, a chart for each placement.

    Args:
        generated: Gains of generated routes, as lines.
        recorded: Gains of recorded routes, as points.
    """
    everything = [*generated, *recorded]
    x = _axis(0.0, 1.05 * max(one.structure for one in everything), "structure index")
    low, high = min(0.0, *(one.greedy for one in everything)), max(one.swap for one in everything)
    charts = [
        Chart(
            f"{title}, % of CT",
            x,
            _axis(low, 1.05 * high, ""),
            [
                Curve("1", [_point(one, key) for one in generated]),
                Curve("5", [_point(one, key) for one in recorded], joined=False),
            ],
            reference=None,
        )
        for title, key in (("Greedy (Occult)", "greedy"), ("Greedy and swaps", "swap"))
    ]
    legend = [("t1", "generated routes"), ("t5", "layers of the trained model")]
    return charts_picture("CT that the placement saves on 4 servers", charts, legend, 2)


def _line(points: Points) -> Curve:
    fit = fit_line(points)
    ends = [(x, 1e3 * (fit.intercept + fit.slope * x), "") for x in (0.0, 8.5)]
    return Curve("7", ends, is_null=True, marks=False)


def _marks(colour: int, name: str, points: Points) -> Curve:
    marks = [(x, 1e3 * y, f"{name}: {x:.2f}, {1e3 * y:.3g} ms") for x, y in points]
    return Curve(str(colour), marks, joined=False)


def _point(gain: StructureGain, key: str) -> tuple[float, float, str]:
    value: float = getattr(gain, key)
    return gain.structure, value, f"{gain.name}: {value:.1f}%"


def _axis(low: float, high: float, title: str) -> Axis:
    ticks = {tick: f"{tick:g}" for tick in svg.ticks(low, high, 5)}
    return Axis(low, high, ticks, title=title)
