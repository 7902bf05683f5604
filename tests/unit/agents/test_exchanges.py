"""Exchanges of ranks through three agents on loopback: contents, parts, losses and refusals."""

import itertools
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from moefabric.agents.fleet.channel import request_all
from moefabric.agents.fleet.connections import DataPath
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.remote.bundle import AGENT
from moefabric.core.errors import AgentError
from moefabric.core.exchange import Exchange
from moefabric.core.flows import FlowRecord, PacedFlow
from moefabric.execution.torch.agent_link import AgentLink, ExchangeRequest, SharedMemory
from tests.support.agents_lab import OLDEST_PYTHONS, agent, bundled, reported
from tests.support.editing_relay import EditingRelay

NAMES = ("s0", "s1", "s2")
SERVERS = ("s0", "s0", "s1", "s2", "s2")
DIRECT = [DataPath(a, b, "o0", "127.0.0.1") for a, b in itertools.permutations(NAMES, 2)]
RELAYED = [
    DataPath(a, b, f"r{relay[1]}", "127.0.0.1", relay=relay)
    for a, relay, b in itertools.permutations(NAMES, 3)
]
DEADLINE_S = 10.0


class MemoryRank:
    """A rank whose tensors are bytes.

    Attributes:
        data: What it sends.
        memory: Its shared memory: what it sends and then what it has received.
        ended: Set when the exchange has ended; `error` is then empty, or why it failed.
    """

    def __init__(self, number: int, path: str) -> None:
        self.number, self.link = number, AgentLink(path, number)
        self.data = b""
        self.memory: SharedMemory | None = None
        self.ended = threading.Event()
        self.error = ""

    def ask(self, sizes: Sequence[Sequence[int]], number: int, name: str = "") -> None:
        """Ask for an exchange of all ranks, of bytes [sending rank][receiving rank]."""
        sends, receives = sizes[self.number], [row[self.number] for row in sizes]
        self.data, self.error = os.urandom(sum(sends)), ""
        self.ended.clear()
        self.memory = self.link.memory(sum(sends) + sum(receives))
        self.memory.bytes[: sum(sends)] = self.data
        request = ExchangeRequest(name, range(len(sizes)), number, sends, receives, "uint8")
        self.link.ask(request, self.memory, sum(sends), self._end)

    def blocks(self, sizes: Sequence[Sequence[int]]) -> list[bytes]:
        """Return what has come from each rank."""
        assert self.memory is not None
        place, blocks = len(self.data), []
        for row in sizes:
            blocks.append(self.memory.bytes[place : place + row[self.number]])
            place += row[self.number]
        return blocks

    def why(self) -> str:
        """Return why the exchange failed; empty if it ended well."""
        assert self.ended.wait(10)
        return self.error

    def _end(self, error: str) -> None:
        self.error = error
        self.ended.set()


def reasons(fleet: Fleet, ranks: Sequence[MemoryRank]) -> list[str]:
    """Return why the exchange of each rank failed, while the fleet handles what arrives."""
    until_ns = time.monotonic_ns() + 10**10
    while not all(rank.ended.is_set() for rank in ranks) and time.monotonic_ns() < until_ns:
        fleet.lost_ranks()
        fleet.wait_ended(time.monotonic_ns() + 10**7)
    return [rank.why() for rank in ranks]


def next_exchange(fleet: Fleet) -> Exchange:
    """Return the next exchange that all its ranks have asked for."""
    until_ns = time.monotonic_ns() + 10**10
    while not (exchanges := fleet.take_exchanges()):
        assert time.monotonic_ns() < until_ns, "no exchange came"
        fleet.wait_ended(until_ns)
    (exchange,) = exchanges
    return exchange


def check_blocks(ranks: Sequence[MemoryRank], sizes: Sequence[Sequence[int]]) -> None:
    """Check that every rank has what the others sent to it; its own block stays with it."""
    for receiver in ranks:
        for sender, block in zip(ranks, receiver.blocks(sizes), strict=True):
            if sender is not receiver:
                begin = sum(sizes[sender.number][: receiver.number])
                assert block == sender.data[begin : begin + len(block)]


@dataclass
class Lab:
    fleet: Fleet
    processes: dict[str, "subprocess.Popen[bytes]"]
    ranks: list[MemoryRank]
    undo: ExitStack

    def add_ranks(self) -> None:
        self.ranks = [
            MemoryRank(number, self.fleet.facts[server]["ranks"])
            for number, server in enumerate(SERVERS)
        ]
        for rank in self.ranks:
            self.undo.callback(rank.link.close)

    def ask(self, sizes: list[list[int]], number: int = 0) -> Exchange:
        for rank in self.ranks:
            rank.ask(sizes, number)
        return next_exchange(self.fleet)

    def send(self, flows: list[PacedFlow], exchange: Exchange) -> list[FlowRecord]:
        number = self.fleet.launch(flows, None, DEADLINE_S, exchange)
        while not (ended := self.fleet.wait_ended(None)):
            pass
        return ended[number]

    def run(self, sizes: list[list[int]], number: int = 0) -> None:
        """Exchange by one flow a pair, and check what has come."""
        exchange = self.ask(sizes, number)
        assert all(record.ok for record in self.send(whole_flows(exchange), exchange))
        self.fleet.finish(exchange)
        assert [rank.why() for rank in self.ranks] == [""] * len(self.ranks)
        check_blocks(self.ranks, sizes)


def whole_flows(exchange: Exchange, path: str = "o0") -> list[PacedFlow]:
    return [PacedFlow(*pair, path, size, None) for pair, size in exchange.owed.items()]


def sizes_of(seed: int, most: int) -> list[list[int]]:
    drawn = random.Random(seed)
    return [[drawn.choice([0, 1, drawn.randint(0, most)]) for _ in SERVERS] for _ in SERVERS]


@contextmanager
def started(folder: Path, python: str = sys.executable, program: Path = AGENT) -> Iterator[Lab]:
    with ExitStack() as undo:
        agents = {
            name: undo.enter_context(agent(name, folder, python=python, program=program))
            for name in NAMES
        }
        fleet = undo.enter_context(Fleet(channel for channel, _ in agents.values()))
        fleet.connect(DIRECT + RELAYED)
        fleet.ranks.start()
        lab = Lab(fleet, {name: process for name, (_, process) in agents.items()}, [], undo)
        lab.add_ranks()
        yield lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with started(tmp_path) as new_lab:
        yield new_lab


def test_bytes_of_ranks_arrive(lab: Lab) -> None:
    for number, most in enumerate([1, 100, 3000, 70_000, 1_000_000]):
        lab.run(sizes_of(number, most), number)


@pytest.mark.parametrize("python", OLDEST_PYTHONS, ids=lambda path: Path(path).name)
def test_agent_of_the_oldest_python_carries_them(python: str, tmp_path: Path) -> None:
    with started(tmp_path, python, bundled(tmp_path)) as lab:
        lab.run(sizes_of(3, 70_000))


def test_parts_of_a_pair_by_several_paths_and_launches(lab: Lab) -> None:
    sizes = sizes_of(1, 50_000)
    exchange = lab.ask(sizes)
    first, late = [], []
    for (src, dst), size in exchange.owed.items():
        relay = f"r{({*NAMES} - {src, dst}).pop()[1]}"
        cut, half = size // 3, size // 2
        first += [
            PacedFlow(src, dst, "o0", cut, None),
            PacedFlow(src, dst, relay, half - cut, None, offset=cut),
        ]
        late += [PacedFlow(src, dst, "o0", size - half, None, offset=half)]
    assert all(record.ok for record in lab.send(first, exchange))
    assert not any(rank.ended.is_set() for rank in lab.ranks)
    assert all(record.ok for record in lab.send(late, exchange))
    lab.fleet.finish(exchange)
    assert [rank.why() for rank in lab.ranks] == [""] * 5
    check_blocks(lab.ranks, sizes)


def test_bytes_that_have_not_come_fail_the_exchange(lab: Lab) -> None:
    exchange = lab.ask([[10] * 5] * 5)
    part = PacedFlow("s0", "s1", "o0", 12, None, offset=0)
    rest = [flow for flow in whole_flows(exchange) if (flow.src, flow.dst) != ("s0", "s1")]
    assert all(record.ok for record in lab.send([part, *rest], exchange))
    with pytest.raises(AgentError, match="byte 12 of 20 from s0 has not come"):
        lab.fleet.finish(exchange)
    assert lab.ranks[2].why() == "byte 12 of 20 from s0 has not come"


def test_flow_beyond_the_bytes_of_its_pair_is_refused(lab: Lab) -> None:
    exchange = lab.ask([[10] * 5] * 5)
    for size, offset in ((21, 0), (11, 10)):
        flow = PacedFlow("s0", "s1", "o0", size, None, offset)
        why = f"{size} bytes at {offset} end beyond the 20 of the pair"
        with pytest.raises(AgentError, match=why):
            lab.send([flow], exchange)


def test_early_bytes_wait_until_they_are_expected(lab: Lab) -> None:
    """The sender begins before the receiver knows where the bytes belong."""
    sizes = [[200_000] * 5] * 5
    exchange = lab.ask(sizes)
    flows = [flow for flow in whole_flows(exchange) if (flow.src, flow.dst) == ("s0", "s1")]
    others = [flow for flow in whole_flows(exchange) if flow not in flows]
    number = lab.fleet.new_number()
    requests = lab.fleet._requests(number, flows, None, time.monotonic_ns() + 10**10, exchange)
    request_all({c: r for c, r in requests.items() if c.name == "s0"}, 5.0)
    assert all(record.ok for record in lab.send(others, exchange))
    lab.fleet.channels["s0"].read()
    assert number not in lab.fleet.channels["s0"].reports
    request_all({c: r for c, r in requests.items() if c.name == "s1"}, 5.0)
    (record,) = reported(lab.fleet, number, flows)
    assert record.ok
    lab.fleet.finish(exchange)
    assert [rank.why() for rank in lab.ranks] == [""] * 5
    check_blocks(lab.ranks, sizes)


@pytest.mark.parametrize("place", [64, 64 + 5000, 64 + 79_999])
def test_changed_byte_is_noticed(lab: Lab, place: int) -> None:
    path = lab.fleet.connections.destination(DIRECT[0])
    relay = EditingRelay(path["port"], place, lambda raw: bytes([raw[0] ^ 1]) + raw[1:])
    lab.undo.callback(relay.close)
    path["port"] = relay.port
    request_all({lab.fleet.channels["s0"]: ("connect", {"paths": [path]})}, 5.0)
    exchange = lab.ask([[40_000] * 5] * 5)
    wrong = [record for record in lab.send(whole_flows(exchange), exchange) if not record.ok]
    assert [(record.src, record.dst, record.corrupt) for record in wrong] == [("s0", "s1", True)]
    lab.fleet.finish(exchange, wrong[0].why)
    assert "its length or checksum is not the one that was sent" in lab.ranks[0].why()


def test_pattern_and_bytes_of_ranks_are_not_mixed_up(lab: Lab) -> None:
    """A sender of patterns and a receiver of ranks' bytes disagree about one collective."""
    exchange = lab.ask([[1000] * 5] * 5)
    flows = [flow for flow in whole_flows(exchange) if (flow.src, flow.dst) == ("s0", "s1")]
    number, until_ns = lab.fleet.new_number(), time.monotonic_ns() + 10**10
    real = lab.fleet._requests(number, flows, None, until_ns, exchange)
    pattern = lab.fleet._requests(number, flows, None, until_ns)
    s0, s1 = lab.fleet.channels["s0"], lab.fleet.channels["s1"]
    request_all({s1: real[s1]}, 5.0)
    request_all({s0: pattern[s0]}, 5.0)
    (record,) = reported(lab.fleet, number, flows)
    assert record.why == "a pattern was sent where bytes of ranks are expected"
    lab.fleet.finish(exchange, record.why)


def test_rank_that_ends_fails_its_exchanges_at_all_others(lab: Lab) -> None:
    for rank in lab.ranks[:4]:
        rank.ask([[10] * 5] * 5, 0)
    lab.ranks[4].link._socket.shutdown(socket.SHUT_RDWR)
    why = "exchange 0 of ranks 0, 1, 2, 3, 4: rank 4 on s2 has ended"
    assert reasons(lab.fleet, lab.ranks[:4]) == [why] * 4
    assert lab.fleet.lost_ranks() == {4: "rank 4 on s2 has ended"}
    lab.ranks[0].ask([[10] * 5] * 5, 1)
    assert reasons(lab.fleet, lab.ranks[:1]) == [why.replace("0", "1", 1)]


def test_rank_that_leaves_is_not_lost(lab: Lab) -> None:
    lab.run([[10] * 5] * 5)
    lab.ranks[4].link.close()
    lab.ranks[0].ask([[10] * 5] * 5, 1)
    assert reasons(lab.fleet, lab.ranks[:1])[0].endswith("rank 4 on s2 has left")
    assert lab.fleet.lost_ranks() == {}


def test_agent_that_ends_fails_the_exchanges_of_its_ranks(lab: Lab) -> None:
    lab.run([[10] * 5] * 5)
    for rank in lab.ranks[:4]:
        rank.ask([[10] * 5] * 5, 1)
    lab.processes["s1"].kill()
    with pytest.raises(AgentError, match="agent s1"):
        lab.fleet.wait_ended(None)
    assert lab.ranks[2].why() == "the agent of this server has ended"
    lab.fleet.drop(["s1"])
    others = [lab.ranks[0], lab.ranks[1], lab.ranks[3]]
    assert all(why.endswith("the agent of s1 is lost") for why in reasons(lab.fleet, others))
    assert lab.fleet.lost_ranks() == {2: "the agent of s1 is lost"}


def test_exchanges_fail_when_nobody_carries_them_out(lab: Lab) -> None:
    lab.ranks[0].ask([[10] * 5] * 5, 0)
    while not lab.fleet.channels["s0"].exchange_events:
        lab.fleet.channels["s0"].read()
    lab.fleet.channels["s0"].close()
    assert lab.ranks[0].why() == "the program that carries exchanges out has ended"


def test_next_job_starts_without_ranks_of_the_last(lab: Lab) -> None:
    lab.ranks[0].ask([[10] * 5] * 5, 0)
    while not lab.fleet.channels["s0"].exchange_events:
        lab.fleet.channels["s0"].read()
    lab.fleet.ranks.start()
    assert lab.ranks[0].why() == "the job has ended"
    lab.add_ranks()
    lab.run([[10] * 5] * 5)
    assert lab.fleet.lost_ranks() == {}


def test_pending_exchanges_are_told_to_a_fleet_that_comes_later(tmp_path: Path) -> None:
    with agent("s0", tmp_path) as (channel, _):
        channel.close()
        ranks = [MemoryRank(number, str(tmp_path / "s0.ranks")) for number in range(2)]
        for rank in ranks:
            rank.ask([[5] * 2] * 2, 0)
        late = socket.socket(socket.AF_UNIX)
        late.connect(str(tmp_path / "s0.sock"))
        with late, late.makefile("rw") as lines:
            told = set[str]()
            while len(told) < 2:  # the second rank's packet may come after this request
                lines.write('{"id": 1, "op": "hello"}\n')
                lines.flush()
                while (message := json.loads(lines.readline())).get("id") != 1:
                    if message["event"] == "exchange":
                        told.add(json.dumps(message, sort_keys=True))
        assert len(told) == 2
        for rank in ranks:
            rank.link.close()


def refused(rank: MemoryRank, packet: dict[str, object], descriptors: tuple[int, ...] = ()) -> str:
    """Return why the agent refuses a packet; it then fails what the rank has asked for."""
    rank.link._send(packet, descriptors)
    until = time.monotonic() + 30
    while not rank.link._gone and time.monotonic() < until:
        time.sleep(0.001)  # the link's thread has no event for this
    return rank.link._gone


def test_packets_that_the_agent_refuses(lab: Lab) -> None:
    unsealed = os.memfd_create("unsealed")
    os.ftruncate(unsealed, 4096)
    assert "memory 9 could shrink" in refused(
        lab.ranks[0], {"op": "memory", "memory": 9}, (unsealed,)
    )
    os.close(unsealed)
    assert "memory 9 needs one descriptor" in refused(lab.ranks[1], {"op": "memory", "memory": 9})
    assert "rank 2 has joined already" in refused(lab.ranks[2], {"op": "join", "rank": 2})
    assert "op: does not know 'sing'" in refused(lab.ranks[3], {"op": "sing"})
    beyond = {
        "op": "exchange", "id": 1, "name": "", "group": [0, 4], "number": 0, "sends": [0, 9],
        "receives": [0, 0], "dtype": "uint8", "input": [1, 0, 9], "output": [1, 9, 9],
    }  # fmt: skip
    assert "not a place in memory that was handed over" in refused(lab.ranks[4], beyond)


def test_agent_over_a_channel_serves_ranks_in_a_folder_that_it_removes(tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["python3", str(AGENT), "--name", "s0", "--stdio"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b'{"id": 1, "op": "hello"}\n')
    process.stdin.flush()
    path = Path(json.loads(process.stdout.readline())["ranks"])
    assert path.is_socket()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    MemoryRank(0, str(path)).link.close()
    process.communicate()
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []
