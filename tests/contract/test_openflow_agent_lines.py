"""One agent, many switches: who is slow, silent or away holds up nobody else, and nothing is done while nothing happens."""

import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from emulator.switch.agent import Agent
from emulator.switch.memory import MemoryDatapath
from emulator.switch.openflow_ports import MemoryInterfaces
from emulator.switch.openflow_switch import Switch
from emulator.switch.seam import Port, Punt
from tests.openflow_lab import DATAPATH, PATIENCE_S, Peer, flow_mod, flows_request, output, serving

# isort: split
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser


class Emptied(MemoryDatapath):
    """A datapath in memory that tells when so many packets for the controller have been taken from it."""

    def __init__(self, ports: Iterable[Port], packets: int) -> None:
        super().__init__(ports)
        self.emptied, self._left = threading.Event(), packets

    def received(self) -> Sequence[Punt]:
        taken = super().received()
        self._left -= len(taken)
        if not self._left:
            self.emptied.set()
        return taken


def ports(switch: int) -> list[Port]:
    return [Port(port, f"s{switch}-{port}") for port in (1, 2)]


def datapaths(count: int) -> list[MemoryDatapath]:
    return [MemoryDatapath(ports(number)) for number in range(count)]


class Bench:
    """An agent with switches `s0, s1...` that aren't served yet, and a listener for each."""

    def __init__(self, datapaths: Sequence[MemoryDatapath], undo: ExitStack) -> None:
        self.interfaces = MemoryInterfaces()
        undo.callback(self.interfaces.close)
        self.agent, self.undo = Agent(self.interfaces), undo
        self.listeners = list[socket.socket]()
        for number, datapath in enumerate(datapaths):
            undo.callback(datapath.close)
            self.agent.add(f"s{number}", Switch(number, datapath, self.interfaces, time.monotonic_ns()))
            listener = undo.enter_context(socket.create_server(("127.0.0.1", 0)))
            listener.settimeout(PATIENCE_S)
            self.listeners.append(listener)
        self.agent.connect({f"s{n}": each.getsockname()[:2] for n, each in enumerate(self.listeners)})

    def accept(self, number: int) -> Peer:
        return Peer(self.undo.enter_context(self.listeners[number].accept()[0]))


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_controller_that_reads_nothing_holds_nobody_up(undo: ExitStack) -> None:
    bench = Bench(datapaths(2), undo)
    undo.enter_context(serving(bench.agent))
    deaf, other = bench.accept(0), bench.accept(1)
    deaf.greet()
    other.greet()
    assert deaf.after(*(flow_mod(number, [output(2)]) for number in range(1, 101))) == []
    asked = 300
    for _ in range(asked):  # 10 kB each, and nobody takes them
        deaf.send(flows_request())
    assert other.after(flow_mod(1, [output(2)])) == []
    assert other.ask(parser.OFPEchoRequest(DATAPATH, data=b"quick")).data == b"quick"
    flows = [len(deaf.statistics_reply()) for _ in range(asked)]
    assert flows == [100] * asked


def test_packets_for_a_controller_that_reads_nothing_are_lost_and_replies_are_not(undo: ExitStack) -> None:
    packets = 10_000
    datapath = Emptied(ports(0), packets)
    bench = Bench([datapath], undo)
    undo.enter_context(serving(bench.agent))
    peer = bench.accept(0)
    peer.greet()
    peer.after(flow_mod(1, [output(of.OFPP_CONTROLLER)]))
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    for _ in range(packets):
        datapath.forward(1, bytes(1500))
    assert datapath.emptied.wait(PATIENCE_S)
    heard = peer.after()
    assert 0 < len(heard) < packets
    assert {each.msg_type for each in heard} == {of.OFPT_PACKET_IN}


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(struct.pack("!BB", 4, 0), id="half-a-hello"),
        pytest.param(struct.pack("!BBHI", 1, 0, 8, 1), id="another-version"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another-protocol"),
    ],
)
def test_a_controller_that_makes_no_sense_holds_nobody_up(undo: ExitStack, said: bytes) -> None:
    bench = Bench(datapaths(2), undo)
    undo.enter_context(serving(bench.agent))
    odd = bench.accept(0)
    odd.sock.sendall(said)
    other = bench.accept(1)
    other.greet()
    assert other.after(flow_mod(1, [output(2)])) == []


def test_a_switch_calls_again_until_somebody_answers(undo: ExitStack) -> None:
    bench = Bench(datapaths(1), undo)
    address = bench.listeners[0].getsockname()
    bench.listeners[0].close()
    for _ in range(6):  # some calls that nobody answers, and what follows them
        bench.agent.turn(PATIENCE_S)
    undo.enter_context(serving(bench.agent))
    bench.listeners[0] = undo.enter_context(socket.create_server(address))
    bench.listeners[0].settimeout(PATIENCE_S)
    started = time.monotonic()
    bench.accept(0).greet()
    assert time.monotonic() - started < 2


def test_a_switch_that_is_hung_up_on_calls_again(undo: ExitStack) -> None:
    bench = Bench(datapaths(1), undo)
    undo.enter_context(serving(bench.agent))
    for _ in range(3):
        peer = bench.accept(0)
        peer.greet()
        peer.sock.close()


def test_nothing_is_done_while_nothing_happens(undo: ExitStack) -> None:
    bench = Bench(datapaths(150), undo)
    peers = list[Peer]()
    for number in range(150):
        while not bench.agent.connected() or len(bench.agent.connected()) <= number:
            bench.agent.turn(1)
        peers.append(bench.accept(number))
        peers[-1].sock.sendall(struct.pack("!BBHI", 4, 0, 8, 1))
    while not rests(bench.agent, 0.05):
        pass
    cpu = time.thread_time()
    assert rests(bench.agent, 1)
    assert time.thread_time() - cpu < 0.01
    bench.agent.close()


def rests(agent: Agent, seconds: float) -> bool:
    """Whether nothing wakes the agent for so long."""
    began = time.monotonic()
    agent.turn(seconds)
    return time.monotonic() - began >= seconds
