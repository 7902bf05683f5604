"""Bar charts, a row for each fabric: times, ratios, bytes, phases of reconfigurations."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Final

from markupsafe import Markup

from moefabric.core.errors import SpecError
from moefabric.report import formatting, summary
from moefabric.report.chart import Legend, Panel, figure
from moefabric.report.marks import Axis, Box, Dot, Mark, Rule, Text, untrusted
from moefabric.report.picture import document_picture
from moefabric.report.summary import FabricSummary
from moefabric.results.model import RunResult
from moefabric.results.parts import ReconfigurationResult

_ROW, _TALL_ROW = 38.0, 62.0
"""Heights of rows, without and with dots beneath a bar."""
FIGURE: Final = 72.0
"""Room for the figure right of the longest bar."""
_PREDICTED: Final = ("target", "predicted")
_WAITING, _SENDING = "k-reconfiguration", "k-dispatch"
_LARGEST: Final = 3.0
"""Longer bars of a picture for documents, relative to the baseline's, end at the edge."""

Part = tuple[float, str, str]
"""Length of a part of a bar, its CSS class, and its tooltip."""
Bar = tuple[Sequence[Part], str, tuple[float, str] | None]
"""Parts of a bar, its figure, and the prediction with its tooltip."""


def stacked(
    middle: float, parts: Iterable[Part], figure: str, predicted: tuple[float, str] | None = None,
    *, height: float = 0.42,
) -> Iterator[Mark]:  # fmt: skip
    """Yield a bar of several parts, its figure, and a stroke where the prediction ends.

    Args:
        middle: Middle of the bar on an axis of rows.
        parts: The parts, from the left.
        figure: Text right of the bar.
        predicted: Value of the prediction, and its tooltip.
        height: Height of the bar in rows.
    """
    end, y = 0.0, (middle - height / 2, middle + height / 2)
    for length, class_, title in parts:
        yield Box((end, end + length), y, class_, title)
        end += length
    if predicted is not None:
        at, title = predicted
        yield Box((at, at), (y[0] - 0.1, y[1] + 0.1), "target", title, least=2.5)
        end = max(end, at)
    yield Text(end, middle, figure, "figure", dx=8)


def _panel(
    fabrics: Sequence[FabricSummary], names: Axis, largest: float,
    bar: Callable[[FabricSummary], Bar | None], heading: str = "", legend: Legend = (),
    right: float = FIGURE,
) -> Panel:  # fmt: skip
    """Return a panel with a bar for each fabric, or words for one without."""
    marks = list[Mark]()
    for row, fabric in enumerate(fabrics):
        drawn = bar(fabric)
        bars = stacked(row + 0.5, *drawn) if drawn else [_missing(row + 0.5, fabric)]
        marks += untrusted(bars, invalid=fabric.is_invalid)
        if bar is _ratio and drawn and not row:
            marks.append(Rule("reference", x=1.0))
    axis, height = Axis(0.0, largest or 1.0), _ROW * len(fabrics)
    return Panel(axis, names, marks, height, heading, legend=legend, right=right)


def comparison_bars(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw iteration time, all-to-all ratio and bytes by network; empty if there is no fabric."""
    if not fabrics:
        return Markup()
    longest_s, largest = (
        max(fabric[name] or 0.0 for fabric in fabrics for name in (figure, f"predicted_{figure}"))
        for figure in ("iteration_s", "vs_eps")
    )
    names = Axis.rows([fabric.label for fabric in fabrics], class_="strong")
    times = [("k-expert", "compute"), ("k-dispatch", "exposed comm"), _PREDICTED]
    networks = [("light", "OCS"), ("by-eps", "EPS")]
    heading, legend = summary.COLUMNS["vs_eps"].title, [("bar", "measured"), _PREDICTED]
    blank = names.untitled
    panels = [
        _panel(fabrics, names, longest_s, _iteration, summary.COLUMNS["iteration_s"].title, times),
        _panel(fabrics, blank, max(largest, 1.0), _ratio, heading, legend),
        _panel(fabrics, blank, 1.0, _optical_share, "Bytes by network", networks),
    ]
    return figure("Comparison of the fabrics", panels, columns=3)


def _iteration(fabric: FabricSummary) -> Bar | None:
    if (iteration_s := fabric["iteration_s"]) is None:
        return None
    compute_s = min(fabric["compute_s"] or 0.0, iteration_s)
    exposed = f"{fabric.text('exposed_comm_s')}, {fabric.text('exposed_share')}"
    parts = [
        (compute_s, "k-expert", f"compute: {formatting.seconds(compute_s)}"),
        (iteration_s - compute_s, "k-dispatch", f"exposed communication: {exposed}"),
    ]
    predicted = _predicted(fabric["predicted_iteration_s"], formatting.seconds)
    return parts, formatting.seconds(iteration_s), predicted


def _ratio(fabric: FabricSummary) -> Bar | None:
    if (ratio := fabric["vs_eps"]) is None:
        return None
    text = formatting.ratio(ratio)
    predicted = _predicted(fabric["predicted_vs_eps"], formatting.ratio)
    return [(ratio, "bar", f"measured: {text}")], text, predicted


def _optical_share(fabric: FabricSummary) -> Bar | None:
    if (share := fabric["optical_share"]) is None:
        return None
    parts = [
        (share, "light", f"OCS: {formatting.data_size(fabric.bytes_by_light)}"),
        (1 - share, "by-eps", f"EPS: {formatting.data_size(fabric.bytes_by_eps)}"),
    ]
    return parts, f"{share * 100:.0f} %", None


def _predicted(value: float | None, text: Callable[[float], str]) -> tuple[float, str] | None:
    return None if value is None else (value, f"predicted: {text(value)}")


def _missing(middle: float, fabric: FabricSummary) -> Mark:
    """Return the words in the place of a bar that was not measured, or can't be compared."""
    if fabric.is_comparable:
        return Text(0.0, middle, "not measured", "faint")
    return Text(0.0, middle, "invalid" if fabric.is_invalid else "EPS is invalid", "faint")


def first_dispatch_bars(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the exposed time of each fabric's first all-to-alls, if they are compared."""
    shown = summary.with_first_all_to_alls(fabrics)
    firsts = [fabric.result.first_all_to_all for fabric in shown]
    times = [time or 0.0 for one in firsts for time in (one.exposed_s, one.predicted_exposed_s)]
    names = Axis.rows(
        [f"{fabric.label}\n{fabric.first_policy}" for fabric in shown], class_="strong"
    )
    panel = _panel(shown, names, max(times, default=0.0), _first, right=FIGURE + 60)
    legend = [(_WAITING, "waiting for light"), (_SENDING, "dispatch"), _PREDICTED]
    label = "Exposed time of the first all-to-alls"
    return figure(label, [panel] if shown else [], legend=legend)


def _first(fabric: FabricSummary) -> Bar:
    """Return the exposed time of the first all-to-alls: waiting, then sending."""
    first, text = fabric.result.first_all_to_all, formatting.seconds
    exposed_s = first.exposed_s or 0.0
    waited_s = min(first.waited_s or 0.0, exposed_s)
    parts = [
        (waited_s, _WAITING, f"waited: {text(waited_s)}"),
        (exposed_s - waited_s, _SENDING, f"sent for {text(exposed_s - waited_s)}"),
    ]
    figure = text(exposed_s)
    if first.predicted_exposed_s:
        figure += f", {formatting.deviation(exposed_s / first.predicted_exposed_s - 1)}"
    return parts, figure, _predicted(first.predicted_exposed_s, text)


def first_all_to_alls_picture(run: RunResult) -> str:
    """Draw the exposed time of each fabric's first all-to-alls, relative to the baseline's.

    The baseline's time is the predicted one, so that an error of its measurement changes no other
    bar. The picture is a file for documents.

    Raises:
        SpecError: The run has no baseline to which times could be related.
    """
    fabrics = [f for f in summary.summaries(run) if f.result.first_all_to_all.exposed_s]
    base = next((f for f in fabrics if f.is_baseline), None)
    if base is None:
        raise SpecError([("results", "exposed times are relative to eps: add a fabric of it")])
    first = base.result.first_all_to_all
    base_s = first.predicted_exposed_s or first.exposed_s or 1.0
    marks: list[Mark] = [Rule("reference", x=1.0)]
    for row, fabric in enumerate(fabrics):
        bars = stacked(row + 0.5, *_relative(fabric, base_s), height=0.5)
        marks += untrusted(bars, invalid=fabric.is_invalid)
    names = Axis.rows([fabric.label for fabric in fabrics])
    panel = Panel(Axis.numbers(0.0, _LARGEST), names, marks, 30.0 * len(fabrics), right=150)
    figures = "figures: measured, and how much longer than predicted"
    sending = (_WAITING, "waiting for circuits"), (_SENDING, "sending")
    title = "Exposed time of a layer's first all-to-all, relative to the predicted time of the EPS"
    return document_picture(title, [panel], legend=[*sending, _PREDICTED, ("", figures)])


def _relative(fabric: FabricSummary, base_s: float) -> Bar:
    first = fabric.result.first_all_to_all
    exposed, waited = (first.exposed_s or 0.0) / base_s, (first.waited_s or 0.0) / base_s
    predicted = None if first.predicted_exposed_s is None else first.predicted_exposed_s / base_s
    text = formatting.ratio(exposed)
    if first.error is not None:
        text += f", {formatting.deviation(first.error)}"
    parts = (waited, _WAITING, ""), (exposed - waited, _SENDING, "")
    return parts, text, _predicted(predicted, formatting.ratio)


def reconfiguration_phases(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw medians of the phases as bars, and each change of circuits as a dot; empty if none.

    The right panel leaves out settling, which is the optics' time.
    """
    shown = [fabric for fabric in fabrics if fabric.result.reconfigurations]
    phases = [phase for phase in summary.PHASES if any(f.phase_s(phase) is not None for f in shown)]
    names = Axis.rows([_changes(fabric) for fabric in shown], class_="strong")
    control = [phase for phase in phases if phase != "settle"]
    panels = [
        _phases(shown, names, phases, summary.total_s, "All phases"),
        _phases(shown, names.untitled, control, summary.control_s, "Control plane: all but settle"),
    ]
    legend = [(f"p-{phase}", phase) for phase in phases]
    return figure("Reconfiguration phases", panels if shown else [], columns=2, legend=legend)


def _changes(fabric: FabricSummary) -> str:
    """Return a fabric's name, and the number of its changes and their 95th percentile."""
    count = fabric.change_count
    text = f"{fabric.label}\n{count} change{'' if count == '1' else 's'}"
    if (p95_s := fabric.result.control_time.p95_s) is not None:
        text += f"\ncontrol p95 {formatting.seconds(p95_s)}"
    return text


def _phases(
    shown: Sequence[FabricSummary], names: Axis, phases: Sequence[str],
    duration_s: Callable[[ReconfigurationResult], float], heading: str,
) -> Panel:  # fmt: skip
    longest_s, marks = 0.0, list[Mark]()
    for row, fabric in enumerate(shown):
        medians = {phase: fabric.phase_s(phase) or 0.0 for phase in phases}
        parts = [
            (phase_s, f"p-{phase}", f"{phase}: {formatting.seconds(phase_s)} (median)")
            for phase, phase_s in medians.items()
        ]
        durations = [duration_s(change) for change in fabric.changes]
        longest_s = max(longest_s, sum(medians.values()), *durations)
        bars: list[Mark] = list(
            stacked(row + 0.3, parts, formatting.seconds(median(durations)), height=0.26)
        )
        for change, seconds in zip(fabric.changes, durations, strict=True):
            title = formatting.printable(f"{_name(change)}: {formatting.seconds(seconds)}")
            bars.append(Dot(seconds, row + 0.63, "dot", title, 3.5))
        marks += untrusted(bars, invalid=fabric.is_invalid)
    axis = Axis.seconds(0.0, longest_s or 1.0, 6)
    return Panel(axis, names, marks, _TALL_ROW * len(shown), heading, right=FIGURE)


def _name(change: ReconfigurationResult) -> str:
    layer = "" if change.layer is None else f"layer {change.layer} {change.direction}".strip()
    return ", ".join(part for part in (change.region, change.reason, layer) if part)
