"""Transfers that the agent of a third server receives and sends on, on loopback."""

import itertools
import os
import re
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from moefabric.agents.engine import relays, wire
from moefabric.agents.engine.outgoing import OutgoingConnection
from moefabric.agents.engine.relays import Relay
from moefabric.agents.engine.requests import Fields
from moefabric.agents.engine.resources import READ, Resources
from moefabric.agents.engine.sockets import Destination
from moefabric.agents.engine.transfers import Send, TransferKey
from moefabric.agents.engine.wire import Greeting
from moefabric.agents.fleet.channel import Channel, request_all
from moefabric.agents.fleet.connections import DataPath
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.fleet.liveness import LivenessMonitor
from moefabric.agents.fleet.messages import Message
from moefabric.agents.remote.bundle import AGENT
from moefabric.core.errors import AgentError, ServerLossError
from moefabric.core.flows import PacedFlow
from moefabric.runtime.event_loop import IN, OUT, EventLoop
from tests.support.agents_lab import agent, arm, collect, paced_flow
from tests.support.paths import REPOSITORY

NAMES = ("s0", "s1", "s2")
LONG = 1 << 30
SIZE = 3_000_001
COUNTERS = ("bytes_sent", "bytes_received", "bytes_forwarded", "strays", "corrupt")
numbers = itertools.count(1)
DIRECT = [DataPath(a, b, "o0", "127.0.0.1") for a, b in itertools.permutations(NAMES, 2)]
RELAYED = [
    DataPath(a, b, f"r{relay[1]}", "127.0.0.1", relay=relay)
    for a, relay, b in itertools.permutations(NAMES, 3)
]


@dataclass
class Lab:
    fleet: Fleet
    processes: dict[str, "subprocess.Popen[bytes]"]

    def stats(self, name: str) -> Message:
        return request_all({self.fleet.channels[name]: ("stats", {})}, 5.0)[name]

    def relays(self) -> list[tuple[str, str, str]]:
        """Return sender, receiver and path of each connection that s1 relays."""
        return [(sender, receiver, path) for sender, receiver, path in self.stats("s1")["relays"]]

    def run(self, *flows: PacedFlow) -> list[str]:
        """Send flows; return why any failed."""
        return [record.why for record in self.fleet.run(next(numbers), flows, deadline_s=10.0)]

    def arm_long(self) -> int:
        """Begin a transfer over s1 that is too long to end, and wait for its first bytes."""
        flows, number = [paced_flow("s0", "s2", LONG, 1e8, "r1")], next(numbers)
        before = self.stats("s2")["bytes_received"]
        arm(self.fleet, number, flows, 30.0)
        while self.stats("s2")["bytes_received"] == before:
            pass
        return number

    def why(self, name: str, number: int, field: str) -> str:
        """Return why the only transfer of a server's report failed."""
        channel, ends = self.fleet.channels[name], time.monotonic() + 30
        while number not in channel.reports and time.monotonic() < ends:
            channel.read()
        return str(channel.reports[number][field][0]["why"])


@contextmanager
def started(folder: Path, relay_program: Path = AGENT) -> Iterator[Lab]:
    """Yield three connected agents, of which s1 runs the given program."""
    with ExitStack() as undo:
        programs = {"s0": AGENT, "s1": relay_program, "s2": AGENT}
        agents = {
            name: undo.enter_context(agent(name, folder, program=program))
            for name, program in programs.items()
        }
        channels = (channel for channel, _ in agents.values())
        fleet = undo.enter_context(Fleet(channels, liveness=LivenessMonitor(0.05, 2.0)))
        fleet.connect(DIRECT + RELAYED)
        yield Lab(fleet, {name: process for name, (_, process) in agents.items()})


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with started(tmp_path) as new_lab:
        yield new_lab


def test_every_byte_arrives_and_is_verified_and_timed_by_its_receiver(lab: Lab) -> None:
    for size in (0, 1, 64, 127, 256 * 1024, SIZE):
        before = {name: lab.stats(name) for name in NAMES}
        flow = paced_flow("s0", "s2", size, path="r1")
        (record,) = lab.fleet.run(next(numbers), [flow], deadline_s=10.0)
        assert (record.ok, record.why, record.received_bytes) == (True, "", size)
        assert record.first_sent_ns < record.first_received_ns <= record.last_received_ns
        assert record.last_received_ns <= record.acknowledged_ns
        more = {
            name: {key: lab.stats(name)[key] - before[name][key] for key in COUNTERS}
            for name in NAMES
        }
        assert more == {
            "s0": dict.fromkeys(COUNTERS, 0) | {"bytes_sent": size},
            "s1": dict.fromkeys(COUNTERS, 0) | {"bytes_forwarded": size},
            "s2": dict.fromkeys(COUNTERS, 0) | {"bytes_received": size},
        }


def test_relays_in_a_ring_never_wait_for_each_other(lab: Lab) -> None:
    """Each server sends, relays and receives at once; each pair also sends directly."""
    size = 20_000_000
    paths = [*DIRECT, *RELAYED]
    assert lab.run(*(paced_flow(p.src, p.dst, size, path=p.path) for p in paths)) == [""] * 12


def test_pace_of_the_sender_holds_beyond_the_relay(lab: Lab) -> None:
    flow = paced_flow("s0", "s2", 1_250_000, 50e6, "r1")
    (record,) = lab.fleet.run(next(numbers), [flow], deadline_s=10.0)
    assert record.ok
    # Linux does not pace a connection's first ten segments of 64 KiB.
    assert record.last_received_ns - record.first_received_ns > 0.09e9


CORRUPTING = """
from moefabric.agents.engine import relays
from moefabric.agents.engine.main import main

send = relays.FarEnd.send_bytes

def corrupt(self, data=b""):
    if len(data) > 9000:
        data = memoryview(bytes(data[:5000]) + bytes([data[5000] ^ 1]) + bytes(data[5001:]))
    send(self, data)

relays.FarEnd.send_bytes = corrupt
main()
"""


def test_corruption_at_the_relay_is_found_by_the_receiver(tmp_path: Path) -> None:
    program = tmp_path / "corrupting.py"
    program.write_text(f"import sys; sys.path[0] = {str(REPOSITORY)!r}\n{CORRUPTING}")
    with started(tmp_path, program) as lab:
        (record,) = lab.fleet.run(
            next(numbers), [paced_flow("s0", "s2", SIZE, path="r1")], deadline_s=10.0
        )
        assert record.corrupt
        assert "is not the one that was sent" in record.why
        assert lab.run(paced_flow("s0", "s2", 1000, path="r1")) == [""]


def test_relay_that_dies_ends_the_transfer_and_is_named(lab: Lab) -> None:
    number = lab.arm_long()
    lab.processes["s1"].kill()
    with pytest.raises(ServerLossError, match="agent s1: its control channel") as lost:
        collect(lab.fleet, number)
    assert lost.value.servers == frozenset(["s1"])
    assert lab.why("s0", number, "sends").startswith("connection to s2 by r1 over s1 at 127.0.0.1")
    assert lab.why("s2", number, "receives").startswith("connection from s0 by r1 over s1: ")
    lab.fleet.drop(["s1"])
    lab.fleet.abandon(number)
    lab.fleet.reconnect()
    assert lab.run(paced_flow("s0", "s2", SIZE), paced_flow("s2", "s0", SIZE)) == ["", ""]


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (signal.SIGKILL, "agent s1: its control channel"),
        (signal.SIGSTOP, "agents s1: no sign of life for 2 s"),
    ],
)
def test_relay_of_a_launched_collective_is_watched_until_its_end(
    lab: Lab, sent: signal.Signals, message: str
) -> None:
    """s1 is the end of a flow, too, which has arrived long before."""
    flows = [paced_flow("s0", "s2", LONG, 1e8, "r1"), paced_flow("s0", "s1", 1000)]
    number = lab.fleet.launch(flows, None, 30.0)
    while not lab.stats("s2")["bytes_received"]:
        pass
    assert lab.fleet.wait_ended(time.monotonic_ns() + 50_000_000) == {}
    assert number in lab.fleet.channels["s1"].reports
    os.kill(lab.processes["s1"].pid, sent)
    with pytest.raises(ServerLossError, match=message) as lost:
        lab.fleet.wait_ended(time.monotonic_ns() + 10_000_000_000)
    assert lost.value.servers == frozenset(["s1"])
    os.kill(lab.processes["s1"].pid, signal.SIGCONT)


def test_relay_is_asked_for_a_sign_of_life_if_transfers_failed() -> None:
    """The end of its control channel may be seen later than that of its connections."""
    ours, theirs = socket.socketpair()
    relay, monitor = Channel("s1", ours), LivenessMonitor(silence_s=2.0)
    whole: Message = {"sends": [{"ok": True}], "receives": []}
    failed: Message = {"sends": [], "receives": [{"ok": False}]}
    monitor.check_relays([relay], [whole, whole])
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    theirs.close()
    monitor.check_relays([], [failed])
    with pytest.raises(ServerLossError, match="agent s1: its control channel"):
        monitor.check_relays([relay], [whole, failed])
    relay.close()


def test_receiver_that_dies_is_named_to_the_sender_by_the_relay(lab: Lab) -> None:
    number = lab.arm_long()
    lab.processes["s2"].kill()
    why = lab.why("s0", number, "sends")
    assert re.fullmatch(
        r"connection to s2 by r1 over s1 at 127\.0\.0\.1 port \d+: s1 lost s2: "
        r"(closed by the peer|Connection reset by peer); \d+ of 1073741824 bytes were sent",
        why,
    )
    ends = time.monotonic() + 30
    while any(relay[1:] == ("s2", "r1") for relay in lab.relays()):
        assert time.monotonic() < ends, "the relay stays"


def test_sender_that_dies_ends_relay_and_receive(lab: Lab) -> None:
    number = lab.arm_long()
    lab.processes["s0"].kill()
    why = lab.why("s2", number, "receives")
    assert why.startswith("connection from s0 by r1 over s1: ")
    assert not [sender for sender, _, _ in lab.relays() if sender == "s0"]


def test_abandoned_transfer_leaves_nothing_and_its_path_opens_again(lab: Lab) -> None:
    number = lab.arm_long()
    lab.fleet.abandon(number)
    assert all(not stats["armed"] for stats in lab.fleet.request("stats").values())
    lab.fleet.reconnect()
    assert lab.run(*(paced_flow(p.src, p.dst, SIZE, path=p.path) for p in RELAYED)) == [""] * 6


def test_server_that_returns_relays_again(lab: Lab) -> None:
    number = lab.arm_long()
    os.kill(lab.processes["s1"].pid, signal.SIGSTOP)
    with pytest.raises(ServerLossError, match="agents s1: no sign of life"):
        collect(lab.fleet, number)
    lab.fleet.drop(["s1"])
    lab.fleet.abandon(number)
    lab.fleet.reconnect()
    assert lab.run(paced_flow("s0", "s2", SIZE)) == [""]
    with pytest.raises(AgentError, match="server s1 has no agent"):
        lab.run(paced_flow("s0", "s2", SIZE, path="r1"))
    os.kill(lab.processes["s1"].pid, signal.SIGCONT)
    ends = time.monotonic() + 30
    while not lab.fleet.readmit():
        assert time.monotonic() < ends, "s1 does not return"
    assert lab.run(*(paced_flow(p.src, p.dst, SIZE, path=p.path) for p in RELAYED)) == [""] * 6


def test_relay_refuses_servers_to_whom_it_has_no_connection(lab: Lab) -> None:
    path = {**lab.fleet.connections.destination(RELAYED[0]), "peer": "s9"}
    with pytest.raises(AgentError, match=r"over s1 .*: s1 has no connection to s9"):
        request_all({lab.fleet.channels["s0"]: ("connect", {"paths": [path]})}, 5.0)


# --- one relay in this process -------------------------------------------------------------------


@dataclass
class Bench:
    """A relay between two sockets of the test, which is driven by hand."""

    relay: Relay
    sender: socket.socket
    receiver: socket.socket
    loop: EventLoop


@pytest.fixture
def bench() -> Iterator[Bench]:
    loop = EventLoop()
    resources = Resources("s1", loop)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        path = Fields({"peer": "s2", "path": "o0", "address": "127.0.0.1", "port": port})
        resources.destinations["s2"] = Destination(path, "cubic", 64 * 1024)
        near, sender = tcp_pair()
        near.setblocking(False)
        greeting = Greeting("s0", "s2", "r1", relay="s1")
        relay = Relay(resources, near, greeting)
        receiver, _ = listener.accept()
        with sender, receiver:
            assert relay.far is not None
            relay.far.ready(OUT)
            expected = greeting.to_bytes()
            assert receiver.recv(len(expected), socket.MSG_WAITALL) == expected
            yield Bench(relay, sender, receiver, loop)
        relay.close()
        near.close()  # it discards bytes after the relay's end


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected TCP sockets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return listener.accept()[0], one


def test_relay_holds_one_read_while_its_receiver_takes_nothing(bench: Bench) -> None:
    far, near = bench.relay.far, bench.relay.near
    assert far is not None
    whole = wire.HEADER.pack(1, 0, LONG, 0, 0) + bytes(64 * READ)
    bench.sender.setblocking(False)
    sent = bench.sender.send(whole)
    while not far.unsent:
        near.ready(IN)
        with suppress(BlockingIOError):
            sent += bench.sender.send(whole[sent : sent + READ])
    held = len(far.unsent)
    assert 0 < held <= READ
    assert bench.loop.masks[near.sock.fileno()] == 0, "the sender is still read"
    assert bench.loop.masks[far.sock.fileno()] & OUT
    passed = b""
    while len(passed) < sent:
        passed += bench.receiver.recv(READ)
        far.ready(OUT)
        if not far.unsent and len(passed) < sent:
            near.ready(IN)
    assert passed == whole[:sent]
    assert bench.loop.masks[near.sock.fileno()] == IN


def test_acknowledgement_counts_segments_sent_again_beyond_the_relay(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([3, 5])
    monkeypatch.setattr(relays, "total_retransmits", lambda _sock: next(counts))
    far = bench.relay.far
    assert far is not None
    for number, resent in ((1, 3), (2, 2)):
        raw = wire.ACKNOWLEDGEMENT.pack(number, 0, 1, 0)
        bench.receiver.sendall(raw[:20])
        far.ready(IN)
        bench.receiver.sendall(raw[20:])
        far.ready(IN)
        answer = bench.sender.recv(wire.ACKNOWLEDGEMENT.size, socket.MSG_WAITALL)
        assert wire.ACKNOWLEDGEMENT.unpack(answer) == (number, 0, 1, resent)


def test_corrupt_header_ends_the_relay_and_tells_the_sender(bench: Bench) -> None:
    bench.sender.sendall(bytes(wire.HEADER.size))
    bench.relay.near.ready(IN)
    answer = bench.sender.recv(wire.LOSS.size, socket.MSG_WAITALL)
    fields = wire.LOSS.unpack(answer)
    assert fields is not None
    assert fields[0].rstrip(b"\0") == b"is out of step: a transfer's header is corrupt"
    assert bench.relay.near.closed
    assert not bench.relay.resources.relays


def test_relay_that_ends_with_unread_bytes_does_not_reset_the_sender(bench: Bench) -> None:
    """A reset could overtake the reason."""
    near, far = bench.relay.near, bench.relay.far
    assert far is not None
    bench.sender.sendall(wire.HEADER.pack(1, 0, LONG, 0, 0) + bytes(READ))
    far.lose("closed by the peer")
    assert near.closed
    assert not bench.relay.resources.relays
    assert bench.sender.recv(wire.LOSS.size, socket.MSG_WAITALL) == wire.LOSS.pack(
        b"lost s2: closed by the peer"
    )
    assert bench.sender.recv(1) == b""
    descriptor = near.sock.fileno()
    bench.sender.close()
    while near.sock.fileno() >= 0:
        bench.loop.callbacks[descriptor](IN)
    assert descriptor not in bench.loop.masks


def test_sender_reads_the_reason_of_a_relay_that_reset_its_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fields = {"peer": "s2", "path": "r1", "address": "127.0.0.1", "relay": "s1"}
        path = Fields(fields | {"port": listener.getsockname()[1]})
        sender = OutgoingConnection(Resources("s0"), Destination(path, "cubic", 64 * 1024))
        relay, _ = listener.accept()
        sender.ready(OUT)
        relay.sendall(wire.ACKNOWLEDGEMENT.pack(0, 0, 1, 0))
        while sender.state != "up":
            sender.ready(IN)
        send = Send(TransferKey(1, "s2", "r1", 0), LONG, None)
        sender.send(send)
        relay.send(wire.LOSS.pack(b"lost s2: closed by the peer"))
        relay.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        relay.close()
        while sender.state != "lost":
            sender.ready(OUT)
    assert send.why.startswith(
        f"connection to {sender.destination}: s1 lost s2: closed by the peer;"
    )
