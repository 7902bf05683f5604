"""Programs of several agents: steps start each other, and results are verified."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from moefabric.agents.fleet.connections import DataPath
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.fleet.messages import Message
from moefabric.agents.fleet.programs import LoadedProgram
from moefabric.core.errors import AgentError
from tests.support.agents_lab import agent


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Agents of three servers on one machine, connected over the loopback interface."""
    names = ("s0", "s1", "s2")
    with ExitStack() as undo:
        channels = [undo.enter_context(agent(name, tmp_path))[0] for name in names]
        connected = undo.enter_context(Fleet(channels))
        connected.connect(
            [DataPath(a, b, "e0", "127.0.0.1") for a in names for b in names if a != b]
        )
        yield connected


def message(kind: str, peer: str, number: int, begin: int, size: int, **fields: object) -> Message:
    """Return a step that sends or receives a range of the rank's only buffer."""
    return {
        "kind": kind, "peer": peer, "path": "e0", "message": number, "buffer": 0,
        "offset": begin, "bytes": size, "element": 4, **fields,
    }  # fmt: skip


def content(begin: int, size: int, *seeds: int) -> Message:
    """Return the sum of the patterns of some seeds."""
    terms = [[seed, begin] for seed in seeds]
    return {"buffer": 0, "offset": begin, "bytes": size, "element": 4, "terms": terms}


def ring(size: int, granted: bool = True) -> dict[str, list[Message]]:
    """Return an all-reduce of 4 ranks by a ring, of which two share the server `s0`."""
    servers, chunk = ("s0", "s0", "s1", "s2"), size // 4
    requests: dict[str, list[Message]] = {}
    for rank, server in enumerate(servers):
        steps: list[Message] = []
        for turn in range(6):
            kind = "receive_add" if turn < 3 else "receive"
            sent, received = (rank - turn) % 4 * chunk, (rank - turn - 1) % 4 * chunk
            to, come_from = servers[(rank + 1) % 4], servers[(rank - 1) % 4]
            steps.append(
                message("send", to, 10 * rank + turn, sent, chunk, granted=granted and turn < 3)
                | {"after": [2 * turn - 1] if turn else []}
            )
            steps.append(
                message(kind, come_from, 10 * ((rank - 1) % 4) + turn, received, chunk)
                | {"after": [2 * turn - 4] if turn >= 3 else [], "granted": granted and turn < 3}
            )
        requests.setdefault(server, []).append(
            {
                "rank": rank,
                "buffers": [size],
                "inputs": [content(0, size, 100 + rank)],
                "expected": [content(0, size, 100, 101, 102, 103)],
                "steps": steps,
            }
        )
    return requests


@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("size", [16, 400_000, 4_000_000])
def test_ring_adds_the_inputs_of_all_ranks(fleet: Fleet, size: int, granted: bool) -> None:
    with LoadedProgram(fleet, ring(size, granted)) as program:
        assert program.memory == 4 * size
        for _ in range(2):
            times = program.run(20, times=True)
            assert program.verify() == {0: 0, 1: 0, 2: 0, 3: 0}
            assert 0 < times.seconds < 20
            assert all(0 < a <= b for steps in times.steps_ns.values() for a, b in steps)
        program.run(20, fill=False)
        assert min(program.verify().values()) > 0.99 * size / 4  # added once more


def test_wrong_numbers_are_counted(fleet: Fleet) -> None:
    requests = ring(400)
    requests["s1"][0]["inputs"][0]["terms"] = [[7, 0]]
    with LoadedProgram(fleet, requests) as program:
        program.run(5)
        assert program.verify() == {0: 100, 1: 100, 2: 100, 3: 100}


def test_step_without_its_peer_ends_at_the_deadline_and_names_itself(fleet: Fleet) -> None:
    requests = {
        "s0": [{"rank": 0, "buffers": [8], "steps": [message("receive", "s1", 1, 0, 8)]}],
        "s1": [{"rank": 1, "buffers": [8], "steps": [{"kind": "compute", "wall_ns": 1000}]}],
    }
    with (
        LoadedProgram(fleet, requests) as program,
        pytest.raises(AgentError, match="s0: receive of 8 bytes from s1 by e0, rank 0 had not end"),
    ):
        program.run(0.3)


def test_failure_of_one_server_ends_the_run_on_all(fleet: Fleet) -> None:
    requests = ring(400)
    requests["s1"][0]["steps"][0]["path"] = "e7"
    with (
        LoadedProgram(fleet, requests) as program,
        pytest.raises(AgentError, match="s1: send of 100 bytes to s2 by e7, rank 2: no connection"),
    ):
        program.run(60)
    with LoadedProgram(fleet, ring(400)) as program:
        program.run(5)
        assert set(program.verify().values()) == {0}


def test_program_that_needs_more_memory_than_is_free_is_refused(fleet: Fleet) -> None:
    request = {"s0": [{"rank": 0, "buffers": [1 << 50], "steps": []}]}
    with pytest.raises(AgentError, match=r"needs 1125899907 MB of memory, and .* MB are free"):
        LoadedProgram(fleet, request)


def test_message_waits_for_its_place(fleet: Fleet) -> None:
    """The receiver copies what was in the place before; it grants the message after that."""
    copy: Message = {
        "kind": "copy", "after": [0], "buffer": 0, "offset": 100, "bytes": 100,
        "source_buffer": 0, "source_offset": 0,
    }  # fmt: skip
    receiver = {
        "rank": 1,
        "buffers": [200],
        "inputs": [content(0, 100, 6)],
        "expected": [content(0, 100, 5), {**content(0, 100, 6), "offset": 100}],
        "steps": [
            {"kind": "compute", "wall_ns": 50_000_000},
            copy,
            message("receive", "s0", 1, 0, 100, after=[1]),
        ],
    }
    sender = {
        "rank": 0,
        "buffers": [100],
        "inputs": [content(0, 100, 5)],
        "steps": [message("send", "s1", 1, 0, 100)],
    }
    with LoadedProgram(fleet, {"s0": [sender], "s1": [receiver]}) as program:
        assert program.run(5).seconds > 0.05
        assert program.verify() == {0: 0, 1: 0}


def test_copies_on_a_server_take_turns_at_its_ports(fleet: Fleet) -> None:
    copy_ns = 20_000_000
    ranks: list[Message] = [
        {
            "rank": 0,
            "buffers": [100],
            "inputs": [content(0, 100, 5)],
            "steps": [
                message("send", "s0", n, 0, 100, wall_ns=copy_ns, granted=True) for n in (1, 2)
            ],
        }
    ]
    ranks += [
        {
            "rank": n,
            "buffers": [100],
            "expected": [content(0, 100, 5)],
            "steps": [message("receive", "s0", n, 0, 100, granted=True)],
        }
        for n in (1, 2)
    ]
    with LoadedProgram(fleet, {"s0": ranks}) as program:
        times = program.run(5)
        assert program.verify() == {0: 0, 1: 0, 2: 0}
        first, second = (times.ended_ns[rank] - times.began_ns for rank in (1, 2))
        assert copy_ns <= first < 2 * copy_ns <= second < 3 * copy_ns


@pytest.mark.parametrize("servers", [("s0", "s0"), ("s0", "s1")])
def test_two_ranks_may_both_send_before_they_receive(
    fleet: Fleet, servers: tuple[str, str]
) -> None:
    compute_ns = 20_000_000
    requests: dict[str, list[Message]] = {}
    for rank, server in enumerate(servers):
        peer = servers[1 - rank]
        place = {"buffer": 1, "granted": True}
        requests.setdefault(server, []).append(
            {
                "rank": rank,
                "buffers": [4000, 4000],
                "inputs": [content(0, 4000, 7 + rank)],
                "expected": [content(0, 4000, 8 - rank) | {"buffer": 1}],
                "steps": [
                    message("send", peer, rank, 0, 4000, granted=True),
                    {"kind": "compute", "after": [0], "wall_ns": compute_ns * rank},
                    message("receive", peer, 1 - rank, 0, 4000, **place) | {"after": [1]},
                ],
            }
        )
    with LoadedProgram(fleet, requests) as program:
        for _ in range(2):
            times = program.run(5)
            assert program.verify() == {0: 0, 1: 0}
            assert times.ended_ns[1] - times.began_ns >= compute_ns
