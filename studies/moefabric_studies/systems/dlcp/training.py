"""Data-parallel training over real packets: sent and lost gradients, and their effect."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from moefabric.api.links import Lateness
from moefabric_studies.systems.dlcp.model import Dataset, Perceptron, Values, planted_clusters
from moefabric_studies.tensors.channel import Tensor
from moefabric_studies.tensors.packets import by_magnitude
from moefabric_studies.tensors.receiver import Received

_IMPORTANT_SHARE = 0.5
"""Share of a front layer's chunks, those of the largest values, that switches don't drop early."""
_SAMPLES, _HELD_OUT = 8000, 2000


@dataclass(frozen=True)
class TrainingJob:
    """A model, its data and its times.

    Attributes:
        sizes: Width of the model's input and of each layer.
        workers: Number of workers.
        batch: Samples of a worker and an iteration.
        learning_rate: Of gradient descent with momentum.
        backward_s: Time that a GPU would need for the backward pass.
        forward_s: The same for the forward pass.
    """

    sizes: tuple[int, ...]
    workers: int
    batch: int
    learning_rate: float
    backward_s: float
    forward_s: float

    def backward_ends_s(self, model: Perceptron) -> list[float]:
        """Return when each layer's gradient is ready, front layer first: the back layer begins."""
        shares = layer_shares(model)
        return [self.backward_s * end for end in list(accumulate(shares[::-1]))[::-1]]

    def forward_end_s(self, model: Perceptron, arrivals_s: Sequence[float]) -> float:
        """Return when the forward pass ends, in which a layer needs its parameters.

        Args:
            arrivals_s: When each layer's parameters arrived, front layer first.
        """
        end_s = 0.0
        for arrival_s, share in zip(arrivals_s, layer_shares(model), strict=True):
            end_s = max(end_s, arrival_s) + share * self.forward_s
        return end_s


def layer_shares(model: Perceptron) -> list[float]:
    """Return each layer's share of the parameters, and so of the operations."""
    sizes = [len(layer) for layer in model.layers]
    return [size / sum(sizes) for size in sizes]


@dataclass
class Progress:
    """The measurements of a training.

    Attributes:
        iterations_s: Time of each iteration.
        accuracies: Accuracy on held-out data after each iteration.
        lost_shares: Share of each gradient that was lost.
        lateness: Lateness of the links.
    """

    iterations_s: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    lost_shares: list[float] = field(default_factory=list)
    lateness: Lateness = field(default_factory=Lateness)

    def iterations_to(self, accuracy: float) -> int | None:
        """Return after how many iterations an accuracy was reached; None if it wasn't."""
        reached = (n for n, value in enumerate(self.accuracies, 1) if value >= accuracy)
        return next(reached, None)


class Replicas:
    """Equal models of workers, their optimizers, and the data of each worker."""

    def __init__(self, job: TrainingJob, seed: int) -> None:
        self._job = job
        self._random = np.random.default_rng(seed)
        features, classes = job.sizes[0], job.sizes[-1]
        self._shards = [
            planted_clusters(features, classes, _SAMPLES // job.workers, self._random)
            for _ in range(job.workers)
        ]
        self._held_out = planted_clusters(features, classes, _HELD_OUT, self._random)
        self.models = [Perceptron(job.sizes) for _ in range(job.workers)]

    def gradients(self) -> list[list[Values]]:
        """Return each worker's gradients of a batch, by layer."""
        batches: list[Dataset] = [s.batch(self._random, self._job.batch) for s in self._shards]
        return [m.gradients(batch) for m, batch in zip(self.models, batches, strict=True)]

    def accuracy(self, model: Perceptron) -> float:
        """Return a model's accuracy on held-out data."""
        return model.accuracy(self._held_out)


def layer_tensor(
    number: int, layer: int, layers: int, values: Values, changes: Values, loss_percent: int
) -> Tensor:
    """Return a layer's tensor with its class and the order and importance of its chunks.

    Chunks of large changes are sent first. All chunks of the back layer are important, and of
    others those of large changes: front layers and small values bear more loss.

    Args:
        number: Number of the tensor.
        layer: Number of the layer; 0 is the front.
        layers: Number of layers.
        values: What is sent: gradients or parameters.
        changes: What each value changes at the receiver.
        loss_percent: Share that may be lost.
    """
    order = by_magnitude(changes)
    count = len(order) if layer == layers - 1 else round(_IMPORTANT_SHARE * len(order))
    important = frozenset(order[:count])
    return Tensor(number, values.tobytes(), loss_percent, layer, order, important)


def values_of(received: Received) -> Values:
    """Return a received tensor's values; 0 where they were lost."""
    return np.frombuffer(received.values, np.float32)


def with_previous(received: Received, previous: Values) -> Values:
    """Return received parameters; where they were lost, the previous ones."""
    values = values_of(received).copy()
    for offset, size in received.missing:
        lost = slice(offset // 4, (offset + size) // 4)
        values[lost] = previous[lost]
    return values
