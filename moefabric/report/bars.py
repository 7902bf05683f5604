"""Bar charts, a row for each fabric: times, ratios, bytes, phases of reconfigurations."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import Final

from markupsafe import Markup

from moefabric.core.errors import SpecError
from moefabric.report import formatting
from moefabric.report.chart import Panel, figure
from moefabric.report.marks import Axis, Box, Dot, Mark, Rule, Text
from moefabric.report.picture import document_picture
from moefabric.report.summary import PHASES, FabricSummary, control_s, summaries, total_s
from moefabric.results.model import RunResult
from moefabric.results.parts import ReconfigurationResult

_ROW, _TALL_ROW = 38.0, 62.0
"""Heights of rows, without and with dots beneath a bar."""
_FIGURE: Final = 72.0
"""Room for the figure right of the longest bar."""
_PREDICTED: Final = ("target", "predicted")
_WAITING, _SENDING = "k-reconfiguration", "k-dispatch"
_LARGEST: Final = 3.0
"""Longer bars of a picture for documents, relative to the baseline's, end at the edge."""

Part = tuple[float, str, str]
"""Length of a part of a bar, its CSS class, and its tooltip."""
Bar = Callable[[FabricSummary, int], Iterator[Mark]]
"""Draws the bar of a fabric in a row."""


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
    fabrics: Sequence[FabricSummary], names: Axis, largest: float, bar: Bar, **more: object
) -> Panel:
    marks = [mark for row, fabric in enumerate(fabrics) for mark in bar(fabric, row)]
    axis = Axis(0.0, largest or 1.0)
    right = _FIGURE + 60 * (bar is _first)
    return Panel(axis, names, marks, _ROW * len(fabrics), right=right, **more)  # type: ignore[arg-type]


def comparison_bars(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw iteration time, all-to-all ratio and bytes by network; empty if there is no fabric."""
    if not fabrics:
        return Markup()
    longest_s, largest = (
        max(fabric[name] or 0.0 for fabric in fabrics for name in (figure, f"predicted_{figure}"))
        for figure in ("iteration_s", "vs_eps")
    )
    names = Axis.rows([fabric.name for fabric in fabrics], class_="strong")
    legends = (
        [("k-expert", "compute"), ("k-dispatch", "exposed comm"), _PREDICTED],
        [("bar", "measured"), _PREDICTED],
        [("light", "OCS"), ("by-eps", "EPS")],
    )
    iteration = _panel(
        fabrics, names, longest_s, _iteration, heading="Iteration time", legend=legends[0]
    )
    heading = "All-to-all time relative to EPS"
    ratio = _panel(
        fabrics, names.untitled, max(largest, 1.0), _ratio, heading=heading, legend=legends[1]
    )
    share = _panel(
        fabrics, names.untitled, 1.0, _optical_share, heading="Bytes by network", legend=legends[2]
    )
    return figure("Comparison of the fabrics", [iteration, ratio, share], columns=3)


def _iteration(fabric: FabricSummary, row: int) -> Iterator[Mark]:
    if (iteration_s := fabric["iteration_s"]) is None:
        yield _missing(row)
        return
    compute_s = min(fabric["compute_s"] or 0.0, iteration_s)
    compute = compute_s, "k-expert", f"compute: {formatting.seconds(compute_s)}"
    title = (
        f"exposed communication: {fabric.text('exposed_comm_s')}, {fabric.text('exposed_share')}"
    )
    exposed = iteration_s - compute_s, "k-dispatch", title
    predicted = _predicted(fabric["predicted_iteration_s"], formatting.seconds)
    yield from stacked(row + 0.5, (compute, exposed), formatting.seconds(iteration_s), predicted)


def _ratio(fabric: FabricSummary, row: int) -> Iterator[Mark]:
    if (ratio := fabric["vs_eps"]) is None:
        yield _missing(row)
        return
    text = formatting.ratio(ratio)
    predicted = _predicted(fabric["predicted_vs_eps"], formatting.ratio)
    part = ratio, "bar", f"measured: {text}"
    yield from stacked(row + 0.5, [part], text, predicted)
    if not row:
        yield Rule("reference", x=1.0)


def _optical_share(fabric: FabricSummary, row: int) -> Iterator[Mark]:
    share = fabric["optical_share"]
    if share is None:
        yield _missing(row)
        return
    optical = share, "light", f"OCS: {formatting.data_size(fabric.bytes_by_light)}"
    electrical = 1 - share, "by-eps", f"EPS: {formatting.data_size(fabric.bytes_by_eps)}"
    yield from stacked(row + 0.5, (optical, electrical), f"{share * 100:.0f} %")


def _predicted(value: float | None, text: Callable[[float], str]) -> tuple[float, str] | None:
    return None if value is None else (value, f"predicted: {text(value)}")


def _missing(middle: float) -> Mark:
    return Text(0.0, middle + 0.5, "not measured", "faint")


def first_dispatch_bars(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the exposed time of each fabric's first all-to-alls: waiting, then sending."""
    firsts = [fabric.result.first_all_to_all for fabric in fabrics]
    times = [time or 0.0 for one in firsts for time in (one.exposed_s, one.predicted_exposed_s)]
    names = [f"{fabric.name}\n{fabric.first_policy}" for fabric in fabrics]
    panel = _panel(fabrics, Axis.rows(names, class_="strong"), max(times, default=0.0), _first)
    legend = [(_WAITING, "waiting for light"), (_SENDING, "dispatch"), _PREDICTED]
    label = "Exposed time of the first all-to-alls"
    return figure(label, [panel] if fabrics else [], legend=legend)


def _first(fabric: FabricSummary, row: int) -> Iterator[Mark]:
    first = fabric.result.first_all_to_all
    exposed_s = first.exposed_s or 0.0
    waited_s = min(first.waited_s or 0.0, exposed_s)
    sent_s, text = exposed_s - waited_s, formatting.seconds(exposed_s)
    if first.predicted_exposed_s:
        text += f", {formatting.deviation(exposed_s / first.predicted_exposed_s - 1)}"
    waited = waited_s, _WAITING, f"waited: {formatting.seconds(waited_s)}"
    sent = sent_s, _SENDING, f"sent for {formatting.seconds(sent_s)}"
    predicted = _predicted(first.predicted_exposed_s, formatting.seconds)
    yield from stacked(row + 0.5, (waited, sent), text, predicted)


def first_all_to_alls_picture(run: RunResult) -> str:
    """Draw the exposed time of each fabric's first all-to-alls, relative to the baseline's.

    The baseline's time is the predicted one, so that an error of its measurement changes no other
    bar. The picture is a file for documents.

    Raises:
        SpecError: The run has no baseline to which times could be related.
    """
    fabrics = [f for f in summaries(run) if f.result.first_all_to_all.exposed_s]
    base = next((f for f in fabrics if f.is_baseline), None)
    if base is None:
        raise SpecError([("results", "exposed times are relative to eps: add a fabric of it")])
    first = base.result.first_all_to_all
    base_s = first.predicted_exposed_s or first.exposed_s or 1.0
    bars = (_relative(fabric, base_s, row) for row, fabric in enumerate(fabrics))
    marks = [Rule("reference", x=1.0), *chain.from_iterable(bars)]
    axis = Axis.numbers(0.0, _LARGEST)
    names = Axis.rows([fabric.name for fabric in fabrics])
    panel = Panel(axis, names, marks, 30.0 * len(fabrics), right=150)
    legend = [
        (_WAITING, "waiting for circuits"), (_SENDING, "sending"), _PREDICTED,
        ("", "figures: measured, and how much longer than predicted"),
    ]  # fmt: skip
    title = "Exposed time of a layer's first all-to-all, relative to the predicted time of the EPS"
    return document_picture(title, [panel], legend=legend)


def _relative(fabric: FabricSummary, base_s: float, row: int) -> Iterator[Mark]:
    first = fabric.result.first_all_to_all
    exposed, waited = (first.exposed_s or 0.0) / base_s, (first.waited_s or 0.0) / base_s
    predicted = None if first.predicted_exposed_s is None else first.predicted_exposed_s / base_s
    text = formatting.ratio(exposed)
    if first.error is not None:
        text += f", {formatting.deviation(first.error)}"
    parts = (waited, _WAITING, ""), (exposed - waited, _SENDING, "")
    yield from stacked(row + 0.5, parts, text, _predicted(predicted, formatting.ratio), height=0.5)


def reconfiguration_phases(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw medians of the phases as bars, and each change of circuits as a dot; empty if none.

    The right panel leaves out settling, which is the optics' time.
    """
    shown = [fabric for fabric in fabrics if fabric.result.reconfigurations]
    phases = [phase for phase in PHASES if any(f.phase_s(phase) is not None for f in shown)]
    names = Axis.rows([_changes(fabric) for fabric in shown], class_="strong")
    control = [phase for phase in phases if phase != "settle"]
    panels = [
        _phases(shown, names, phases, total_s, "All phases"),
        _phases(shown, names.untitled, control, control_s, "Control plane: all but settle"),
    ]
    legend = [(f"p-{phase}", phase) for phase in phases]
    return figure("Reconfiguration phases", panels if shown else [], columns=2, legend=legend)


def _changes(fabric: FabricSummary) -> str:
    """Return a fabric's name, and the number of its changes and their 95th percentile."""
    count = fabric.change_count
    text = f"{fabric.name}\n{count} change{'' if count == '1' else 's'}"
    if (p95_s := fabric.result.control_time.p95_s) is not None:
        text += f"\ncontrol p95 {formatting.seconds(p95_s)}"
    return text


def _phases(
    shown: Sequence[FabricSummary], names: Axis, phases: Sequence[str],
    duration_s: Callable[[ReconfigurationResult], float], heading: str,
) -> Panel:  # fmt: skip
    longest_s, marks = 0.0, list[Mark]()
    for row, fabric in enumerate(shown):
        parts = [
            (seconds, f"p-{phase}", f"{phase}: {formatting.seconds(seconds)} (median)")
            for phase in phases
            for seconds in [fabric.phase_s(phase) or 0.0]
        ]
        durations = [duration_s(change) for change in fabric.changes]
        longest_s = max(longest_s, sum(part[0] for part in parts), *durations)
        marks += stacked(row + 0.3, parts, formatting.seconds(median(durations)), height=0.26)
        for change, seconds in zip(fabric.changes, durations, strict=True):
            title = formatting.printable(f"{_name(change)}: {formatting.seconds(seconds)}")
            marks.append(Dot(seconds, row + 0.63, "dot", title, 3.5))
    axis = Axis.seconds(0.0, longest_s or 1.0, 6)
    return Panel(axis, names, marks, _TALL_ROW * len(shown), heading, right=_FIGURE)


def _name(change: ReconfigurationResult) -> str:
    layer = "" if change.layer is None else f"layer {change.layer} {change.direction}".strip()
    return ", ".join(part for part in (change.region, change.reason, layer) if part)


def grouped_bars(
    groups: Sequence[str], labels: Sequence[str],
    panels: Mapping[str, Sequence[Sequence[float | None]]],
) -> Markup:  # fmt: skip
    """Draw times: a group of bars for each fabric, a bar for each run, a panel for each figure.

    Args:
        groups: Names of the groups.
        labels: Names of the bars of each group.
        panels: Seconds [group][bar] by the heading of their panel; None if not measured.
    """
    ticks = {n * (len(labels) + 1) + len(labels) / 2: name for n, name in enumerate(groups)}
    rows = len(groups) * (len(labels) + 1) - 1
    names = Axis(rows, 0.0, ticks, grid="", class_="strong")
    drawn = []
    for heading, values in panels.items():
        longest_s = max((seconds or 0.0 for group in values for seconds in group), default=0.0)
        marks = [
            mark
            for g, group in enumerate(values)
            for n, seconds in enumerate(group)
            for mark in _grouped(g * (len(labels) + 1) + n, seconds, labels[n], n)
        ]
        axis = Axis(0.0, longest_s or 1.0)
        drawn.append(Panel(axis, names, marks, 16.0 * rows, heading, right=_FIGURE + 8))
        names = names.untitled
    legend = [(_colour(n), label) for n, label in enumerate(labels)]
    return figure("Runs side by side", drawn if groups else [], columns=2, legend=legend)


def _grouped(row: int, seconds: float | None, label: str, number: int) -> Iterator[Mark]:
    if seconds is None:
        yield Text(0.0, row + 0.5, "not measured", "faint")
        return
    text = formatting.seconds(seconds, 4)
    yield Box((0.0, seconds), (row, row + 0.88), _colour(number), f"{label}: {text}")
    yield Text(seconds, row + 0.44, text, "small", dx=8)


def _colour(number: int) -> str:
    return f"t{(1, 4, 2, 3, 6, 0)[number % 6]}"
