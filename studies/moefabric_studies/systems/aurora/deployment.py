"""Deployments of experts by Aurora and by others, in the paper's model of an MoE layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric_studies.grids import Grid, grid
from moefabric_studies.systems.aurora.colocation import (
    Deployment,
    ExpertLayer,
    HostedLayer,
    Rates,
    gpus_by_load,
    paired_experts,
    popular_with_unpopular,
)
from moefabric_studies.systems.study import Measure

_DRAWS: Final = 50
"""Random deployments with which one of Aurora is compared."""
_SMALL: Final = 4
"""Experts of a model in the comparison with all deployments."""
_COSTS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Times of a token in an expert, relative to that on a port."""

_SMALL_TOKENS: Final = 10_000
"""Tokens of a GPU there."""

Pair = tuple[ExpertLayer, ExpertLayer]
"""Layers of two models, expert i of each on GPU i."""
Choices = tuple[Deployment, Sequence[Deployment]]
"""Aurora's deployment, and others."""


@dataclass(frozen=True, eq=False)
class Deployments:
    """Compares deployments of the layers of a trace.

    A pair of models is a layer and the one after it, the first after the last.

    Attributes:
        traffic: Tokens [rank, expert] of each layer.
        rates: Rates of GPUs of different speed.
        expert: Time of a token in an expert, relative to that on a port.
        gate: The same of the gate.
        wrong: Part of the traffic that is random where experts are placed for the wrong traffic.
    """

    traffic: tuple[NDArray[np.float64], ...]
    rates: Rates
    expert: float
    gate: float
    wrong: float

    @property
    def layers(self) -> list[ExpertLayer]:
        """The layers."""
        return [ExpertLayer(tokens, self.expert, self.gate) for tokens in self.traffic]

    @property
    def pairs(self) -> Iterator[Pair]:
        """The layers of two models."""
        layers = self.layers
        yield from zip(layers, [*layers[1:], layers[0]], strict=True)

    @property
    def even(self) -> Rates:
        """Rates of equal GPUs."""
        return np.ones_like(self.rates)

    def measures(self) -> dict[str, Measure]:
        """Return all comparisons."""
        losses = [100 * loss for pair in self.pairs for loss in self._losses(pair)]
        best, at_random = zip(*(self._over_best(seed) for seed in range(12)), strict=True)
        even, uneven = (
            Measure.median_of(self.colocation_gains(rates), self._note_on_even_traffic(rates))
            for rates in (self.even, self.rates)
        )
        random = f"A random deployment takes {median(at_random):.2f}x."
        median_loss = f"The median is {median(losses):.1f} %."
        return {
            "random_over_sorted": Measure.median_of(self.assignment_gains()),
            "lina_over_colocated": even,
            "lina_over_colocated_uneven": uneven,
            "colocated_over_best": Measure.median_of(best, random),
            "loss_by_wrong_traffic": Measure(max(losses), tuple(losses), median_loss),
        }

    def assignment_gains(self) -> list[float]:
        """Return how much longer random assignments take than the sorted one (theorem 5.1)."""
        return [_gain(self.assignments(layer)) for layer in self.layers]

    def assignments(self, layer: ExpertLayer) -> Choices:
        """Return the sorted assignment of a model's experts, and random ones."""
        first, *others = (
            Deployment.of([layer.ordered(order)], self.rates)
            for order in (gpus_by_load([layer], self.rates), *self._orders())
        )
        return first, others

    def colocation_gains(self, rates: Rates) -> list[float]:
        """Return how much longer two models take on GPUs of their own, as Lina packs them."""
        return [_gain(self.colocations(pair, rates)) for pair in self.pairs]

    def colocations(self, pair: Pair, rates: Rates) -> Choices:
        """Return two models on the same GPUs, and each on GPUs of its own, as Lina packs them."""
        half = len(rates) // 2
        packed = [layer.joined(popular_with_unpopular(layer)) for layer in pair]
        others = []
        for order in self._orders():
            gpus = order[:half], order[half:]
            hosts = zip(packed, (tuple(numbers.tolist()) for numbers in gpus), strict=True)
            others.append(Deployment(tuple(HostedLayer(*host) for host in hosts), rates))
        return Deployment.of(deployed(pair, rates), rates), others

    def _note_on_even_traffic(self, rates: Rates) -> str:
        """Return the gain of co-location if all experts get equally many tokens."""
        even = ExpertLayer(np.ones((len(rates), len(rates))), self.expert, self.gate)
        gain = _gain(self.colocations((even, even), rates))
        return (
            f"With even traffic it is {gain:.2f}x. Where one expert gets most tokens, its GPU "
            "computes for both models in turn, while Lina's halves of the GPUs do so side by side."
        )

    def _orders(self) -> list[NDArray[np.int64]]:
        rng = np.random.default_rng(1)
        return [rng.permutation(len(self.rates)) for _ in range(_DRAWS)]

    def _losses(self, pair: Pair) -> Iterator[float]:
        """Yield the extra time of deployments that are chosen for the wrong traffic."""
        for rates in (self.even, self.rates):
            right, wrong = self.misled(pair, rates)
            yield wrong.seconds() / right.seconds() - 1

    def misled(self, pair: Pair, rates: Rates) -> tuple[Deployment, Deployment]:
        """Return deployments of two models for their own traffic, and for the wrong one."""
        rng = np.random.default_rng(1)
        wrong = [
            replace(layer, tokens=(1 - self.wrong) * layer.tokens + self.wrong * random)
            for layer in pair
            for random in [_random_tokens(rng, layer.tokens)]
        ]
        right = deployed(pair, rates)
        misled = deployed(pair, rates, assumed=(wrong[0], wrong[1]))
        return Deployment.of(right, rates), Deployment.of(misled, rates)

    def small(self, seed: int) -> Choices:
        """Return Aurora's deployment of two small models on some GPUs, and all deployments."""
        rng = np.random.default_rng(seed)
        gpus = tuple(range(0, len(self.rates), len(self.rates) // _SMALL))
        tokens = [_SMALL_TOKENS * rng.dirichlet(np.ones(_SMALL), _SMALL) for _ in range(2)]
        first, second = (ExpertLayer(matrix, self.expert, self.gate) for matrix in tokens)
        orders = list(permutations(range(_SMALL)))
        every = [(first.ordered(a), second.ordered(b)) for a, b in product(orders, orders)]
        ours, *others = (
            Deployment(tuple(HostedLayer(layer, gpus) for layer in layers), self.rates)
            for layers in (deployed((first, second), self.rates[list(gpus)]), *every)
        )
        return ours, others

    def _over_best(self, seed: int) -> tuple[float, float]:
        """Return the time of two small models over the least, and that of a random deployment."""
        ours, others = self.small(seed)
        every = [deployment.seconds() for deployment in others]
        return ours.seconds() / min(every), median(every) / min(every)

    def computation_costs(self) -> Grid:
        """Return the gains for other costs of computation."""
        rows = []
        for cost in _COSTS:
            other = replace(self, expert=cost, gate=cost * self.gate / self.expert)
            colocated = (other.colocation_gains(rates) for rates in (self.even, self.rates))
            gains = other.assignment_gains(), *colocated
            cells = [f"{median(g):.2f}x ({min(g):.2f} to {max(g):.2f})" for g in gains]
            rows.append((f"{cost:g}", *cells))
        return grid("systems/aurora/computation", rows)


def typical(others: Sequence[Deployment]) -> Deployment:
    """Return the deployment whose time is the median of all, or just above it."""
    return sorted(others, key=Deployment.seconds)[len(others) // 2]


def _gain(choices: Choices) -> float:
    """Return how much longer other deployments take than Aurora's, in the median."""
    ours, others = choices
    return median(deployment.seconds() for deployment in others) / ours.seconds()


def deployed(pair: Pair, rates: Rates, assumed: Pair | None = None) -> Pair:
    """Return two models with their experts paired, and the pairs of most tokens on fast GPUs.

    Args:
        pair: The models.
        rates: Rates of the GPUs.
        assumed: The traffic for which the deployment is chosen; that of the models by default.
    """
    first, second = assumed or pair
    partners = paired_experts(first, second)
    order = gpus_by_load([first, second.ordered(partners)], rates)
    return pair[0].ordered(order), pair[1].ordered(partners[order])


def _random_tokens(rng: np.random.Generator, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return tokens of each rank, to experts at random."""
    shares: NDArray[np.float64] = rng.dirichlet(np.ones(len(tokens)), len(tokens))
    random: NDArray[np.float64] = shares * tokens.sum(axis=1, keepdims=True)
    return random
