"""A fleet of processes whose transfers go on beside each other: what none in memory does (see tests/contract/test_flights.py)."""

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from agents.fleet import Fleet, Way
from moefabric.errors import AgentError
from moefabric.records import FlowRecord
from tests.agents_lab import Paced, agent

MS = 1_000_000
LONG = 5.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Agents a and b on this machine, joined by one path each way."""
    with standing(tmp_path_factory.mktemp("agents")) as made:
        yield made[0]


@contextmanager
def standing(folder: Path) -> "Iterator[tuple[Fleet, dict[str, subprocess.Popen[bytes]]]]":
    """The fleet and its agents' processes."""
    with ExitStack() as undo:
        made = {name: undo.enter_context(agent(name, folder)) for name in ("a", "b")}
        fleet = undo.enter_context(Fleet([channel for channel, _ in made.values()]))
        fleet.wire([Way("a", "b", "o0", "127.0.0.1"), Way("b", "a", "o0", "127.0.0.1")])
        yield fleet, {name: process for name, (_, process) in made.items()}


def later_ns(ms: float) -> int:
    return time.monotonic_ns() + round(ms * MS)


def all_of(fleet: Fleet, numbers: set[int]) -> dict[int, list[str]]:
    """Why each did not arrive, in the order in which they were told."""
    told: dict[int, list[str]] = {}
    until = later_ns(1000 * LONG)
    while numbers - told.keys() and time.monotonic_ns() < until:
        told |= {n: [record.why for record in records] for n, records in fleet.ended(until).items()}
    return told


def test_another_thread_ends_the_wait(fleet: Fleet) -> None:
    began = time.monotonic()
    ringing = threading.Timer(0.05, fleet.wake)
    ringing.start()
    assert fleet.ended(later_ns(5000)) == {}
    ringing.join()
    assert time.monotonic() - began < 2
    assert fleet.ended(later_ns(20)) == {}, "one ring ends one wait"


def test_two_on_one_connection_leave_one_after_the_other_and_arrive_whole(fleet: Fleet) -> None:
    first = fleet.launch([Paced("a", "b", 300_000, 24e6)], None, LONG)
    second = fleet.launch([Paced("a", "b", 300_000, 24e6)], None, LONG)
    seen: dict[int, list[FlowRecord]] = {}
    while len(seen) < 2:
        seen |= fleet.ended(later_ns(3000))
    [[one], [two]] = seen[first], seen[second]
    assert one.ok
    assert two.ok
    assert two.first_sent_ns >= one.last_sent_ns


def test_a_server_may_send_before_its_peer_has_heard_of_it_whatever_went_before(fleet: Fleet) -> None:
    """Each number is used once: after many collectives, none is taken for the end of an older one."""
    fleet.run(1, [Paced("a", "b", 10)], None, LONG)
    numbers = {fleet.launch([Paced("a", "b", 10), Paced("b", "a", 10)], None, LONG) for _ in range(50)}
    assert all_of(fleet, numbers) == {number: ["", ""] for number in numbers}


def test_what_has_no_connection_is_told_and_the_others_go_on(fleet: Fleet) -> None:
    lost = fleet.launch([Paced("a", "b", 10, path="o7")], None, 0.2)
    well = fleet.launch([Paced("b", "a", 10)], None, LONG)
    told = all_of(fleet, {lost, well})
    assert told[well] == [""]
    assert "o7" in told[lost][0]


def test_an_agent_that_refuses_is_named(fleet: Fleet) -> None:
    fleet.launch([Paced("a", "b", -1)], None, LONG)
    with pytest.raises(AgentError, match=r"agent [ab]: .*bytes"):
        fleet.ended(later_ns(2000))
    assert fleet.ended(later_ns(20)) == {}, "it is told once"


def test_an_agent_that_is_gone_ends_the_wait(tmp_path: Path) -> None:
    with standing(tmp_path) as (fleet, processes):
        fleet.launch([Paced("a", "b", 4_000_000, 8e6)], None, LONG)
        processes["b"].kill()
        with pytest.raises(AgentError, match="agent b: its control channel"):
            all_of(fleet, {-1})
