"""Systems together: iteration times of their combinations under several policies.

A combination takes at most one system for each key of a fabric: `place`, `transform`, `collective`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import Any, Literal

import numpy as np
from pydantic import Field

from moefabric.api import charts
from moefabric.api.charts import Axis
from moefabric.api.plugins import Name, Section
from moefabric_studies.grids import Grid, captions, grid
from moefabric_studies.paper.rows import INVALID
from moefabric_studies.systems.measured import exposed_s, iteration_s, valid_fabrics
from moefabric_studies.systems.study import Measure, Outcome, StudyContext


class System(Section):
    """A system that combinations may have."""

    name: Name
    """Name of the system in tables."""
    fabric: dict[str, Any]
    """The keys by which a fabric has the system."""
    emulated: bool | Literal["alone"] = True
    """Whether combinations with the system are measured with packets, besides predicted."""


class PolicyChoice(Section):
    """A policy under which combinations are compared."""

    name: Name
    """Name of the policy in tables."""
    fabric: dict[str, Any]
    """The keys of its fabric: NICs and the policy."""


class Setup(Section):
    """The combinations."""

    experiment: dict[str, Any]
    """The experiment; its fabrics are those of the study."""
    policies: list[PolicyChoice]
    """The policies; the first one is that of the baseline."""
    systems: list[System]
    """The systems."""
    largest: int = Field(default=3, ge=1)
    """The most systems of a combination."""


Combination = tuple[System, ...]
"""Systems that a fabric has at once."""
Cell = tuple[tuple[str, ...], str]
"""Names of a combination's systems, and the name of a policy."""


@dataclass(frozen=True)
class Times:
    """Iteration times of cells in model seconds.

    Attributes:
        seconds: Time by cell.
        baseline: The cell to which others are compared: no system, under the first policy.
        invalid: Cells that have no time, as they were measured in vain.
    """

    seconds: Mapping[Cell, float]
    baseline: Cell
    invalid: Collection[Cell] = ()

    def gain(self, cell: Cell) -> float:
        """Return how many times as fast as the baseline a cell is."""
        return self.seconds[self.baseline] / self.seconds[cell]

    def known_gain(self, cell: Cell) -> float | str | None:
        """Return the gain of a cell; `INVALID` if it was measured in vain, None if it wasn't."""
        if cell in self.invalid:
            return INVALID
        return self.gain(cell) if {cell, self.baseline} <= self.seconds.keys() else None

    def parts(self, cell: Cell) -> list[Cell]:
        """Return the cells of each system alone, and of the policy unless it's the baseline's."""
        (systems, policy), first = cell, self.baseline[1]
        return [((one,), first) for one in systems] + [((), policy)] * (policy != first)

    def product(self, cell: Cell) -> float:
        """Return the product of the gains of a cell's parts, each alone."""
        return prod(map(self.gain, self.parts(cell)))

    def is_composed(self, cell: Cell) -> bool:
        """Return whether the product of a cell's parts is known: none of them is invalid."""
        return all(part in self.seconds for part in (cell, self.baseline, *self.parts(cell)))

    def gain_over_product(self, cell: Cell) -> float:
        """Return the gain of a cell relative to the product; 1 if its parts don't meet."""
        return self.gain(cell) / self.product(cell)

    @property
    def best(self) -> Cell:
        """The fastest cell."""
        return min(self.seconds, key=lambda cell: self.seconds[cell])

    def of(self, cells: Sequence[Cell]) -> "Times":
        """Return the times of some of the cells."""
        return Times({cell: self.seconds[cell] for cell in cells}, self.baseline)


class CompositionStudy:
    """Measures how the gains of systems compose."""

    setup = Setup

    def measure(self, setup: Setup, context: StudyContext) -> Outcome:
        """Predict all combinations, and measure those of systems that are emulated."""
        whole = list(combined(setup.systems, setup.largest))
        core = [one for one in whole if is_emulated(one)]
        cells, baseline = _cells(setup, whole), ((), setup.policies[0].name)
        prediction = context.predict(document(setup, whole))
        predicted = Times({cells[f.fabric]: f.iteration_s for f in prediction.fabrics}, baseline)
        run = context.run_or_stored(document(setup, core))
        valid = valid_fabrics(run.results)
        invalid = {cells[one.fabric] for one in run.results if one not in valid}
        measured, communication = (
            Times({cells[one.fabric]: seconds(one) for one in valid}, baseline, invalid)
            for seconds in (iteration_s, exposed_s)
        )
        measures = _measures(predicted, measured, communication) if baseline not in invalid else {}
        names = [one.fabric for one in valid]
        return Outcome(
            {name: measure.on(run.experiment, *names) for name, measure in measures.items()},
            {"composition": _picture(setup, whole, measured, predicted)},
            captions("systems/composition"),
            [_grid(setup, whole, predicted, measured), _pairs(predicted, measured)],
            [run],
        )


def combined(systems: Sequence[System], largest: int) -> Iterator[Combination]:
    """Yield the combinations whose systems share no key, those of fewer systems first.

    Args:
        largest: The most systems of a combination.
    """
    for size in range(largest + 1):
        for chosen in combinations(systems, size):
            keys = [key for system in chosen for key in system.fabric]
            if len(keys) == len(set(keys)):
                yield chosen


def is_emulated(combination: Combination) -> bool:
    """Return whether a combination is measured with packets."""
    if len(combination) == 1:
        return bool(combination[0].emulated)
    return all(system.emulated is True for system in combination)


def document(setup: Setup, whole: Sequence[Combination]) -> dict[str, Any]:
    """Return the experiment with a fabric for each combination and policy."""
    fabrics = [
        {
            **policy.fabric,
            **{key: value for system in combination for key, value in system.fabric.items()},
            "name": _fabric_name(combination, policy),
        }
        for policy in setup.policies
        for combination in whole
    ]
    return {**setup.experiment, "fabrics": fabrics}


def _fabric_name(combination: Combination, policy: PolicyChoice) -> str:
    return "-".join([policy.name, *(system.name for system in combination)])


def _cells(setup: Setup, whole: Sequence[Combination]) -> dict[str, Cell]:
    """Return the cell of each fabric's name."""
    return {
        _fabric_name(combination, policy): (tuple(one.name for one in combination), policy.name)
        for policy in setup.policies
        for combination in whole
    }


def _measures(predicted: Times, measured: Times, communication: Times) -> dict[str, Measure]:
    """Return the measures that claims name."""
    cells = list(measured.seconds)
    errors = [100 * abs(measured.seconds[c] / predicted.seconds[c] - 1) for c in cells]
    chosen = predicted.of(cells).best
    best = measured.best
    return {
        "error_median": Measure.median_of(errors, "Of the cells that are measured."),
        "error_p95": Measure(float(np.percentile(errors, 95)), tuple(errors)),
        "gain_over_product": _over_product(measured),
        "communication_over_product": _over_product(communication),
        "predicted_best": Measure(
            measured.seconds[chosen] / measured.seconds[best],
            note=f"Predicted best: {cell_text(chosen)}; measured best: {cell_text(best)}.",
        ),
        "best_gain": Measure(measured.gain(best), note=f"{cell_text(best)}."),
    }


def _over_product(times: Times) -> Measure:
    """Return the gains of cells with several parts, relative to the products."""
    several = [c for c in times.seconds if len(times.parts(c)) > 1 and times.is_composed(c)]
    if not several:
        return Measure(None, note="No valid combination has valid parts.")
    worst, best = (f(several, key=times.gain_over_product) for f in (min, max))
    note = (
        f"From {times.gain_over_product(worst):.2f} ({cell_text(worst)}) "
        f"to {times.gain_over_product(best):.2f} ({cell_text(best)})."
    )
    return Measure.median_of([times.gain_over_product(cell) for cell in several], note)


def cell_text(cell: Cell) -> str:
    """Return a cell in words."""
    systems, policy = cell
    return f"{' + '.join(systems) or 'no system'} under {policy}"


def _grid(setup: Setup, whole: Sequence[Combination], predicted: Times, measured: Times) -> Grid:
    """Return the gain of each cell: predicted, measured, and the product of its parts' gains.

    An invalid cell has no gain, and none has one over an invalid baseline.
    """
    base_s = measured.seconds.get(measured.baseline)
    names, rows = [policy.name for policy in setup.policies], []
    for name, cells in _rows(setup, whole).items():
        texts = [f"{predicted.gain(cell):.2f}x" for cell in cells]
        for cell in cells:
            product = f" ({measured.product(cell):.2f}x)" if measured.is_composed(cell) else ""
            gain = measured.known_gain(cell)
            texts.append(f"{gain:.2f}x{product}" if isinstance(gain, float) else gain or "—")
        rows.append((name, *texts))
    return grid(
        "systems/composition/combinations",
        rows,
        header=("systems", *(f"{n}, predicted" for n in names), *(f"{n}, measured" for n in names)),
        baseline="an invalid time" if base_s is None else f"{base_s:.3f} s",
    )


def _rows(setup: Setup, whole: Sequence[Combination]) -> dict[str, list[Cell]]:
    """Return the cells of each combination, in the order of the policies, by its text."""
    rows = {}
    for combination in whole:
        systems = tuple(one.name for one in combination)
        cells = [(systems, policy.name) for policy in setup.policies]
        rows[" + ".join(systems) or "none"] = cells
    return rows


def _pairs(predicted: Times, measured: Times) -> Grid:
    """Return how far the gain of two parts together is from the product of their gains."""
    several = filter(measured.is_composed, measured.seconds)
    pairs = [cell for cell in several if len(measured.parts(cell)) == 2]
    pairs.sort(key=measured.gain_over_product)
    rows = [
        (cell_text(cell), *(f"{t.gain_over_product(cell):.2f}" for t in (measured, predicted)))
        for cell in pairs
    ]
    return grid("systems/composition/pairs", rows)


def _picture(setup: Setup, whole: Sequence[Combination], measured: Times, predicted: Times) -> str:
    maps = {
        title: {
            name: [times.known_gain(cell) for cell in cells]
            for name, cells in _rows(setup, whole).items()
        }
        for title, times in (("measured with packets", measured), ("predicted", predicted))
    }
    columns = [policy.name for policy in setup.policies]
    return heat_maps("Gain of an iteration over the EPS without any system", columns, maps)


HeatMap = Mapping[str, Sequence[float | str | None]]
"""Gains of each row by its name; None leaves a cell empty, `INVALID` marks it."""


def heat_maps(title: str, columns: Sequence[str], maps: Mapping[str, HeatMap]) -> str:
    """Return the text of a file with heat maps that have the same rows and columns.

    Args:
        title: Title of the picture.
        columns: Names of the columns.
        maps: The maps by their titles, from left to right.
    """
    gains = [gain for rows in maps.values() for row in rows.values() for gain in row]
    darkest = max(gain for gain in gains if isinstance(gain, float))
    names, panels = Axis.rows(list(next(iter(maps.values())))), []
    for heading, rows in maps.items():
        marks, voids = list[charts.Mark](), list[charts.Mark]()
        for row, (name, values) in enumerate(rows.items()):
            for column, gain in enumerate(values):
                text = f"{gain:.2f}x" if isinstance(gain, float) else str(gain)
                note = f"{name}, {columns[column]}: {text}"
                if isinstance(gain, float):
                    marks.append(charts.cell(column, row, gain / darkest, note, [text], gap=1))
                elif gain == INVALID:
                    place = (column, column + 1), (row, row + 1)
                    voids.append(charts.Box(*place, "k-void", note, gap=1, texts=[text]))
        across, marks = Axis.names(columns), marks + voids
        panels.append(charts.Panel(across, names, marks, 24.0 * len(rows), heading))
        names = names.untitled
    return charts.document_picture(title, panels, columns=len(panels))
