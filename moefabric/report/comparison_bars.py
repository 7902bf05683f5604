"""Bar charts: iteration time, all-to-all ratio, optical share, and the first all-to-alls."""

from collections.abc import Callable, Sequence

from markupsafe import Markup

from moefabric.report import formatting, svg
from moefabric.report.summary import FabricSummary

_NAMES, _GAP, _TOP, _ROW, _BAR = 124.0, 64.0, 62.0, 38.0, 16.0
_FIGURE = 62.0
"""Room for the figure right of the longest bar."""
_PREDICTED = ("target", "predicted")

DrawBar = Callable[[FabricSummary, svg.LinearScale, float], list[Markup]]


def comparison_bars(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw three panels side by side, a row per fabric; empty if there is no fabric."""
    if not fabrics:
        return Markup()
    longest_s = max(max(f.iteration_s or 0, f.predicted_iteration_s or 0) for f in fabrics)
    largest = max(max(f.measured_ratio or 0, f.predicted_ratio or 0, 1.0) for f in fabrics)
    compute, exposed = ("k-expert", "compute"), ("k-dispatch", "exposed comm")
    panels: list[tuple[str, list[tuple[str, str]], float, DrawBar]] = [
        ("Iteration time", [compute, exposed, _PREDICTED], longest_s or 1.0, _iteration),
        ("All-to-all time relative to EPS", [("bar", "measured"), _PREDICTED], largest, _ratio),
        ("Bytes by network", [("light", "OCS"), ("by-eps", "EPS")], 1.0, _optical_share),
    ]
    width = (svg.WIDTH - _NAMES - 2 * _GAP) / 3
    bottom = _TOP + len(fabrics) * _ROW
    drawn = [
        svg.label(_NAMES - 16, _TOP + k * _ROW + 13, fabric.name, "strong", "end")
        for k, fabric in enumerate(fabrics)
    ]
    for k, (heading, legend, high, draw) in enumerate(panels):
        left = _NAMES + k * (width + _GAP)
        across = svg.LinearScale(0.0, high, left, left + width - _FIGURE)
        drawn += [svg.label(left, 16, heading, "strong"), svg.legend(left, 38, legend)]
        if draw is _ratio:
            drawn.append(svg.line(across(1.0), _TOP - 8, across(1.0), bottom - 8, "reference"))
        for position, fabric in enumerate(fabrics):
            drawn += draw(fabric, across, _TOP + position * _ROW)
    return svg.picture(svg.WIDTH, bottom, "Comparison of the fabrics", drawn)


def _iteration(fabric: FabricSummary, across: svg.LinearScale, y: float) -> list[Markup]:
    if fabric.iteration_s is None:
        return [_missing(across, y)]
    compute_s = min(fabric.compute_s or 0.0, fabric.iteration_s)
    share = formatting.percentage(fabric.exposed_share)
    exposed = f"exposed communication: {formatting.seconds(fabric.exposed_s)}, {share}"
    return [
        svg.bar(
            across, 0.0, compute_s, y, _BAR, "k-expert", f"compute: {formatting.seconds(compute_s)}"
        ),
        svg.bar(across, compute_s, fabric.iteration_s, y, _BAR, "k-dispatch", exposed),
        *_figure(across, y, fabric.iteration_s, fabric.predicted_iteration_s, formatting.seconds),
    ]


def _ratio(fabric: FabricSummary, across: svg.LinearScale, y: float) -> list[Markup]:
    ratio = fabric.measured_ratio
    if ratio is None:
        return [_missing(across, y)]
    title = f"measured: {formatting.ratio(ratio)}"
    return [
        svg.bar(across, 0.0, ratio, y, _BAR, "bar", title),
        *_figure(across, y, ratio, fabric.predicted_ratio, formatting.ratio),
    ]


def _optical_share(fabric: FabricSummary, across: svg.LinearScale, y: float) -> list[Markup]:
    share = fabric.optical_share
    if share is None:
        return [_missing(across, y)]
    optical = f"OCS: {formatting.data_size(fabric.bytes_by_light)}"
    electrical = f"EPS: {formatting.data_size(fabric.bytes_by_eps)}"
    return [
        svg.bar(across, 0.0, share, y, _BAR, "light", optical),
        svg.bar(across, share, 1.0, y, _BAR, "by-eps", electrical),
        svg.label(across.end + 8, y + 13, f"{share * 100:.0f} %", "figure"),
    ]


def first_dispatch_bars(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the exposed time of each fabric's first all-to-alls: waiting, then sending."""
    if not fabrics:
        return Markup()
    firsts = [fabric.result.first_all_to_all for fabric in fabrics]
    longest_s = max(max(f.exposed_s or 0.0, f.predicted_exposed_s or 0.0) for f in firsts)
    across = svg.LinearScale(0.0, longest_s or 1.0, _NAMES + 26, svg.WIDTH - 150)
    waiting = ("k-reconfiguration", "waiting for light")
    legend = [waiting, ("k-dispatch", "dispatch"), _PREDICTED]
    drawn = [svg.legend(across.start, 14, legend)]
    for k, (fabric, first) in enumerate(zip(fabrics, firsts, strict=True)):
        y, exposed_s = 40 + k * _ROW, first.exposed_s or 0.0
        waited_s, predicted_s = min(first.waited_s or 0.0, exposed_s), first.predicted_exposed_s
        waited, sent = formatting.seconds(waited_s), formatting.seconds(exposed_s - waited_s)
        drawn += [
            svg.label(across.start - 16, y + 9, fabric.name, "strong", "end"),
            svg.label(across.start - 16, y + 24, fabric.first_policy, "small", "end"),
            svg.bar(across, 0.0, waited_s, y, _BAR, "k-reconfiguration", f"waited: {waited}"),
            svg.bar(across, waited_s, exposed_s, y, _BAR, "k-dispatch", f"sent for {sent}"),
            *_figure(across, y, exposed_s, predicted_s, formatting.seconds, error=True),
        ]  # fmt: skip
    label = "Exposed time of the first all-to-alls"
    return svg.picture(svg.WIDTH, 40 + len(firsts) * _ROW, label, drawn)


def _figure(
    across: svg.LinearScale, y: float, measured: float, predicted: float | None,
    text: Callable[..., str], *, error: bool = False,
) -> list[Markup]:  # fmt: skip
    """Draw the figure right of a bar, and a stroke where the prediction ends."""
    figure = text(measured)
    if predicted and error:
        figure += f", {formatting.deviation(measured / predicted - 1)}"
    drawn = [svg.label(max(across(measured), across(predicted or 0)) + 8, y + 13, figure, "figure")]
    if predicted is not None:
        title = f"predicted: {text(predicted)}"
        x = across(predicted) - 1.25
        drawn.append(svg.rect(x, y - 4, 2.5, _BAR + 8, "target", title=title))
    return drawn


def _missing(across: svg.LinearScale, y: float) -> Markup:
    return svg.label(across.start, y + 13, "not measured", "faint")
