"""The workload: an experiment's gating, placed on its servers, as the layers of each iteration."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agents import traces
from moefabric.demand import DemandMatrix, Placement
from moefabric.errors import SpecError
from moefabric.experiment.noise import noisy
from moefabric.iteration import Collective, Layer, Operation, Reconfigure, layer, operations, together
from moefabric.model import Model, Training
from moefabric.spec.experiment import ExperimentSpec
from moefabric.topology import Fabric


@dataclass(frozen=True)
class Workload:
    """What the servers do, iteration after iteration. `gating` is [iteration, layer, rank, expert]; it repeats where it is short.

    Each region is one EP group, with a placement of its own, and sees that gating with `noise` drawn from `seed`.
    """

    model: Model
    training: Training
    placements: tuple[Placement, ...]
    gating: NDArray[np.int64]
    iterations: int
    label: str
    noise: float = 0.0
    seed: int = 1

    def layers(self, iteration: int) -> tuple[Layer, ...]:
        """The MoE layers of an iteration."""
        return tuple(self._layer(iteration, number) for number in range(self.model.layers))

    def _layer(self, iteration: int, number: int) -> Layer:
        steps, depth = self.gating.shape[:2]
        base = self.gating[iteration % steps, number % depth]
        return together(
            [
                layer(
                    self.model,
                    self.training,
                    placement,
                    noisy(base, self.noise, self.seed, (iteration, number, region)),
                )
                for region, placement in enumerate(self.placements)
            ]
        )

    def operations(self, iteration: int) -> tuple[Operation, ...]:
        """Everything that an iteration does."""
        return tuple(operations(self.model, self.training, self.layers(iteration)))

    def warm_up(self) -> tuple[Operation, ...]:
        """Light and one dispatch and combine: they open connections and fill caches before anything is measured."""
        first = self._layer(0, 0).demand
        return (
            Reconfigure("forward", 0, first),
            Collective("dispatch", "forward", 0, first),
            Collective("combine", "forward", 0, first.combine()),
        )

    def demands(self) -> tuple[DemandMatrix, ...]:
        """The dispatch of every layer of every iteration."""
        return tuple(each.demand for number in range(self.iterations) for each in self.layers(number))


def workload(spec: ExperimentSpec, regions: Sequence[Sequence[str]], folder: Path) -> Workload:
    """The workload of an experiment whose file lies in `folder`, on the servers of its regions.

    SpecError where its gating can't be read or doesn't fit.
    """
    model, training = spec.model.sized(), spec.training.sized()
    gating, label = _gating(spec, folder)
    if gating.shape[2:] != (training.ep, model.experts):
        what = f"is for {gating.shape[2]} ranks and {gating.shape[3]} experts; the model has {training.ep} and {model.experts}"
        raise SpecError([("gating", f"{label} {what}")])
    placements = tuple(Placement(tuple(servers), training.ep, model.experts) for servers in regions)
    return Workload(
        model, training, placements, gating, spec.training.iterations, label, spec.gating.noise, spec.seed
    )


def workload_on(spec: ExperimentSpec, fabric: Fabric, folder: Path) -> Workload:
    """The workload of an experiment on one of its fabrics."""
    return workload(spec, [region.servers for region in fabric.regions], folder)


def _gating(spec: ExperimentSpec, folder: Path) -> tuple[NDArray[np.int64], str]:
    file = spec.gating.matrix or spec.gating.trace
    assert file is not None
    tokens = traces.gating(folder / file).tokens
    if spec.gating.first >= len(tokens):
        raise SpecError(
            [("gating.first", f"there is no step {spec.gating.first} in the {len(tokens)} of {file.name}")]
        )
    return tokens[spec.gating.first :: spec.gating.every], file.name
