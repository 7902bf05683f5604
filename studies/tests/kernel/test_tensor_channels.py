"""Tensors over real sockets and a programmable link: bounds, priorities, marks, and TCP."""

from dataclasses import replace

import numpy as np
import pytest
from moefabric_studies.systems.dlcp.testbed import open_network
from moefabric_studies.systems.dlcp.transports import (
    CUBIC,
    PRIORITY_TCP,
    SHORT_TIMEOUT,
    TransportChoice,
    bounded_loss,
)
from moefabric_studies.tensors.channel import Tensor
from moefabric_studies.tensors.receiver import Received

from moefabric.core.link import LinkBehaviour
from moefabric.emulator.link.hosts import link_between
from moefabric.emulator.link.messages import PortCounts

LINK = LinkBehaviour(50e6, 500_000, queue_bytes=64_000)
SIZE = 100_000
VALUES = np.random.default_rng(1).standard_normal(SIZE // 4).astype(np.float32).tobytes()


def transmit(
    choice: TransportChoice, link: LinkBehaviour, tensors: list[Tensor]
) -> tuple[list[Received], PortCounts]:
    """Send tensors from one host to the other.

    Returns:
        The tensors in the order in which they were complete, and the counts of the link.
    """
    received: list[Received] = []

    def on_tensor(tensor: Received) -> None:
        received.append(tensor)
        if len(received) == len(tensors):
            network.loop.stop()

    with link_between(link) as hosts, open_network(hosts, choice) as network:
        first, _ = network.connect(hosts.hosts[0], hosts.hosts[1], lambda _: None, on_tensor)
        for tensor in tensors:
            first.send(tensor)
        network.run(20)
        return received, hosts.counters().ports["p1"]


@pytest.mark.parametrize("choice", [CUBIC, PRIORITY_TCP, SHORT_TIMEOUT, bounded_loss(0)])
def test_tensors_arrive_whole_over_a_link_with_losses(choice: TransportChoice) -> None:
    tensors = [Tensor(1, VALUES), Tensor(2, VALUES[::-1], priority=1)]
    received, _ = transmit(choice, replace(LINK, loss=0.02), tensors)
    assert {one.tensor: bytes(one.values) for one in received} == {1: VALUES, 2: VALUES[::-1]}


def test_no_more_is_lost_than_the_bound_and_all_other_values_are_right() -> None:
    [received], counts = transmit(
        bounded_loss(10), replace(LINK, loss=0.3), [Tensor(1, VALUES, 10)]
    )
    assert 0 < received.lost_share <= 0.1
    wanted = bytearray(VALUES)
    for offset, size in received.missing:
        wanted[offset : offset + size] = bytes(size)
    assert received.values == wanted
    assert sum(counts.lost.values()) > 5
    assert counts.bytes > 0.9 * SIZE


@pytest.mark.parametrize("prioritized", [True, False])
def test_front_layer_overtakes_the_others_in_the_switch(prioritized: bool) -> None:
    """Layers are sent back layer first; the queue holds all of them."""
    choice = bounded_loss(0, ideas=2 if prioritized else 1)
    link = choice.port(1e6, 1_000_000, 500_000, 1_000_000)
    tensors = [Tensor(1, VALUES[:7_000], priority=3), Tensor(2, VALUES[:7_000], priority=0)]
    received, _ = transmit(choice, link, tensors)
    assert [one.tensor for one in received] == ([2, 1] if prioritized else [1, 2])


def test_important_packets_are_marked_and_others_dropped_early() -> None:
    choice = bounded_loss(50)
    link = choice.port(10e6, 1_000_000, 500_000, 3_000)
    chunks = frozenset(range(0, 72, 2))
    [received], counts = transmit(choice, link, [Tensor(1, VALUES, 50, important=chunks)])
    assert counts.marked > 0
    assert sum(counts.early.values()) > 0
    assert not counts.full
    missing = {offset // 1400 for offset, _ in received.missing}
    assert len(missing - chunks) > len(missing & chunks)
