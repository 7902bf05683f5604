"""Means of a sweep's figures over seeds and repetitions, with confidence intervals of 95 %."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from moefabric.api.sweeps.point import Value
from moefabric.api.sweeps.results import RunRecord
from moefabric.report.run_changes import student
from moefabric.results.model import Verdict


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
    """One fabric at one point of a sweep.

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
        return {
            "point": self.point,
            "values": dict(self.values),
            "fabric": self.fabric,
            "invalid": self.invalid,
            "figures": {name: sample.to_json() for name, sample in self.figures.items()},
            "ratios": {name: sample.to_json() for name, sample in self.ratios.items()},
        }


@dataclass
class _Group:
    """Values of one fabric in the runs of a point."""

    values: Mapping[str, Value]
    figures: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    invalid: int = 0


def point_fabrics(
    records: Iterable[RunRecord], figures: Sequence[str], baseline: str | None = None
) -> list[PointFabric]:
    """Return the figures of each fabric at each point, in the order of points and fabrics.

    Args:
        records: The runs.
        figures: Names of the figures.
        baseline: Fabric with which the others are compared, run by run; None for none.
    """
    groups: dict[tuple[int, str], _Group] = {}
    for record in records:
        valid = [f for f in record.fabrics if f.verdict != Verdict.INVALID]
        base = next((f.figures for f in valid if f.fabric == baseline), {})
        for fabric in record.fabrics:
            group = groups.setdefault((record.point, fabric.fabric), _Group(record.values))
            if fabric not in valid:
                group.invalid += 1
                continue
            for name, value in _values(fabric.figures, figures):
                group.figures.setdefault(name, []).append(value)
                if (reference := base.get(name)) and fabric.fabric != baseline:
                    group.ratios.setdefault(name, []).append(value / reference)
    return [
        PointFabric(
            point,
            group.values,
            fabric,
            {name: Sample(tuple(group.figures.get(name, ()))) for name in figures},
            {name: Sample(tuple(values)) for name, values in group.ratios.items()},
            group.invalid,
        )
        for (point, fabric), group in sorted(groups.items(), key=lambda item: item[0][0])
    ]


def _values(
    figures: Mapping[str, float | None], names: Sequence[str]
) -> Iterator[tuple[str, float]]:
    for name in names:
        if (value := figures.get(name)) is not None:
            yield name, value
