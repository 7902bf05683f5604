"""Results of a sweep's runs: figures of each fabric, attempts, and rows of the table."""

from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from moefabric.api.sweeps.engine import Mode, Value
from moefabric.config.input_file import path_steps
from moefabric.core.errors import SpecError, UnreadableError
from moefabric.report import formatting
from moefabric.report.summary import COLUMNS, Column, summaries
from moefabric.results import model
from moefabric.results.parts import ResultPart

DEFAULT_FIGURES: Final = ("iteration_s", "all_to_all_s", "exposed_comm_s", "optical_share")
"""Figures of a sweep that names none."""
RECORDS: Final = "runs.jsonl"
"""File of a sweep's folder with a line for each run that has ended."""
PREDICTED: Final = "predicted"
"""Verdict of a prediction, which measures nothing."""


class FabricFigures(ResultPart):
    """Figures of one fabric of a run."""

    fabric: str
    """Name of the fabric."""
    policy: str
    """Policy of the fabric."""
    verdict: str
    """Verdict on its measurements; `predicted` if nothing was measured."""
    figures: dict[str, float | None]
    """Values by the names of figures; null where the run has none."""


def column(name: str) -> Column:
    """Return the column of a figure's name, or of a place in a fabric's result."""
    place = Column(name, name, formatting.number, lambda f: _finite(_value_at(f.result, name)))
    return COLUMNS.get(name, place)


def figure_fault(name: str, *, predicted: bool) -> str:
    """Return the fault of a figure's name; empty if it is valid.

    Args:
        name: Name of a figure, or a place in a fabric's result.
        predicted: Whether predictions must have the figure.
    """
    if figure := COLUMNS.get(name):
        if predicted and figure.predicted is None:
            return f"a prediction has no {name}: leave it out, or give mode: run"
        return ""
    steps = path_steps(name)
    kind = model.FabricPrediction if predicted else model.FabricResult
    if len(steps) > 1 and steps[0] in kind.model_fields:
        return ""
    return f"{name} is no figure and no place in a fabric's result; figures: {', '.join(COLUMNS)}"


def result_figures(mode: Mode, result: str | bytes, names: Sequence[str]) -> list[FabricFigures]:
    """Return the figures of each fabric of a result's JSON."""
    rows: list[tuple[model.FabricPrediction | model.FabricResult, str, list[object]]]
    if mode == "predict":
        predictions = model.ExperimentPrediction.model_validate_json(result).fabrics
        rows = [(p, PREDICTED, [_predicted(p, name) for name in names]) for p in predictions]
    else:
        runs = summaries(model.RunResult.model_validate_json(result))
        rows = [(r.result, r.verdict, [column(name).measured(r) for name in names]) for r in runs]
    return [
        FabricFigures(
            fabric=fabric.fabric,
            policy=fabric.policy,
            verdict=str(verdict),
            figures=dict(zip(names, map(_finite, values), strict=True)),
        )
        for fabric, verdict, values in rows
    ]


def _predicted(fabric: model.FabricPrediction, name: str) -> object:
    value = column(name).predicted
    return value(fabric) if value else _value_at(fabric, name)


def _value_at(result: model.FabricResult | model.FabricPrediction, place: str) -> object:
    """Return the value at a place of a fabric's JSON; None if there is none."""
    value: Any = result.to_json()
    try:
        for step in path_steps(place):
            value = value[step]
    except (IndexError, KeyError, TypeError):
        return None
    return value


def _finite(value: object) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isfinite(value) else None


class Attempt(ResultPart):
    """An attempt at a run."""

    node: str = ""
    """Identity of the machine; empty if the attempt never started."""
    host: str = ""
    """Name of the machine."""
    wall_s: float = 0.0
    """Seconds that it took."""
    error: str = ""
    """Reason for no result; empty if there is one."""


class RunRecord(ResultPart):
    """A run that has ended, with a result or without."""

    version: str = ""
    """Version of moefabric that has carried it out."""
    run: str
    """Id of the run, which names the file of its result."""
    point: int
    """Number of the run's point."""
    values: dict[str, Value]
    """Value of the run on each axis."""
    seed: int
    """Seed of the run."""
    repetition: int
    """Number of the run among those with its point and seed, from 0."""
    attempts: list[Attempt] = Field(min_length=1)
    """Attempts at the run; the last one counts."""
    fabrics: list[FabricFigures]
    """Figures of the run's fabrics; empty if it has failed."""
    is_planned: bool = True
    """Whether the last sweep with this folder had the run. Its point is that of an earlier one if
    not, and no table or picture shows it."""

    @property
    def failed(self) -> bool:
        """True if the run has no result."""
        return not self.fabrics

    @property
    def valid_figures(self) -> dict[str, dict[str, float | None]]:
        """Figures of the fabrics that aren't invalid, by their names."""
        valid = (fabric for fabric in self.fabrics if fabric.verdict != model.Verdict.INVALID)
        return {fabric.fabric: fabric.figures for fabric in valid}

    @property
    def is_invalid(self) -> bool:
        """True if any fabric has the verdict `invalid`."""
        return len(self.valid_figures) < len(self.fabrics)

    @property
    def error(self) -> str:
        """Reason for no result of the run; empty if there is one."""
        return self.attempts[-1].error

    @property
    def summary(self) -> str:
        """Verdicts of the fabrics: `pass`, or each fabric with its verdict if they differ."""
        verdicts = {fabric.fabric: fabric.verdict for fabric in self.fabrics}
        if len(different := set(verdicts.values())) == 1:
            return different.pop()
        return ", ".join(f"{name} {verdict}" for name, verdict in verdicts.items())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row of the table for each fabric."""
        last = self.attempts[-1]
        for fabric in self.fabrics:
            yield {
                "run": self.run,
                "point": self.point,
                **self.values,
                "seed": self.seed,
                "repetition": self.repetition,
                **fabric.model_dump(exclude={"figures"}),
                **fabric.figures,
                "host": last.host,
                "attempts": len(self.attempts),
                "wall_s": last.wall_s,
            }


def read_records(file: Path) -> Iterator[RunRecord]:
    """Yield the records of a file; the last line may be cut off, and is left out.

    Raises:
        SpecError: If the file can't be read, or a line is no record.
    """
    try:
        lines = file.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UnreadableError(file, error) from error
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            return
        try:
            yield RunRecord.model_validate_json(line)
        except ValidationError as error:
            raise SpecError([(f"{file}: line {number}", error.errors()[0]["msg"])]) from error
