"""Launched collectives of agent processes, beyond what the contract tests of memory agents say."""

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from moefabric.agents.fleet.connections import DataPath
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.fleet.liveness import LivenessMonitor
from moefabric.core.errors import AgentError, ServerLossError
from moefabric.core.flows import FlowRecord
from tests.support.agents_lab import agent, paced_flow

MS = 1_000_000
LONG = 5.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Agents a and b on this machine, with one path each way."""
    with standing(tmp_path_factory.mktemp("agents")) as agents:
        yield agents[0]


@contextmanager
def standing(folder: Path) -> "Iterator[tuple[Fleet, dict[str, subprocess.Popen[bytes]]]]":
    """Yield the fleet and its agents' processes."""
    with ExitStack() as undo:
        agents = {name: undo.enter_context(agent(name, folder)) for name in ("a", "b")}
        fleet = undo.enter_context(Fleet([channel for channel, _ in agents.values()]))
        fleet.connect(
            [DataPath("a", "b", "o0", "127.0.0.1"), DataPath("b", "a", "o0", "127.0.0.1")]
        )
        yield fleet, {name: process for name, (_, process) in agents.items()}


def later_ns(ms: float) -> int:
    return time.monotonic_ns() + round(ms * MS)


def all_of(fleet: Fleet, numbers: set[int]) -> dict[int, list[str]]:
    """Return why each flow failed, by collective in the order of their end."""
    reasons: dict[int, list[str]] = {}
    until = later_ns(1000 * LONG)
    while numbers - reasons.keys() and time.monotonic_ns() < until:
        reasons |= {
            n: [record.why for record in records] for n, records in fleet.wait_ended(until).items()
        }
    return reasons


def test_wake_from_another_thread_ends_the_wait(fleet: Fleet) -> None:
    began = time.monotonic()
    ringing = threading.Timer(0.05, fleet.wake)
    ringing.start()
    assert fleet.wait_ended(later_ns(5000)) == {}
    ringing.join()
    assert time.monotonic() - began < 2
    assert fleet.wait_ended(later_ns(20)) == {}, "one ring ends one wait"


def test_collectives_on_one_connection_leave_in_order(fleet: Fleet) -> None:
    first = fleet.launch([paced_flow("a", "b", 300_000, 24e6)], None, LONG)
    second = fleet.launch([paced_flow("a", "b", 300_000, 24e6)], None, LONG)
    records: dict[int, list[FlowRecord]] = {}
    while len(records) < 2:
        records |= fleet.wait_ended(later_ns(3000))
    [[one], [two]] = records[first], records[second]
    assert one.ok
    assert two.ok
    assert two.first_sent_ns >= one.last_sent_ns


def test_early_bytes_belong_to_their_own_collective(fleet: Fleet) -> None:
    """After many collectives, none is taken for the end of an older one."""
    fleet.run(1, [paced_flow("a", "b", 10)], None, LONG)
    numbers = {
        fleet.launch([paced_flow("a", "b", 10), paced_flow("b", "a", 10)], None, LONG)
        for _ in range(50)
    }
    assert all_of(fleet, numbers) == {number: ["", ""] for number in numbers}


def test_missing_connection_fails_one_collective_only(fleet: Fleet) -> None:
    lost = fleet.launch([paced_flow("a", "b", 10, path="o7")], None, 0.2)
    well = fleet.launch([paced_flow("b", "a", 10)], None, LONG)
    reasons = all_of(fleet, {lost, well})
    assert reasons[well] == [""]
    assert "o7" in reasons[lost][0]


def test_refusing_agent_is_named(fleet: Fleet) -> None:
    fleet.launch([paced_flow("a", "b", -1)], None, LONG)
    with pytest.raises(AgentError, match=r"agent [ab]: .*bytes"):
        fleet.wait_ended(later_ns(2000))
    assert fleet.wait_ended(later_ns(20)) == {}, "it is returned once"


def test_lost_agent_ends_the_wait(tmp_path: Path) -> None:
    with standing(tmp_path) as (fleet, processes):
        fleet.launch([paced_flow("a", "b", 4_000_000, 8e6)], None, LONG)
        processes["b"].kill()
        with pytest.raises(AgentError, match="agent b: its control channel"):
            all_of(fleet, {-1})


def test_wait_ended_names_a_silent_server_and_its_transfer_can_be_abandoned(tmp_path: Path) -> None:
    with standing(tmp_path) as (fleet, processes):
        fleet.liveness = LivenessMonitor(interval_s=0.1, silence_s=0.4)
        number = fleet.launch([paced_flow("a", "b", 4_000_000, 8e6)], None, LONG)
        processes["b"].send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(ServerLossError, match="no sign of life") as loss:
                all_of(fleet, {number})
        finally:
            processes["b"].send_signal(signal.SIGCONT)
        assert loss.value.servers == {"b"}
        fleet.abandon(number)
        assert all_of(fleet, {fleet.launch([paced_flow("b", "a", 10)], None, LONG)})
        assert fleet.wait_ended(later_ns(20)) == {}, "an abandoned transfer is not reported"


def test_launch_refuses_a_server_that_is_cut_off(tmp_path: Path) -> None:
    with standing(tmp_path) as (fleet, _):
        fleet.liveness.unreachable = lambda server: server == "b"
        with pytest.raises(ServerLossError) as loss:
            fleet.launch([paced_flow("a", "b", 10)], None, LONG)
        assert loss.value.servers == {"b"}
