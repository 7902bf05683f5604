"""Pictures of the comparison: SVG files that bring their own style."""

from collections.abc import Callable, Sequence
from typing import Final

from moefabric.api.charts import (
    Axis,
    Box,
    Dot,
    Line,
    Mark,
    Panel,
    Rule,
    document_picture,
    formatting,
)
from moefabric_studies.oracle.results import (
    INTO_THE_DARK,
    CaseResult,
    OracleResults,
    common_transports,
)

_LEAST, _LARGEST = 0.5, 3.0
"""Ratios beyond these are drawn at the edges."""
_ROW: Final = 40.0
"""Height of a row of points."""


def completion_strips(results: OracleResults) -> str:
    """Draw the completion time of each case, relative to the model's, a row for each transport."""
    cases = [case for case in results.cases if case.fabric != INTO_THE_DARK]
    rows: list[tuple[str, str, list[tuple[float, str]]]] = [
        (transport, f"t{n}", _relative(cases, lambda case, name=transport: case.last_s(name)))  # type: ignore[misc]
        for n, transport in enumerate(results.transports)
    ]
    rows.append(("null model: alone", "alone", _relative(cases, lambda case: max(case.alone_s))))
    texts = {tick: f"{tick:g}" for tick in (1.0, 1.5, 2.0, 2.5)}
    edges = {_LEAST: f"{_LEAST:g} or less", _LARGEST: f"{_LARGEST:g} or more"}
    marks: list[Mark] = [Rule("reference", x=1.0)]
    for row, (_, class_, values) in enumerate(rows):
        for n, (value, title) in enumerate(values):
            offset = (n * 7 % 13 - 6) * 2.0
            marks.append(Dot(value, row + 0.5, class_, title, 3.5, dy=offset))
    names = Axis.rows([name for name, _, _ in rows])
    panel = Panel(Axis(_LEAST, _LARGEST, texts | edges), names, marks, _ROW * len(rows))
    return document_picture("Completion time of an all-to-all, relative to the model's", [panel])


def _relative(
    cases: Sequence[CaseResult], seconds: Callable[[CaseResult], float | None]
) -> list[tuple[float, str]]:
    rows = []
    for case in cases:
        measured = seconds(case)
        ratio = _LARGEST if measured is None else measured / case.predicted_s
        title = f"{case.group}, {case.demand}, {case.fabric}: "
        title += "a flow did not end" if measured is None else formatting.ratio(ratio)
        rows.append((ratio, title))
    return rows


def fabric_columns(results: OracleResults, group: str) -> str:
    """Draw an experiment's completion times by fabric, the mean of its demands, in milliseconds.

    The model has no time for flows that start on dark circuits.
    """
    cases = results.of_group(group)
    fabrics = list(dict.fromkeys(case.fabric for case in cases))
    series: list[tuple[str, str, str | None]] = [("model", "model", None)]
    series += [(name, f"t{n}", name) for n, name in enumerate(common_transports(cases))]
    values = {
        (fabric, name): _mean_ms([c for c in cases if c.fabric == fabric], transport)
        for fabric in fabrics
        for name, _, transport in series
        if transport or fabric != INTO_THE_DARK
    }
    high = max(value for value in values.values() if value is not None)
    width = 0.8 / len(series)
    marks: list[Mark] = [
        Box((left, left + 0.9 * width), (0.0, value), class_, f"{fabric}, {name}: {value:.3f} ms")
        for f, fabric in enumerate(fabrics)
        for s, (name, class_, _) in enumerate(series)
        for left in [f + 0.1 + s * width]
        if (value := values.get((fabric, name))) is not None
    ]
    panel = Panel(Axis.names(fabrics), Axis.numbers(0.0, high * 1.06, most=5), marks, 214)
    title = f"Mean completion time of the all-to-alls of {group}, ms"
    return document_picture(title, [panel], legend=[(c, n) for n, c, _ in series])


def _mean_ms(cases: Sequence[CaseResult], transport: str | None) -> float | None:
    seconds = [case.last_s(transport) if transport else case.predicted_s for case in cases]
    known = [value for value in seconds if value is not None]
    return 1e3 * sum(known) / len(known) if len(known) == len(seconds) else None


def flow_error_curves(results: OracleResults) -> str:
    """Draw the distribution of the max-min simulation's error for single flows, per transport."""
    cases = [case for case in results.cases if case.fabric != INTO_THE_DARK]
    marks: list[Mark] = [Rule("reference", x=0.0)]
    for n, transport in enumerate(results.transports):
        errors = sorted(e for case in cases for e in case.flow_errors(transport))
        steps = [(min(1.0, error), (k + 1) / len(errors)) for k, error in enumerate(errors)]
        marks.append(Line(steps, f"curve c{n}"))
    across = Axis(-1.0, 1.0, {tick / 2: f"{tick / 2:+.0%}" for tick in range(-2, 3)})
    panel = Panel(across, Axis(ticks={n / 4: f"{n / 4:.0%}" for n in range(5)}), marks, 210)
    title = "Error of the max-min simulation for single flows, cumulative share of the flows"
    legend = [(f"t{n}", name) for n, name in enumerate(results.transports)]
    return document_picture(title, [panel], legend=legend)
