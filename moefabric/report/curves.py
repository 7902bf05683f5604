"""Curves: distributions of completion times and errors, losses, exposed communication."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from markupsafe import Markup

from moefabric.report.chart import Panel, figure
from moefabric.report.formatting import counted, seconds
from moefabric.report.marks import COLOURS, Axis, Dot, Line, Mark, Rule, untrusted
from moefabric.report.summary import FabricSummary

_COLUMNS: Final = 4
"""Most panels side by side."""
_LEAST_SPAN: Final = 0.005
"""Error up to which an axis reaches at least, so that rounding noise isn't drawn large."""

SHARES: Final = Axis(ticks={share: f"{share:.0%}".replace("%", " %") for share in (0.0, 0.5, 1.0)})
"""Vertical axis of a cumulative distribution."""

Points = Sequence[tuple[float, float]]
_Curve = tuple[str, Points, bool]
"""Name and points of a curve, and whether its measurements can't be trusted."""


def completion_cdf(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the distribution of the all-to-alls' times, a panel for each fabric.

    All panels have one time scale. The other fabrics are drawn faintly behind each, but for invalid
    ones. Empty if no all-to-all was measured.
    """
    shown = [fabric for fabric in fabrics if fabric.all_to_alls]
    measured = {f.name: [a.measured_s for a in f.all_to_alls] for f in shown}
    panels, ends_s = list[Panel](), [a.predicted_s for f in shown for a in f.all_to_alls]
    times = [t for t in (*chain.from_iterable(measured.values()), *ends_s) if t is not None]
    low, high = min(times, default=0.0), max(times, default=0.0)
    margin = 0.06 * (high - low or high or 1.0)
    axis = replace(Axis.seconds(max(0.0, low - margin), high + margin, 5), grid="")
    for fabric in shown:
        error = "" if fabric["error"] is None else f", error {fabric.text('error')}"
        note = f"median {fabric.text('all_to_all_s')}{error}"
        others = (measured[f.name] for f in shown if f is not fabric and not f.is_invalid)
        marks: list[Mark] = [Line(_steps(times), "cdf others") for times in others]
        predicted = [a.predicted_s for a in fabric.all_to_alls if a.predicted_s is not None]
        marks.append(Line(_steps(measured[fabric.name]), "cdf measured"))
        marks.append(Line(_steps(predicted), "cdf predicted"))
        marks = untrusted(marks, invalid=fabric.is_invalid)
        panels.append(Panel(axis, _shares(panels), marks, heading=fabric.label, note=note))
    columns = min(max(2, len(shown)), _COLUMNS)
    return figure("Completion times, measured and predicted", panels, columns=columns)


def _shares(panels: Sequence[Panel]) -> Axis:
    """Return the vertical axis of the next panel: the first of a row has texts."""
    return SHARES.untitled if len(panels) % _COLUMNS else SHARES


def _steps(times: Sequence[float]) -> Points:
    """Return the corners of a staircase that rises by one n-th at each of n times."""
    return [
        (time, (k + rise) / len(times)) for k, time in enumerate(sorted(times)) for rise in (0, 1)
    ]


def error_cdf(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the errors of each kind on one scale, around 0; empty if no error is known.

    The axis ends at the largest of the curves' 5th and 95th percentiles, doubled.
    """
    shown = [fabric for fabric in fabrics if fabric.result.fidelity.completion_errors]
    errors = [fabric.result.fidelity.completion_errors for fabric in shown]
    ends = [abs(end) for kinds in errors for e in kinds.values() for end in (e.p5, e.p95)]
    span = max(_LEAST_SPAN, *(2 * end for end in ends), 0.0)
    axis = Axis.numbers(-span, span, lambda e: f"{e * 100:+g} %" if e else "0", 5)
    panels = list[Panel]()
    for fabric, kinds in zip(shown, errors, strict=True):
        marks: list[Mark] = [Rule("axis", x=0.0)]
        for kind, summary in kinds.items():
            steps = max(1, len(summary.quantiles) - 1)
            points = [(error, k / steps) for k, error in enumerate(summary.quantiles)]
            marks.append(Line(points, f"cdf e-{kind}"))
        marks = untrusted(marks, invalid=fabric.is_invalid)
        panels.append(Panel(axis, _shares(panels), marks, heading=fabric.label))
    legend = [(f"k-{kind}", kind) for kind in dict.fromkeys(k for kinds in errors for k in kinds)]
    label, columns = "Signed errors of the predictions, by kind", min(max(2, len(shown)), _COLUMNS)
    return figure(label, panels, columns=columns, legend=legend)


def loss_picture(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the losses of fabrics over model time; empty if nothing trained."""
    curves = list[_Curve]()
    for fabric in fabrics:
        if (result := fabric.result.training) is not None and result.losses:
            points = [(one.model_s, one.loss) for one in result.losses]
            count = counted(len(points), "iteration")
            name = f"{fabric.label}: {count} in {seconds(points[-1][0])}"
            curves.append((name, points, fabric.is_invalid))
    losses = [loss for _, points, _ in curves for _, loss in points] or [0.0]
    margin = 0.05 * (max(losses) - min(losses))
    y = Axis.numbers(min(losses) - margin, max(losses) + margin, title="nats")
    last_s = max((points[-1][0] for _, points, _ in curves), default=1.0)
    x = Axis.seconds(0.0, last_s, title="model time")
    return _curves("Loss against model time", x, y, 300, curves)


def exposed_picture(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the exposed communication of each iteration; empty if no iteration has any."""
    curves = list[_Curve]()
    for fabric in fabrics:
        iterations = ((float(i.iteration), i.exposed_comm_s) for i in fabric.result.iterations)
        if points := [(x, y) for x, y in iterations if y is not None]:
            name = f"{fabric.label}: median {fabric.text('exposed_comm_s')}"
            curves.append((name, points, fabric.is_invalid))
    points = [point for _, points_of, _ in curves for point in points_of]
    last, longest_s = (max((point[axis] for point in points), default=0.0) for axis in (0, 1))
    x = Axis.numbers(0.0, last or 1.0, lambda n: f"{n:g}" if n == int(n) else "", 10, "iteration")
    y = Axis.seconds(0.0, 1.05 * longest_s or 1.0, 5)
    return _curves("exposed communication of an iteration", x, y, 190, curves)


def _curves(label: str, x: Axis, y: Axis, height: float, curves: Sequence[_Curve]) -> Markup:
    """Draw curves of a colour each, with a dot at the end.

    Args:
        label: What the picture shows.
        x: Horizontal axis.
        y: Vertical axis.
        height: Height in pixels.
    """
    marks, legend = list[Mark](), list[tuple[str, str]]()
    for number, (name, points, invalid) in enumerate(curves):
        line, area = (f"{kind}{number % COLOURS}" for kind in ("curve c", "t"))
        curve_marks: list[Mark] = [Line(points, line), Dot(*points[-1], area, radius=4)]
        marks += untrusted(curve_marks, invalid=invalid)
        legend.append((area, name))
    return figure(label, [Panel(x, y, marks, height)] if curves else [], legend=legend)
