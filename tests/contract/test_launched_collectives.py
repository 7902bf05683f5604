"""Contract of launched collectives, for agents in memory and agent processes."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

import pytest

from moefabric.agents.fleet.connections import DataPath
from moefabric.agents.fleet.fleet import Fleet
from moefabric.core.circuits import CircuitSet
from moefabric.core.flows import FlowRecord, PacedFlow
from moefabric.core.protocols import Agents
from tests.support.agents_lab import agent
from tests.support.fabrics import fabric
from tests.support.memory_testbed import MemoryAgents, VirtualClock

MS = 1_000_000
LONG = 5.0


@dataclass(frozen=True)
class Bench:
    """Agents of s0 and s1, their clock, a long and a short flow, and a delayed wake-up."""

    agents: Agents
    now_ns: Callable[[], int]
    slow: PacedFlow
    quick: PacedFlow
    wake_soon: Callable[[], object]

    def wait(self, numbers: set[int]) -> dict[int, Sequence[FlowRecord]]:
        """Return the records of collectives in the order of their end."""
        records: dict[int, Sequence[FlowRecord]] = {}
        until = self.now_ns() + round(LONG * 1e9)
        while numbers - records.keys() and self.now_ns() < until:
            records |= self.agents.wait_ended(until)
        return records


@contextmanager
def in_memory(_folder: Path) -> Iterator[Bench]:
    clock = VirtualClock()
    agents = MemoryAgents(fabric(0, 1, regions=(2,)), CircuitSet, clock)

    def wake_soon() -> None:
        clock.at(clock.now_ns() + 50 * MS, agents.wake)

    yield Bench(
        agents,
        clock.now_ns,
        PacedFlow("s0", "s1", "e0", 5_000_000_000, None),
        PacedFlow("s1", "s0", "e0", 50_000_000, None),
        wake_soon,
    )


@contextmanager
def processes(folder: Path) -> Iterator[Bench]:
    with ExitStack() as undo:
        channels = [undo.enter_context(agent(name, folder))[0] for name in ("s0", "s1")]
        fleet = undo.enter_context(Fleet(channels))
        fleet.connect(
            [DataPath("s0", "s1", "e0", "127.0.0.1"), DataPath("s1", "s0", "e0", "127.0.0.1")]
        )

        def wake_soon() -> None:
            ringing = Timer(0.05, fleet.wake)
            ringing.start()
            undo.callback(ringing.join)

        yield Bench(
            fleet,
            time.monotonic_ns,
            # Linux doesn't pace a connection's first ten segments of 64 KB: this is six times that.
            PacedFlow("s0", "s1", "e0", 4_000_000, 80e6),
            PacedFlow("s1", "s0", "e0", 40_000, None),
            wake_soon,
        )


@pytest.fixture(params=[in_memory, processes], ids=["in-memory", "processes"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with request.param(tmp_path) as new_bench:
        yield new_bench


def test_collectives_are_returned_once_in_order_of_their_end(bench: Bench) -> None:
    slow = bench.agents.launch([bench.slow], None, LONG)
    quick = bench.agents.launch([bench.quick], None, LONG)
    records = bench.wait({slow, quick})
    assert list(records) == [quick, slow]
    assert [record.why for records in records.values() for record in records] == ["", ""]
    assert bench.agents.wait_ended(bench.now_ns() + 20 * MS) == {}


def test_records_follow_the_order_of_flows(bench: Bench) -> None:
    number = bench.agents.launch([bench.slow, bench.quick], None, LONG)
    records = bench.wait({number})[number]
    assert [(record.src, record.dst, record.bytes) for record in records] == [
        (flow.src, flow.dst, flow.bytes) for flow in (bench.slow, bench.quick)
    ]


def test_instant_ends_the_wait_but_no_collective(bench: Bench) -> None:
    number = bench.agents.launch([bench.slow], None, LONG)
    until = bench.now_ns() + 50 * MS
    assert bench.agents.wait_ended(until) == {}
    assert until <= bench.now_ns() < until + 250 * MS
    assert list(bench.wait({number})) == [number]


def test_launch_starts_at_the_instant_or_at_once(bench: Bench) -> None:
    now = bench.now_ns()
    later = bench.agents.launch([bench.quick], now + 300 * MS, LONG)
    at_once = bench.agents.launch([bench.slow], None, LONG)
    records = bench.wait({later, at_once})
    assert now + 300 * MS <= records[later][0].first_sent_ns < now + 1000 * MS
    assert now <= records[at_once][0].first_sent_ns < now + 300 * MS


def test_wake_ends_the_wait(bench: Bench) -> None:
    began = bench.now_ns()
    bench.wake_soon()
    assert bench.agents.wait_ended(began + 4000 * MS) == {}
    assert bench.now_ns() - began < 2000 * MS


def test_collective_numbers_are_unique(bench: Bench) -> None:
    numbers = [bench.agents.launch([bench.quick], None, LONG) for _ in range(20)]
    assert len(set(numbers)) == 20
    assert set(bench.wait(set(numbers))) == set(numbers)
