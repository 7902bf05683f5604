"""Results of the evaluation: the paper's tables, this project's aims, and experiments."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moefabric.api.networks import ServerPaths
from moefabric_studies.grids import Grid
from moefabric_studies.paper import loader, rows
from moefabric_studies.paper.evaluation import Evaluation, load_evaluation
from moefabric_studies.paper.measurements import Measurements
from moefabric_studies.paper.network import TreeFlows
from moefabric_studies.paper.rows import Counts, PaperRow, PaperTable
from moefabric_studies.paper.sensitivity import sensitivity_grids
from moefabric_studies.paper.tables import aims_table, build_table, copilot_table, iteration_table


@dataclass(frozen=True)
class PaperResults:
    """All tables with their inputs.

    Attributes:
        tables: the paper's tables.
        aims: this project's aims.
        evaluation: evaluation that the tables are computed from.
        specification: contents of `tables.yaml`.
        grids: experiments with the model's assumptions.
        measurements: measurements that the tables are computed from; None if they are predicted.
    """

    tables: tuple[PaperTable, ...]
    aims: PaperTable
    evaluation: Evaluation
    specification: loader.TablesFile
    grids: tuple[Grid, ...] = field(default=())
    measurements: Measurements | None = None

    def rows(self, table: str) -> tuple[PaperRow, ...]:
        """Return the rows of the table with this name."""
        return next(entry.rows for entry in self.tables if entry.name == table)

    @property
    def counts(self) -> Counts:
        """Counts of the paper's judged rows."""
        return Counts.of(row for table in self.tables for row in table.rows)

    @property
    def aims_met(self) -> int:
        """Number of this project's aims that are met."""
        return sum(row.verdict == rows.MET for row in self.aims.rows)

    @property
    def invalid_rows(self) -> int:
        """Number of rows whose measurements are invalid, those of the aims included."""
        return sum(
            row.verdict == rows.INVALID for table in (*self.tables, self.aims) for row in table.rows
        )

    def to_json(self) -> dict[str, Any]:
        """Return the results as JSON types: the paper's rows and the aims apart."""
        return {
            "paper": {
                **vars(self.counts),
                "calibrated": {
                    name: {
                        "utilisation": calibrated.job.training.utilisation,
                        "peak_tflops": calibrated.job.training.gpu_flops / 1e12,
                        "worst_misfit": calibrated.error,
                    }
                    for name, calibrated in self.evaluation.calibrations.items()
                },
                "tables": [table.to_json() for table in self.tables],
                "experiments": [grid.to_json() for grid in self.grids],
            },
            "aims": {
                "rows": len(self.aims.rows),
                "met": self.aims_met,
                "table": self.aims.to_json(),
            },
            **({"packets": self.measurements.to_json()} if self.measurements else {}),
        }


def predict_tables(
    folder: Path, paths: ServerPaths | None = None, tree_flows: TreeFlows = "pooled"
) -> PaperResults:
    """Return the predicted tables of a folder such as `examples/paper`.

    Args:
        folder: The folder.
        paths: Paths inside servers, as `load_evaluation` takes them.
        tree_flows: How trees carry all-to-alls. Experiments with assumptions need pooled ones.

    Raises:
        SpecError: if the files of the folder can't be used.
    """
    specification = loader.load_section(loader.TablesFile, folder / "tables.yaml")
    evaluation = load_evaluation(folder, paths, tree_flows)
    tables = (
        iteration_table(specification.iteration, evaluation),
        *(build_table(spec, evaluation) for spec in specification.tables),
        copilot_table(specification.copilot, evaluation),
    )
    aims = aims_table(specification.aims, evaluation)
    grids = sensitivity_grids(evaluation) if tree_flows == "pooled" else ()
    return PaperResults(tables, aims, evaluation, specification, grids)
