"""Train an actor of our own: `python -m MODULE OUT.npz [MINUTES]`.

The authors train with TD3 on emulated links. Here a fluid model of flows at one queue is
differentiable, so that the gradient of the published reward reaches the actor through the model
(back-propagation through time, three seconds at once). Capacity, delay, buffer, number of flows and
their starts are drawn as in the authors' environment.
"""

import logging
import sys
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from moefabric_studies.systems.astraea import decisions

log = logging.getLogger(__name__)

PACKET: Final = 1500.0
LINKS, FLOWS = 48, 5
SEGMENT: Final = 150
"""Intervals through which a gradient goes back."""
SEGMENTS: Final = 6
"""Segments of an episode."""
MEGABIT: Final = 1e6 / 8 / PACKET
"""Packets a second."""
TOLERATED_DELAY: Final = 0.5
"""Queueing delay without penalty, in base round-trip times; beta isn't published."""


@dataclass
class FluidLinks:
    """Flows that share links, one drop-tail queue each; state of an episode.

    Arrays have a row for each link and a column for each flow, or one column.

    Attributes:
        capacity: Packets a second.
        delay: Base round-trip time in s.
        buffer: Packets.
        starts: Instants at which flows begin in s.
        window: Packets.
        served: The windows of one round-trip time ago, which the queue sees.
        noise: Factor by which a flow's highest throughput is overestimated.
    """

    capacity: Tensor
    delay: Tensor
    buffer: Tensor
    starts: Tensor
    window: Tensor
    served: Tensor
    noise: Tensor
    smoothed: Tensor
    least: Tensor
    most: Tensor
    time_s: float = 0.0
    history: deque[Tensor] = field(default_factory=lambda: deque(maxlen=decisions.HISTORY))

    @classmethod
    def drawn(cls) -> "FluidLinks":
        """Return links of 40-160 Mb/s, 10-140 ms and 0.1-16 BDP with two to five flows."""
        capacity = (40 + 120 * torch.rand(LINKS, 1)) * MEGABIT
        delay = 0.010 * 14 ** torch.rand(LINKS, 1)
        depth = 0.1 * 160 ** torch.rand(LINKS, 1)
        number = torch.randint(2, FLOWS + 1, (LINKS, 1))
        starts = 12 * torch.rand(LINKS, FLOWS) * torch.rand(LINKS, 1)
        starts[:, 0] = 0.0
        starts = torch.where(torch.arange(FLOWS) < number, starts, torch.inf)
        window = torch.full((LINKS, FLOWS), 10.0)
        # Half of the links start with windows that are anything but fair.
        unfair = capacity * delay * 1.5 * torch.rand(LINKS, FLOWS) + decisions.LEAST_WINDOW
        window = torch.where(torch.rand(LINKS, 1) < 0.5, unfair, window)
        rtt = delay.expand(LINKS, FLOWS).clone()
        return cls(
            capacity,
            delay,
            capacity * delay * depth,
            starts,
            window,
            window.clone(),
            0.95 + 0.45 * torch.rand(LINKS, FLOWS),
            rtt,
            torch.full((LINKS, FLOWS), torch.inf),
            # Half of the links have seen better times.
            capacity * torch.rand(LINKS, FLOWS) * (torch.rand(LINKS, 1) < 0.5) + 1e-6,
        )

    def disturb(self) -> None:
        """Change a third of the windows, as a stall of a sender or its receiver does."""
        factor = torch.where(torch.rand_like(self.window) < 0.3, 0.4, 1.0)
        self.window = (self.window * factor).clamp(min=decisions.LEAST_WINDOW)

    def detached(self) -> None:
        """Forget how the state arose, so that gradients end here."""
        for name in ("window", "served", "smoothed", "least", "most"):
            setattr(self, name, getattr(self, name).detach())
        self.history = deque((one.detach() for one in self.history), maxlen=decisions.HISTORY)

    def step(self, actor: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
        """Let one interval pass and all flows act.

        Returns:
            Throughput and loss of each flow in packets a second, and the round-trip time in s.
        """
        active = (self.starts <= self.time_s).float()
        served = self.served * active
        total = served.sum(1, keepdim=True)
        product = self.capacity * self.delay
        queue = torch.minimum((total - product).clamp(min=0), self.buffer)
        rtt = self.delay + queue / self.capacity
        sent = served / rtt
        throughput = served / torch.maximum(rtt, total / self.capacity)
        throughput = throughput.clamp(min=1e-3)
        lost = (sent - throughput).clamp(min=0)
        # Acknowledgements in bursts make samples of the rate too small more often than too large.
        error = 0.05 * torch.randn_like(served) - 0.5 * torch.rand_like(served) ** 3
        measured = throughput * (1 + error).clamp(0.4, 1.3)
        own_rtt = rtt.expand_as(served) * (1 + 0.03 * torch.rand_like(served))
        begun = active > 0
        self.least = torch.where(begun, torch.minimum(self.least, own_rtt), self.least)
        self.most = torch.where(begun, torch.maximum(self.most, throughput), self.most)
        pace = (2 * decisions.INTERVAL_S / rtt).clamp(max=1)
        self.smoothed = torch.where(
            begun, self.smoothed + pace * (own_rtt - self.smoothed), own_rtt
        )
        least = torch.where(begun, self.least, own_rtt)
        most = self.most * self.noise * PACKET
        state = decisions.Measurements(
            measured * PACKET,
            most,
            own_rtt,
            self.smoothed,
            least,
            self.window,
            PACKET,
            lost * PACKET,
            torch.minimum(self.window, served + 1),
            PACKET * self.window / self.smoothed,
            lost * rtt,
        )
        self.history.append(torch.stack(state.features(), dim=-1))
        while len(self.history) < decisions.HISTORY:
            self.history.append(self.history[-1])
        action = torch.tanh(actor(torch.cat(list(self.history), dim=-1)))[..., 0]
        self.window = torch.where(begun, _next_window(self.window, action), self.window)
        lag = (decisions.INTERVAL_S / rtt).clamp(max=1)
        self.served = self.served + lag * (self.window - self.served)
        self.time_s += decisions.INTERVAL_S
        return throughput * active, lost * active, rtt


def _next_window(window: Tensor, action: Tensor) -> Tensor:
    """Return windows in whole packets as `decisions.next_window`, with gradients of real ones."""
    grown, shrunk = window * (1 + decisions.STEP * action), window / (1 - decisions.STEP * action)
    real = torch.where(action >= 0, grown, shrunk).clamp(min=decisions.LEAST_WINDOW)
    whole = torch.where(action >= 0, grown.ceil(), shrunk.floor()).clamp(min=decisions.LEAST_WINDOW)
    return real + (whole - real).detach()


def penalty(links: FluidLinks, actor: nn.Module) -> Tensor:
    """Return minus the mean reward of a segment (arXiv 2403.01798, with the published weights).

    Throughput, delay, loss and unfairness weigh 0.1, 0.02, 1 and 0.02; deviation weighs 0.01.
    """
    rows = [links.step(actor) for _ in range(SEGMENT)]
    throughput, lost = (torch.stack([row[i] for row in rows]) for i in (0, 1))
    rtt = torch.stack([row[2] for row in rows])
    active = (throughput > 0).float()
    flows = active.sum(2).clamp(min=1)
    used = throughput.sum(2) / links.capacity[:, 0]
    delay = (rtt / links.delay - 1 - TOLERATED_DELAY).clamp(min=0)[..., 0]
    loss = (lost / (throughput + 1e-3)).sum(2) / flows
    mean = throughput.sum(2, keepdim=True) / flows[..., None]
    variance = ((throughput - mean) ** 2 * active).sum(2) / flows
    unfair = (variance + 1e-3).sqrt() / throughput.sum(2).clamp(min=1)
    changes = ((throughput[10:] - throughput[:-10]).abs() * active[:-10]).sum(2) / (
        throughput[10:].sum(2).clamp(min=1)
    )
    reward = (0.1 * used - 0.02 * delay - loss / (1 + 3 * loss) - 0.02 * FLOWS * unfair).mean()
    return -(reward - 0.01 * changes.mean())


def network() -> nn.Sequential:
    """Return an actor without its last tanh, whose first actions are near 0."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(decisions.WIDTHS):
        layers += [nn.Linear(inputs, outputs), nn.LeakyReLU(decisions.LEAK)]
    return nn.Sequential(*layers[:-1])


def save(actor: nn.Module, path: Path) -> None:
    """Write the arrays that `Actor.load` reads, in half precision."""
    linear = [layer for layer in actor.modules() if isinstance(layer, nn.Linear)]
    arrays = {}
    for i, layer in enumerate(linear):
        arrays[f"w{i}"] = layer.weight.detach().numpy().T.astype(np.float16)
        arrays[f"b{i}"] = layer.bias.detach().numpy().astype(np.float16)
    np.savez_compressed(path, allow_pickle=False, **arrays)


def load(actor: nn.Module, path: Path) -> None:
    """Read weights that `save` wrote."""
    linear = [layer for layer in actor.modules() if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for layer, (weights, biases) in zip(linear, decisions.Actor.load(path).layers, strict=True):
            layer.weight.copy_(torch.tensor(weights.T))
            layer.bias.copy_(torch.tensor(biases))


def train(path: Path, minutes: float) -> None:
    """Train for a time and write the weights after each episode; go on from those in the file."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    actor = network()
    if path.exists():
        load(actor, path)
    optimiser = torch.optim.Adam(actor.parameters(), lr=1e-3)
    began, episode = monotonic(), 0
    while (spent := (monotonic() - began) / 60 / minutes) < 1:
        links, losses = FluidLinks.drawn(), []
        for _ in range(SEGMENTS):
            for group in optimiser.param_groups:
                group["lr"] = 1e-3 * (1 - 0.95 * min(1.0, spent))
            optimiser.zero_grad()
            loss = penalty(links, actor)
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
            optimiser.step()
            links.detached()
            links.disturb()
            losses.append(float(loss.detach()))
        episode += 1
        save(actor, path)
        log.info("episode %d: reward %.4f", episode, -np.mean(losses))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    train(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 20.0)
