"""Contract of port counters: in memory, and of a running fabric."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pytest

from moefabric.agents.engine.wire import framed_size
from moefabric.core.circuits import CircuitSet
from moefabric.core.eps import Eps
from moefabric.core.flows import PacedFlow
from moefabric.core.port_counts import (
    INTO_OCS,
    OUT_OF_OCS,
    RECEIVED,
    SENT,
    Counts,
    counted_nics,
    counted_ports,
)
from moefabric.core.protocols import PortCounters
from moefabric.core.topology import Fabric
from moefabric.core.units import Scale
from moefabric.testbed.testbed import port_counters, running_testbed
from tests.support.fabrics import fabric
from tests.support.memory_testbed import MemoryPortCounters

LIT = "s0/o0~s1/o0"
SIZE = 3_000_001
BESIDES = 3 * 64
"""Frames of agents that follow a transfer or answer it."""


@dataclass
class Bench:
    """Counters of two servers on two leaves with a lit circuit, and a function to send.

    `send` lets s0 send to s1 by a path.
    """

    fabric: Fabric
    counters: PortCounters
    send: Callable[[str], object]

    def payload(self, path: str) -> dict[str, Counts]:
        """Return the payload of each port while s0 sends by a path."""
        before = self.counters.read()
        self.send(path)
        payload = self.counters.read().payload_since(before)
        return dict(zip(counted_ports(self.fabric), payload, strict=True))


def in_memory(wired: Fabric) -> Bench:
    counters = MemoryPortCounters(wired)

    def send(path: str) -> None:
        counters.count(PacedFlow("s0", "s1", path, SIZE, None), CircuitSet.of([LIT]))

    return Bench(wired, counters, send)


def emulated(wired: Fabric, undo: ExitStack) -> Bench:
    _, fleet, controllers = undo.enter_context(running_testbed(wired))
    controllers.clients["r0"].light([LIT])
    numbers = iter(range(1, 100))

    def send(path: str) -> None:
        (record,) = fleet.run(next(numbers), [PacedFlow("s0", "s1", path, SIZE, None)], None, 20.0)
        assert record.ok, record.why

    return Bench(wired, undo.enter_context(port_counters(wired)), send)


@pytest.fixture(
    scope="module", params=["memory", pytest.param("emulated", marks=pytest.mark.kernel)]
)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    wired = fabric(1, 1, regions=(2,), scale=Scale(1000), eps=Eps(servers_per_leaf=1, spines=1))
    [region] = wired.regions
    assert region.ocs is not None
    control = replace(region.ocs.control, light_check_ns=0)  # its frames would be counted, too
    unwatched = replace(region, ocs=replace(region.ocs, control=control))
    wired = replace(wired, regions=(unwatched,))
    with ExitStack() as undo:
        yield in_memory(wired) if request.param == "memory" else emulated(wired, undo)


def test_reading_has_a_row_for_each_nic_and_uplink(bench: Bench) -> None:
    reading, nics = bench.counters.read(), ("s0/o0", "s0/e0", "s1/o0", "s1/e0")
    assert tuple(map(str, counted_nics(bench.fabric))) == nics
    assert counted_ports(bench.fabric) == (*nics, "leaf0~spine0", "leaf1~spine0")
    assert reading.bytes.shape == reading.frames.shape == (6, 4)


def test_counters_of_idle_ports_stay(bench: Bench) -> None:
    before = bench.counters.read()
    assert not bench.counters.read().payload_since(before).any()


def test_light_is_counted_at_both_nics_and_both_ports_of_the_ocs(bench: Bench) -> None:
    payload = bench.payload("o0")
    for nic, columns in (("s0/o0", (SENT, INTO_OCS)), ("s1/o0", (RECEIVED, OUT_OF_OCS))):
        for column in columns:
            assert 0 <= payload[nic][column] - framed_size(SIZE) <= BESIDES
    for nic in ("s0/e0", "s1/e0"):
        assert np.abs(payload[nic]).max() <= BESIDES


def test_eps_is_counted_at_electrical_nics_only(bench: Bench) -> None:
    payload = bench.payload("e0")
    assert 0 <= payload["s0/e0"][SENT] - framed_size(SIZE) <= BESIDES
    assert 0 <= payload["s1/e0"][RECEIVED] - framed_size(SIZE) <= BESIDES
    assert np.abs(payload["s0/e0"][[INTO_OCS, OUT_OF_OCS]]).max() == 0
    for nic in ("s0/o0", "s1/o0"):
        assert np.abs(payload[nic]).max() <= BESIDES


def test_uplinks_are_counted_in_both_directions_at_their_leaves(bench: Bench) -> None:
    payload = bench.payload("e0")
    for uplink, column in (("leaf0~spine0", SENT), ("leaf1~spine0", RECEIVED)):
        assert 0 <= payload[uplink][column] - framed_size(SIZE) <= BESIDES
        payload[uplink][column] = 0
        assert np.abs(payload[uplink]).max() <= BESIDES


def test_opposite_direction_has_acknowledgements_without_payload(bench: Bench) -> None:
    assert bench.payload("o0")["s1/o0"][SENT] <= BESIDES


def test_earlier_readings_do_not_change(bench: Bench) -> None:
    before = bench.counters.read()
    octets = before.bytes.copy()
    bench.send("o0")
    assert np.array_equal(before.bytes, octets)
