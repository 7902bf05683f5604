"""The workload: an experiment's gating, placed on its servers, as the layers of each iteration."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agents import traces
from moefabric.demand import DemandMatrix, Placement
from moefabric.errors import SpecError
from moefabric.iteration import Layer, Operation, layer, operations
from moefabric.model import Model, Training
from moefabric.spec.experiment import ExperimentSpec


@dataclass(frozen=True)
class Workload:
    """What the servers do, iteration after iteration. `gating` is [iteration, layer, rank, expert]; it repeats where it is short."""

    model: Model
    training: Training
    placement: Placement
    gating: NDArray[np.int64]
    iterations: int
    label: str

    def layers(self, iteration: int) -> tuple[Layer, ...]:
        """The MoE layers of an iteration."""
        steps, depth = self.gating.shape[:2]
        step = self.gating[iteration % steps]
        return tuple(
            layer(self.model, self.training, self.placement, step[number % depth])
            for number in range(self.model.layers)
        )

    def operations(self, iteration: int) -> tuple[Operation, ...]:
        """Everything that an iteration does."""
        return tuple(operations(self.model, self.training, self.layers(iteration)))

    def warm_up(self) -> tuple[Operation, ...]:
        """The first layer alone: it opens connections and fills caches before anything is measured."""
        return tuple(operations(self.model, self.training, self.layers(0)[:1]))

    def demands(self) -> tuple[DemandMatrix, ...]:
        """The dispatch of every layer of every iteration."""
        return tuple(each.demand for number in range(self.iterations) for each in self.layers(number))


def workload(spec: ExperimentSpec, servers: tuple[str, ...], folder: Path) -> Workload:
    """The workload of an experiment whose file lies in `folder`. SpecError where its gating can't be read or doesn't fit."""
    model, training = spec.model.sized(), spec.training.sized()
    gating, label = _gating(spec, folder)
    if gating.shape[2:] != (training.ep, model.experts):
        what = f"is for {gating.shape[2]} ranks and {gating.shape[3]} experts; the model has {training.ep} and {model.experts}"
        raise SpecError([("gating", f"{label} {what}")])
    placement = Placement(servers, training.ep, model.experts)
    return Workload(model, training, placement, gating, spec.training.iterations, label)


def _gating(spec: ExperimentSpec, folder: Path) -> tuple[NDArray[np.int64], str]:
    file = spec.gating.matrix or spec.gating.trace
    assert file is not None
    tokens = traces.gating(folder / file).tokens
    if spec.gating.first >= len(tokens):
        raise SpecError(
            [("gating.first", f"there is no step {spec.gating.first} in the {len(tokens)} of {file.name}")]
        )
    return tokens[spec.gating.first :: spec.gating.every], file.name
