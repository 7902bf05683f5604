"""Training with a parameter server: workers push gradients of layers and pull parameters."""

import numpy as np

from moefabric.api.links import NOW, LinkBehaviour, link_between
from moefabric_studies.systems.dlcp.model import Momentum, Perceptron, Values
from moefabric_studies.systems.dlcp.testbed import Network, open_network
from moefabric_studies.systems.dlcp.training import (
    Progress,
    Replicas,
    TrainingJob,
    layer_tensor,
    pull_percent,
    values_of,
    with_previous,
)
from moefabric_studies.systems.dlcp.transports import TransportChoice
from moefabric_studies.tensors.channel import Tensor, TensorChannel
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
        training = _ServerTraining(network, job, choice, seed)
        for iteration in range(iterations):
            training.iterate(iteration)
        training.progress.lateness = hosts.counters().lateness
        return training.progress


class _ServerTraining:
    """Workers, their channels to the parameter server, and the server's model."""

    def __init__(
        self, network: Network, job: TrainingJob, choice: TransportChoice, seed: int
    ) -> None:
        self._network, self._job, self._choice = network, job, choice
        self._replicas = Replicas(job, seed)
        self._model = Perceptron(job.sizes)
        self._layers = len(self._model.layers)
        self._optimizer = Momentum(self._model, job.learning_rate)
        self.progress = Progress()
        self._pushes: list[TensorChannel] = []
        self._pulls: list[TensorChannel] = []
        workers, server = network.hosts.hosts
        for worker in range(job.workers):
            push, pull = network.connect(
                workers,
                server,
                lambda received, worker=worker: self._on_parameters(worker, received),  # type: ignore[misc]
                self._on_gradient,
            )
            self._pushes.append(push)
            self._pulls.append(pull)

    def iterate(self, iteration: int) -> None:
        """Run one iteration and record its time and the model's accuracy."""
        self._first_number = iteration * self._layers + 1
        self._sums = [np.zeros_like(layer) for layer in self._model.layers]
        self._awaited_gradients = [self._job.workers] * self._layers
        self._awaited_parameters = self._job.workers * self._layers
        self._arrivals_s = np.zeros((self._job.workers, self._layers))
        gradients = self._replicas.gradients()
        ends_s = self._job.backward_ends_s(self._model)
        self._began_ns = NOW()
        for layer in reversed(range(self._layers)):
            at_ns = self._began_ns + int(ends_s[layer] * 1e9)
            self._network.loop.call_at(
                at_ns,
                lambda layer=layer: self._push(layer, [g[layer] for g in gradients]),  # type: ignore[misc]
            )
        self._network.run()
        ends = [self._job.forward_end_s(self._model, row.tolist()) for row in self._arrivals_s]
        self.progress.iterations_s.append(max(ends))
        self.progress.accuracies.append(self._replicas.accuracy(self._model))

    def _push(self, layer: int, gradients: list[Values]) -> None:
        for channel, gradient in zip(self._pushes, gradients, strict=True):
            channel.send(self._tensor(layer, gradient, gradient, self._choice.loss_percent))

    def _tensor(self, layer: int, values: Values, changes: Values, percent: int) -> Tensor:
        number = self._first_number + layer
        return layer_tensor(number, layer, self._layers, values, changes, percent)

    def _on_gradient(self, received: Received) -> None:
        layer = received.tensor - self._first_number
        self.progress.lost_shares.append(received.lost_share)
        self._sums[layer] += values_of(received)
        self._awaited_gradients[layer] -= 1
        if not self._awaited_gradients[layer]:
            change = self._optimizer.step(layer, self._sums[layer] / np.float32(self._job.workers))
            tensor = self._tensor(
                layer, self._model.layers[layer], change, pull_percent(self._choice)
            )
            for channel in self._pulls:
                channel.send(tensor)

    def _on_parameters(self, worker: int, received: Received) -> None:
        layer = received.tensor - self._first_number
        model = self._replicas.models[worker]
        model.layers[layer] = with_previous(received, model.layers[layer])
        self._arrivals_s[worker, layer] = (NOW() - self._began_ns) / 1e9
        self._awaited_parameters -= 1
        if not self._awaited_parameters:
            self._network.loop.stop()
