"""Training with a ring all-reduce: each worker sends to the next one only, without incast."""

import numpy as np

from moefabric.api.links import NOW, LinkBehaviour, star
from moefabric_studies.systems.dlcp.model import Momentum, Values
from moefabric_studies.systems.dlcp.testbed import Network, ignore, open_network
from moefabric_studies.systems.dlcp.training import Progress, Replicas, TrainingJob, values_of
from moefabric_studies.systems.dlcp.transports import TransportChoice
from moefabric_studies.tensors.channel import Tensor, TensorChannel
from moefabric_studies.tensors.packets import by_magnitude
from moefabric_studies.tensors.receiver import Received


def train_with_ring(
    job: TrainingJob, choice: TransportChoice, link: LinkBehaviour, iterations: int, seed: int = 1
) -> Progress:
    """Train on workers that add up their gradients around a ring.

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
        training = _RingTraining(network, job, choice, seed)
        for _ in range(iterations):
            training.iterate()
        training.progress.lateness = hosts.counters().lateness
        return training.progress


class _RingTraining:
    """Workers with a channel to the next one, and the parts that they have added up."""

    def __init__(
        self, network: Network, job: TrainingJob, choice: TransportChoice, seed: int
    ) -> None:
        self._network, self._job, self._choice = network, job, choice
        self._replicas = Replicas(job, seed)
        self._optimizers = [Momentum(m, job.learning_rate) for m in self._replicas.models]
        self.progress = Progress()
        self._sent = 0
        hosts, count = network.hosts.hosts, job.workers
        self._steps = 2 * (count - 1)
        self._channels: list[TensorChannel] = []
        for worker in range(count):
            next_worker = (worker + 1) % count
            channel, _ = network.connect(
                hosts[worker],
                hosts[next_worker],
                ignore,
                lambda received, to=next_worker: self._on_part(to, received),  # type: ignore[misc]
            )
            self._channels.append(channel)

    def iterate(self) -> None:
        """Run one iteration and record its time and the model's accuracy."""
        count = self._job.workers
        gradients = [np.concatenate(layers) for layers in self._replicas.gradients()]
        self._parts: list[list[Values]] = [np.array_split(g, count) for g in gradients]
        self._awaited = count * self._steps
        began_ns = NOW()
        for worker in range(count):
            self._send(worker, 0)
        self._network.run()
        compute_s = self._job.backward_s + self._job.forward_s
        self.progress.iterations_s.append((NOW() - began_ns) / 1e9 + compute_s)
        self._sent += self._steps
        self._apply()
        self.progress.accuracies.append(self._replicas.accuracy(self._replicas.models[0]))

    def _send(self, worker: int, step: int) -> None:
        """Send the part of a step: first sums that grow, then whole sums."""
        part = self._parts[worker][(worker - step) % self._job.workers]
        loss = self._choice.loss_percent if step < self._job.workers - 1 else 0
        order = by_magnitude(part)
        tensor = Tensor(
            self._sent + step + 1,
            part.tobytes(),
            loss,
            0,
            order,
            frozenset(order[: len(order) // 2]),
        )
        self._channels[worker].send(tensor)

    def _on_part(self, worker: int, received: Received) -> None:
        step, count = received.tensor - self._sent - 1, self._job.workers
        parts, place = self._parts[worker], (worker - 1 - step) % count
        if step < count - 1:
            self.progress.lost_shares.append(received.lost_share)
            parts[place] = parts[place] + values_of(received)
        else:
            parts[place] = values_of(received)
        self._awaited -= 1
        if step + 1 < self._steps:
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
