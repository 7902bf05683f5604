"""Tables of a run, for the terminal and for pages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from moefabric.report import formatting, summary
from moefabric.report.formatting import MISSING, counted, deviation, percentage, printable, seconds
from moefabric.report.summary import FabricSummary
from moefabric.report.tables import Cell, Row, Table
from moefabric.results.comparison import is_invalid
from moefabric.results.model import ExperimentPrediction, HostRecord, Manifest, Verdict
from moefabric.results.parts import DemandPrediction, TrainingResult

_COMPLETION: Final = (
    "iteration_s", "exposed_comm_s", "all_to_all_s", "error", "vs_eps", "optical_share",
)  # fmt: skip
_PREDICTION: Final = (
    "iteration_s", "compute_s", "exposed_comm_s", "all_to_all_s", "vs_eps", "optical_share",
    "moves",
)  # fmt: skip
_COSTS: Final = ("network_usd", "performance_per_million_usd", "perf_per_dollar_vs_eps")
_PHASES: Final = tuple(phase for phase in summary.PHASES if phase not in ("demand", "plan"))
_CHANGE_PHASES: Final = "divert/command/\nsettle, verify/\nadmit, ms"
_WIDE_PHASES: Final = "divert / command / settle / verify / admit, ms"
_SHOWN_SERVERS: Final = 4


Columns = Mapping[str, Callable[[FabricSummary], Cell | str]]
"""Cells of a fabric's row by the headings of their columns."""


def _table(columns: Columns, fabrics: Sequence[FabricSummary], *texts: str) -> Table:
    """Return a row for each fabric. Figures of an invalid one are crossed out."""
    rows = list[Row]()
    for fabric in fabrics:
        cells = [cell(fabric) for cell in columns.values()]
        figures = map(_crossed_out, cells[1:]) if fabric.is_invalid else cells[1:]
        rows.append([cells[0], *figures])
        if fabric.is_invalid and "verdict" not in columns:
            rows[-1][0] = Cell(fabric.name, "invalid")
    return Table(list(columns), rows, texts)


def _crossed_out(cell: Cell | str) -> Cell | str:
    """Return a figure of an invalid fabric; names, verdicts and dashes stay as they are."""
    if isinstance(cell, Verdict) or cell == MISSING:
        return cell
    return replace(cell, void=True) if isinstance(cell, Cell) else Cell(cell, void=True)


def _figures(*names: str) -> Columns:
    """Return columns of figures, given their names."""

    def cell(name: str, below: str, fabric: FabricSummary) -> Cell:
        return Cell(fabric.text(name), fabric.text(below) if below else "")

    shown = {name: summary.COLUMNS[name] for name in names}
    return {one.heading: partial(cell, name, one.below) for name, one in shown.items()}


_NAME: Final[Columns] = {"fabric": lambda fabric: fabric.name}
_VERDICT: Final[Columns] = {"verdict": lambda fabric: fabric.verdict}


def comparison(fabrics: Sequence[FabricSummary], *, wide: bool = False) -> Table:
    """Return completion times and reconfigurations of the fabrics.

    Args:
        wide: Whether there is room for all phases in one line.
    """

    def changes(fabric: FabricSummary) -> Cell:
        if not fabric.result.reconfigurations:
            return Cell("0")
        return Cell(fabric.change_count, fabric.text("reconfiguration_s") + " each" * wide)

    def phases(fabric: FabricSummary) -> Cell:
        figures = _phases(fabric) if fabric.result.reconfigurations else [MISSING]
        if wide:
            return Cell(" / ".join(figures))
        return Cell("/".join(figures[:3]), "/".join(figures[3:]))

    count = "reconfigurations" if wide else summary.COLUMNS["reconfiguration_s"].heading
    phase_heading = _WIDE_PHASES if wide else _CHANGE_PHASES
    dark = {"dark per iteration" if wide else "dark": _figures("dark_s")["dark"]}
    phase_columns = {count: changes, phase_heading: phases}
    columns = {**_NAME, **_figures(*_COMPLETION), **phase_columns, **dark, **_VERDICT}
    return _table(columns, fabrics, _CHANGE_PHASES, "verdict")


def completion(fabrics: Sequence[FabricSummary]) -> Table:
    """Return the completion times of the fabrics."""
    return _table({**_NAME, **_figures(*_COMPLETION), **_VERDICT}, fabrics, "verdict")


def reconfigurations(fabrics: Sequence[FabricSummary]) -> Table:
    """Return medians of the reconfigurations in milliseconds, one column per phase."""
    columns: Columns = {
        **_NAME,
        "changes": lambda f: f.change_count,
        "total ms": lambda f: formatting.milliseconds(f["reconfiguration_s"]),
        **{phase: partial(_phase, phase) for phase in _PHASES},
        **_figures("dark_s"),
    }
    return _table(columns, fabrics)


def _phase(phase: str, fabric: FabricSummary) -> str:
    return formatting.milliseconds(fabric.phase_s(phase))


def _phases(fabric: FabricSummary) -> list[str]:
    return [_phase(phase, fabric) for phase in _PHASES]


def errors(fabrics: Sequence[FabricSummary]) -> Table:
    """Return the distribution of signed errors by kind."""
    rows = list[Row]()
    for fabric in fabrics:
        for n, (kind, one) in enumerate(fabric.result.fidelity.completion_errors.items()):
            figures = (one.min, one.p5, one.p50, one.p95, one.max)
            signed = [f"{100 * figure:+.2f}" for figure in figures]
            name = "" if n else fabric.label
            rows.append([name, kind, str(one.n), *signed, f"{one.abs_p95 * 100:.2f}"])
    heads = ["errors, %", "kind", "samples", "least", "p5", "median", "p95", "greatest", "|p95|"]
    return Table(heads, rows, {"kind"})


def costs(fabrics: Sequence[FabricSummary]) -> Table:
    """Return cost and performance per dollar; no row if the run has no costs."""
    priced = any(fabric["network_usd"] for fabric in fabrics)
    return _table({**_NAME, **_figures(*_COSTS)}, fabrics if priced else ())


def unpriced(fabrics: Sequence[FabricSummary]) -> list[str]:
    """Return why networks have no price."""
    return sorted({printable(fabric.result.cost.why) for fabric in fabrics} - {""})


def first_all_to_alls(fabrics: Sequence[FabricSummary]) -> Table:
    """Return the times of first all-to-alls above their predictions, if they are compared."""
    shown = summary.with_first_all_to_alls(fabrics)
    table = _table(_FIRST, shown, "policy", "prediction", "busiest experts predicted")
    return replace(table, wide=("predicted dispatches", "busiest experts predicted"))


def _wrong_guesses(foresight: DemandPrediction | None) -> str:
    if foresight is None or foresight.wrong_guess_s is None:
        return ""
    return f"{percentage(foresight.top_k_hits)}, +{seconds(foresight.wrong_guess_s)}"


def _guesses(foresight: DemandPrediction | None) -> str:
    total = foresight.guessed + foresight.unguessed if foresight else 0
    return f"{foresight.guessed} of {total}" if foresight and total else MISSING


def _busiest(foresight: DemandPrediction | None) -> str:
    if foresight is None or foresight.top_k_hits is None:
        return MISSING
    hits, before, random = map(
        percentage, (foresight.top_k_hits, foresight.unchanged_hits, foresight.random_hits)
    )
    others = f"(layer before: {before}, at random: {random})"
    return f"{hits} of the {foresight.top_k} busiest experts {others}"


_FIRST: Final[Columns] = {
    "first all-to-all": lambda f: f.name,
    "policy": lambda f: f.first_policy,
    "exposed": lambda f: _predicted(f.first.exposed_s, f.first.predicted_exposed_s),
    "error": lambda f: deviation(f.first.error),
    "waited": lambda f: _predicted(f.first.waited_s, f.first.predicted_wait_s),
    "ideal": lambda f: seconds(f.first.ideal_s),
    "prediction": lambda f: _wrong_guesses(f.first.foresight),
    "predicted dispatches": lambda f: _guesses(f.first.foresight),
    "busiest experts predicted": lambda f: _busiest(f.first.foresight),
}


def _predicted(measured_s: float | None, predicted_s: float | None) -> Cell:
    return Cell(seconds(measured_s), seconds(predicted_s))


def failures(fabrics: Sequence[FabricSummary]) -> Table:
    """Return the times of detection and recovery of failures, and their cost in iterations."""
    several = sum(bool(fabric.result.failures) for fabric in fabrics) > 1
    rows = list[Row]()
    for fabric in fabrics:
        for failure in fabric.result.failures:
            named = several or fabric.is_invalid
            name = printable(f"{fabric.label}: {failure.name}" if named else failure.name)
            rows.append(
                [
                    Cell(name, style="bold" if failure.ok else "bold red"),
                    _count(failure.iteration),
                    *map(seconds, (failure.detected_s, failure.recovered_s)),
                    *map(deviation, (failure.slow_down, failure.slow_down_after)),
                    printable(failure.detected_by) or MISSING,
                    printable(failure.action) if failure.ok else "not seen to recover",
                ]
            )
    heads = ["failure", "iteration", "detected", "recovered", "slowdown", "later", "detected by"]
    return Table([*heads, "recovery"], rows, {"detected by", "recovery"}, {"detected by"})


def fidelity(fabrics: Sequence[FabricSummary]) -> Table:
    """Return the figures on which verdicts rest."""
    return _table(_FIDELITY, fabrics)


def _count(number: int | None) -> str:
    return MISSING if number is None else str(number)


_FIDELITY: Final[Columns] = {
    **_NAME,
    "bytes sent": lambda f: formatting.data_size(f.result.integrity.bytes_sent),
    "received": lambda f: formatting.data_size(f.result.integrity.bytes_received),
    "corrupt": lambda f: _count(f.result.integrity.corrupt),
    "lost transfers": lambda f: _count(f.result.integrity.lost_transfers),
    "link rate error, p95": lambda f: percentage(f.result.fidelity.link_rate_error_p95),
    "least CPU idle": lambda f: percentage(f.result.fidelity.cpu_idle_min),
    "completion error, p50": lambda f: percentage(f.result.fidelity.completion_error_p50),
    "p95": lambda f: percentage(f.result.fidelity.completion_error_p95),
    **_VERDICT,
}


def training(fabrics: Sequence[FabricSummary]) -> Table:
    """Return the losses of a program that trained, and the duration of its training."""
    heads = ["fabric", "first loss", "last loss", "iterations", "model time"]
    heads += ["changes of light a layer", "byte scale", "slow ranks", "restarts"]
    rows = [_training(fabric, result) for fabric in fabrics if (result := fabric.result.training)]
    return Table(heads, rows)


def _training(fabric: FabricSummary, result: TrainingResult) -> Row:
    ends: list[str] = [MISSING] * 4
    if result.losses:
        first, last = result.losses[0], result.losses[-1]
        losses = (formatting.significant(loss.loss, 5) for loss in (first, last))
        ends = [*losses, str(len(result.losses)), seconds(last.model_s, 4)]
    slow, worst = result.computation, result.computation.worst_rank
    note = f"rank {worst} worst" if slow.late and worst is not None else ""
    return [
        fabric.label,
        *ends,
        formatting.number(changes_a_layer(fabric)),
        formatting.number(result.byte_scale),
        Cell(f"{slow.late} of {slow.count}", note),
        str(len(result.restarts)),
    ]


def changes_a_layer(fabric: FabricSummary) -> float | None:
    """Return how often circuits moved for a layer in both passes; None without requests."""
    requests = fabric.result.reconfigurations
    layers = {(one.iteration, one.layer) for one in requests if one.layer is not None}
    moved = sum(summary.changes_circuits(one) for one in requests)
    return moved / len(layers) if layers else None


def machines(manifest: Manifest) -> Table:
    """Return the other machines of a run and their clocks; no row if one machine carried it.

    The offset is that by the best measurement, the uncertainty the worst bound of its error.
    """
    groups: dict[tuple[str, str], list[HostRecord]] = {}
    for record in manifest.hosts or ():
        groups.setdefault((record.fabric, record.host), []).append(record)
    rows = list[Row]()
    for (fabric, host), records in groups.items():
        best = min(records, key=lambda record: record.clock_uncertainty_s)
        drifts = [one.clock_drift_s for one in records if one.clock_drift_s is not None]
        lost = "; ".join(dict.fromkeys(record.lost for record in records if record.lost))
        rows.append(
            [
                Cell(printable(host), printable(fabric)),
                _names([record.server for record in records]),
                seconds(best.clock_offset_s),
                f"± {seconds(max(record.clock_uncertainty_s for record in records))}",
                seconds(max(drifts, key=abs, default=None)),
                printable(lost) or "ran to the end",
            ]
        )
    return Table(["machine", "servers", "clock offset", "uncertainty", "drift", "state"], rows)


def _names(servers: Sequence[str]) -> str:
    if len(servers) > _SHOWN_SERVERS:
        return f"{counted(len(servers), 'server')}, {printable(servers[0])} first"
    return printable(" ".join(servers))


def prediction(predicted: ExperimentPrediction) -> Table:
    """Return the figures of a prediction. Those of a policy that failed are crossed out."""
    columns = [summary.COLUMNS[name] for name in _PREDICTION]
    rows = list[Row]()
    for fabric in predicted.fabrics:
        values = (one.predicted(fabric) if one.predicted else None for one in columns)
        texts = [one.text(value) for one, value in zip(columns, values, strict=True)]
        failed, name = is_invalid(fabric), printable(fabric.fabric)
        figures = map(_crossed_out, texts) if failed else texts
        rows.append([f"{name} (failed)" if failed else name, *figures])
    return Table(["fabric", *(one.heading for one in columns)], rows)
