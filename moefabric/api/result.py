"""Results of experiments: values, frames, tables, pages, pictures, and changes.

Frames need pandas, which is optional: the extra `frames` installs it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from moefabric.api.prediction import Row, frame, named
from moefabric.core.errors import SpecError
from moefabric.report.picture import Picture
from moefabric.report.pictures import picture
from moefabric.report.run_changes import THRESHOLD, RunChanges, fabric_changes, run_changes
from moefabric.report.stored_results import stored_text
from moefabric.report.summary import COLUMNS, FabricSummary, summaries
from moefabric.results import model
from moefabric.results.journal import JOURNAL_SUFFIX, read_journal
from moefabric.runtime.atomic_file import write_whole
from moefabric.traces.gating_files import write_gating
from moefabric.workload.gating.traces import GatingTrace

if TYPE_CHECKING:
    import pandas as pd

_PARTS: Final = ("iterations", "collectives", "transfers", "reconfigurations", "flows", "failures")
FRAMES: Final = ("fabrics", *_PARTS)
"""Kinds of frames of a run."""


class RunPictures(model.RunResult):
    """Pictures of a run's result."""

    def __getitem__(self, fabric: str) -> model.FabricResult:
        """Return the result of the fabric with this name."""
        return named(self.results, fabric)

    def plot(self, kind: str = "comparison", *fabrics: str) -> Picture:
        """Draw a picture of the result. `Picture.save` writes it; a notebook shows it.

        Args:
            kind: `comparison`, `timeline`, `layer`, `completion`, `errors`, `reconfigurations`,
                `first_all_to_alls`, `failures`, `light`, `exposed`, of a program that trained
                `loss` and `expert_loads`, or, of one fabric, `wiring`, `demand` and `circuits`.
            *fabrics: Names of the fabrics to draw. Default: all.

        Raises:
            SpecError: If the run has nothing to draw, or has no such fabric.
        """
        chosen = [self[name].fabric for name in fabrics]
        shown = [s for s in summaries(self) if not chosen or s.result.fabric in chosen]
        return picture(kind, shown)

    def plot_comparison(self) -> Picture:
        """Draw iteration times, all-to-all times and bytes by network of all fabrics."""
        return self.plot("comparison")

    def plot_timeline(self, *fabrics: str) -> Picture:
        """Draw a timeline of every server in one iteration."""
        return self.plot("timeline", *fabrics)

    def plot_completion(self, *fabrics: str) -> Picture:
        """Draw the distribution of the all-to-alls' completion times, measured and predicted."""
        return self.plot("completion", *fabrics)

    def plot_errors(self, *fabrics: str) -> Picture:
        """Draw the distribution of errors: measured over predicted times, minus 1."""
        return self.plot("errors", *fabrics)

    def plot_reconfigurations(self, *fabrics: str) -> Picture:
        """Draw the phases of the reconfigurations."""
        return self.plot("reconfigurations", *fabrics)

    def plot_demand(self, fabric: str) -> Picture:
        """Draw the bytes between the servers of a fabric in its last dispatch."""
        return self.plot("demand", fabric)

    def plot_circuits(self, fabric: str) -> Picture:
        """Draw the circuits of a fabric at the end of the run."""
        return self.plot("circuits", fabric)


class Result(RunPictures):
    """Result of a run: verdict, circumstances, and in `results` the values of each fabric.

    Times are model seconds, sizes the model's bytes. `result["mixnet"].iterations[0].measured_s`
    is a figure of one fabric; `docs/results.md` describes all.
    """

    @classmethod
    def of(cls, run: model.RunResult) -> Self:
        """Return the result with the methods of this class."""
        return cls.model_construct(run.model_fields_set, **dict(run))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the result in a file that `save`, or `moefabric run --json`, has written.

        A file `.jsonl` is the journal of a run, which may have been stopped.

        Raises:
            SpecError: If the file can't be read, has no fabric's result, or has a wrong value; it
                names the first place.
        """
        file = Path(path)
        if file.suffix == JOURNAL_SUFFIX:
            return cls.of(read_journal(file))
        run = model.read_run(file)
        if not run.results:
            message = "is no result: it has no fabric; `run --json` writes one"
            raise SpecError([(str(file), message)])
        return cls.of(run)

    def __repr__(self) -> str:
        verdicts = (f"{entry.fabric} {entry.fidelity.verdict}" for entry in self.results)
        return f"Result({self.experiment!r}: {', '.join(verdicts)})"

    __str__ = __repr__

    def save(self, path: str | Path) -> None:
        """Write the result as JSON."""
        write_whole(Path(path), self.json_text())

    def store(self, path: str | Path) -> None:
        """Write the result without its rows, at most 24 kB, for a repository.

        `load` reads it again: verdicts with reasons, figures, provenance.

        Raises:
            SpecError: If the run is incomplete, or is not that of an experiment's file.
        """
        write_whole(Path(path), stored_text(self))

    def json_text(self) -> str:
        """Return the result as JSON."""
        return json.dumps(self.to_json(), indent=1) + "\n"

    def to_frame(self, kind: str = "fabrics") -> "pd.DataFrame":
        """Return rows of one kind as a frame, for all fabrics. Needs pandas.

        Args:
            kind: `fabrics` (medians and shares of each), `iterations`, `collectives`,
                `transfers`, `reconfigurations`, `failures`, or `flows`, if the run kept them.

        Raises:
            SpecError: If there is no such kind of row.
            UnsupportedError: If pandas is missing.
        """
        if kind not in FRAMES:
            raise SpecError([("to_frame", f"{kind!r} is not one of {', '.join(FRAMES)}")])
        if kind == "fabrics":
            return frame(_figures(fabric) for fabric in summaries(self))
        if kind == "flows" and not any(result.flows for result in self.results):
            message = "the run kept no flows: run it with `flows=True`, or `moefabric run --flows`"
            raise SpecError([("to_frame", message)])
        return frame(_rows(self, kind))

    def compare(
        self, *earlier: model.RunResult | str | Path, threshold: float = THRESHOLD
    ) -> RunChanges:
        """Return the changes from an earlier run to this one, fabric by fabric.

        Args:
            *earlier: A run or the file of one; several of the same thing show how much runs differ.
            threshold: Change that is no regression yet: part of a time, points of a share.

        Raises:
            SpecError: If there is no earlier run, a file is wrong, or no fabric is in all runs.
        """
        runs = [self.load(run) if isinstance(run, str | Path) else run for run in earlier]
        return run_changes(runs, self, threshold)

    def compare_fabrics(self, before: str, after: str, threshold: float = THRESHOLD) -> RunChanges:
        """Return the changes from one fabric of this run to another, iteration by iteration.

        Raises:
            SpecError: If a fabric isn't one of the run's.
        """
        return fabric_changes(self, before, after, threshold)

    def table(self, width: int = 120) -> str:
        """Return the tables of `moefabric run` as text of at most `width` columns."""
        from moefabric.report.table import text

        return text(self, width)

    def report(self, path: str | Path) -> None:
        """Write the result as one self-contained HTML page."""
        write_whole(Path(path), self.page())

    def write_gating(self, path: str | Path) -> None:
        """Write the choices of the program's gates, as a NumPy archive of tokens.

        `gating: {trace: FILE}` of an experiment replays it.

        Raises:
            SpecError: If no program trained.
        """
        trained = [entry.training for entry in self.results if entry.training is not None]
        if not trained:
            raise SpecError([("gating", f"{self.experiment} trained nothing: use `train`")])
        write_gating(GatingTrace(np.array(trained[0].tokens, np.int64)), Path(path), "npz")

    def page(self) -> str:
        """Return the HTML of `report`."""
        from moefabric.report.page import page

        return page(self)

    def _repr_html_(self) -> str:
        from moefabric.report.page import tables_html

        return tables_html(self)


def _figures(fabric: FabricSummary) -> Row:
    names = {"fabric": fabric.result.fabric, "policy": fabric.result.policy}
    figures = {name: fabric[name] for name in COLUMNS}
    return names | {"verdict": str(fabric.verdict)} | figures


def _rows(run: model.RunResult, kind: str) -> Iterator[Row]:
    for result in run.results:
        for part in getattr(result, kind):
            names = {"fabric": result.fabric, "policy": result.policy}
            yield names | part.model_dump(mode="json", by_alias=True)
