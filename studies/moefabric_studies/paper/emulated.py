"""Emulated tables: the cells that the tables need, and their rows computed from measurements."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final, Self

from moefabric import NS_PER_S, SpecError, rate_bps
from moefabric.api.results import ProgressReporter
from moefabric.api.units import Units
from moefabric_studies.paper import tables
from moefabric_studies.paper.cell_runner import CellRunner, measure_waits
from moefabric_studies.paper.evaluation import PRODUCTION_NETWORK, RATES, Evaluation
from moefabric_studies.paper.measurements import Cell, Measurements
from moefabric_studies.paper.network import NETWORKS
from moefabric_studies.paper.results import PaperResults
from moefabric_studies.paper.rows import PaperTable
from moefabric_studies.paper.tables import aims_table

EMULATED_NETWORKS: Final = tuple(name for name in NETWORKS if name != "oversubscribed")
"""Networks on which every model is emulated."""
_OVERSUBSCRIBED_JOB: Final = "mixtral-8x22b"
"""The model of which the paper gives the 3:1 tree's value."""
_PRODUCTION_BPS: Final = 400e9
_TABLES: Final = ("efficiency", "speed", "circuits", "share", "delay")
"""Tables of `tables.yaml` that depend on all-to-alls and reconfigurations only, which can be
emulated."""
_SETTLE_TIMES_NS: Final = tuple(round(s * NS_PER_S) for s in (1e-6, 1e-3, 25e-3, 0.1, 1.0, 10.0))
RECONFIGURATION: Final = "reconfiguration"
"""Filter of the command line that selects the reconfiguration times."""


@dataclass(frozen=True)
class CellFilter:
    """Cells of a model, and of one network or NIC rate if these are given."""

    model: str
    rate_bps: float | None = None
    network: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the filter `MODEL[/NETWORK][@RATE]`: `mixtral-8x7b/mixnet@400Gb/s`.

        Raises:
            SpecError: if the rate is wrong.
        """
        cell, _, rate = text.partition("@")
        model, _, network = cell.partition("/")
        try:
            return cls(model, rate_bps(rate) if rate else None, network or None)
        except ValueError as error:
            raise SpecError([("--only", str(error))]) from error

    def matches(self, cell: Cell) -> bool:
        """Return whether a cell passes the filter."""
        return (
            cell.job.split(" ")[0] == self.model
            and self.rate_bps in {None, cell.rate_bps}
            and self.network in {None, cell.network}
        )


def select_cells(evaluation: Evaluation, filters: Sequence[CellFilter] = ()) -> list[Cell]:
    """Return the cells that the tables need and any filter passes; all without filters.

    Raises:
        SpecError: if no cell passes a filter.
    """
    cells = list(_all_cells(evaluation))
    for chosen in filters:
        if not any(map(chosen.matches, cells)):
            models = ", ".join(evaluation.jobs)
            networks = ", ".join(NETWORKS)
            message = (
                f"{chosen.model} on that network at that rate is no cell; models: {models}; "
                f"networks: {networks}"
            )
            raise SpecError([("--only", message)])
    return [cell for cell in cells if not filters or any(f.matches(cell) for f in filters)]


def _all_cells(evaluation: Evaluation) -> Iterator[Cell]:
    for job, network in product(evaluation.jobs, EMULATED_NETWORKS):
        yield from (Cell(job, network, rate) for rate in RATES)
    yield from (Cell(_OVERSUBSCRIBED_JOB, "oversubscribed", rate) for rate in RATES)
    for production_job in evaluation.production_jobs.values():
        yield Cell(production_job.name, PRODUCTION_NETWORK, _PRODUCTION_BPS)


def step_count(cells: Sequence[Cell], *, waits: bool) -> int:
    """Return the number of progress steps of `measure_cells`."""
    return len(cells) + waits * len(_SETTLE_TIMES_NS)


def measure_cells(
    evaluation: Evaluation,
    cells: Sequence[Cell],
    reporter: ProgressReporter,
    *,
    waits: bool,
    units: Units | None = None,
) -> Measurements:
    """Measure cells on emulated fabrics.

    Args:
        cells: cells to measure.
        reporter: receives progress.
        waits: whether to measure reconfiguration times, too.
        units: keeps what has been measured; default: nothing does.

    Raises:
        FabricError: if a fabric can't be started.
    """
    job = evaluation.jobs[_OVERSUBSCRIBED_JOB]
    units = units or Units()
    measured_waits = measure_waits(job, _SETTLE_TIMES_NS, reporter, units) if waits else {}
    runner = CellRunner(evaluation.jobs_by_full_name, reporter, units)
    runner.run_all(cells)
    return Measurements(runner.measurements, measured_waits, runner.lost)


def emulated_tables(predicted: PaperResults, measurements: Measurements) -> PaperResults:
    """Return the tables computed from measurements, each row beside its prediction.

    Rows that need a value which has not been measured are left out.
    """
    evaluation = replace(predicted.evaluation, source=measurements)
    specification = predicted.specification
    measurable = (spec for spec in specification.tables if spec.table in _TABLES)
    emulated = [
        tables.iteration_table(specification.iteration, evaluation),
        *(tables.build_table(spec, evaluation) for spec in measurable),
    ]
    predictions = {
        (table.name, row.name, row.subject): row.value
        for table in (*predicted.tables, predicted.aims)
        for row in table.rows
    }

    def with_predictions(table: PaperTable) -> PaperTable:
        rows = (
            replace(row, predicted=predictions[table.name, row.name, row.subject])
            for row in table.rows
            if "overlapped" not in row.name and not row.source  # these are predicted only
        )
        return replace(table, rows=tuple(rows))

    paired = (with_predictions(table) for table in emulated)
    return PaperResults(
        tables=tuple(table for table in paired if table.rows),
        aims=with_predictions(aims_table(specification.aims, evaluation)),
        evaluation=evaluation,
        specification=specification,
        measurements=measurements,
    )
