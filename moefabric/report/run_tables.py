"""Tables of a run, for the terminal and for pages."""

from collections.abc import Mapping, Sequence
from typing import Final

from moefabric.report import formatting
from moefabric.report.formatting import MISSING, counted, deviation, percentage, printable, seconds
from moefabric.report.summary import COLUMNS, PHASES, FabricSummary, changes_circuits
from moefabric.report.tables import Cell, Row, Table
from moefabric.results.model import ExperimentPrediction, HostRecord, Manifest
from moefabric.results.parts import TrainingResult

_COMPLETION: Final = (
    "iteration_s", "exposed_comm_s", "all_to_all_s", "error", "vs_eps", "optical_share",
)  # fmt: skip
_PREDICTION: Final = (
    "iteration_s", "compute_s", "exposed_comm_s", "all_to_all_s", "vs_eps", "optical_share",
    "reconfigurations",
)  # fmt: skip
_COSTS: Final = ("network_usd", "performance_per_million_usd", "perf_per_dollar_vs_eps")
_PHASES: Final = tuple(phase for phase in PHASES if phase not in ("demand", "plan"))
_CHANGE_PHASES: Final = "divert/command/\nsettle, verify/\nadmit, ms"
_WIDE_PHASES: Final = "divert / command / settle / verify / admit, ms"
_SHOWN_SERVERS: Final = 4


def figure_cells(fabric: FabricSummary, columns: Sequence[str]) -> list[Cell]:
    """Return the cells of a fabric's figures, given the names of their columns."""
    return [
        Cell(fabric.text(name), fabric.text(below) if (below := COLUMNS[name].below) else "")
        for name in columns
    ]


def headings(columns: Sequence[str]) -> list[str]:
    """Return the headings of columns, given their names."""
    return [COLUMNS[name].heading for name in columns]


def comparison(fabrics: Sequence[FabricSummary], *, wide: bool = False) -> Table:
    """Return completion times and reconfigurations of the fabrics.

    Args:
        fabrics: The fabrics.
        wide: Whether there is room for all phases in one line.
    """
    heads = ["fabric", *headings(_COMPLETION)]
    if wide:
        heads += ["reconfigurations", _WIDE_PHASES, "dark per iteration", "verdict"]
    else:
        heads += [*headings(["reconfiguration_s"]), _CHANGE_PHASES, "dark", "verdict"]
    rows = list[Row]()
    for fabric in fabrics:
        count, phases = Cell("0"), Cell(MISSING)
        if fabric.result.reconfigurations:
            figures = _phases(fabric)
            median = fabric.text("reconfiguration_s")
            count = Cell(fabric.change_count, f"{median} each" if wide else median)
            phases = Cell("/".join(figures[:3]), "/".join(figures[3:]))
            if wide:
                phases = Cell(" / ".join(figures))
        cells = figure_cells(fabric, _COMPLETION)
        rows.append(
            [fabric.name, *cells, count, phases, *figure_cells(fabric, ["dark_s"]), fabric.verdict]
        )
    return Table(heads, rows, {_CHANGE_PHASES, "verdict"})


def completion(fabrics: Sequence[FabricSummary]) -> Table:
    """Return the completion times of the fabrics."""
    rows: list[Row] = [[f.name, *figure_cells(f, _COMPLETION), f.verdict] for f in fabrics]
    return Table(["fabric", *headings(_COMPLETION), "verdict"], rows)


def reconfigurations(fabrics: Sequence[FabricSummary]) -> Table:
    """Return medians of the reconfigurations in milliseconds, one column per phase."""
    rows: list[Row] = [
        [
            fabric.name,
            fabric.change_count,
            formatting.milliseconds(fabric["reconfiguration_s"]),
            *_phases(fabric),
            fabric.text("dark_s"),
        ]
        for fabric in fabrics
    ]
    return Table(["fabric", "changes", "total ms", *_PHASES, "dark"], rows)


def _phases(fabric: FabricSummary) -> list[str]:
    return [formatting.milliseconds(fabric.phase_s(phase)) for phase in _PHASES]


def errors(fabrics: Sequence[FabricSummary]) -> Table:
    """Return the distribution of signed errors by kind."""
    rows = list[Row]()
    for fabric in fabrics:
        name = fabric.name
        for kind, one in fabric.result.fidelity.completion_errors.items():
            signed = [
                f"{100 * figure:+.2f}" for figure in (one.min, one.p5, one.p50, one.p95, one.max)
            ]
            rows.append([name, kind, str(one.n), *signed, f"{one.abs_p95 * 100:.2f}"])
            name = ""
    heads = ["errors, %", "kind", "samples", "least", "p5", "median", "p95", "greatest", "|p95|"]
    return Table(heads, rows, {"kind"})


def costs(fabrics: Sequence[FabricSummary]) -> Table:
    """Return cost and performance per dollar; no row if the run has no costs."""
    priced = any(fabric["network_usd"] for fabric in fabrics)
    rows: list[Row] = [[f.name, *figure_cells(f, _COSTS)] for f in fabrics if priced]
    return Table(["fabric", *headings(_COSTS)], rows)


def unpriced(fabrics: Sequence[FabricSummary]) -> list[str]:
    """Return why networks have no price."""
    return sorted({printable(fabric.result.cost.why) for fabric in fabrics} - {""})


def first_all_to_alls(fabrics: Sequence[FabricSummary]) -> Table:
    """Return the times of first all-to-alls above their predictions."""
    rows = list[Row]()
    for fabric in fabrics:
        first, foresight = fabric.result.first_all_to_all, fabric.result.first_all_to_all.foresight
        cost, count, busiest = "", MISSING, MISSING
        if foresight and foresight.wrong_guess_s is not None:
            hits = percentage(foresight.top_k_hits)
            cost = f"{hits}, +{seconds(foresight.wrong_guess_s)}"
        if foresight and (total := foresight.guessed + foresight.unguessed):
            count = f"{foresight.guessed} of {total}"
        if foresight and foresight.top_k_hits is not None:
            others = (percentage(foresight.unchanged_hits), percentage(foresight.random_hits))
            busiest = (
                f"{percentage(foresight.top_k_hits)} of the {foresight.top_k} busiest experts "
            )
            busiest += f"(layer before: {others[0]}, at random: {others[1]})"
        rows.append(
            [
                fabric.name,
                fabric.first_policy,
                Cell(seconds(first.exposed_s), seconds(first.predicted_exposed_s)),
                deviation(first.error),
                Cell(seconds(first.waited_s), seconds(first.predicted_wait_s)),
                seconds(first.ideal_s),
                cost,
                count,
                busiest,
            ]
        )
    wide = ["predicted dispatches", "busiest experts predicted"]
    heads = ["first all-to-all", "policy", "exposed", "error", "waited", "ideal", "prediction"]
    return Table([*heads, *wide], rows, {"policy", "prediction", wide[1]}, wide)


def failures(fabrics: Sequence[FabricSummary]) -> Table:
    """Return the times of detection and recovery of failures, and their cost in iterations."""
    several = sum(bool(fabric.result.failures) for fabric in fabrics) > 1
    rows: list[Row] = [
        [
            Cell(
                printable(f"{fabric.name}: {failure.name}" if several else failure.name),
                style="bold" if failure.ok else "bold red",
            ),
            MISSING if failure.iteration is None else str(failure.iteration),
            seconds(failure.detected_s),
            seconds(failure.recovered_s),
            deviation(failure.slow_down),
            deviation(failure.slow_down_after),
            printable(failure.detected_by) or MISSING,
            printable(failure.action) if failure.ok else "not seen to recover",
        ]
        for fabric in fabrics
        for failure in fabric.result.failures
    ]
    heads = ["failure", "iteration", "detected", "recovered", "slowdown", "later", "detected by"]
    return Table([*heads, "recovery"], rows, {"detected by", "recovery"}, {"detected by"})


def fidelity(fabrics: Sequence[FabricSummary]) -> Table:
    """Return the figures on which verdicts rest."""
    rows = list[Row]()
    for fabric in fabrics:
        integrity, found = fabric.result.integrity, fabric.result.fidelity
        counts = (integrity.corrupt, integrity.lost_transfers)
        shares = (
            found.link_rate_error_p95, found.cpu_idle_min,
            found.completion_error_p50, found.completion_error_p95,
        )  # fmt: skip
        rows.append(
            [
                fabric.name,
                formatting.data_size(integrity.bytes_sent),
                formatting.data_size(integrity.bytes_received),
                *(MISSING if count is None else str(count) for count in counts),
                *map(percentage, shares),
                fabric.verdict,
            ]
        )
    heads = [
        "fabric",
        "bytes sent",
        "received",
        "corrupt",
        "lost transfers",
        "link rate error, p95",
    ]
    heads += ["least CPU idle", "completion error, p50", "p95", "verdict"]
    return Table(heads, rows, ())


def training(rows: Sequence[tuple[FabricSummary, TrainingResult]]) -> Table:
    """Return the losses of a program that trained, and the duration of its training."""
    heads = ["fabric", "first loss", "last loss", "iterations", "model time"]
    heads += ["changes of light a layer", "byte scale", "slow ranks", "restarts"]
    return Table(heads, [[fabric.name, *_training(fabric, own)] for fabric, own in rows])


def _training(fabric: FabricSummary, own: TrainingResult) -> list[Cell | str]:
    ends: list[str] = [MISSING] * 4
    if own.losses:
        first, last = own.losses[0], own.losses[-1]
        losses = (formatting.significant(one.loss, 5) for one in (first, last))
        ends = [*losses, str(len(own.losses)), seconds(last.model_s, 4)]
    slow, worst = own.computation, own.computation.worst_rank
    note = f"rank {worst} worst" if slow.late and worst is not None else ""
    return [
        *ends,
        formatting.number(changes_a_layer(fabric)),
        formatting.number(own.byte_scale),
        Cell(f"{slow.late} of {slow.count}", note),
        str(len(own.restarts)),
    ]


def changes_a_layer(fabric: FabricSummary) -> float | None:
    """Return how often circuits moved for a layer in both passes; None without requests."""
    requests = fabric.result.reconfigurations
    layers = {(one.iteration, one.layer) for one in requests if one.layer is not None}
    moved = sum(changes_circuits(one) for one in requests)
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
    """Return the figures of a prediction."""
    columns: Mapping[str, str] = {name: COLUMNS[name].heading for name in _PREDICTION}
    rows: list[Row] = [
        [
            printable(fabric.fabric),
            *(
                column.text(column.predicted(fabric) if column.predicted else None)
                for column in map(COLUMNS.__getitem__, columns)
            ),
        ]
        for fabric in predicted.fabrics
    ]
    return Table(["fabric", *columns.values()], rows)
