"""Picture of Aurora's study: time of all-to-alls relative to the bound, by order."""

from collections.abc import Mapping, Sequence
from statistics import median

from moefabric.report.small_charts import Axis, Chart, Curve, charts_picture

OrderRatios = Mapping[str, Sequence[float]]
"""Times relative to the bound, by order."""


def orders_picture(fluid: OrderRatios, measured: OrderRatios) -> str:
    """Draw every all-to-all as a point, in the fluid model and with packets."""
    most = max(max(ratios) for ratios in (*fluid.values(), *measured.values()))
    up = Axis(0.9, most, {1 + n / 4: f"{1 + n / 4:g}" for n in range(int(4 * (most - 1)) + 1)})
    charts = [
        _chart("Fluid model, all layers", fluid, up),
        _chart("Packets, first layers", measured, up),
    ]
    legend = [("t7", "an all-to-all"), ("t1", "median")]
    return charts_picture("Time of all-to-alls over the bound", charts, legend, columns=1)


def _chart(title: str, ratios: OrderRatios, up: Axis) -> Chart:
    names = {float(n): f"{name}" for n, name in enumerate(ratios)}
    across = Axis(-0.4, len(ratios) - 0.6, names)
    points = [
        (
            place + 0.5 * (n / max(1, len(values) - 1) - 0.5),
            value,
            f"{name}, all-to-all {n}: {value:.3f}",
        )
        for place, (name, values) in enumerate(ratios.items())
        for n, value in enumerate(values)
    ]
    medians = [
        (float(place), median(values), f"{name}, median: {median(values):.3f}")
        for place, (name, values) in enumerate(ratios.items())
    ]
    curves = [Curve("7", points, joined=False), Curve("1", medians, joined=False)]
    return Chart(title, across, up, curves)
