"""Pictures of the study: speed-ups by link rate, and ratios by table."""

from collections.abc import Mapping, Sequence

from moefabric.core.units import rate_text
from moefabric.report.small_charts import Axis, Chart, Curve, charts_picture
from moefabric.systems.dlrm.clicks import CARDINALITIES, table_class
from moefabric.systems.dlrm.speed import CODECS, FabricSpeeds

_SPEED_TICKS = (0.5, 1, 2, 5, 10, 20)
_RATIO_TICKS = (1, 2, 5, 10, 20, 50, 100)
_SHOWN: Mapping[str, str] = {"vector-lz": "1", "ans": "4", "zstd": "2", "zfp": "5", "hybrid": "7"}
"""Colours of the codecs in the picture of ratios; the last one lies on top."""


def speed_up_chart(fabrics: Sequence[FabricSpeeds]) -> str:
    """Draw the speed-up of all-to-alls over the link rate, a chart for each codec."""
    rates = [fabric.speeds[0].rate_bps for fabric in fabrics]
    x = Axis(
        0.9 * min(rates),
        1.1 * max(rates),
        {rate: rate_text(rate) for rate in rates},
        logarithmic=True,
        title="link rate",
    )
    y = Axis(0.4, 25, {tick: f"{tick:g}x" for tick in _SPEED_TICKS}, logarithmic=True)
    charts = []
    for codec in CODECS:
        speeds = [fabric.of(codec) for fabric in fabrics]
        formula = [(s.rate_bps, s.predicted, f"formula: {s.predicted:.2f}x") for s in speeds]
        measured = [(s.rate_bps, one, f"{one:.2f}x") for s in speeds for one in s.measured]
        curves = (Curve("0", formula, is_null=True), Curve("1", measured, joined=False))
        charts.append(Chart(codec, x, y, curves))
    legend = [("t0", "formula"), ("t1", "measured")]
    return charts_picture("Speed-up of the all-to-all over 32-bit floats", charts, legend, 2)


def ratio_strips(by_table: Mapping[str, Sequence[float]]) -> str:
    """Draw the compression ratio of each table by codec, a chart for each class of bounds."""
    y = Axis(1, 130, {tick: f"{tick}" for tick in _RATIO_TICKS}, logarithmic=True)
    charts = []
    for class_ in ("tight", "normal", "loose"):
        tables = [t for t in range(len(CARDINALITIES)) if table_class(t) == class_]
        x = Axis(-0.5, len(tables) - 0.5, {n: f"{t}" for n, t in enumerate(tables)}, title="table")
        curves = [
            Curve(
                colour,
                [
                    (
                        n,
                        by_table[codec][table],
                        f"{codec}, table {table}: {by_table[codec][table]:.1f}",
                    )
                    for n, table in enumerate(tables)
                ],
                joined=False,
            )
            for codec, colour in _SHOWN.items()
        ]
        charts.append(Chart(f"{class_} bound", x, y, curves, reference=None))
    legend = [(f"t{colour}", codec) for codec, colour in _SHOWN.items()]
    return charts_picture("Ratio of plain to coded bytes by table", charts, legend)
