"""Pictures of the study: speed-ups by link rate, and ratios by table."""

from collections.abc import Mapping, Sequence

from moefabric import rate_text
from moefabric.api.charts import Axis, curve, document_picture, plot
from moefabric_studies.systems.dlrm.clicks import CARDINALITIES, table_class
from moefabric_studies.systems.dlrm.speed import CODECS, FabricSpeeds

_SPEED_TICKS = (0.5, 1, 2, 5, 10, 20)
_RATIO_TICKS = (1, 2, 5, 10, 20, 50, 100)
_SHOWN: Mapping[str, int] = {"vector-lz": 1, "ans": 4, "zstd": 2, "zfp": 5, "hybrid": 7}
"""Colours of the codecs in the picture of ratios; the last one lies on top."""


def speed_up_chart(fabrics: Sequence[FabricSpeeds]) -> str:
    """Draw the speed-up of all-to-alls over the link rate, a chart for each codec."""
    rates = [fabric.speeds[0].rate_bps for fabric in fabrics]
    texts = {rate: rate_text(rate) for rate in rates}
    x = Axis(0.9 * min(rates), 1.1 * max(rates), texts, "link rate", logarithmic=True)
    y = Axis(0.4, 25, {tick: f"{tick:g}x" for tick in _SPEED_TICKS}, logarithmic=True)
    panels = []
    for codec in CODECS:
        speeds = [fabric.of(codec) for fabric in fabrics]
        formula = [(s.rate_bps, s.predicted, f"formula: {s.predicted:.2f}x") for s in speeds]
        measured = [(s.rate_bps, one, f"{one:.2f}x") for s in speeds for one in s.measured]
        curves = curve(0, formula, dashed=True), curve(1, measured, joined=False)
        panels.append(plot(codec, x, y, curves, 1.0))
    legend = [("t0", "formula"), ("t1", "measured")]
    title = "Speed-up of the all-to-all over 32-bit floats"
    return document_picture(title, panels, columns=2, legend=legend)


def ratio_strips(by_table: Mapping[str, Sequence[float]]) -> str:
    """Draw the compression ratio of each table by codec, a chart for each class of bounds."""
    y = Axis(1, 130, {tick: f"{tick}" for tick in _RATIO_TICKS}, logarithmic=True)
    panels = []
    for class_ in ("tight", "normal", "loose"):
        tables = [t for t in range(len(CARDINALITIES)) if table_class(t) == class_]
        x = Axis(-0.5, len(tables) - 0.5, {n: f"{t}" for n, t in enumerate(tables)}, "table")
        ratios = {codec: [by_table[codec][table] for table in tables] for codec in _SHOWN}
        curves = (
            curve(
                colour,
                [
                    (n, ratio, f"{codec}, table {tables[n]}: {ratio:.1f}")
                    for n, ratio in enumerate(ratios[codec])
                ],
                joined=False,
            )
            for codec, colour in _SHOWN.items()
        )
        panels.append(plot(f"{class_} bound", x, y, curves))
    legend = [(f"t{colour}", codec) for codec, colour in _SHOWN.items()]
    title = "Ratio of plain to coded bytes by table"
    return document_picture(title, panels, columns=3, legend=legend)
