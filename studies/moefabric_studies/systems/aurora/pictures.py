"""Pictures of Aurora's study: times of all-to-alls by order, and the flows of one by phase."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from moefabric.api import charts
from moefabric.api.results import FabricResult, FlowResult

OrderRatios = Mapping[str, Sequence[float]]
"""Times relative to the bound, by order."""


def orders_picture(fluid: OrderRatios, measured: OrderRatios) -> str:
    """Draw every all-to-all as a point, in the fluid model and with packets."""
    most = max(max(ratios) for ratios in (*fluid.values(), *measured.values()))
    up = charts.Axis(
        0.9, most, {1 + n / 4: f"{1 + n / 4:g}" for n in range(int(4 * (most - 1)) + 1)}
    )
    panels = [
        _panel("Fluid model, all layers", fluid, up),
        _panel("Packets, first layers", measured, up),
    ]
    legend = [("t7", "an all-to-all"), ("t1", "median")]
    return charts.document_picture("Time of all-to-alls over the bound", panels, legend=legend)


def _panel(title: str, ratios: OrderRatios, up: charts.Axis) -> charts.Panel:
    names = {float(n): f"{name}" for n, name in enumerate(ratios)}
    across = charts.Axis(-0.4, len(ratios) - 0.6, names)
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
    curves = charts.curve(7, points, joined=False), charts.curve(1, medians, joined=False)
    return charts.plot(title, across, up, curves, 1.0)


# --- flows by phase ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Dispatch:
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
    def of(cls, fabric: FabricResult) -> "_Dispatch":
        """Return the first dispatch."""
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
    dispatches = [_Dispatch.of(fabric) for fabric in fabrics]
    servers = sorted({end for one in dispatches for f in one.flows for end in (f.src, f.dst)})
    axis = charts.Axis.seconds(0.0, max(bound_s, *(one.starts_s[-1] for one in dispatches)))
    panels = [_flow_rows(one, servers, axis, bound_s) for one in dispatches]
    legend = [(f"t{number}", f"to {server}") for number, server in enumerate(servers)]
    title = "Flows of an all-to-all by sender; the dashed line is the busiest port's time"
    return charts.document_picture(title, panels, legend=legend)


def _flow_rows(
    dispatch: _Dispatch, servers: Sequence[str], axis: charts.Axis, bound_s: float
) -> charts.Panel:
    """Return a row for each sender, with a bar for each of its flows."""
    marks: list[charts.Mark] = [charts.Rule("grid", x=start_s) for start_s in dispatch.starts_s]
    for flow in dispatch.flows:
        begin_s, row = dispatch.starts_s[flow.phase], servers.index(flow.src)
        span = begin_s + flow.start_s, begin_s + flow.end_s
        taken = charts.formatting.seconds(flow.end_s - flow.start_s)
        note = f"{flow.src} to {flow.dst}, phase {flow.phase}: {taken}"
        colour = f"t{servers.index(flow.dst)}"
        marks.append(charts.Box(span, (row + 0.07, row + 0.93), colour, note, least=0.8))
    marks.append(charts.Rule("reference", x=bound_s))
    phases, end_s = len(dispatch.starts_s) - 1, dispatch.starts_s[-1]
    heading = f"{dispatch.name}: {phases} phases, {charts.formatting.seconds(end_s)}"
    return charts.Panel(axis, charts.Axis.rows(servers), marks, 15.0 * len(servers), heading)
