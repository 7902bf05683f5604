"""Training whose gradients are real packets: without loss it is gradient descent."""

import numpy as np
import pytest
from moefabric_studies.systems.dlcp.model import Momentum, Perceptron
from moefabric_studies.systems.dlcp.parallel_training import train_with_ring, train_with_server
from moefabric_studies.systems.dlcp.training import Progress, Replicas, TrainingJob
from moefabric_studies.systems.dlcp.transports import CUBIC, TransportChoice, bounded_loss

JOB = TrainingJob((24, 64, 48, 10), 4, 16, 0.1, backward_s=0.004, forward_s=0.002)
ITERATIONS = 6


def descent(seed: int) -> list[float]:
    """Return the accuracies of gradient descent on the sum of all workers' gradients."""
    replicas, accuracies = Replicas(JOB, seed), []
    model = Perceptron(JOB.sizes)
    replicas.models = [model] * JOB.workers
    optimizer = Momentum(model, JOB.learning_rate)
    for _ in range(ITERATIONS):
        gradients = replicas.gradients()
        for layer in range(len(model.layers)):
            mean = np.stack([worker[layer] for worker in gradients]).mean(axis=0)
            optimizer.step(layer, mean)
        accuracies.append(replicas.accuracy(model))
    return accuracies


def train(kind: str, choice: TransportChoice) -> Progress:
    link = choice.port(100e6, 64_000, 200_000, 30_000)
    function = train_with_server if kind == "server" else train_with_ring
    return function(JOB, choice, link, ITERATIONS, seed=1)


@pytest.mark.parametrize("kind", ["server", "ring"])
@pytest.mark.parametrize("choice", [CUBIC, bounded_loss(0)], ids=["tcp", "datagrams"])
def test_training_without_loss_is_gradient_descent(kind: str, choice: TransportChoice) -> None:
    progress = train(kind, choice)
    assert progress.accuracies == pytest.approx(descent(1), abs=0.003)
    assert all(seconds > JOB.backward_s + JOB.forward_s for seconds in progress.iterations_s)
    assert not any(progress.lost_shares)


@pytest.mark.parametrize("kind", ["server", "ring"])
def test_losses_stay_within_the_bound_and_change_the_model(kind: str) -> None:
    progress = train(kind, bounded_loss(40))
    assert 0 < max(progress.lost_shares) <= 0.4
    assert progress.accuracies != descent(1)
