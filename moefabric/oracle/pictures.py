"""Pictures of the comparison: SVG files that bring their own style."""

from collections.abc import Callable, Sequence

from moefabric.oracle.results import INTO_THE_DARK, CaseResult, OracleResults, common_transports
from moefabric.report import formatting, svg
from moefabric.report.picture_file import WIDTH, picture_file

_LEFT, _RIGHT, _ROW = 190.0, 24.0, 40.0
_LEAST, _LARGEST = 0.5, 3.0
"""Ratios beyond these are drawn at the edges."""
_LEGEND = 6
"""Entries of a legend's row."""


def completion_strips(results: OracleResults) -> str:
    """Draw the completion time of each case, relative to the model's, a row for each transport."""
    cases = [case for case in results.cases if case.fabric != INTO_THE_DARK]
    rows: list[tuple[str, str, list[tuple[float, str]]]] = [
        (transport, f"t{n}", _relative(cases, lambda case, name=transport: case.last_s(name)))  # type: ignore[misc]
        for n, transport in enumerate(results.transports)
    ]
    rows.append(("null model: alone", "alone", _relative(cases, lambda case: max(case.alone_s))))
    across = svg.LinearScale(_LEAST, _LARGEST, _LEFT, WIDTH - _RIGHT)
    bottom = 44 + _ROW * len(rows)
    drawn = [
        svg.label(16, 22, "Completion time of an all-to-all, relative to the model's", "strong")
    ]
    edges = {_LEAST: f"{_LEAST:g} or less", _LARGEST: f"{_LARGEST:g} or more"}
    for tick in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0):
        x = across(tick)
        drawn.append(svg.line(x, 36, x, bottom, "reference" if tick == 1 else "grid"))
        text = edges.get(tick, f"{tick:g}")
        drawn.append(
            svg.label(x, bottom + 18, text, "tick", "end" if tick == _LARGEST else "middle")
        )
    for row, (name, class_, values) in enumerate(rows):
        y = 44 + _ROW * (row + 0.5)
        drawn.append(svg.label(_LEFT - 14, y + 4, name, "", "end"))
        for n, (value, title) in enumerate(values):
            offset = (n * 7 % 13 - 6) * 2.0
            x = across(min(max(value, _LEAST), _LARGEST))
            drawn.append(svg.circle(x, y + offset, 3.5, class_, title))
    return picture_file(bottom + 30, "Completion times relative to the model's", drawn)


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
    legends = [series[:_LEGEND], series[_LEGEND:]]
    top = 76 if len(series) <= _LEGEND else 96
    up = svg.LinearScale(0.0, high * 1.06, 290, top)
    width = (WIDTH - 60 - _RIGHT) / len(fabrics)
    bar = min(22.0, width * 0.8 / len(series))
    title = f"Mean completion time of the all-to-alls of {group}, ms"
    drawn = [svg.label(16, 22, title, "strong")]
    for row, part in enumerate(legends):
        drawn.append(svg.legend(20, 50 + 20 * row, [(c, n) for n, c, _ in part]))
    for tick in svg.ticks(0.0, high, 5):
        drawn.append(svg.line(60, up(tick), WIDTH - _RIGHT, up(tick), "grid"))
        drawn.append(svg.label(52, up(tick) + 4, f"{tick:g}", "tick", "end"))
    for f, fabric in enumerate(fabrics):
        center = 60 + (f + 0.5) * width
        drawn.append(svg.label(center, 310, fabric, "small", "middle"))
        for s, (name, class_, _) in enumerate(series):
            value = values.get((fabric, name))
            if value is not None:
                x, y = center + (s - len(series) / 2) * bar, up(value)
                tip = f"{fabric}, {name}: {value:.3f} ms"
                drawn.append(svg.rect(x, y, bar - 2, up(0.0) - y, class_, title=tip))
    return picture_file(324, title, drawn)


def _mean_ms(cases: Sequence[CaseResult], transport: str | None) -> float | None:
    seconds = [case.last_s(transport) if transport else case.predicted_s for case in cases]
    known = [value for value in seconds if value is not None]
    return 1e3 * sum(known) / len(known) if len(known) == len(seconds) else None


def flow_error_curves(results: OracleResults) -> str:
    """Draw the distribution of the max-min simulation's error for single flows, per transport."""
    across = svg.LinearScale(-1.0, 1.0, 60, WIDTH - _RIGHT)
    up = svg.LinearScale(0.0, 1.0, 280, 70)
    title = "Error of the max-min simulation for single flows, cumulative share of the flows"
    drawn = [svg.label(16, 22, title, "strong")]
    names = [(f"t{n}", name) for n, name in enumerate(results.transports)]
    drawn.append(svg.legend(20, 50, names))
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        drawn.append(svg.line(60, up(share), WIDTH - _RIGHT, up(share), "grid"))
        drawn.append(svg.label(52, up(share) + 4, f"{share:.0%}", "tick", "end"))
    for tick in (-1.0, -0.5, 0.0, 0.5, 1.0):
        class_ = "grid" if tick else "reference"
        drawn.append(svg.line(across(tick), 70, across(tick), 280, class_))
        drawn.append(svg.label(across(tick), 298, f"{tick:+.0%}", "tick", "middle"))
    cases = [case for case in results.cases if case.fabric != INTO_THE_DARK]
    for n, transport in enumerate(results.transports):
        errors = sorted(e for case in cases for e in case.flow_errors(transport))
        points = [
            (across(min(1.0, error)), up((k + 1) / len(errors))) for k, error in enumerate(errors)
        ]
        if points:
            drawn.append(svg.path(points, f"curve c{n}"))
    return picture_file(310, title, drawn)
