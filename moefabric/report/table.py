"""The table: a run on the terminal, one row a fabric, and below it the reason for every verdict that isn't a pass."""

from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Column, Table
from rich.text import Text

from moefabric.report import failures, first, reading, words
from moefabric.report.networks import kinds
from moefabric.report.result import PHASES, Result, overall

_LEGEND = "Second lines: the fluid model's prediction; of exposed, its share of the iteration. Times are the model's."
_UNBOUNDED = 10_000
_STYLES = {"pass": "green", "degraded": "yellow", "invalid": "bold red"}
_CONTROL = tuple(phase for phase in PHASES if phase not in ("demand", "plan"))


def table(run: Mapping[str, Any]) -> RenderableType:
    """The run's comparison, to be printed by a rich console of any width from 80 columns."""
    return _Comparison(
        str(run.get("experiment", "")), reading.results(run), failures.failed(run), first.firsts(run)
    )


def text(run: Mapping[str, Any], width: int = 120) -> str:
    """The same without colour or control characters, for a file or a pipe."""
    out = StringIO()
    Console(file=out, width=width, color_system=None, force_terminal=False).print(table(run))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


class _Comparison:
    """A run's results, laid out when the width is known: in one table, or where that is too wide in two."""

    def __init__(
        self,
        experiment: str,
        results: Sequence[Result],
        failed: Sequence[failures.Failed] = (),
        firsts: Sequence[first.First] = (),
    ) -> None:
        self._experiment = words.printable(experiment)
        self._results, self._failed, self._firsts = results, failed, firsts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text.assemble((self._experiment, "bold"), "  ", _verdict(overall(self._results)))
        everything = _everything(self._results)
        if (
            console.measure(everything, options=options.update(max_width=_UNBOUNDED)).maximum
            <= options.max_width
        ):
            yield everything
        else:
            yield _completion(self._results)
            if any(result.reconfigurations for result in self._results):
                yield Text()
                yield _changes(self._results)
        yield from _costs(self._results)
        yield Text(_LEGEND, style="dim")
        for names, kind in kinds(self._results):
            yield Text(f"{names}: {kind}", style="dim")
        if self._firsts:
            yield Text()
            yield first.terminal(self._firsts)
            yield Text(first.LEGEND, style="dim")
        if self._failed:
            yield Text()
            yield failures.terminal(self._failed)
        yield from _reasons(self._results)


def _everything(results: Sequence[Result]) -> Table:
    changes = [
        Column("changes\nmedian", justify="right"),
        Column("divert/command/\nsettle, verify/\nadmit, ms"),
    ]
    drawn = _table(*_completion_columns(), *changes, Column("dark", justify="right"), "verdict")
    for result in results:
        row = (_count_and_median(result), _phases(result), _dark(result))
        drawn.add_row(*_completion_cells(result), *row, _verdict(result.verdict))
    return drawn


def _completion(results: Sequence[Result]) -> Table:
    drawn = _table(*_completion_columns(), "verdict")
    for result in results:
        drawn.add_row(*_completion_cells(result), _verdict(result.verdict))
    return drawn


def _changes(results: Sequence[Result]) -> Table:
    """Reconfigurations, one column a phase: medians in milliseconds."""
    right = [Column(name, justify="right") for name in ("changes", "total ms", *_CONTROL, "dark")]
    drawn = _table("fabric", *right)
    for result in results:
        phases = [words.milliseconds(result.phase_s(phase)) for phase in _CONTROL]
        count, total = result.count, words.milliseconds(result.total_s)
        drawn.add_row(_name(result), count, total, *phases, _dark(result))
    return drawn


def _costs(results: Sequence[Result]) -> Iterator[RenderableType]:
    """What each network costs and a dollar of it buys; nothing where the run doesn't say."""
    if any(result.network_usd for result in results):
        right = ("network", "iterations/s for a million $", "to eps for a $")
        drawn = _table("fabric", *(Column(name, justify="right") for name in right))
        for result in results:
            bought = words.plain(result.per_million_usd), words.ratio(result.dollar_to_eps)
            drawn.add_row(_name(result), words.usd(result.network_usd), *bought)
        yield Text()
        yield drawn
    for why in sorted({result.unpriced for result in results} - {""}):
        yield Text(f"networks are not priced: {words.printable(why)}", style="dim")


def _table(*columns: Column | str) -> Table:
    return Table(*columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)


def _completion_columns() -> list[Column]:
    names = ("iteration", "exposed", "all-to-all", "error", "to eps", "light")
    return [Column("fabric"), *(Column(name, justify="right") for name in names)]


def _completion_cells(result: Result) -> list[Text]:
    return [
        _name(result),
        _over(words.seconds(result.iteration_s, 4), words.seconds(result.predicted_iteration_s, 4)),
        _over(words.seconds(result.exposed_s), words.share(result.exposed_share)),
        _over(words.seconds(result.measured_s), words.seconds(result.predicted_s)),
        Text(words.error(result.error)),
        _over(words.ratio(result.ratio_measured), words.ratio(result.ratio_predicted)),
        Text(words.share(result.light_share)),
    ]


def _over(above: str, below: str) -> Text:
    return Text.assemble(above, "\n", (below, "dim"))


def _name(result: Result) -> Text:
    return Text(words.printable(result.name), style="bold")


def _count_and_median(result: Result) -> Text:
    if not result.reconfigurations:
        return Text("0")
    return Text(f"{result.count}\n{words.seconds(result.total_s)}")


def _phases(result: Result) -> Text:
    if not result.reconfigurations:
        return Text(words.NOTHING)
    said = [words.milliseconds(result.phase_s(phase)) for phase in _CONTROL]
    return Text("/".join(said[:3]) + "\n" + "/".join(said[3:]))


def _dark(result: Result) -> Text:
    return Text(words.seconds(result.dark_s or None))


def _verdict(verdict: str) -> Text:
    return Text(verdict, style=_STYLES[verdict])


def _reasons(results: Sequence[Result]) -> Iterator[Text]:
    for result in results:
        if result.verdict == "pass":
            continue
        for reason in result.reasons or ("no reason was given",):
            said = (f"{words.printable(result.name)} is {result.verdict}", _STYLES[result.verdict])
            yield Text.assemble(said, f": {words.printable(reason)}")
