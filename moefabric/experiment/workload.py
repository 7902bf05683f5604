"""The workload: an experiment's gating, placed on its servers, as the layers of each iteration."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agents import traces
from moefabric.demand import DemandMatrix, Placement
from moefabric.errors import SpecError
from moefabric.experiment.foresight import Foresight, Guess
from moefabric.experiment.noise import noisy
from moefabric.iteration import (
    Collective,
    First,
    Layer,
    Operation,
    Reconfigure,
    layer,
    operations,
    together,
)
from moefabric.model import Model, Training
from moefabric.spec.experiment import ExperimentSpec
from moefabric.topology import Fabric


@dataclass(frozen=True)
class Workload:
    """What the servers do, iteration after iteration. `gating` is [iteration, layer, rank, expert]; it repeats where it is short.

    Each region is one EP group, with a placement of its own, and sees that gating with `noise` drawn from `seed`. `first` is what first all-to-alls do
    about their light, with `foresight` where they are to be foreseen.
    """

    model: Model
    training: Training
    placements: tuple[Placement, ...]
    gating: NDArray[np.int64]
    iterations: int
    label: str
    noise: float = 0.0
    seed: int = 1
    first: First = "block"
    foresight: Foresight | None = None
    stages: int = 1
    """Pipeline stages: regions are the first, the second and so on in turn, and each has its share of the layers."""

    def own(self, region: int) -> range:
        """The layers that a region has."""
        depth = self.model.layers // self.stages
        return range(depth * (region % self.stages), depth * (region % self.stages + 1))

    def under(self, first: First) -> "Workload":
        """The same workload under another policy of first all-to-alls, with nothing learnt yet."""
        foresight = None
        if first == "predict":
            foresight = Foresight(self._tokens, self.model.layers, len(self.placements))
        return replace(self, first=first, foresight=foresight)

    def layers(self, iteration: int) -> tuple[Layer, ...]:
        """The MoE layers of an iteration."""
        return tuple(self._layer(iteration, number) for number in range(self.model.layers))

    def _layer(self, iteration: int, number: int) -> Layer:
        return together([self.layer_of(iteration, number, region) for region in range(len(self.placements))])

    def layer_of(self, iteration: int, number: int, region: int, micro_batch: int = 0) -> Layer:
        """One MoE layer of one region; micro-batches differ by their noise alone."""
        gated = self._gated(iteration, number, region, micro_batch)
        return layer(self.model, self.training, self.placements[region], gated)

    def _gated(self, iteration: int, number: int, region: int, micro_batch: int = 0) -> NDArray[np.int64]:
        steps, depth = self.gating.shape[:2]
        base = self.gating[iteration % steps, number % depth]
        key = (iteration, number, region, *((micro_batch,) if micro_batch else ()))
        return noisy(base, self.noise, self.seed, key)

    def _tokens(self, iteration: int, number: int, region: int) -> NDArray[np.float64]:
        return self._gated(iteration, number, region).astype(np.float64)

    def guesses(self, iteration: int) -> tuple[Guess | None, ...]:
        """What is foreseen of the layers of an iteration; nothing where nothing is to be."""
        return () if self.foresight is None else self.foresight.guesses(iteration)

    def foreseen(self, iteration: int) -> tuple[DemandMatrix | None, ...]:
        """The same as demands of the layers' dispatches, of all regions."""
        guesses = self.guesses(iteration)
        return tuple(None if guess is None else self._demand(guess) for guess in guesses)

    def _demand(self, guess: Guess) -> DemandMatrix:
        placed = zip(self.placements, guess.tokens, strict=True)
        return together(
            [layer(self.model, self.training, placement, tokens) for placement, tokens in placed]
        ).demand

    def operations(self, iteration: int) -> tuple[Operation, ...]:
        """Everything that an iteration does."""
        layers, foreseen = self.layers(iteration), self.foreseen(iteration)
        return tuple(operations(self.model, self.training, layers, self.first, foreseen))

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

    def whole_demand(self) -> DemandMatrix:
        """The dispatches of the whole job together, each region's own: what light that is laid once is laid for."""
        return DemandMatrix.apart([self._whole(region) for region in range(len(self.placements))])

    def _whole(self, region: int) -> DemandMatrix:
        every = [
            self.layer_of(iteration, number, region).demand
            for iteration in range(self.iterations)
            for number in self.own(region)
        ]
        return DemandMatrix(every[0].servers, sum(each.array for each in every))


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
        model, training, placements, gating, spec.training.iterations, label, spec.gating.noise, spec.seed,
        stages=spec.training.pp,
    )  # fmt: skip


def workload_on(spec: ExperimentSpec, fabric: Fabric, folder: Path) -> Workload:
    """The workload of an experiment on one of its fabrics."""
    return workload(spec, list(fabric.groups.values()), folder)


def _gating(spec: ExperimentSpec, folder: Path) -> tuple[NDArray[np.int64], str]:
    file = spec.gating.matrix or spec.gating.trace
    assert file is not None
    tokens = traces.gating(folder / file).tokens
    if spec.gating.first >= len(tokens):
        raise SpecError(
            [("gating.first", f"there is no step {spec.gating.first} in the {len(tokens)} of {file.name}")]
        )
    tokens = tokens[spec.gating.first :: spec.gating.every]
    if spec.gating.repeat:
        seen = tokens[: spec.training.iterations]
        tokens = traces.repeated(seen, spec.training.ep, spec.model.sized().experts)
    return tokens, file.name
