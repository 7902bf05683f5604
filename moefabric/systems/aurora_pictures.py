"""Pictures of Aurora's study: times of all-to-alls by order, and the flows of one by phase."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Final

from markupsafe import Markup

from moefabric.report import formatting, svg
from moefabric.report.picture_file import WIDTH, picture_file
from moefabric.report.small_charts import Axis, Chart, Curve, charts_picture
from moefabric.runner.result_model import FabricResult
from moefabric.runner.result_parts import FlowResult

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


# --- flows by phase ------------------------------------------------------------------------------

_LEFT: Final = 44.0
_RIGHT: Final = 20.0
_HEAD: Final = 64.0
_TITLE: Final = 22.0
_ROW: Final = 15.0
_GAP: Final = 26.0


@dataclass(frozen=True)
class _Panel:
    """The flows of the first all-to-all of a fabric.

    Attributes:
        name: Name of the fabric.
        starts_s: When each phase starts, and when the last one ends.
        flows: The flows, with times from the start of their phase.
    """

    name: str
    starts_s: Sequence[float]
    flows: Sequence[FlowResult]

    @classmethod
    def of(cls, fabric: FabricResult) -> "_Panel":
        """Return the panel of the first dispatch."""
        first = fabric.collectives[0]
        phases = fabric.collectives[: first.phases]
        # Phases are known before the all-to-all, so that only barriers between them count.
        pauses = [0.0, *(phase.pause_s for phase in phases[1:])]
        ends = accumulate(p + phase.measured_s for p, phase in zip(pauses, phases, strict=True))
        ends_s = list(ends)
        starts = [end - phase.measured_s for end, phase in zip(ends_s, phases, strict=True)]
        place = first.iteration, first.layer, first.kind, first.direction
        flows = [
            flow
            for flow in fabric.flows
            if (flow.iteration, flow.layer, flow.kind, flow.direction) == place
        ]
        return cls(fabric.fabric, [*starts, ends_s[-1]], flows)


def phases_picture(fabrics: Sequence[FabricResult], bound_s: float) -> str:
    """Draw who sends to whom when, in the first all-to-all of each fabric.

    Args:
        fabrics: Results whose first all-to-all has up to 8 servers.
        bound_s: The time of the busiest port's bytes, as a line.
    """
    panels = [_Panel.of(fabric) for fabric in fabrics]
    servers = sorted({end for panel in panels for f in panel.flows for end in (f.src, f.dst)})
    longest_s = max(bound_s, *(panel.starts_s[-1] for panel in panels))
    across = svg.LinearScale(0.0, longest_s, _LEFT, WIDTH - _RIGHT)
    title = "Flows of an all-to-all by sender; the dashed line is the busiest port's time"
    legend = [(f"t{number}", f"to {server}") for number, server in enumerate(servers)]
    drawn = [svg.label(16, 22, title, "strong"), svg.legend(18, 46, legend)]
    top, height = _HEAD, _TITLE + _ROW * len(servers)
    for panel in panels:
        drawn += _flow_rows(panel, servers, across, top, bound_s)
        top += height + _GAP
    return picture_file(top - _GAP + 16, title, drawn)


def _flow_rows(
    panel: _Panel, servers: Sequence[str], across: svg.LinearScale, top: float, bound_s: float
) -> Iterator[Markup]:
    """Draw a row of each sender, with a bar for each of its flows."""
    phases, end_s = len(panel.starts_s) - 1, panel.starts_s[-1]
    first, bottom = top + _TITLE, top + _TITLE + _ROW * len(servers)
    text = f"{panel.name}: {phases} phases, {formatting.seconds(end_s)}"
    yield svg.label(_LEFT, top + 13, text, "strong")
    for start_s in panel.starts_s:
        yield svg.line(across(start_s), first, across(start_s), bottom, "grid")
    for number, server in enumerate(servers):
        yield svg.label(_LEFT - 6, first + _ROW * (number + 0.75), server, "tick", "end")
    for flow in panel.flows:
        begin_s = panel.starts_s[flow.phase]
        start_s, stop_s = begin_s + flow.start_s, begin_s + flow.end_s
        row = first + _ROW * servers.index(flow.src)
        note = (
            f"{flow.src} to {flow.dst}, phase {flow.phase}: {formatting.seconds(stop_s - start_s)}"
        )
        colour = f"t{servers.index(flow.dst)}"
        yield svg.bar(across, start_s, stop_s, row + 1, _ROW - 2, colour, note, narrowest=0.8)
    yield svg.line(across(bound_s), first - 4, across(bound_s), bottom + 4, "reference")
