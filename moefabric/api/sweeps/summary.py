"""Summary of a sweep: its runs, failures, and means of figures with confidence of 95 %."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final, Self

from moefabric.api.prediction import frame
from moefabric.api.sweeps.engine import Value
from moefabric.api.sweeps.results import RECORDS, RunRecord, read_records
from moefabric.api.sweeps.spec import SweepSpec
from moefabric.config.input_file import read_json
from moefabric.config.validation import validate
from moefabric.core.errors import SpecError
from moefabric.report.run_changes import student

if TYPE_CHECKING:
    import pandas as pd

SUMMARY: Final = "sweep.json"
"""File of a sweep's folder with its specification, means and failures."""


@dataclass(frozen=True)
class Sample:
    """Values of one figure, each from a run of its own."""

    values: tuple[float, ...]

    @property
    def n(self) -> int:
        """Number of runs."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        """Arithmetic mean; None without a run."""
        return fmean(self.values) if self.values else None

    @property
    def half_width(self) -> float | None:
        """Half of the confidence interval of the mean (Student's t); None below two runs."""
        if self.n < 2:
            return None
        return student(self.n - 1) * stdev(self.values) / math.sqrt(self.n)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Bounds of the confidence interval; None below two runs."""
        mean, half = self.mean, self.half_width
        return None if mean is None or half is None else (mean - half, mean + half)

    def to_json(self) -> dict[str, object]:
        """Return count, mean and bounds as JSON types."""
        low, high = self.interval or (None, None)
        return {"n": self.n, "mean": self.mean, "low": low, "high": high}


@dataclass(frozen=True)
class PointFabric:
    """Fabric at a point of a sweep.

    Attributes:
        point: Number of the point.
        values: Its value on each axis.
        fabric: Name of the fabric.
        figures: Values by figure, of the runs that aren't invalid.
        ratios: Values relative to the baseline's in the same run, by figure.
        invalid: Number of runs with the verdict `invalid`, which are left out.
    """

    point: int
    values: Mapping[str, Value]
    fabric: str
    figures: Mapping[str, Sample]
    ratios: Mapping[str, Sample]
    invalid: int

    def to_json(self) -> dict[str, object]:
        """Return the figures as JSON types."""
        figures = {name: sample.to_json() for name, sample in self.figures.items()}
        ratios = {name: sample.to_json() for name, sample in self.ratios.items()}
        return vars(self) | {"values": dict(self.values), "figures": figures, "ratios": ratios}


def point_fabrics(
    records: Iterable[RunRecord], figures: Sequence[str], baseline: str | None = None
) -> list[PointFabric]:
    """Return the figures of each fabric at each point, in the order of points and fabrics.

    Args:
        figures: Names of the figures.
        baseline: Fabric with which the others are compared, run by run; None for none.
    """
    runs = defaultdict[tuple[int, str], list[RunRecord]](list)
    for record in records:
        for fabric in record.fabrics:
            runs[record.point, fabric.fabric].append(record)
    ordered = sorted(runs.items(), key=lambda item: item[0][0])
    return [_point_fabric(name, group, figures, baseline) for (_, name), group in ordered]


def _point_fabric(
    name: str, runs: Sequence[RunRecord], figures: Sequence[str], baseline: str | None
) -> PointFabric:
    """Return the figures of a fabric in the runs of a point."""
    values = defaultdict[str, list[float]](list)
    ratios = defaultdict[str, list[float]](list)
    valid = [run.valid_figures for run in runs if name in run.valid_figures]
    for fabrics in valid:
        base = fabrics.get(baseline or "", {}) if name != baseline else {}
        for figure in figures:
            if (value := fabrics[name].get(figure)) is not None:
                values[figure].append(value)
                if reference := base.get(figure):
                    ratios[figure].append(value / reference)
    return PointFabric(
        runs[0].point,
        runs[0].values,
        name,
        {figure: Sample(tuple(values[figure])) for figure in figures},
        {figure: Sample(tuple(values)) for figure, values in ratios.items()},
        len(runs) - len(valid),
    )


@dataclass(frozen=True)
class SweepResult:
    """The runs of a sweep that have ended: figures of each fabric at each point, and failures.

    Attributes:
        version: Version of moefabric.
        planned: Number of its runs.
        records: The runs that have ended, in the order of the plan.
    """

    spec: SweepSpec
    version: str
    planned: int
    records: Sequence[RunRecord]

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the result of the sweep that has ended, or was stopped, in a folder.

        Raises:
            SpecError: If the folder has no such sweep, or a file has a wrong value.
        """
        file = Path(folder) / SUMMARY
        document = read_json(file)
        try:
            keys, made_by = dict(document["spec"]), str(document["version"])
            planned = int(document["runs"]["planned"])
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError([(str(file), "is not the summary of a sweep")]) from error
        spec = validate(SweepSpec, keys, file)
        seeds = {seed: number for number, seed in enumerate(spec.seeds)}
        ended = {record.run: record for record in read_records(file.with_name(RECORDS))}
        records = sorted(
            (record for record in ended.values() if record.is_planned),
            key=lambda record: (record.point, seeds.get(record.seed, 0), record.repetition),
        )
        return cls(spec, made_by, planned, records)

    def __repr__(self) -> str:
        runs = f"{len(self.records)} of {self.planned} runs"
        return f"SweepResult({self.spec.sweep!r}: {runs}, {len(self.failed)} failed)"

    @cached_property
    def points(self) -> list[PointFabric]:
        """Figures of each fabric at each point."""
        return point_fabrics(self.records, self.spec.figures, self.spec.baseline)

    @property
    def failed(self) -> list[RunRecord]:
        """Runs without a result."""
        return [record for record in self.records if record.failed]

    @property
    def invalid(self) -> list[RunRecord]:
        """Runs with a fabric whose measurements can't be trusted."""
        return [record for record in self.records if record.is_invalid]

    @property
    def hosts(self) -> Mapping[str, int]:
        """Number of runs on each machine."""
        return Counter(record.attempts[-1].host for record in self.records)

    @property
    def missing(self) -> int:
        """Number of runs that have not ended."""
        return self.planned - len(self.records)

    def to_frame(self) -> "pd.DataFrame":
        """Return a row for each fabric of each run. Needs pandas."""
        return frame(row for record in self.records for row in record.rows())

    def page(self) -> str:
        """Return the HTML of `report.html`."""
        from moefabric.api.sweeps.page import sweep_page

        return sweep_page(self)

    def to_json(self) -> dict[str, Any]:
        """Return means with confidence intervals, and failures, as JSON types."""
        return {
            "sweep": self.spec.sweep,
            "version": self.version,
            "spec": self.spec.model_dump(mode="json", exclude_unset=True),
            "runs": {
                "planned": self.planned,
                "ended": len(self.records),
                "failed": len(self.failed),
                "invalid": len(self.invalid),
            },
            "hosts": dict(self.hosts),
            "failures": [record.to_json() for record in self.failed],
            "points": [point.to_json() for point in self.points],
        }
