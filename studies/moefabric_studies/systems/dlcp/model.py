"""A small classifier in numpy, and planted data that it can learn."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]
_MODES = 4
"""Clusters of a class: no linear classifier separates the classes."""
_NOISE = 1.1


@dataclass(frozen=True)
class Dataset:
    """Inputs (samples x features) and classes (samples)."""

    inputs: Values
    classes: NDArray[np.int64]

    def batch(self, random: np.random.Generator, size: int) -> "Dataset":
        """Return random samples."""
        chosen = random.integers(0, len(self.classes), size)
        return Dataset(self.inputs[chosen], self.classes[chosen])


def planted_clusters(
    features: int, classes: int, samples: int, random: np.random.Generator
) -> Dataset:
    """Return samples of classes that are mixtures of Gaussian clusters.

    Args:
        features: Dimensions of an input.
        classes: Number of classes.
        samples: Number of samples.
        random: Where samples come from; the clusters are always the same.
    """
    centers = np.random.default_rng(7).standard_normal((classes, _MODES, features))
    labels = random.integers(0, classes, samples)
    modes = random.integers(0, _MODES, samples)
    noise = _NOISE * random.standard_normal((samples, features))
    return Dataset((centers[labels, modes] + noise).astype(np.float32), labels)


class Perceptron:
    """A multilayer perceptron; each layer's weights and biases are one flat tensor.

    Attributes:
        sizes: Width of the input and of each layer.
        layers: The tensors of the layers, front first.
    """

    def __init__(self, sizes: Sequence[int], seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.sizes = tuple(sizes)
        self.layers = [
            np.append(
                random.standard_normal(a * b) * np.sqrt(2 / a), np.zeros(b)
            ).astype(np.float32)
            for a, b in pairwise(sizes)
        ]  # fmt: skip

    def _weights(self, layer: int) -> tuple[Values, Values]:
        a, b = self.sizes[layer : layer + 2]
        tensor = self.layers[layer]
        return tensor[: a * b].reshape(a, b), tensor[a * b :]

    def _activations(self, inputs: Values) -> list[Values]:
        """Return the input of each layer, then the last layer's output."""
        values = [inputs]
        for layer in range(len(self.layers)):
            weights, biases = self._weights(layer)
            output = values[-1] @ weights + biases
            is_last = layer == len(self.layers) - 1
            values.append(output if is_last else np.maximum(output, 0))
        return values

    def gradients(self, data: Dataset) -> list[Values]:
        """Return the gradient of the mean cross entropy for each layer's tensor."""
        values = self._activations(data.inputs)
        shifted = np.exp(values[-1] - values[-1].max(axis=1, keepdims=True))
        error = shifted / shifted.sum(axis=1, keepdims=True)
        error[np.arange(len(error)), data.classes] -= 1
        error /= len(error)
        gradients: list[Values] = []
        for layer in reversed(range(len(self.layers))):
            gradient = np.append(values[layer].T @ error, error.sum(axis=0))
            gradients.append(gradient.astype(np.float32))
            error = (error @ self._weights(layer)[0].T) * (values[layer] > 0)
        return gradients[::-1]

    def accuracy(self, data: Dataset) -> float:
        """Return the share of samples that are classified right."""
        output = self._activations(data.inputs)[-1]
        return float((output.argmax(axis=1) == data.classes).mean())


class Momentum:
    """Gradient descent with momentum, for one model's layers."""

    def __init__(self, model: Perceptron, rate: float, momentum: float = 0.9) -> None:
        self._model, self._rate, self._momentum = model, rate, momentum
        self._velocity = [np.zeros_like(layer) for layer in model.layers]

    def step(self, layer: int, gradient: Values) -> Values:
        """Change a layer by a gradient and return the change."""
        velocity = self._momentum * self._velocity[layer] + gradient
        self._velocity[layer] = velocity.astype(np.float32)
        change = (-self._rate * velocity).astype(np.float32)
        self._model.layers[layer] += change
        return change
