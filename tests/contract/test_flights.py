"""Agents whose transfers go on beside each other, as the experiment relies on them: those in memory, and processes on this machine alike."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

import pytest

from agents.fleet import Fleet, Way
from moefabric.circuits import CircuitSet
from moefabric.experiment.apart import Agents
from moefabric.experiment.memory import MemoryAgents, VirtualClock
from moefabric.experiment.sending import PacedFlow
from moefabric.records import FlowRecord
from tests.agents_lab import agent
from tests.fabrics import fabric

MS = 1_000_000
LONG = 5.0


@dataclass(frozen=True)
class Bench:
    """Agents of s0 and s1, their clock, a flow of some 400 ms and one of a few, and what lets somebody else wake them soon."""

    agents: Agents
    now_ns: Callable[[], int]
    slow: PacedFlow
    quick: PacedFlow
    wake_soon: Callable[[], object]

    def wait(self, numbers: set[int]) -> dict[int, Sequence[FlowRecord]]:
        """The records of all of these, in the order in which they were told."""
        told: dict[int, Sequence[FlowRecord]] = {}
        until = self.now_ns() + round(LONG * 1e9)
        while numbers - told.keys() and self.now_ns() < until:
            told |= self.agents.ended(until)
        return told


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
        fleet.wire([Way("s0", "s1", "e0", "127.0.0.1"), Way("s1", "s0", "e0", "127.0.0.1")])

        def wake_soon() -> None:
            ringing = Timer(0.05, fleet.wake)
            ringing.start()
            undo.callback(ringing.join)

        yield Bench(
            fleet,
            time.monotonic_ns,
            # Linux doesn't pace the first ten segments of a connection, which are of 64 KB here: this is six times as much.
            PacedFlow("s0", "s1", "e0", 4_000_000, 80e6),
            PacedFlow("s1", "s0", "e0", 40_000, None),
            wake_soon,
        )


@pytest.fixture(params=[in_memory, processes], ids=["in-memory", "processes"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with request.param(tmp_path) as made:
        yield made


def test_what_ends_first_is_told_first_and_each_once(bench: Bench) -> None:
    slow = bench.agents.launch([bench.slow], None, LONG)
    quick = bench.agents.launch([bench.quick], None, LONG)
    told = bench.wait({slow, quick})
    assert list(told) == [quick, slow]
    assert [record.why for records in told.values() for record in records] == ["", ""]
    assert bench.agents.ended(bench.now_ns() + 20 * MS) == {}


def test_records_are_in_the_order_of_the_flows(bench: Bench) -> None:
    number = bench.agents.launch([bench.slow, bench.quick], None, LONG)
    told = bench.wait({number})[number]
    assert [(record.src, record.dst, record.bytes) for record in told] == [
        (flow.src, flow.dst, flow.bytes) for flow in (bench.slow, bench.quick)
    ]


def test_an_instant_ends_the_wait_and_leaves_what_flies(bench: Bench) -> None:
    number = bench.agents.launch([bench.slow], None, LONG)
    until = bench.now_ns() + 50 * MS
    assert bench.agents.ended(until) == {}
    assert until <= bench.now_ns() < until + 250 * MS
    assert list(bench.wait({number})) == [number]


def test_nothing_starts_before_its_instant_and_without_one_it_starts_at_once(bench: Bench) -> None:
    now = bench.now_ns()
    later = bench.agents.launch([bench.quick], now + 300 * MS, LONG)
    at_once = bench.agents.launch([bench.slow], None, LONG)
    told = bench.wait({later, at_once})
    assert now + 300 * MS <= told[later][0].first_sent_ns < now + 1000 * MS
    assert now <= told[at_once][0].first_sent_ns < now + 300 * MS


def test_somebody_else_ends_the_wait(bench: Bench) -> None:
    began = bench.now_ns()
    bench.wake_soon()
    assert bench.agents.ended(began + 4000 * MS) == {}
    assert bench.now_ns() - began < 2000 * MS


def test_numbers_are_used_once(bench: Bench) -> None:
    numbers = [bench.agents.launch([bench.quick], None, LONG) for _ in range(20)]
    assert len(set(numbers)) == 20
    assert set(bench.wait(set(numbers))) == set(numbers)
