"""Rounds of incast: all workers send a tensor to one parameter server at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from moefabric.api.links import NOW, Lateness, LinkBehaviour, link_between
from moefabric_studies.systems.dlcp.testbed import Network, ignore, open_network
from moefabric_studies.systems.dlcp.transports import TransportChoice
from moefabric_studies.tensors.channel import Tensor
from moefabric_studies.tensors.receiver import Received


@dataclass
class IncastTimes:
    """Times of rounds.

    Attributes:
        flows_s: Times from the start of a round until a tensor is complete, of all rounds.
        rounds_s: Times until all tensors of a round are complete.
        lost_shares: Share of each tensor that was missing.
        bytes: Bytes that reached the server's NIC, with all headers, in all rounds.
        lateness: Lateness of the link.
    """

    flows_s: list[float] = field(default_factory=list)
    rounds_s: list[float] = field(default_factory=list)
    lost_shares: list[float] = field(default_factory=list)
    bytes: int = 0
    lateness: Lateness = field(default_factory=Lateness)

    @property
    def tail_s(self) -> float:
        """99th percentile of the flows' times."""
        return float(np.percentile(self.flows_s, 99))

    @property
    def round_tail_s(self) -> float:
        """99th percentile of the rounds' times."""
        return float(np.percentile(self.rounds_s, 99))

    @property
    def mean_s(self) -> float:
        """Mean of the flows' times."""
        return float(np.mean(self.flows_s))


def pooled(repeats: Sequence[IncastTimes]) -> IncastTimes:
    """Return the times of all repeats as one, with the worst lateness."""
    return IncastTimes(
        [*chain.from_iterable(one.flows_s for one in repeats)],
        [*chain.from_iterable(one.rounds_s for one in repeats)],
        [*chain.from_iterable(one.lost_shares for one in repeats)],
        sum(one.bytes for one in repeats),
        max((one.lateness for one in repeats), key=lambda lateness: lateness.p99_ns),
    )


def incast_times(
    choice: TransportChoice,
    link: LinkBehaviour,
    gradients: Sequence[bytes],
    rounds: int,
    seed: int = 0,
) -> IncastTimes:
    """Send gradients to one parameter server, round after round.

    Args:
        link: Both directions of the server's link.
        gradients: The tensor of each worker.
        rounds: Number of rounds; a round begins when all tensors of the last one are complete.
        seed: Seed of port numbers.

    Raises:
        FabricError: A tensor isn't complete in time.
    """
    with link_between(link) as hosts, open_network(hosts, choice, seed) as network:
        incast = _Incast(network, choice, gradients)
        incast.run_round()  # opens TCP's windows, and fills caches
        incast.times = IncastTimes()
        hosts.reset()
        for _ in range(rounds):
            incast.run_round()
        counters = hosts.counters()
    server = counters.ports[hosts.hosts[1].port]
    return replace(incast.times, bytes=server.bytes, lateness=counters.lateness)


class _Incast:
    """Channels from workers to the server, and the times that they need."""

    def __init__(
        self, network: Network, choice: TransportChoice, gradients: Sequence[bytes]
    ) -> None:
        self._network, self._loss, self._gradients = network, choice.loss_percent, gradients
        self._number = self._awaited = self._began_ns = 0
        self.times = IncastTimes()
        workers, server = network.hosts.hosts
        self._channels = [
            network.connect(workers, server, ignore, self._on_gradient)[0] for _ in gradients
        ]

    def run_round(self) -> None:
        """Let every worker send its gradient, and wait for all."""
        self._number += 1
        self._awaited = len(self._channels)
        self._began_ns = NOW()
        for channel, gradient in zip(self._channels, self._gradients, strict=True):
            channel.send(Tensor(self._number, gradient, self._loss))
        self._network.run()
        self.times.rounds_s.append((NOW() - self._began_ns) / 1e9)

    def _on_gradient(self, gradient: Received) -> None:
        self.times.flows_s.append((NOW() - self._began_ns) / 1e9)
        self.times.lost_shares.append(gradient.lost_share)
        self._awaited -= 1
        if not self._awaited:
            self._network.loop.stop()
