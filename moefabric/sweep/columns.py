"""Figures of a sweep's runs: values of each fabric by the names of columns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Self

from moefabric.config.input_file import path_steps
from moefabric.report import formatting
from moefabric.report.figures import FIGURES, Text
from moefabric.report.summary import summaries
from moefabric.runner.result_model import (
    ExperimentPrediction,
    FabricPrediction,
    FabricResult,
    RunResult,
)
from moefabric.runner.result_parts import ResultPart

DEFAULT_FIGURES: Final = ("iteration_s", "all_to_all_s", "exposed_comm_s", "optical_share")
"""Figures of a sweep that names none."""
PREDICTED: Final = "predicted"
"""Verdict of a prediction, which measures nothing."""


class FabricFigures(ResultPart):
    """Figures of one fabric of a run."""

    fabric: str
    """Name of the fabric."""
    policy: str
    """Its policy."""
    verdict: str
    """Verdict on its measurements; `predicted` if nothing was measured."""
    figures: dict[str, float | None]
    """Values by the names of figures; null where the run has none."""


@dataclass(frozen=True)
class ColumnText:
    """Title of a column, and the format of its values."""

    title: str
    text: Text

    @classmethod
    def of(cls, name: str) -> Self:
        """Return title and format of a figure."""
        figure = FIGURES.get(name)
        return cls(figure.title, figure.text) if figure else cls(name, formatting.number)


def figure_fault(name: str, *, predicted: bool) -> str:
    """Return the fault of a figure's name; empty if it is valid.

    Args:
        name: Name of a figure, or a place in a fabric's result.
        predicted: Whether predictions must have the figure.
    """
    if figure := FIGURES.get(name):
        if predicted and figure.predicted is None:
            return f"a prediction has no {name}: leave it out, or give mode: run"
        return ""
    steps = path_steps(name)
    kind = FabricPrediction if predicted else FabricResult
    if len(steps) > 1 and steps[0] in kind.model_fields:
        return ""
    return f"{name} is no figure and no place in a fabric's result; figures: {', '.join(FIGURES)}"


def run_figures(run: RunResult, names: Sequence[str]) -> list[FabricFigures]:
    """Return the figures of each fabric of a run."""
    values_of = {name: figure.measured for name, figure in FIGURES.items()}
    return [
        FabricFigures(
            fabric=summary.result.fabric,
            policy=summary.result.policy,
            verdict=str(summary.verdict),
            figures=_figures(summary, summary.result, values_of, names),
        )
        for summary in summaries(run)
    ]


def predicted_figures(
    prediction: ExperimentPrediction, names: Sequence[str]
) -> list[FabricFigures]:
    """Return the figures of each fabric of a prediction."""
    values_of = {name: f.predicted for name, f in FIGURES.items() if f.predicted is not None}
    return [
        FabricFigures(
            fabric=fabric.fabric,
            policy=fabric.policy,
            verdict=PREDICTED,
            figures=_figures(fabric, fabric, values_of, names),
        )
        for fabric in prediction.fabrics
    ]


def _figures(
    source: Any,
    result: FabricResult | FabricPrediction,
    values_of: Mapping[str, Callable[[Any], float | None]],
    names: Sequence[str],
) -> dict[str, float | None]:
    return {
        name: _finite(values_of[name](source) if name in values_of else _value_at(result, name))
        for name in names
    }


def _value_at(result: FabricResult | FabricPrediction, place: str) -> object:
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
