"""Curves of a training run, a line for each fabric: loss, and communication not hidden."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from moefabric.report import formatting, svg

COLOURS: Final = 8
"""Fabrics of different colours: CSS classes `f0` to `f7` of lines and `d0` to `d7` of areas."""
_LEFT, _TOP, _FOOT = 62.0, 34.0, 48.0
_LOSS_HEIGHT, _TIME_HEIGHT = 340.0, 220.0
_LINE = 20.0
"""Distance of labels."""


@dataclass(frozen=True)
class Curve:
    """A figure of one fabric over the job.

    Attributes:
        name: Name of the fabric.
        points: Its points (x, y), ordered by x.
        figure: What the label says beside the name.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    figure: str = ""


def loss_curves(curves: Sequence[Curve]) -> Markup:
    """Draw losses over model time; x is in seconds. Empty without points.

    The label of a curve stands above its end. Later ends have higher labels, so that no dotted line
    crosses a label.
    """
    shown = [(number % COLOURS, curve) for number, curve in enumerate(curves) if curve.points]
    if not shown:
        return Markup()
    scales = _scales([curve for _, curve in shown], svg.WIDTH - 16, _LOSS_HEIGHT)
    across, up = scales
    drawn = [*svg.time_axis(across, up.end, up.start), *_vertical_axis(up, str)]
    drawn.append(svg.label(_LEFT, 16, "loss: cross entropy per token, in nats", "small"))
    drawn.append(svg.label(across.end, up.start + 36, "model time", "small", "end"))
    drawn += _lines(shown, scales)
    by_end = sorted(shown, key=lambda one: one[1].points[-1][0], reverse=True)
    for place, (colour, curve) in enumerate(by_end):
        end_s, loss = curve.points[-1]
        x, y = across(end_s), up.end + 16 + place * _LINE
        drawn.append(svg.line(x, y + 5, x, up(loss), f"leader f{colour}"))
        drawn.append(svg.circle(x, up(loss), 4.0, f"d{colour}", f"{curve.name}: {curve.figure}"))
        room = svg.text_width(curve.name + curve.figure, 14)
        drawn.append(_name(x, y, curve, colour, "end" if x - room > _LEFT else None))
    return svg.picture(svg.WIDTH, up.start + _FOOT, "Loss against model time", drawn)


def _name(x: float, y: float, curve: Curve, colour: int, anchor: str | None = None) -> Markup:
    """Write a curve's name in its colour, and its figure."""
    name = svg.tag("tspan", curve.name, class_=f"strong d{colour}")
    figure = svg.tag("tspan", curve.figure, dx=8, class_="small")
    return svg.label(x, y, name + figure, anchor=anchor)


def iteration_curves(curves: Sequence[Curve], name: str) -> Markup:
    """Draw times in seconds over the numbers of iterations, with labels at the right end.

    Args:
        curves: The curves.
        name: What is drawn; it is written above the axis.
    """
    shown = [(number % COLOURS, curve) for number, curve in enumerate(curves) if curve.points]
    if not shown:
        return Markup()
    room = max(svg.text_width(f"{c.name}  {c.figure}", 14) for _, c in shown)
    right = svg.WIDTH - room - 40
    scales = _scales([curve for _, curve in shown], right, _TIME_HEIGHT, least=0.0)
    across, up = scales
    factor, unit = formatting.time_unit(up.high)
    drawn = _vertical_axis(up, lambda text: f"{text} {unit}", factor)
    drawn.append(svg.label(_LEFT, 16, name, "small"))
    drawn.append(svg.label(across.end, up.start + 36, "iteration", "small", "end"))
    for mark in svg.ticks(across.low, across.high, 10):
        if mark == int(mark):
            x = across(mark)
            drawn.append(svg.line(x, up.start, x, up.start + 4, "tickmark"))
            drawn.append(svg.label(x, up.start + 17, f"{mark:g}", "tick", "middle"))
    drawn += _lines(shown, scales)
    ends = sorted(((up(c.points[-1][1]), colour, c) for colour, c in shown), key=lambda e: e[0])
    for y, (end, colour, curve) in zip(_apart([e[0] for e in ends]), ends, strict=True):
        x = across(curve.points[-1][0])
        drawn.append(svg.line(x + 2, end, across.end + 10, y - 4, f"leader f{colour}"))
        drawn.append(_name(across.end + 14, y, curve, colour))
    return svg.picture(svg.WIDTH, up.start + _FOOT, name, drawn)


def _scales(
    curves: Sequence[Curve], right: float, height: float, least: float | None = None
) -> tuple[svg.LinearScale, svg.LinearScale]:
    """Return the scales of all points; `least` is the low end of the vertical one."""
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    low = min(ys) - 0.06 * (max(ys) - min(ys)) if least is None else least
    high = max(ys) * 1.02
    return (
        svg.LinearScale(0.0, max(xs), _LEFT, right),
        svg.LinearScale(low, high, _TOP + height, _TOP),
    )


def _vertical_axis(
    up: svg.LinearScale, text: Callable[[str], str], factor: float = 1.0
) -> list[Markup]:
    """Draw round values at the left; a figure is divided by `factor`."""
    drawn = []
    for mark in svg.ticks(up.low / factor, up.high / factor, 6):
        y = up(mark * factor)
        drawn.append(svg.line(_LEFT, y, _LEFT - 4, y, "tickmark"))
        drawn.append(svg.label(_LEFT - 8, y + 4, text(f"{mark:g}"), "tick", "end"))
    return drawn


def _lines(
    shown: Sequence[tuple[int, Curve]], scales: tuple[svg.LinearScale, svg.LinearScale]
) -> list[Markup]:
    across, up = scales
    return [
        svg.path([(across(x), up(y)) for x, y in curve.points], f"curve f{colour}")
        for colour, curve in shown
    ]


def _apart(places: Sequence[float]) -> list[float]:
    """Return ascending places of labels, moved down until no two are closer than a line."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place + 4, moved[-1] + _LINE) if moved else place + 4)
    return moved
