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
            layer(self.model, self.training, self.placement, step[number % depth]) for number in range(self.model.layers)
        )

    def operations(self, iteration: int) -> tuple[Operation, ...]:
        """Everything that an iteration does."""
        return tuple(operations(self.model, self.training, self.layers(iteration)))

    def demands(self) -> tuple[DemandMatrix, ...]:
        """The dispatch of every layer of every iteration."""
        return tuple(each.demand for number in range(self.iterations) for each in self.layers(number))


def workload(spec: ExperimentSpec, servers: tuple[str, ...], folder: Path) -> Workload:
    """The workload of an experiment whose file lies in `folder`. SpecError where its gating can't be read or doesn't fit."""
    model, training = spec.model.sized(), spec.training.sized()
    try:
        gating, label = _gating(spec, folder)
    except (ValueError, OSError) as fault:
        raise SpecError([("gating", str(fault))]) from fault
    if gating.shape[2:] != (training.ep, model.experts):
        what = f"is for {gating.shape[2]} ranks and {gating.shape[3]} experts; the model has {training.ep} and {model.experts}"
        raise SpecError([("gating", f"{label} {what}")])
    placement = Placement(servers, training.ep, model.experts)
    return Workload(model, training, placement, gating, spec.training.iterations, label)


def _gating(spec: ExperimentSpec, folder: Path) -> tuple[NDArray[np.int64], str]:
    if spec.gating.matrix is not None:
        return traces.read_matrix(folder / spec.gating.matrix).tokens, spec.gating.matrix.name
    assert spec.gating.trace is not None
    tokens = traces.read_training_trace(folder / spec.gating.trace).tokens
    if spec.gating.first >= len(tokens):
        raise ValueError(f"first: step {spec.gating.first} of a trace of {len(tokens)} steps")
    return tokens[spec.gating.first :: spec.gating.every], spec.gating.trace.name
