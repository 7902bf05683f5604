"""The page `docs/truth.md` and its pictures: results of other simulators beside the model's."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Final

from moefabric.api import charts
from moefabric_studies.markdown import page_of
from moefabric_studies.oracle.golden_results import golden_results
from moefabric_studies.oracle.results import (
    FORWARDING,
    INTO_THE_DARK,
    LONGER,
    ORDER_MARGIN,
    CaseResult,
    OracleTables,
    common_transports,
    ordered_pairs,
    quantile,
    ratios,
)

Row = Sequence[object]

_FEWER: Final = ", fewer flows"
_GROUPS: Final = ("prototype", "training", "fabrics", FORWARDING)
_FIRST: Final = "first-all-to-all"
_ENDLESS: Final = "did not end"
_HOLDS: Final = "holds"
_GAIN_MARGIN: Final = 0.05
"""A speed-up survives a transport under which its median differs by no more than this."""
_GAINS: Final = (
    ("`spill` instead of `mixnet`, same circuits", "mixnet", "mixnet-spill"),
    ("`mixnet` instead of a non-blocking EPS", "eps", "mixnet"),
    ("`spill` instead of a non-blocking EPS", "eps", "mixnet-spill"),
    ("`mixnet` instead of fixed circuits", "static", "mixnet"),
    ("`multihop` instead of a non-blocking EPS", "eps", "multihop"),
    ("`multihop` instead of its circuits without forwarding", "uniform", "multihop"),
    ("fewer flows on the EPS instead of all NICs", "eps", f"eps{_FEWER}"),
)
_LEAST, _LARGEST = 0.5, 3.0
"""Ratios beyond these are drawn at the edges."""
_ROW: Final = 40.0
"""Height of a row of points."""


def pictures(results: OracleTables) -> dict[str, str]:
    """Return the pictures of the page by file name."""
    return {
        "truth-completion.svg": completion_strips(results),
        **{f"truth-{group}.svg": fabric_columns(results, group) for group in _GROUPS},
        "truth-first.svg": fabric_columns(results, _FIRST),
    }


def text(results: OracleTables) -> str:
    """Return the page in Markdown."""
    compared = [case for case in results.cases if case.group in _GROUPS]
    spread = [case for case in compared if _FEWER not in case.fabric]
    first, forwarding = results.of_group(_FIRST), results.of_group(FORWARDING)
    factors = dict.fromkeys((case.group, case.factor) for case in results.cases)
    return page_of(
        "oracle/truth.md.j2",
        results=results,
        margin=_percent(ORDER_MARGIN),
        gain_margin=_percent(_GAIN_MARGIN),
        survival=list(_survival(results, compared, spread)),
        order=list(_order(results.transports, spread)),
        gains=list(_gains(results, compared)),
        dark=list(_dark(results, first)),
        dark_demand=first[0].demand,
        dark_factor=f"{first[0].factor:g}",
        completion=list(_completion(results, spread)),
        longer=list(_longer(results)),
        forwarding=list(_forwarding(forwarding)),
        forwarding_order=list(_order(common_transports(forwarding), forwarding)),
        forwarding_slowdowns=list(_forwarding_slowdowns(forwarding)),
        groups=_GROUPS,
        flows=list(_flows(results)),
        sharing=list(_sharing(results)),
        golden=list(_golden()),
        factors=", ".join(f"`{group}` {factor:g}" for group, factor in factors),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _survival(
    results: OracleTables, compared: Sequence[CaseResult], spread: Sequence[CaseResult]
) -> Iterator[Row]:
    """Yield each conclusion of the model, and whether it holds under each transport."""
    yield "conclusion of the model", *results.transports
    reversed_ = [
        sum(not held for _, _, held in ordered_pairs(spread, t)) for t in results.transports
    ]
    yield (
        "order of the fabrics",
        *(f"{count} pair{'s' * (count > 1)} reversed" if count else _HOLDS for count in reversed_),
    )
    for name, _, speed_ups in _gained(results, compared):
        model = median(speed_ups[0])
        texts = (_kept(model, values) for values in speed_ups[1:])
        yield f"{name}: {model:.2f} times as fast", *texts
    first = {case.fabric: case for case in results.of_group(_FIRST)}
    if {"block", "divert"} <= first.keys():
        times = [(first["divert"].last_s(t), first["block"].last_s(t)) for t in results.transports]
        sooner = (a is not None and (b is None or a < b) for a, b in times)
        yield "`divert` ends before `block`", *(_HOLDS if held else "fails" for held in sooner)


def _kept(model: float, values: Sequence[float]) -> str:
    if not values:
        return _ENDLESS
    gain = median(values)
    holds = abs(gain / model - 1) <= _GAIN_MARGIN
    return f"{_HOLDS if holds else 'fails'}: {gain:.2f}"


def _order(transports: Sequence[str], cases: Sequence[CaseResult]) -> Iterator[Row]:
    yield "transport", "pairs", "in the model's order", "reversed"
    for transport in transports:
        pairs = list(ordered_pairs(cases, transport))
        reverse = [f"{fast.fabric} and {slow.fabric}" for fast, slow, held in pairs if not held]
        named = ", ".join(f"{pair} {count}" for pair, count in Counter(reverse).most_common())
        yield transport, len(pairs), len(pairs) - len(reverse), named or "none"


def _gains(results: OracleTables, cases: Sequence[CaseResult]) -> Iterator[Row]:
    yield "", "demands", "model", *results.transports
    for name, count, speed_ups in _gained(results, cases):
        yield name, count, *map(_range, speed_ups)


def _gained(
    results: OracleTables, cases: Sequence[CaseResult]
) -> Iterator[tuple[str, int, list[list[float]]]]:
    """Yield name, number of demands, and speed-ups in the model and under each transport."""
    for name, slow, fast in _GAINS:
        values = [ratios(cases, slow, fast, t) for t in (None, *results.transports)]
        if values[0]:
            yield name, len(values[0]), values


def _range(values: Sequence[float]) -> str:
    if not values:
        return _ENDLESS
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _dark(results: OracleTables, cases: Sequence[CaseResult]) -> Iterator[Row]:
    yield "", "model", *results.transports
    for case in cases:
        dark = case.fabric == INTO_THE_DARK
        name = case.fabric if dark else f"`{case.fabric}`"
        predicted = "not modelled" if dark else _milliseconds(case.predicted_s)
        yield name, predicted, *(_milliseconds(case.last_s(t)) for t in results.transports)


def _forwarding(cases: Sequence[CaseResult]) -> Iterator[Row]:
    """Yield completion times relative to the EPS, in the model and under each transport."""
    transports = common_transports(cases)
    yield "fabric", "bytes forwarded", "model", "max-min", *transports
    greedy = [case.model_copy(update={"predicted_s": max(case.max_min_s)}) for case in cases]
    for fabric in dict.fromkeys(case.fabric for case in cases):
        shares = [100 * c.forwarded_bytes / c.bytes for c in cases if c.fabric == fabric]
        columns = [ratios(cases, fabric, "eps", None), ratios(greedy, fabric, "eps", None)]
        columns += [ratios(cases, fabric, "eps", transport) for transport in transports]
        yield f"`{fabric}`", f"{min(shares):.1f} to {max(shares):.1f} %", *map(_range, columns)


def _forwarding_slowdowns(cases: Sequence[CaseResult]) -> Iterator[Row]:
    """Yield completion time over the model's and the loss of packets of each fabric."""
    transports = common_transports(cases)
    yield "", *transports
    for fabric in dict.fromkeys(case.fabric for case in cases):
        alike = [case for case in cases if case.fabric == fabric]
        yield f"`{fabric}`", *(_slowdowns(alike, transport) for transport in transports)


def _slowdowns(cases: Sequence[CaseResult], transport: str) -> str:
    ratios = [1 / (1 + error) for case in cases if (error := case.error(transport)) is not None]
    return f"{_range(ratios)}, {_lost(cases, transport)} lost"


def _lost(cases: Sequence[CaseResult], transport: str) -> str:
    packets = [p for case in cases for p in case.packets if p.transport == transport]
    lost = sum(p.lost_packets for p in packets) / max(1, sum(p.sent_packets for p in packets))
    return f"{100 * lost:.2f} %"


def _milliseconds(seconds: float | None) -> str:
    return _ENDLESS if seconds is None else f"{seconds * 1e3:.2f}"


def _completion(results: OracleTables, cases: Sequence[CaseResult]) -> Iterator[Row]:
    yield "transport", "all-to-alls", "p5", "median", "p95", "packets lost", _ENDLESS
    for transport in results.transports:
        errors = [e for case in cases if (e := case.error(transport)) is not None]
        ends = *_quantiles(errors), _lost(cases, transport), len(cases) - len(errors)
        yield transport, len(cases), *ends
    alone = [max(case.alone_s) / case.predicted_s - 1 for case in cases]
    name = "null model, each flow alone on its links, against the model"
    yield name, len(cases), *_quantiles(alone), "", ""


def _longer(results: OracleTables) -> Iterator[Row]:
    """Yield completion time over the model's for the prototype's dispatch at two lengths."""
    yield "", *results.transports
    longer = results.of_group(LONGER)
    for long in longer:
        short = next(
            case
            for case in results.of_group("prototype")
            if (case.demand, case.fabric) == (long.demand, long.fabric)
        )
        for case in (short, long):
            name = f"{case.fabric}, model {case.predicted_s * 1e3:.2f} ms"
            yield name, *(_slowdown(case, transport) for transport in results.transports)


def _slowdown(case: CaseResult, transport: str) -> str:
    last_s = case.last_s(transport)
    return _ENDLESS if last_s is None else f"{last_s / case.predicted_s:.2f}"


def _quantiles(errors: Sequence[float]) -> tuple[str, ...]:
    if not errors:
        return (charts.MISSING,) * 3
    return tuple(charts.deviation(quantile(errors, share)) for share in (0.05, 0.5, 0.95))


def _flows(results: OracleTables) -> Iterator[Row]:
    yield "transport", "flows", "p5", "median", "p95", "within 10 %"
    for one in results.flows:
        errors = map(charts.deviation, (one.p5, one.median, one.p95))
        yield one.transport, f"{one.flows:,}", *errors, _percent(one.near)


def _sharing(results: OracleTables) -> Iterator[Row]:
    yield "scenario", "steps", "flows", "last flow", "in SimGrid", "errors of flows, range"
    for one in results.sharing:
        spread = f"{one.least:+.1e} to {one.largest:+.1e}"
        times = f"{one.max_min_s:.5g} s", f"{one.simgrid_s:.5g} s"
        yield one.name, one.steps, f"{one.flows:,}", *times, spread


def _golden() -> Iterator[Row]:
    yield "simulator", "case", "its time", "model", "error", "flows", "of flows: p5, median, p95"
    for golden in golden_results():
        count, errors = len(golden.flow_errors), golden.flow_errors
        times = (f"{seconds * 1e6:.1f} µs" for seconds in (golden.theirs_s, golden.ours_s))
        spread = ", ".join(_quantiles(errors)) if errors else charts.MISSING
        error = charts.deviation(golden.error)
        yield golden.simulator, golden.case, *times, error, count or charts.MISSING, spread


def completion_strips(results: OracleTables) -> str:
    """Draw the completion time of each case, relative to the model's, a row for each transport."""
    cases = [case for case in results.cases if case.fabric != INTO_THE_DARK]
    rows: list[tuple[str, str, list[tuple[float, str]]]] = [
        (transport, f"t{n}", _relative(cases, lambda case, name=transport: case.last_s(name)))  # type: ignore[misc]
        for n, transport in enumerate(results.transports)
    ]
    rows.append(("null model: alone", "alone", _relative(cases, lambda case: max(case.alone_s))))
    texts = {tick: f"{tick:g}" for tick in (1.0, 1.5, 2.0, 2.5)}
    edges = {_LEAST: f"{_LEAST:g} or less", _LARGEST: f"{_LARGEST:g} or more"}
    marks: list[charts.Mark] = [charts.Rule("reference", x=1.0)]
    for row, (_, class_, values) in enumerate(rows):
        for n, (value, title) in enumerate(values):
            offset = (n * 7 % 13 - 6) * 2.0
            marks.append(charts.Dot(value, row + 0.5, class_, title, 3.5, dy=offset))
    names = charts.Axis.rows([name for name, _, _ in rows])
    panel = charts.Panel(
        charts.Axis(_LEAST, _LARGEST, texts | edges), names, marks, _ROW * len(rows)
    )
    return charts.document_picture(
        "Completion time of an all-to-all, relative to the model's", [panel]
    )


def _relative(
    cases: Sequence[CaseResult], seconds: Callable[[CaseResult], float | None]
) -> list[tuple[float, str]]:
    rows = []
    for case in cases:
        measured = seconds(case)
        ratio = _LARGEST if measured is None else measured / case.predicted_s
        title = f"{case.group}, {case.demand}, {case.fabric}: "
        title += "a flow did not end" if measured is None else charts.formatting.ratio(ratio)
        rows.append((ratio, title))
    return rows


def fabric_columns(results: OracleTables, group: str) -> str:
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
    marks: list[charts.Mark] = [
        charts.Box(
            (left, left + 0.9 * width), (0.0, value), class_, f"{fabric}, {name}: {value:.3f} ms"
        )
        for f, fabric in enumerate(fabrics)
        for s, (name, class_, _) in enumerate(series)
        for left in [f + 0.1 + s * width]
        if (value := values.get((fabric, name))) is not None
    ]
    panel = charts.Panel(
        charts.Axis.names(fabrics), charts.Axis.numbers(0.0, high * 1.06, most=5), marks, 214
    )
    title = f"Mean completion time of the all-to-alls of {group}, ms"
    return charts.document_picture(title, [panel], legend=[(c, n) for n, c, _ in series])


def _mean_ms(cases: Sequence[CaseResult], transport: str | None) -> float | None:
    seconds = [case.last_s(transport) if transport else case.predicted_s for case in cases]
    known = [value for value in seconds if value is not None]
    return 1e3 * sum(known) / len(known) if len(known) == len(seconds) else None
