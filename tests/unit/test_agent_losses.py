"""Three agents on loopback that are lost: killed, frozen, or with a rank that has died; and how those that are left go on."""

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

from agents.channel import ask_all, local
from agents.fleet import Fleet, Way
from agents.pulse import Pulse
from moefabric.errors import AgentError, LostError
from tests.agents_lab import Paced, agent

NAMES = ("s0", "s1", "s2")
LONG = 1 << 30
SILENCE_S = 1.0


@dataclass
class Lab:
    fleet: Fleet
    processes: dict[str, "subprocess.Popen[bytes]"]
    folder: Path

    def arm_all(self, number: int) -> list[Paced]:
        """Everyone sends everyone more than ends in time."""
        flows = [Paced(a, b, LONG, 1e8) for a, b in itertools.permutations(NAMES, 2)]
        self.fleet.arm(number, flows, None, 30.0)
        return flows

    def between(self, *names: str) -> list[str]:
        """What becomes of small flows between all of these; why, where they aren't whole."""
        flows = [Paced(a, b, 100_000) for a, b in itertools.permutations(names, 2)]
        return [record.why for record in self.fleet.run(next(numbers), flows, deadline_s=5.0)]

    def go_on(self) -> None:
        """Nobody is left frozen."""
        for process in self.processes.values():
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)

    def tell(self, name: str, gpu: int, *, alive: bool) -> None:
        """As `moefabric fault gpu` does: by a channel of its own."""
        channel = local(name, self.folder / f"{name}.sock")
        ask_all({channel: ("rank", {"gpu": gpu, "alive": alive})}, 5.0)
        channel.close()


numbers = itertools.count(100)
NOBODY: frozenset[str] = frozenset()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as undo:
        agents = {name: undo.enter_context(agent(name, tmp_path)) for name in NAMES}
        fleet = undo.enter_context(
            Fleet((channel for channel, _ in agents.values()), pulse=Pulse(0.05, SILENCE_S))
        )
        fleet.wire([Way(a, b, "o0", "127.0.0.1") for a, b in itertools.permutations(NAMES, 2)])
        made = Lab(fleet, {name: process for name, (_, process) in agents.items()}, tmp_path)
        undo.callback(made.go_on)
        yield made


def test_a_killed_agent_is_missed_at_once_and_the_others_go_on(lab: Lab) -> None:
    flows = lab.arm_all(1)
    lab.processes["s2"].kill()
    with pytest.raises(LostError, match="agent s2: its control channel closed") as lost:
        lab.fleet.collect(1, flows, 30.0)
    assert (lost.value.servers, lost.value.gpus) == (frozenset(["s2"]), NOBODY)
    lab.fleet.leave(lost.value.servers)
    lab.fleet.abandon(1)
    lab.fleet.mend()
    assert lab.between("s0", "s1") == ["", ""]
    assert lab.fleet.lost() == (frozenset(["s2"]), NOBODY)
    assert lab.fleet.returned() == frozenset()


def test_a_frozen_agent_is_missed_by_its_silence_and_taken_back_when_it_goes_on(lab: Lab) -> None:
    flows = lab.arm_all(1)
    os.kill(lab.processes["s2"].pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(LostError, match=r"agents s2: no sign of life for 1 s") as lost:
        lab.fleet.collect(1, flows, 30.0)
    assert SILENCE_S < time.monotonic() - began < SILENCE_S + 2.0
    lab.fleet.leave(lost.value.servers)
    lab.fleet.abandon(1)
    lab.fleet.mend()
    assert lab.between("s0", "s1") == ["", ""]
    assert lab.fleet.returned() == NOBODY, "it still stands"
    os.kill(lab.processes["s2"].pid, signal.SIGCONT)
    ends = time.monotonic() + 5.0
    while not (back := lab.fleet.returned()) and time.monotonic() < ends:
        pass
    assert back == frozenset(["s2"])
    assert lab.between(*NAMES) == [""] * 6
    assert lab.fleet.lost() == (NOBODY, NOBODY)


def test_two_that_were_frozen_come_back_together(lab: Lab) -> None:
    lab.arm_all(1)
    for name in ("s1", "s2"):
        os.kill(lab.processes[name].pid, signal.SIGSTOP)
    lab.fleet.leave(["s1", "s2"])
    lab.fleet.abandon(1)
    lab.go_on()
    back, ends = frozenset[str](), time.monotonic() + 5.0
    while len(back) < 2 and time.monotonic() < ends:
        back |= lab.fleet.returned()
    assert back == {"s1", "s2"}
    assert lab.between(*NAMES) == [""] * 6


def test_the_channels_of_the_lost_are_closed_with_all_others(lab: Lab) -> None:
    channel = lab.fleet.channels["s2"]
    lab.fleet.leave(["s2"])
    lab.fleet.close()
    assert channel.gone == "its control channel was closed here"


def test_those_that_live_end_what_was_under_way_though_another_is_dead(lab: Lab) -> None:
    lab.arm_all(1)
    lab.processes["s0"].kill()
    lab.processes["s0"].wait(5)
    lab.fleet.abandon(1)
    lab.fleet.leave(["s0"])
    assert all(not said["armed"] for said in lab.fleet.ask("stats").values())


def test_nothing_is_kept_of_signs_of_life(lab: Lab) -> None:
    """Agents owe the last answer when a collective ends; it comes when nobody asks for it any more."""
    flows = [Paced(a, b, 1 << 20, 1e7) for a, b in itertools.permutations(NAMES, 2)]
    for number in range(1, 4):
        lab.fleet.run(number, flows, deadline_s=10.0)
    lab.fleet.ask("stats")
    assert [channel.replies for channel in lab.fleet.channels.values()] == [{}, {}, {}]


def test_one_that_froze_before_it_was_armed_is_lost_too(lab: Lab) -> None:
    os.kill(lab.processes["s1"].pid, signal.SIGSTOP)
    with pytest.raises(LostError, match="agents s1: no answer to collective") as lost:
        lab.arm_all(1)
    assert lost.value.servers == frozenset(["s1"])


def test_a_rank_that_dies_is_told_by_its_agent_until_it_is_back(lab: Lab) -> None:
    flows = lab.arm_all(1)
    lab.tell("s1", 3, alive=False)
    with pytest.raises(LostError, match="agent s1: the rank on GPU s1/3 has died") as lost:
        lab.fleet.collect(1, flows, 30.0)
    assert (lost.value.servers, lost.value.gpus) == (NOBODY, frozenset(["s1/3"]))
    lab.fleet.abandon(1)
    lab.fleet.mend()
    assert lab.fleet.lost() == (NOBODY, frozenset(["s1/3"]))
    assert lab.between(*NAMES) == [""] * 6, "its server goes on, and what is known is no news"
    lab.tell("s1", 3, alive=True)
    assert lab.fleet.lost() == (NOBODY, NOBODY)


def test_a_fleet_that_comes_later_knows_of_ranks_that_are_dead(lab: Lab) -> None:
    lab.tell("s0", 7, alive=False)
    with Fleet(local(name, lab.folder / f"{name}.sock") for name in NAMES) as other:
        assert other.lost() == (NOBODY, frozenset(["s0/7"]))


def test_an_abandoned_collective_ends_though_its_bytes_are_under_way(lab: Lab) -> None:
    lab.arm_all(1)
    while not ask_all({lab.fleet.channels["s1"]: ("stats", {})}, 5.0)["s1"]["bytes_received"]:
        pass
    lab.fleet.abandon(1)
    assert all(not said["armed"] for said in lab.fleet.ask("stats").values())
    lab.fleet.mend()
    assert lab.between(*NAMES) == [""] * 6


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        pytest.param({"gpu": -1, "alive": False}, "gpu: -1 is not a whole number", id="gpu"),
        pytest.param({"gpu": 1, "alive": "no"}, "alive: 'no' is neither true nor false", id="alive"),
    ],
)
def test_what_is_wrong_with_a_rank_is_said(lab: Lab, fields: dict[str, object], said: str) -> None:
    with pytest.raises(AgentError, match=said):
        ask_all({lab.fleet.channels["s0"]: ("rank", fields)}, 5.0)
