"""Tables of a run for the terminal, with the reasons for every verdict other than a pass."""

from collections.abc import Iterator, Sequence
from io import StringIO

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Column, Table
from rich.text import Text

from moefabric.report import formatting, summary
from moefabric.report.formatting import deviation, percentage, printable, seconds
from moefabric.report.wiring_diagram import wiring_descriptions
from moefabric.runner.result_model import RunResult, Verdict

_LEGEND = (
    "Second line of a row: prediction by a simulation of all flows; of exposed comm, its share of "
    "the iteration; of the optical share as counted at ports, the planned one. Times are model "
    "time."
)
_ERRORS_LEGEND = (
    "Errors: measured over predicted, minus 1. A flow's is relative to its collective's time."
)
_FIRST_LEGEND = (
    "Exposed: from the end of attention to the last byte of the dispatch; ideal: fluid model with "
    "the circuits for its demand lit in time. Prediction: share of the busiest experts that were "
    "predicted, and the extra time for the circuits of a predicted demand."
)
_UNBOUNDED = 10_000
_STYLES = {Verdict.PASS: "green", Verdict.DEGRADED: "yellow", Verdict.INVALID: "bold red"}
_SHOWN_PHASES = tuple(phase for phase in summary.PHASES if phase not in ("demand", "plan"))


def table(run: RunResult) -> RenderableType:
    """Return a run's tables, for a rich console of any width from 80 columns."""
    return _RunTables(run)


def text(run: RunResult, width: int = 120) -> str:
    """Return a run's tables without colour or control characters, for a file or a pipe."""
    out = StringIO()
    Console(file=out, width=width, color_system=None, force_terminal=False).print(table(run))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


class _RunTables:
    """A run's tables, laid out as soon as the width is known."""

    def __init__(self, run: RunResult) -> None:
        self._run, self._fabrics = run, summary.summaries(run)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        fabrics = self._fabrics
        experiment = (printable(self._run.experiment), "bold")
        yield Text.assemble(experiment, "  ", _verdict(summary.overall_verdict(self._run)))
        if self._run.incomplete:
            yield Text(f"incomplete: {printable(self._run.incomplete)}", "yellow")
        whole, unbounded = _whole(fabrics), options.update(max_width=_UNBOUNDED)
        if console.measure(whole, options=unbounded).maximum <= options.max_width:
            yield whole
        else:
            yield _completion(fabrics)
            if any(fabric.result.reconfigurations for fabric in fabrics):
                yield Text()
                yield _reconfigurations(fabrics)
        yield from _control_times(fabrics)
        yield from _errors(fabrics)
        yield from _costs(fabrics)
        yield Text(_LEGEND, style="dim")
        for names, kind in wiring_descriptions(fabrics):
            yield Text(f"{names}: {kind}", style="dim")
        for fabric in fabrics:
            for line in summary.remarks(fabric):
                yield Text(f"{fabric.name}: {line}", style="dim")
        if shown := summary.with_first_all_to_alls(fabrics):
            yield Text()
            yield _first_all_to_alls(shown)
            yield Text(_FIRST_LEGEND, style="dim")
        if any(fabric.result.failures for fabric in fabrics):
            yield Text()
            yield _failures(fabrics)
        for fabric in fabrics:
            for reason in () if fabric.verdict is Verdict.PASS else fabric.reasons:
                verdict = (f"{fabric.name} is {fabric.verdict}", _STYLES[fabric.verdict])
                yield Text.assemble(verdict, f": {printable(reason)}")


def _table(*columns: str, text_columns: Sequence[str] = ("fabric", "verdict")) -> Table:
    """Return an empty table; columns but those in `text_columns` are aligned to the right."""
    return Table(
        *(Column(c, justify="left" if c in text_columns else "right") for c in columns),
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False,
    )  # fmt: skip


_COMPLETION = (
    "fabric", "iteration", "exposed\ncomm", "all-to-all", "error", "vs EPS", "optical\nshare",
)  # fmt: skip
_CHANGE_PHASES = "divert/command/\nsettle, verify/\nadmit, ms"


def _whole(fabrics: Sequence[summary.FabricSummary]) -> Table:
    """Return one table of completion times and reconfigurations."""
    columns = (*_COMPLETION, "reconfig.\nmedian", _CHANGE_PHASES, "dark", "verdict")
    drawn = _table(*columns, text_columns=("fabric", _CHANGE_PHASES, "verdict"))
    for fabric in fabrics:
        count, phases = Text("0"), Text(formatting.MISSING)
        if fabric.result.reconfigurations:
            count = Text(f"{fabric.change_count}\n{seconds(fabric.total_s)}")
            figures = _phases(fabric)
            phases = Text("/".join(figures[:3]) + "\n" + "/".join(figures[3:]))
        dark = Text(seconds(fabric.dark_s))
        drawn.add_row(*_completion_cells(fabric), count, phases, dark, _verdict(fabric.verdict))
    return drawn


def _completion(fabrics: Sequence[summary.FabricSummary]) -> Table:
    drawn = _table(*_COMPLETION, "verdict")
    for fabric in fabrics:
        drawn.add_row(*_completion_cells(fabric), _verdict(fabric.verdict))
    return drawn


def _reconfigurations(fabrics: Sequence[summary.FabricSummary]) -> Table:
    """Return medians of the reconfigurations in milliseconds, one column per phase."""
    drawn = _table("fabric", "changes", "total ms", *_SHOWN_PHASES, "dark")
    for fabric in fabrics:
        total, dark = formatting.milliseconds(fabric.total_s), seconds(fabric.dark_s)
        drawn.add_row(_name(fabric), fabric.change_count, total, *_phases(fabric), dark)
    return drawn


def _phases(fabric: summary.FabricSummary) -> list[str]:
    return [formatting.milliseconds(fabric.phase_s(phase)) for phase in _SHOWN_PHASES]


def _control_times(fabrics: Sequence[summary.FabricSummary]) -> Iterator[RenderableType]:
    """Return a line on the control plane's time of each fabric that changed circuits."""
    for fabric in fabrics:
        control = fabric.result.control_time
        if control.p50_s is None:
            continue
        p50, p95 = (seconds(figure) for figure in (control.p50_s, control.p95_s))
        times = f"p50 {p50}, p95 {p95} of {control.count} changes"
        if control.unchanged_count:
            unchanged = f"{control.unchanged_count} requests that changed nothing"
            times += f", p50 {seconds(control.unchanged_p50_s)} of {unchanged}"
        harness = f"{seconds(fabric.result.harness_s)} of wall time for orders to agents left out"
        yield Text(f"{printable(fabric.name)}: control plane {times}; {harness}")


def _errors(fabrics: Sequence[summary.FabricSummary]) -> Iterator[RenderableType]:
    """Return the distribution of signed errors by kind; nothing if the run has none."""
    columns = ("errors, %", "kind", "samples", "least", "p5", "median", "p95", "greatest", "|p95|")
    drawn = _table(*columns, text_columns=("errors, %", "kind"))
    for fabric in fabrics:
        name = _name(fabric)
        for kind, errors in fabric.result.fidelity.completion_errors.items():
            figures = (errors.min, errors.p5, errors.p50, errors.p95, errors.max)
            signed = (f"{figure * 100:+.2f}" for figure in figures)
            drawn.add_row(name, kind, str(errors.n), *signed, f"{errors.abs_p95 * 100:.2f}")
            name = Text()
    if drawn.row_count:
        yield Text()
        yield drawn
        yield Text(_ERRORS_LEGEND, style="dim")


def _costs(fabrics: Sequence[summary.FabricSummary]) -> Iterator[RenderableType]:
    """Return cost and performance per dollar; nothing if the run has no costs."""
    if any(fabric.result.cost.network_usd for fabric in fabrics):
        drawn = _table("fabric", "network", "it/s per M$", "perf/$ vs EPS")
        for fabric in fabrics:
            cost, performance = fabric.result.cost, fabric.iterations_per_million_usd
            figures = formatting.usd(cost.network_usd), formatting.number(performance)
            drawn.add_row(_name(fabric), *figures, formatting.ratio(cost.perf_per_dollar_vs_eps))
        yield Text()
        yield drawn
    for why in sorted({fabric.result.cost.why for fabric in fabrics} - {""}):
        yield Text(f"networks are not priced: {printable(why)}", style="dim")


def _completion_cells(fabric: summary.FabricSummary) -> list[Text]:
    return [
        _name(fabric),
        _over(seconds(fabric.iteration_s, 4), seconds(fabric.predicted_iteration_s, 4)),
        _over(seconds(fabric.exposed_s), percentage(fabric.exposed_share)),
        _over(seconds(fabric.measured_s), seconds(fabric.predicted_s)),
        Text(deviation(fabric.error)),
        _over(formatting.ratio(fabric.measured_ratio), formatting.ratio(fabric.predicted_ratio)),
        _over(percentage(fabric.optical_share), percentage(fabric.planned_optical_share)),
    ]


def _first_all_to_alls(fabrics: Sequence[summary.FabricSummary]) -> Table:
    columns = ("first all-to-all", "policy", "exposed", "error", "waited", "ideal", "prediction")
    drawn = _table(*columns, text_columns=("first all-to-all", "policy", "prediction"))
    for fabric in fabrics:
        first, prediction = fabric.result.first_all_to_all, ""
        if first.foresight and first.foresight.wrong_guess_s is not None:
            cost = seconds(first.foresight.wrong_guess_s)
            prediction = f"{percentage(first.foresight.top_k_hits)}, +{cost}"
        drawn.add_row(
            _name(fabric),
            fabric.first_policy,
            _over(seconds(first.exposed_s), seconds(first.predicted_exposed_s)),
            deviation(first.error),
            _over(seconds(first.waited_s), seconds(first.predicted_wait_s)),
            seconds(first.ideal_s),
            prediction,
        )
    return drawn


def _failures(fabrics: Sequence[summary.FabricSummary]) -> Table:
    columns = ("failure", "iteration", "detected", "recovered", "slowdown", "later", "recovery")
    drawn = _table(*columns, text_columns=("failure", "recovery"))
    several = sum(bool(fabric.result.failures) for fabric in fabrics) > 1
    for fabric in fabrics:
        for failure in fabric.result.failures:
            name = f"{fabric.name}: {failure.name}" if several else failure.name
            iteration = formatting.MISSING if failure.iteration is None else str(failure.iteration)
            action = printable(failure.action) if failure.ok else "not seen to recover"
            drawn.add_row(
                Text(printable(name), style="bold" if failure.ok else "bold red"),
                iteration,
                seconds(failure.detected_s),
                seconds(failure.recovered_s),
                deviation(failure.slow_down),
                deviation(failure.slow_down_after),
                Text(action, overflow="fold"),
            )
    return drawn


def _over(above: str, below: str) -> Text:
    return Text.assemble(above, "\n", (below, "dim"))


def _name(fabric: summary.FabricSummary) -> Text:
    return Text(fabric.name, style="bold")


def _verdict(verdict: Verdict) -> Text:
    return Text(verdict, style=_STYLES[verdict])
