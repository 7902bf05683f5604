"""A sweep as users write it: an experiment, and the changes that its runs make to it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Annotated, Any, Final

from pydantic import Discriminator, Field, Tag

from moefabric.api.sweeps.engine import Mode, Value
from moefabric.api.sweeps.results import DEFAULT_FIGURES, figure_fault
from moefabric.config import section
from moefabric.config.input_file import path_steps
from moefabric.config.model import InputPath

_MOST_RUNS: Final = 100_000
VARIANT: Final = "variant"
"""Name of the axis of variants."""

ExperimentChoice = Annotated[
    Annotated[InputPath, Tag("file")] | Annotated[dict[str, Any], Tag("given")],
    Discriminator(lambda value: "given" if isinstance(value, dict) else "file"),
]
"""Path of an experiment file, or the keys of one."""
Changes = dict[str, Any]
"""Values by their places in the experiment, such as `training.iterations`. A mapping changes the
keys that it names."""
Values = Annotated[list[Any], Field(min_length=1)]
"""Values of one place, of which each run has one."""


@dataclass(frozen=True)
class Point:
    """A combination of values.

    Attributes:
        number: Its position in the sweep, from 0.
        values: Its value on each axis.
        changes: Values by their places in the experiment.
    """

    number: int
    values: Mapping[str, Value]
    changes: Mapping[str, Any]

    def __str__(self) -> str:
        return ", ".join(f"{axis}={value}" for axis, value in self.values.items()) or "no change"


def value_label(value: Any) -> Value:
    """Return a value as tables have it: a mapping is its `name`, or JSON like other structures."""
    if isinstance(value, Value):
        return value
    if isinstance(value, Mapping) and isinstance(name := value.get("name"), str):
        return name
    return json.dumps(value, ensure_ascii=False, default=str)


class Variant(section.Section):
    """Changes that belong together, under a name."""

    name: section.Text
    """Name of the variant in tables and pictures."""
    changes: Changes = Field(default_factory=dict)
    """Values by their places in the experiment."""


class SweepSpec(section.Document):
    """A sweep file: the product of variants, grid, seeds and repetitions."""

    sweep: section.Name
    """Name of the sweep."""
    experiment: ExperimentChoice
    """Experiment file, relative to the sweep's file, or the keys of an experiment."""
    mode: Mode = "run"
    """`run` sends packets on emulated fabrics; `train` trains the experiment's program on them;
    `predict` asks the fluid model and needs no root."""
    changes: Changes = Field(default_factory=dict)
    """Changes for all runs."""
    grid: dict[str, Values] = Field(default_factory=dict)
    """Values by places in the experiment, such as `wiring.nic_rate: [100Gb/s, 400Gb/s]`. Each
    combination is a point of the sweep. The first place is the horizontal axis of pictures."""
    variants: list[Variant] = Field(default_factory=list)
    """Sets of changes; each has all points of the grid."""
    seeds: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    """Seeds with which each point runs. Default: that of the experiment."""
    repetitions: int = Field(default=1, ge=1, le=1000)
    """Runs of each point and seed."""
    cores: int | None = Field(default=None, ge=1)
    """CPU cores that each run has for itself. Default: 1 for `predict`; for `run` what the fabrics
    need at the experiment's scale, or 2 with `scale: auto`, which is then chosen for 2 cores."""
    memory: section.ByteSize | None = None
    """Memory that is reserved for each run. Default: what the fabrics need; 500 MB for
    `predict`."""
    retries: int = Field(default=1, ge=0, le=100)
    """Further attempts at a run that ends in an error, each on another node if there is one."""
    retry_invalid: bool = False
    """Whether a run with the verdict `invalid` has further attempts too. The last one is kept."""
    figures: list[section.Text] = Field(default_factory=lambda: list(DEFAULT_FIGURES), min_length=1)
    """Figures of each fabric, in the order of the report: columns of the table `fabrics`
    (`moefabric.report.summary`), or places in a fabric's result such as
    `fidelity.cpu_idle_min`."""
    baseline: section.Name | None = None
    """Fabric with which the others are compared, run by run. Default: none."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Places of the grid, and `variant` if there are variants."""
        return (*self.grid, *([VARIANT] if self.variants else []))

    @property
    def run_count(self) -> int:
        """Number of runs: points by seeds by repetitions."""
        sizes = [len(values) for values in self.grid.values()]
        return prod([*sizes, len(self.variants) or 1, len(self.seeds) or 1, self.repetitions])

    def points(self) -> list[Point]:
        """Return the points of the sweep; the last place of the grid changes first."""
        variants: list[Variant | None] = [*self.variants] or [None]
        points = list[Point]()
        for variant, values in product(variants, product(*self.grid.values())):
            grid_values = dict[str, Value](zip(self.grid, map(value_label, values), strict=True))
            changes = self.changes | (variant.changes if variant else {})
            changes |= dict(zip(self.grid, values, strict=True))
            names: dict[str, Value] = {VARIANT: variant.name} if variant else {}
            points.append(Point(len(points), grid_values | names, changes))
        return points

    def errors(self) -> Iterator[section.InputError]:
        """Yield the contradictions between values that are valid by themselves."""
        yield from section.collect_errors(
            self._place_errors, self._seed_errors, self._figure_errors, self._size_errors
        )

    def _place_errors(self) -> Iterator[section.InputError]:
        for name, places in (("grid", self.grid), *self._all_changes()):
            yield from _place_errors(name, places)
        for place in self.grid:
            for key, changes in self._all_changes():
                if place in changes:
                    yield f"{key}.{place}", "grid has it already: leave one of them out"
            yield from _repeated(f"grid.{place}", list(map(value_label, self.grid[place])))
        yield from _repeated("variants", [variant.name for variant in self.variants])

    def _all_changes(self) -> Iterator[tuple[str, Changes]]:
        """Yield the changes of all runs, and of each variant, with their places in the file."""
        yield "changes", self.changes
        for number, variant in enumerate(self.variants):
            yield f"variants[{number}].changes", variant.changes

    def _seed_errors(self) -> Iterator[section.InputError]:
        yield from _repeated("seeds", self.seeds)
        if self.seeds and "seed" in self.grid:
            yield "seeds", "grid has the seeds already: leave one of them out"
        if self.mode == "predict" and self.repetitions > 1:
            yield "repetitions", "a prediction is the same each time: leave it out, or give seeds"

    def _figure_errors(self) -> Iterator[section.InputError]:
        yield from _repeated("figures", self.figures)
        for number, name in enumerate(self.figures):
            if error := figure_fault(name, predicted=self.mode == "predict"):
                yield f"figures[{number}]", error

    def _size_errors(self) -> Iterator[section.InputError]:
        if self.run_count > _MOST_RUNS:
            yield "grid", f"{self.run_count:,} runs are more than {_MOST_RUNS:,}"


def _place_errors(key: str, places: Mapping[str, Any]) -> Iterator[section.InputError]:
    for place in places:
        if not path_steps(place):
            yield f"{key}.{place}", "isn't a place such as training.iterations"


def _repeated(place: str, values: Sequence[object]) -> Iterator[section.InputError]:
    """Yield an error for each value that is given twice."""
    for value in dict.fromkeys(v for v in values if values.count(v) > 1):
        yield place, f"{value!r} is given twice"
