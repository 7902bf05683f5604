"""Two agents on loopback: transfers are verified, and faults are reported and survived."""

import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from moefabric.agents.fleet.channel import Channel, request_all
from moefabric.agents.fleet.connections import DataPath
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.fleet.messages import Message
from moefabric.agents.remote.bundle import AGENT
from moefabric.core.errors import AgentError
from moefabric.core.flows import FlowRecord, PacedFlow
from tests.support.agents_lab import (
    OLDEST_PYTHONS,
    agent,
    arm,
    bundled,
    collect,
    paced_flow,
    reported,
)
from tests.support.editing_relay import Edit, EditingRelay

SIZE = 700_001  # not a multiple of anything
numbers = itertools.count(1)


@dataclass
class Pair:
    fleet: Fleet
    processes: dict[str, "subprocess.Popen[bytes]"]
    undo: ExitStack

    def channel(self, name: str) -> Channel:
        return self.fleet.channels[name]

    def wire(self) -> None:
        self.fleet.connect(
            [DataPath("s0", "s1", "o0", "127.0.0.1"), DataPath("s1", "s0", "o0", "127.0.0.1")]
        )

    def wire_through(self, place: int, edit: Edit) -> None:
        """Connect s0 to s1 through a relay that edits."""
        self.wire()
        path = self.path()
        relay = EditingRelay(path["port"], place, edit)
        self.undo.callback(relay.close)
        path["port"] = relay.port
        request_all({self.channel("s0"): ("connect", {"paths": [path]})}, 5)

    def path(self) -> Message:
        """Return the path from s0 to s1 as requests name it."""
        return self.fleet.connections.destination(DataPath("s0", "s1", "o0", "127.0.0.1"))

    def run(
        self, *flows: PacedFlow, start_ns: int | None = None, deadline_s: float = 10.0
    ) -> list[FlowRecord]:
        return self.fleet.run(next(numbers), flows, start_ns, deadline_s)

    def send(self, size: int = SIZE, deadline_s: float = 10.0) -> FlowRecord:
        (record,) = self.run(paced_flow("s0", "s1", size), deadline_s=deadline_s)
        return record

    def count(self, what: str) -> int:
        """Return the counters of s1."""
        return int(request_all({self.channel("s1"): ("stats", {})}, 5)["s1"][what])


@contextmanager
def started(folder: Path, python: str = sys.executable, program: Path = AGENT) -> Iterator[Pair]:
    with ExitStack() as undo:
        agents = {
            n: undo.enter_context(agent(n, folder, python=python, program=program))
            for n in ("s0", "s1")
        }
        fleet = undo.enter_context(Fleet(channel for channel, _ in agents.values()))
        yield Pair(fleet, {n: p for n, (_, p) in agents.items()}, undo)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Yield one pair for all tests; no test may affect the next."""
    with started(tmp_path_factory.mktemp("agents")) as pair:
        yield pair


@pytest.mark.parametrize("size", [0, 1, 63, 64, 256 * 1024, SIZE, 20_000_000])
def test_every_byte_arrives(pair: Pair, size: int) -> None:
    pair.wire()
    before = pair.count("bytes_received")
    record = pair.send(size)
    assert (record.ok, record.why, record.bytes) == (True, "", size)
    assert record.first_sent_ns <= record.last_sent_ns
    assert record.first_sent_ns < record.last_received_ns <= record.acknowledged_ns
    assert pair.count("bytes_received") - before == size


def test_transfers_run_both_ways_and_several_per_path(pair: Pair) -> None:
    pair.wire()
    there, back = paced_flow("s0", "s1", 3_000_000), paced_flow("s1", "s0", 5_000_001)
    records = pair.run(there, back, paced_flow("s0", "s1", 10), paced_flow("s0", "s1", 0))
    assert [record.ok for record in records] == [True] * 4
    assert [record.bytes for record in records] == [3_000_000, 5_000_001, 10, 0]


def test_collective_starts_at_its_instant(pair: Pair) -> None:
    pair.wire()
    start = time.monotonic_ns() + 100_000_000
    (record,) = pair.run(paced_flow("s0", "s1", 1000), start_ns=start)
    assert 0 <= record.first_sent_ns - start < 1_000_000_000


def test_collectives_can_be_armed_ahead(pair: Pair) -> None:
    pair.wire()
    base = time.monotonic_ns() + 50_000_000
    sizes = {next(numbers): size for size in (4000, 90_000, 7)}
    starts = {n: base + i * 20_000_000 for i, n in enumerate(sizes)}
    for n, size in sizes.items():
        pair.fleet.launch([paced_flow("s0", "s1", size)], starts[n], 5.0, number=n)
    ended: dict[int, list[FlowRecord]] = {}
    while len(ended) < len(sizes):
        ended |= pair.fleet.wait_ended(None)
    records = [ended[n][0] for n in sizes]
    assert [(record.bytes, record.ok) for record in records] == [
        (4000, True),
        (90_000, True),
        (7, True),
    ]
    assert all(record.first_sent_ns >= starts[record.collective] for record in records)


def test_early_transfer_counts(pair: Pair) -> None:
    pair.wire()
    times = {"start_ns": None, "deadline_ns": time.monotonic_ns() + 5_000_000_000}
    part, number, before = (
        {"path": "o0", "bytes": 5000},
        next(numbers),
        pair.count("bytes_received"),
    )
    s0, s1 = pair.channel("s0"), pair.channel("s1")
    request_all(
        {s0: ("collective", {"collective": number, "sends": [{"peer": "s1", **part}], **times})}, 5
    )
    while pair.count("bytes_received") < before + 5000:
        pass
    request_all(
        {s1: ("collective", {"collective": number, "receives": [{"peer": "s0", **part}], **times})},
        5,
    )
    (record,) = reported(pair.fleet, number, [paced_flow("s0", "s1", 5000)])
    assert record.ok


def test_late_transfer_is_a_stray(pair: Pair) -> None:
    pair.wire()
    number, before = next(numbers), pair.count("strays")
    arming = {"collective": number, "deadline_ns": time.monotonic_ns() + 5_000_000_000}
    sends = [{"peer": "s1", "path": "o0", "bytes": 5000}]
    s0, s1 = pair.channel("s0"), pair.channel("s1")
    request_all({s1: ("collective", arming)}, 5)
    while number in request_all({s1: ("stats", {})}, 5)["s1"]["armed"]:
        pass
    request_all({s0: ("collective", {**arming, "sends": sends})}, 5)
    while pair.count("strays") == before:
        pass
    assert pair.count("strays") == before + 1
    assert pair.send().ok


def changed(raw: bytes) -> bytes:
    return bytes([raw[0] ^ 1]) + raw[1:]


def lost(raw: bytes) -> bytes:
    return raw[1:]


def doubled(raw: bytes) -> bytes:
    return raw[:1] + raw


def swapped(raw: bytes) -> bytes:
    """Swap the first byte and the next that differs from it."""
    other = next(i for i, byte in enumerate(raw) if byte != raw[0])
    return bytes([raw[other]]) + raw[1:other] + raw[:1] + raw[other + 1 :]


END = 64 + SIZE
TRAILER = END + (-SIZE % 64)


@pytest.mark.parametrize("edit", [changed, lost, doubled, swapped])
@pytest.mark.parametrize(
    "place",
    [
        pytest.param(0, id="header"),
        pytest.param(20, id="length"),
        pytest.param(64, id="first-byte"),
        pytest.param(64 + 128 * 1024 - 1, id="last-of-a-chunk"),
        pytest.param(64 + 300_000, id="middle"),
        pytest.param(END - 100, id="near-the-end"),
        pytest.param(END - 1, id="last-byte"),
        pytest.param(END + 20, id="filling"),
        pytest.param(TRAILER, id="trailer"),
        pytest.param(TRAILER + 48, id="end-of-trailer"),
    ],
)
def test_corruption_fails_its_transfer(pair: Pair, place: int, edit: Edit) -> None:
    pair.wire_through(place, edit)
    record = pair.send(deadline_s=0.4)
    assert not record.ok
    assert record.why
    pair.fleet.request("hello")
    pair.wire()
    assert pair.send().ok


def test_report_names_the_changed_byte(pair: Pair) -> None:
    pair.wire_through(64 + 300_000, changed)
    before = pair.count("corrupt")
    assert pair.send().why == "byte 300000 of 700001 is not the one that was sent"
    assert pair.count("corrupt") == before + 1
    assert pair.send().ok


def test_transfer_through_a_relay_succeeds(pair: Pair) -> None:
    pair.wire_through(300_000, lambda raw: raw)
    assert pair.send().ok


def test_death_of_a_peer_is_reported_at_once(tmp_path: Path) -> None:
    with started(tmp_path) as pair:
        pair.wire()
        flows = [paced_flow("s0", "s1", 1 << 30, 1e8)]
        arm(pair.fleet, 1, flows, 20.0)
        while not pair.count("bytes_received"):
            pass
        pair.processes["s1"].kill()
        with pytest.raises(AgentError, match="agent s1: its control channel"):
            collect(pair.fleet, 1)
        del pair.fleet.channels["s1"]
        why = _report(pair.channel("s0"), 1)["sends"][0]["why"]
        assert why.startswith("connection to s1 by o0 at 127.0.0.1 port ")
        assert why.endswith(" of 1073741824 bytes were sent")
        assert pair.fleet.request("hello")["s0"]["name"] == "s0"


def _report(channel: Channel, collective: int) -> Message:
    deadline = time.monotonic() + 30
    while collective not in channel.reports and time.monotonic() < deadline:
        channel.read()
    return channel.reports[collective]


def test_deadline_names_missing_bytes(pair: Pair) -> None:
    pair.wire()
    (record,) = pair.run(paced_flow("s0", "s1", 10_000_000, 8e6), deadline_s=0.2)
    assert not record.ok
    assert " of 10000000 bytes had come" in record.why
    (connection,) = request_all({pair.channel("s0"): ("stats", {})}, 5)["s0"]["connections"]
    assert (
        connection["why"]
        == f"closed in mid-transfer at the deadline of collective {record.collective}"
    )
    assert not pair.send(deadline_s=0.5).ok
    pair.wire()
    assert pair.send().ok


def test_missing_connection_is_named(pair: Pair) -> None:
    pair.wire()
    records = pair.run(
        paced_flow("s0", "s1", 5, path="o7"), paced_flow("s0", "s1", 5), deadline_s=0.5
    )
    assert [record.ok for record in records] == [False, True]
    assert records[0].why == "s0 has no connection to here by o7"


def test_unexpected_size_fails(pair: Pair) -> None:
    pair.wire()
    times = {
        "start_ns": time.monotonic_ns() + 50_000_000,
        "deadline_ns": time.monotonic_ns() + 5_000_000_000,
    }
    number = next(numbers)
    sends = {"collective": number, "sends": [{"peer": "s1", "path": "o0", "bytes": 5000}], **times}
    receives = {
        "collective": number,
        "receives": [{"peer": "s0", "path": "o0", "bytes": 5001}],
        **times,
    }
    request_all(
        {pair.channel("s0"): ("collective", sends), pair.channel("s1"): ("collective", receives)}, 5
    )
    (record,) = reported(pair.fleet, number, [paced_flow("s0", "s1", 5001)])
    assert record.why == "5000 bytes were sent where 5001 are expected"


def test_all_refused_connections_are_named(pair: Pair) -> None:
    nobody = socket.create_server(("127.0.0.1", 0))
    port = nobody.getsockname()[1]
    nobody.close()
    paths = [
        {"peer": "s1", "path": path, "address": "127.0.0.1", "port": port} for path in ("o0", "e0")
    ]
    with pytest.raises(AgentError) as error:
        request_all({pair.channel("s0"): ("connect", {"paths": paths})}, 5)
    assert str(error.value) == (
        f"agent s0: no connection to s1 by o0 at 127.0.0.1 port {port}: Connection refused; "
        f"s1 by e0 at 127.0.0.1 port {port}: Connection refused"
    )


def test_impossible_connection_is_named(pair: Pair) -> None:
    pair.wire()
    fields = {"paths": [pair.path()], "congestion": "none-such"}
    with pytest.raises(
        AgentError, match=r"no connection to s1 by o0 at .*: No such file or directory"
    ):
        request_all({pair.channel("s0"): ("connect", fields)}, 5)


def test_connection_to_another_agent_is_refused(pair: Pair) -> None:
    pair.wire()
    path = {**pair.path(), "peer": "s9"}
    with pytest.raises(AgentError, match="the agent there is not s9"):
        request_all({pair.channel("s0"): ("connect", {"paths": [path]})}, 5)


@pytest.mark.parametrize(
    ("op", "fields", "error"),
    [
        pytest.param("fly", {}, "op: does not know 'fly'; knows hello", id="op"),
        pytest.param(
            "listen",
            {"addresses": ["192.0.2.1"]},
            "can't listen on 192.0.2.1: ",
            id="foreign-address",
        ),
        pytest.param("connect", {"paths": 3}, "paths: a list of objects is needed", id="paths"),
        pytest.param(
            "connect", {"paths": [{"peer": 3}]}, "paths[0].peer: 3 is not a text", id="peer"
        ),
        pytest.param(
            "connect",
            {
                "paths": [
                    {"peer": "s1", "path": "o0", "address": "127.0.0.1", "port": 1, "dscp": 64}
                ]
            },
            "paths[0].dscp: 64 is not a whole number from 0 to 63",
            id="dscp",
        ),
        pytest.param(
            "collective", {"collective": -1}, "collective: -1 is not a whole number", id="number"
        ),
        pytest.param("collective", {"collective": 1}, "deadline_ns is missing", id="deadline"),
        pytest.param(
            "collective",
            {
                "collective": 1,
                "deadline_ns": 5,
                "sends": [{"peer": "s1", "path": "o0", "bytes": -5}],
            },
            "sends[0].bytes: -5 is not a whole number",
            id="negative-bytes",
        ),
        pytest.param(
            "collective",
            {
                "collective": 1,
                "deadline_ns": 5,
                "sends": [{"peer": "s1", "path": "o0", "bytes": 5, "rate_bps": 0}],
            },
            "sends[0].rate_bps: 0 is not a rate",
            id="rate",
        ),
    ],
)
def test_malformed_request_is_refused_with_its_place(
    pair: Pair, op: str, fields: dict[str, object], error: str
) -> None:
    with pytest.raises(AgentError) as refused:
        request_all({pair.channel("s0"): (op, fields)}, 5)
    assert str(refused.value).startswith(f"agent s0: {error}")
    assert pair.fleet.request("hello")["s0"]["name"] == "s0"


def test_lines_that_are_no_request_are_refused(pair: Pair) -> None:
    channel = pair.channel("s0")
    channel.stream.sendall(b"what?\n[1]\n")
    deadline = time.monotonic() + 30
    while None not in channel.replies and time.monotonic() < deadline:
        channel.read()
    assert not channel.replies[None]["ok"]  # type: ignore[index] # no request number


def test_second_agent_at_a_socket_is_refused(tmp_path: Path) -> None:
    with agent("s0", tmp_path):
        argv = [sys.executable, str(AGENT), "--name", "s0", "--control", str(tmp_path / "s0.sock")]
        result = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    assert result.returncode == 1
    where = f"{tmp_path}/s0.sock"
    assert (
        result.stderr
        == f"agent s0: {where}: an agent answers there already; stop it, or choose another path\n"
    )


def test_agent_removes_its_socket_and_replaces_a_stale_one(tmp_path: Path) -> None:
    with agent("s0", tmp_path) as (_, process):
        process.kill()
        process.wait(30)
    assert (tmp_path / "s0.sock").exists()
    with agent("s0", tmp_path):
        pass
    assert not (tmp_path / "s0.sock").exists()


@pytest.mark.parametrize("python", OLDEST_PYTHONS, ids=lambda path: Path(path).name)
def test_agent_runs_on_the_oldest_python(python: str, tmp_path: Path) -> None:
    with started(tmp_path, python, bundled(tmp_path)) as pair:
        pair.wire()
        assert pair.send().ok
