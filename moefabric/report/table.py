"""Tables of a run for the terminal, with the reasons for every verdict other than a pass."""

from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from moefabric.report import run_tables, summary
from moefabric.report.diagrams import wirings
from moefabric.report.findings import shared_remedies, shown_findings
from moefabric.report.formatting import printable, seconds
from moefabric.report.outcome import outcome
from moefabric.report.remarks import circuit_lines, moving_lines, remarks
from moefabric.report.tables import VERDICT_STYLES, Table, rich_table
from moefabric.results.model import RunResult, Verdict

_LEGEND: Final = (
    "Second line of a row: prediction by a simulation of all flows; of exposed comm, its share of "
    "the iteration; of the optical share as counted at ports, the planned one. vs EPS is of the "
    "all-to-all. Times are model time."
)
_ERRORS_LEGEND: Final = (
    "Errors: measured over predicted, minus 1. A flow's is relative to its collective's time."
)
_FIRST_LEGEND: Final = (
    "Exposed: from the end of attention to the last byte of the dispatch; ideal: fluid model with "
    "the circuits for its demand lit in time. Prediction: share of the busiest experts that were "
    "predicted, and the extra time for the circuits of a predicted demand."
)
_UNBOUNDED: Final = 10_000


def text(renderable: RunResult | RenderableType, width: int = 120) -> str:
    """Return a run's tables without colour or control characters, for a file or a pipe."""
    out = StringIO()
    shown = RunTables(renderable) if isinstance(renderable, RunResult) else renderable
    Console(file=out, width=width, color_system=None, force_terminal=False).print(shown)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


class RunTables:
    """A run's tables, laid out for a rich console as soon as its width is known.

    Args:
        run: The run. Its tables fit into 80 columns.
    """

    def __init__(self, run: RunResult) -> None:
        self._run, self._fabrics = run, summary.summaries(run)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        fabrics = self._fabrics
        experiment = (printable(self._run.experiment), "bold")
        verdict = summary.overall_verdict(self._run)
        yield Text.assemble(experiment, "  ", (verdict, VERDICT_STYLES[verdict]))
        if self._run.incomplete:
            yield Text(f"incomplete: {printable(self._run.incomplete)}", "yellow")
        if result := outcome(fabrics):
            yield Text(result)
        whole = rich_table(run_tables.comparison(fabrics))
        unbounded = options.update(max_width=_UNBOUNDED)
        if console.measure(whole, options=unbounded).maximum <= options.max_width:
            yield whole
        else:
            yield rich_table(run_tables.completion(fabrics))
            if any(fabric.result.reconfigurations for fabric in fabrics):
                yield from _section(run_tables.reconfigurations(fabrics))
        yield from _control_times(fabrics)
        yield from _section(run_tables.errors(fabrics), _ERRORS_LEGEND)
        yield from _section(run_tables.costs(fabrics))
        for why in run_tables.unpriced(fabrics):
            yield Text(f"networks are not priced: {why}", style="dim")
        yield Text(_LEGEND, style="dim")
        for names, wiring in wirings(fabrics).items():
            yield Text(f"{names}: {printable(wiring.kind)}", style="dim")
        for line in (*circuit_lines(self._run.results), *moving_lines(fabrics)):
            yield Text(line, style="dim")
        for fabric in fabrics:
            for line in remarks(fabric):
                yield Text(f"{fabric.name}: {line}", style="dim")
        yield from _section(run_tables.first_all_to_alls(fabrics), _FIRST_LEGEND)
        yield from _section(run_tables.failures(fabrics))
        yield from _findings(fabrics)


def _findings(fabrics: Sequence[summary.FabricSummary]) -> Iterator[RenderableType]:
    """Yield the reasons for the verdicts of fabrics, and the remedies."""
    for fabric in fabrics:
        for finding in shown_findings(fabric) if fabric.verdict is not Verdict.PASS else ():
            named = f"{fabric.name} is {finding.verdict}", VERDICT_STYLES[finding.verdict]
            yield Text.assemble(named, f": {printable(finding.text)}")
    for remedy, names in shared_remedies(fabrics).items():
        yield Text(f"remedy for {', '.join(names)}: {remedy}", style="dim")


def _section(shown: Table, legend: str = "") -> Iterator[RenderableType]:
    """Yield a table and its legend; nothing if it has no rows."""
    if shown.rows:
        yield Text()
        yield rich_table(shown)
        if legend:
            yield Text(legend, style="dim")


def _control_times(fabrics: Sequence[summary.FabricSummary]) -> Iterator[RenderableType]:
    """Yield a line on the control plane's time of each fabric that changed circuits."""
    for fabric in fabrics:
        control = fabric.result.control_time
        if control.p50_s is None:
            continue
        p50, p95 = seconds(control.p50_s), seconds(control.p95_s)
        times = f"p50 {p50}, p95 {p95} of {control.count} changes"
        if control.unchanged_count:
            unchanged = f"{control.unchanged_count} requests that changed nothing"
            times += f", p50 {seconds(control.unchanged_p50_s)} of {unchanged}"
        harness = f"{seconds(fabric.result.harness_s)} of wall time for orders to agents left out"
        yield Text(f"{fabric.name}: control plane {times}; {harness}")
