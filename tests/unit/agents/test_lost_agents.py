"""Agents on loopback that are killed, frozen or lose a rank, and how the others go on."""

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from moefabric.agents.fleet.channel import connect_local, request_all
from moefabric.agents.fleet.connections import DataPath
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.fleet.liveness import LivenessMonitor
from moefabric.core.errors import AgentError, ServerLossError
from tests.support.agents_lab import agent, arm, collect, paced_flow

NAMES = ("s0", "s1", "s2")
LONG = 1 << 30
SILENCE_S = 1.0


@dataclass
class Lab:
    fleet: Fleet
    processes: dict[str, "subprocess.Popen[bytes]"]
    folder: Path

    def arm_all(self, number: int) -> None:
        """Arm a collective that is too long to end in time."""
        flows = [paced_flow(a, b, LONG, 1e8) for a, b in itertools.permutations(NAMES, 2)]
        arm(self.fleet, number, flows, 30.0)

    def between(self, *names: str) -> list[str]:
        """Send small flows between servers; return why any failed."""
        flows = [paced_flow(a, b, 100_000) for a, b in itertools.permutations(names, 2)]
        return [record.why for record in self.fleet.run(next(numbers), flows, deadline_s=5.0)]

    def go_on(self) -> None:
        """Continue all frozen agents."""
        for process in self.processes.values():
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)

    def tell(self, name: str, gpu: int, *, alive: bool) -> None:
        """Report a rank by a channel of its own, as `moefabric fault gpu` does."""
        channel = connect_local(name, self.folder / f"{name}.sock")
        request_all({channel: ("rank", {"gpu": gpu, "alive": alive})}, 5.0)
        channel.close()


numbers = itertools.count(100)
NOBODY: frozenset[str] = frozenset()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as undo:
        agents = {name: undo.enter_context(agent(name, tmp_path)) for name in NAMES}
        fleet = undo.enter_context(
            Fleet(
                (channel for channel, _ in agents.values()),
                liveness=LivenessMonitor(0.05, SILENCE_S),
            )
        )
        fleet.connect(
            [DataPath(a, b, "o0", "127.0.0.1") for a, b in itertools.permutations(NAMES, 2)]
        )
        new_lab = Lab(fleet, {name: process for name, (_, process) in agents.items()}, tmp_path)
        undo.callback(new_lab.go_on)
        yield new_lab


def test_killed_agent_is_lost_at_once_and_the_others_go_on(lab: Lab) -> None:
    lab.arm_all(1)
    lab.processes["s2"].kill()
    with pytest.raises(ServerLossError, match="agent s2: its control channel") as lost:
        collect(lab.fleet, 1)
    assert (lost.value.servers, lost.value.gpus) == (frozenset(["s2"]), NOBODY)
    lab.fleet.drop(lost.value.servers)
    lab.fleet.abandon(1)
    lab.fleet.reconnect()
    assert lab.between("s0", "s1") == ["", ""]
    assert lab.fleet.losses() == (frozenset(["s2"]), NOBODY)
    assert lab.fleet.readmit() == frozenset()


def test_frozen_agent_is_lost_and_readmitted(lab: Lab) -> None:
    lab.arm_all(1)
    os.kill(lab.processes["s2"].pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(ServerLossError, match=r"agents s2: no sign of life for 1 s") as lost:
        collect(lab.fleet, 1)
    assert SILENCE_S < time.monotonic() - began < SILENCE_S + 2.0
    lab.fleet.drop(lost.value.servers)
    lab.fleet.abandon(1)
    lab.fleet.reconnect()
    assert lab.between("s0", "s1") == ["", ""]
    assert lab.fleet.readmit() == NOBODY, "it still stands"
    os.kill(lab.processes["s2"].pid, signal.SIGCONT)
    ends = time.monotonic() + 30
    while not (back := lab.fleet.readmit()) and time.monotonic() < ends:
        pass
    assert back == frozenset(["s2"])
    assert lab.between(*NAMES) == [""] * 6
    assert lab.fleet.losses() == (NOBODY, NOBODY)


def test_two_frozen_agents_are_readmitted(lab: Lab) -> None:
    lab.arm_all(1)
    for name in ("s1", "s2"):
        os.kill(lab.processes[name].pid, signal.SIGSTOP)
    lab.fleet.drop(["s1", "s2"])
    lab.fleet.abandon(1)
    lab.go_on()
    back, ends = frozenset[str](), time.monotonic() + 30
    while len(back) < 2 and time.monotonic() < ends:
        back |= lab.fleet.readmit()
    assert back == {"s1", "s2"}
    assert lab.between(*NAMES) == [""] * 6


def test_close_closes_channels_of_lost_agents(lab: Lab) -> None:
    channel = lab.fleet.channels["s2"]
    lab.fleet.drop(["s2"])
    lab.fleet.close()
    assert channel.gone == "its control channel was closed here"


def test_abandon_works_beside_a_lost_agent(lab: Lab) -> None:
    lab.arm_all(1)
    lab.processes["s0"].kill()
    lab.processes["s0"].wait(30)
    lab.fleet.abandon(1)
    lab.fleet.drop(["s0"])
    assert all(not message["armed"] for message in lab.fleet.request("stats").values())


def test_probes_leave_no_replies(lab: Lab) -> None:
    """The last probe's reply comes after the collective has ended."""
    flows = [paced_flow(a, b, 1 << 20, 1e7) for a, b in itertools.permutations(NAMES, 2)]
    for number in range(1, 4):
        lab.fleet.run(number, flows, deadline_s=10.0)
    lab.fleet.request("stats")
    assert [channel.replies for channel in lab.fleet.channels.values()] == [{}, {}, {}]


def test_agent_that_froze_before_arming_is_lost(lab: Lab) -> None:
    os.kill(lab.processes["s1"].pid, signal.SIGSTOP)
    lab.arm_all(1)
    with pytest.raises(ServerLossError, match="agents s1: no sign of life for 1 s") as lost:
        collect(lab.fleet, 1)
    assert lost.value.servers == frozenset(["s1"])


def test_dead_rank_is_reported_until_it_lives_again(lab: Lab) -> None:
    lab.arm_all(1)
    lab.tell("s1", 3, alive=False)
    with pytest.raises(ServerLossError, match="agent s1: the rank on GPU s1/3 has died") as lost:
        collect(lab.fleet, 1)
    assert (lost.value.servers, lost.value.gpus) == (NOBODY, frozenset(["s1/3"]))
    lab.fleet.abandon(1)
    lab.fleet.reconnect()
    assert lab.fleet.losses() == (NOBODY, frozenset(["s1/3"]))
    assert lab.between(*NAMES) == [""] * 6, "its server goes on, and what is known is no news"
    lab.tell("s1", 3, alive=True)
    assert lab.fleet.losses() == (NOBODY, NOBODY)


def test_new_fleet_learns_of_dead_ranks(lab: Lab) -> None:
    lab.tell("s0", 7, alive=False)
    with Fleet(connect_local(name, lab.folder / f"{name}.sock") for name in NAMES) as other:
        assert other.losses() == (NOBODY, frozenset(["s0/7"]))


def test_abandon_ends_a_collective_in_mid_transfer(lab: Lab) -> None:
    lab.arm_all(1)
    while not request_all({lab.fleet.channels["s1"]: ("stats", {})}, 5.0)["s1"]["bytes_received"]:
        pass
    lab.fleet.abandon(1)
    assert all(not message["armed"] for message in lab.fleet.request("stats").values())
    lab.fleet.reconnect()
    assert lab.between(*NAMES) == [""] * 6


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"gpu": -1, "alive": False}, "gpu: -1 is not a whole number", id="gpu"),
        pytest.param(
            {"gpu": 1, "alive": "no"}, "alive: 'no' is neither true nor false", id="alive"
        ),
    ],
)
def test_malformed_rank_requests_are_refused(
    lab: Lab, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(AgentError, match=message):
        request_all({lab.fleet.channels["s0"]: ("rank", fields)}, 5.0)
