"""Pictures of Occult's study."""

from collections.abc import Iterator, Mapping, Sequence

from scipy.stats import linregress

from moefabric.api.charts import Axis, Mark, curve, document_picture, plot
from moefabric_studies.systems.occult.structure import StructureGain

Points = Sequence[tuple[float, float]]
"""CT, and seconds."""


def time_points(panels: Mapping[str, Mapping[str, Points]]) -> str:
    """Draw the time of all-to-alls by CT, a chart for each number of servers.

    Args:
        panels: Points of each way to send tokens, by number of servers.
    """
    names = list(next(iter(panels.values())))
    highest = max(y for ways in panels.values() for points in ways.values() for _, y in points)
    x = Axis.numbers(0.0, 8.5, most=5, title="copies of a token (CT)")
    y = Axis.numbers(0.0, 1.05e3 * highest, most=5)
    drawn = [
        plot(
            f"{servers} servers, ms", x, y,
            [
                _line([point for points in ways.values() for point in points]),
                *(_marks(names.index(name), name, points) for name, points in ways.items()),
            ],
        )
        for servers, ways in panels.items()
    ]  # fmt: skip
    legend = [(f"t{n}", name) for n, name in enumerate(names)]
    title = "Time of an all-to-all by copies of a token (CT)"
    return document_picture(title, drawn, columns=2, legend=legend)


def gain_curves(generated: Sequence[StructureGain], recorded: Sequence[StructureGain]) -> str:
    """Draw the CT that placements save by the structure of the routes, a chart for each placement.

    Args:
        generated: Gains of generated routes, as lines.
        recorded: Gains of recorded routes, as points.
    """
    everything = [*generated, *recorded]
    x = Axis.numbers(
        0.0, 1.05 * max(one.structure for one in everything), most=5, title="structure index"
    )
    low, high = min(0.0, *(one.greedy for one in everything)), max(one.swap for one in everything)
    y = Axis.numbers(low, 1.05 * high, most=5)
    panels = [
        plot(
            f"{title}, % of CT", x, y,
            [
                curve(1, [_point(one, key) for one in generated]),
                curve(5, [_point(one, key) for one in recorded], joined=False),
            ],
        )
        for title, key in (("Greedy (Occult)", "greedy"), ("Greedy and swaps", "swap"))
    ]  # fmt: skip
    legend = [("t1", "generated routes"), ("t5", "layers of the trained model")]
    title = "CT that the placement saves on 4 servers"
    return document_picture(title, panels, columns=2, legend=legend)


def _line(points: Points) -> Iterator[Mark]:
    fit = linregress(*zip(*points, strict=True))
    ends = [(x, 1e3 * (fit.intercept + fit.slope * x), "") for x in (0.0, 8.5)]
    return curve(7, ends, dashed=True, marks=False)


def _marks(colour: int, name: str, points: Points) -> Iterator[Mark]:
    marks = [(x, 1e3 * y, f"{name}: {x:.2f}, {1e3 * y:.3g} ms") for x, y in points]
    return curve(colour, marks, joined=False)


def _point(gain: StructureGain, key: str) -> tuple[float, float, str]:
    value: float = getattr(gain, key)
    return gain.structure, value, f"{gain.name}: {value:.1f}%"
