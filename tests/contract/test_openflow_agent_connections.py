"""Many switches of one agent: no controller delays another, and an idle agent uses no CPU."""

import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from moefabric.emulator.openflow_switch.agent.agent import OpenFlowAgent
from moefabric.emulator.openflow_switch.agent.switch import OpenFlowSwitch
from moefabric.emulator.openflow_switch.datapath.interface import Port, PuntedPacket
from tests.support.memory_datapath import MemoryDatapath, MemoryInterfaces
from tests.support.openflow_lab import (
    DATAPATH,
    TIMEOUT_S,
    Peer,
    flow_mod,
    flows_request,
    output,
    serving,
)

# isort: split
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser


class CountdownDatapath(MemoryDatapath):
    """A datapath in memory that signals when `packets` punted packets have been taken."""

    def __init__(self, ports: Iterable[Port], packets: int) -> None:
        super().__init__(ports)
        self.emptied, self._remaining = threading.Event(), packets

    def received(self) -> Sequence[PuntedPacket]:
        packets = super().received()
        self._remaining -= len(packets)
        if not self._remaining:
            self.emptied.set()
        return packets


def ports(switch: int) -> list[Port]:
    return [Port(port, f"s{switch}-{port}") for port in (1, 2)]


def datapaths(count: int) -> list[MemoryDatapath]:
    return [MemoryDatapath(ports(number)) for number in range(count)]


class Bench:
    """An agent with switches s0, s1 and so on that it doesn't serve yet, each with a listener."""

    def __init__(self, datapaths: Sequence[MemoryDatapath], undo: ExitStack) -> None:
        self.interfaces = MemoryInterfaces()
        undo.callback(self.interfaces.close)
        self.agent, self.undo = OpenFlowAgent(self.interfaces), undo
        self.listeners = list[socket.socket]()
        for number, datapath in enumerate(datapaths):
            undo.callback(datapath.close)
            self.agent.add(
                f"s{number}", OpenFlowSwitch(number, datapath, self.interfaces, time.monotonic_ns())
            )
            listener = undo.enter_context(socket.create_server(("127.0.0.1", 0)))
            listener.settimeout(TIMEOUT_S)
            self.listeners.append(listener)
        self.agent.connect(
            {f"s{n}": listener.getsockname()[:2] for n, listener in enumerate(self.listeners)}
        )

    def accept(self, number: int) -> Peer:
        return Peer(self.undo.enter_context(self.listeners[number].accept()[0]))


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_blocked_controller_delays_no_other(undo: ExitStack) -> None:
    bench = Bench(datapaths(2), undo)
    undo.enter_context(serving(bench.agent))
    blocked, other = bench.accept(0), bench.accept(1)
    blocked.greet()
    other.greet()
    assert blocked.after(*(flow_mod(number, [output(2)]) for number in range(1, 101))) == []
    requests = 300
    for _ in range(requests):  # 10 kB each, which nobody reads
        blocked.send(flows_request())
    assert other.after(flow_mod(1, [output(2)])) == []
    assert other.ask(parser.OFPEchoRequest(DATAPATH, data=b"quick")).data == b"quick"
    flows = [len(blocked.statistics_reply()) for _ in range(requests)]
    assert flows == [100] * requests


def test_blocked_controller_loses_packets_and_no_replies(undo: ExitStack) -> None:
    packets = 10_000
    datapath = CountdownDatapath(ports(0), packets)
    bench = Bench([datapath], undo)
    undo.enter_context(serving(bench.agent))
    peer = bench.accept(0)
    peer.greet()
    peer.after(flow_mod(1, [output(of.OFPP_CONTROLLER)]))
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    for _ in range(packets):
        datapath.forward(1, bytes(1500))
    assert datapath.emptied.wait(TIMEOUT_S)
    messages = peer.after()
    assert 0 < len(messages) < packets
    assert {message.msg_type for message in messages} == {of.OFPT_PACKET_IN}


@pytest.mark.parametrize(
    "octets",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(struct.pack("!BB", 4, 0), id="half-a-hello"),
        pytest.param(struct.pack("!BBHI", 1, 0, 8, 1), id="another-version"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another-protocol"),
    ],
)
def test_invalid_controller_delays_no_other(undo: ExitStack, octets: bytes) -> None:
    bench = Bench(datapaths(2), undo)
    undo.enter_context(serving(bench.agent))
    invalid = bench.accept(0)
    invalid.sock.sendall(octets)
    other = bench.accept(1)
    other.greet()
    assert other.after(flow_mod(1, [output(2)])) == []


def test_switch_reconnects_until_controller_listens(undo: ExitStack) -> None:
    bench = Bench(datapaths(1), undo)
    address = bench.listeners[0].getsockname()
    bench.listeners[0].close()
    for _ in range(6):  # some attempts that fail
        bench.agent.run_once(TIMEOUT_S)
    assert bench.agent.switches["s0"].connect_ns - time.monotonic_ns() <= 1e9
    undo.enter_context(serving(bench.agent))
    bench.listeners[0] = undo.enter_context(socket.create_server(address))
    bench.listeners[0].settimeout(TIMEOUT_S)
    bench.accept(0).greet()


def test_switch_reconnects_after_hang_up(undo: ExitStack) -> None:
    bench = Bench(datapaths(1), undo)
    undo.enter_context(serving(bench.agent))
    for _ in range(3):
        peer = bench.accept(0)
        peer.greet()
        assert peer.after(flow_mod(1, [output(2)])) == []
        peer.sock.close()


def test_idle_agent_uses_no_cpu(undo: ExitStack) -> None:
    bench = Bench(datapaths(150), undo)
    peers = list[Peer]()
    for number in range(150):
        while sum(one.is_connected for one in bench.agent.switches.values()) <= number:
            bench.agent.run_once(1)
        peers.append(bench.accept(number))
        peers[-1].sock.sendall(struct.pack("!BBHI", 4, 0, 8, 1))
    while not is_idle(bench.agent, 0.05):
        pass
    cpu = time.thread_time()
    assert is_idle(bench.agent, 1)
    assert time.thread_time() - cpu < 0.01
    bench.agent.close()


def is_idle(agent: OpenFlowAgent, seconds: float) -> bool:
    """Whether nothing wakes the agent for so long."""
    started = time.monotonic()
    agent.run_once(seconds)
    return time.monotonic() - started >= seconds
