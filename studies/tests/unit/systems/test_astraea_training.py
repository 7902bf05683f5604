"""Training of Astraea's actor: the model of flows at a queue, and the gradient of the reward."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="nightly: needs PyTorch: packaging/setup all")

from moefabric_studies.systems.astraea import decisions, training  # noqa: E402 - after the check for PyTorch

pytestmark = pytest.mark.nightly


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> training.FluidLinks:
    monkeypatch.setattr(training, "LINKS", 6)
    monkeypatch.setattr(training, "SEGMENT", 30)
    torch.manual_seed(3)
    return training.FluidLinks.drawn()


def test_no_link_carries_more_than_its_capacity(links: training.FluidLinks) -> None:
    actor = training.network()
    for _ in range(40):
        throughput, lost, rtt = links.step(actor)
        assert bool((throughput.sum(1, keepdim=True) <= links.capacity * 1.001).all())
        assert bool((rtt <= (links.delay + links.buffer / links.capacity) * 1.001).all())
        assert bool((lost >= 0).all())


def test_windows_change_as_in_the_kernel() -> None:
    window, action = torch.tensor([200.0, 200.0, 10.0]), torch.tensor([1.0, -1.0, 0.3])
    expected = decisions.next_window(window.double().numpy(), action.double().numpy())
    assert training._next_window(window, action).tolist() == expected.tolist()


def test_gradient_of_the_reward_reaches_every_layer(links: training.FluidLinks) -> None:
    actor = training.network()
    torch.autograd.backward(training.penalty(links, actor))
    norms = [float(one.grad.norm()) for one in actor.parameters() if one.grad is not None]
    assert len(norms) == 8
    assert all(np.isfinite(norms))
    assert min(norms) > 0


def test_saved_weights_act_as_the_trained_network(tmp_path: Path) -> None:
    actor, path = training.network(), tmp_path / "w.npz"
    training.save(actor, path)
    states = np.random.default_rng(1).uniform(0, 2, (4, 50))
    with torch.no_grad():
        expected = torch.tanh(actor(torch.tensor(states).float()))[:, 0].tolist()
    assert decisions.Actor.load(path).act(states) == pytest.approx(expected, abs=2e-3)
