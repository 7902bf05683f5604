"""Training of workers on a fabric, with a parameter server and with a ring all-reduce."""

from abc import ABC, abstractmethod
from functools import partial

import numpy as np

from moefabric.api.links import NOW, LinkBehaviour, link_between, star
from moefabric_studies.systems.dlcp.model import Momentum, Perceptron, Values
from moefabric_studies.systems.dlcp.testbed import Network, ignore, open_network
from moefabric_studies.systems.dlcp.training import (
    Progress,
    Replicas,
    TrainingJob,
    layer_tensor,
    values_of,
    with_previous,
)
from moefabric_studies.systems.dlcp.transports import TransportChoice
from moefabric_studies.tensors.channel import Tensor
from moefabric_studies.tensors.packets import by_magnitude
from moefabric_studies.tensors.receiver import Received


def train_with_server(
    job: TrainingJob, choice: TransportChoice, link: LinkBehaviour, iterations: int, seed: int = 1
) -> Progress:
    """Train on workers that share a parameter server behind one link.

    Args:
        job: Model, data and times.
        link: Both directions of the server's link.
        iterations: Number of iterations.
        seed: Seed of data and batches.

    Raises:
        FabricError: A tensor isn't complete in time.
    """
    with link_between(link) as hosts, open_network(hosts, choice) as network:
        return _ServerTraining(network, job, choice, seed).run(iterations)


def train_with_ring(
    job: TrainingJob, choice: TransportChoice, link: LinkBehaviour, iterations: int, seed: int = 1
) -> Progress:
    """Train on workers that add up their gradients around a ring, which has no incast.

    Args:
        job: Model, data and times.
        choice: The transport. Gradients may be lost while they are added up; sums aren't, so that
            all workers keep the same model.
        link: The switch's port to each worker.
        iterations: Number of iterations.
        seed: Seed of data and batches.

    Raises:
        FabricError: A tensor isn't complete in time.
    """
    with star([link] * job.workers) as hosts, open_network(hosts, choice) as network:
        return _RingTraining(network, job, choice, seed).run(iterations)


class _Training(ABC):
    """Workers with replicas of a model, whose accuracy is that of `_model`."""

    _model: Perceptron
    _tensors: int
    """Tensors of an iteration in one direction of a channel."""

    def __init__(
        self, network: Network, job: TrainingJob, choice: TransportChoice, seed: int
    ) -> None:
        self._network, self._job, self._choice = network, job, choice
        self._replicas, self._progress = Replicas(job, seed), Progress()
        self._first_number = 1

    def run(self, iterations: int) -> Progress:
        """Run iterations, and return their times and the model's accuracy after each."""
        for _ in range(iterations):
            self._progress.iterations_s.append(self._iterate())
            self._progress.accuracies.append(self._replicas.accuracy(self._model))
            self._first_number += self._tensors
        self._progress.lateness = self._network.hosts.counters().lateness
        return self._progress

    @abstractmethod
    def _iterate(self) -> float:
        """Run one iteration, and return its duration in seconds."""


class _ServerTraining(_Training):
    """Workers, their channels to the parameter server, and the server's model."""

    def __init__(
        self, network: Network, job: TrainingJob, choice: TransportChoice, seed: int
    ) -> None:
        super().__init__(network, job, choice, seed)
        self._model = Perceptron(job.sizes)
        self._tensors = len(self._model.layers)
        self._optimizer = Momentum(self._model, job.learning_rate)
        workers, server = network.hosts.hosts
        self._channels = [
            network.connect(workers, server, partial(self._on_parameters, n), self._on_gradient)
            for n in range(job.workers)
        ]

    def _iterate(self) -> float:
        self._sums = [np.zeros_like(layer) for layer in self._model.layers]
        self._awaited_gradients = [self._job.workers] * self._tensors
        self._awaited_parameters = self._job.workers * self._tensors
        self._arrivals_s = np.zeros((self._job.workers, self._tensors))
        gradients = self._replicas.gradients()
        ends_s = self._job.backward_ends_s(self._model)
        self._began_ns = NOW()
        for layer in reversed(range(self._tensors)):
            push = partial(self._push, layer, [g[layer] for g in gradients])
            self._network.loop.call_at(self._began_ns + int(ends_s[layer] * 1e9), push)
        self._network.run()
        return max(self._job.forward_end_s(self._model, row.tolist()) for row in self._arrivals_s)

    def _push(self, layer: int, gradients: list[Values]) -> None:
        for (channel, _), gradient in zip(self._channels, gradients, strict=True):
            channel.send(self._tensor(layer, gradient, gradient, self._choice.loss_percent))

    def _tensor(self, layer: int, values: Values, changes: Values, percent: int) -> Tensor:
        number = self._first_number + layer
        return layer_tensor(number, layer, self._tensors, values, changes, percent)

    def _on_gradient(self, received: Received) -> None:
        layer = received.tensor - self._first_number
        self._progress.lost_shares.append(received.lost_share)
        self._sums[layer] += values_of(received)
        self._awaited_gradients[layer] -= 1
        if not self._awaited_gradients[layer]:
            change = self._optimizer.step(layer, self._sums[layer] / np.float32(self._job.workers))
            percent = self._choice.loss_percent // 4  # of parameters less may be lost
            tensor = self._tensor(layer, self._model.layers[layer], change, percent)
            for _, channel in self._channels:
                channel.send(tensor)

    def _on_parameters(self, worker: int, received: Received) -> None:
        layer = received.tensor - self._first_number
        model = self._replicas.models[worker]
        model.layers[layer] = with_previous(received, model.layers[layer])
        self._arrivals_s[worker, layer] = (NOW() - self._began_ns) / 1e9
        self._awaited_parameters -= 1
        if not self._awaited_parameters:
            self._network.loop.stop()


class _RingTraining(_Training):
    """Workers with a channel to the next one, and the parts that they have added up."""

    def __init__(
        self, network: Network, job: TrainingJob, choice: TransportChoice, seed: int
    ) -> None:
        super().__init__(network, job, choice, seed)
        self._optimizers = [Momentum(m, job.learning_rate) for m in self._replicas.models]
        self._model = self._replicas.models[0]
        hosts = network.hosts.hosts
        self._tensors = 2 * (job.workers - 1)
        ring = zip(range(job.workers), [*range(1, job.workers), 0], strict=True)
        self._channels = [
            network.connect(hosts[a], hosts[b], ignore, partial(self._on_part, b))[0]
            for a, b in ring
        ]

    def _iterate(self) -> float:
        count = self._job.workers
        gradients = [np.concatenate(layers) for layers in self._replicas.gradients()]
        self._parts: list[list[Values]] = [np.array_split(g, count) for g in gradients]
        self._awaited = count * self._tensors
        began_ns = NOW()
        for worker in range(count):
            self._send(worker, 0)
        self._network.run()
        sent_s = (NOW() - began_ns) / 1e9
        self._apply()
        return sent_s + self._job.backward_s + self._job.forward_s

    def _send(self, worker: int, step: int) -> None:
        """Send the part of a step: first sums that grow, then whole sums."""
        part = self._parts[worker][(worker - step) % self._job.workers]
        loss = self._choice.loss_percent if step < self._job.workers - 1 else 0
        order = by_magnitude(part)
        important = frozenset(order[: len(order) // 2])
        number = self._first_number + step
        self._channels[worker].send(Tensor(number, part.tobytes(), loss, 0, order, important))

    def _on_part(self, worker: int, received: Received) -> None:
        step, count = received.tensor - self._first_number, self._job.workers
        parts, place = self._parts[worker], (worker - 1 - step) % count
        if step < count - 1:
            self._progress.lost_shares.append(received.lost_share)
            parts[place] = parts[place] + values_of(received)
        else:
            parts[place] = values_of(received)
        self._awaited -= 1
        if step + 1 < self._tensors:
            self._send(worker, step + 1)
        if not self._awaited:
            self._network.loop.stop()

    def _apply(self) -> None:
        """Change each worker's model by its sums."""
        for worker, optimizer in enumerate(self._optimizers):
            sums = np.concatenate(self._parts[worker]) / np.float32(self._job.workers)
            layers = self._replicas.models[worker].layers
            ends = np.cumsum([len(layer) for layer in layers])[:-1]
            for layer, gradient in enumerate(np.split(sums, ends)):
                optimizer.step(layer, gradient)
