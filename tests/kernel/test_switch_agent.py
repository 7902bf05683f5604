"""The switches' process on real interfaces, and forwarding without it."""

import json
import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kernel.switch_bench import ETH_P_ALL, PACKET_OUTGOING
from tests.support.namespaces import must
from tests.support.openflow_lab import DATAPATH, TIMEOUT_S, Peer, flow_mod, flows_request, output
from tests.support.switch_frames import ipv4
from tests.support.switch_processes import SwitchProcess, switch_network, wire

# isort: split
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser

PORTS = (1, 2, 3)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Bench:
    """A switch process, its controller, and the far ends of its ports."""

    process: SwitchProcess
    peer: Peer
    ends: dict[int, socket.socket]

    def next_frame(self, port: int, timeout_s: float = 1.0) -> bytes | None:
        """Takes the next frame from a port; None after the timeout."""
        deadline = time.monotonic() + timeout_s
        while select.select([self.ends[port]], [], [], max(0, deadline - time.monotonic()))[0]:
            frame, (_, _, kind, *_) = self.ends[port].recvfrom(4096)
            if kind != PACKET_OUTGOING:
                return bytes(frame)
        return None


def _raw(interface: str) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    sock.bind((interface, ETH_P_ALL))
    return sock


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with switch_network(), ExitStack() as undo:
        for port in PORTS:
            wire(f"p{port}", f"p{port}e")
        ports = {port: f"p{port}" for port in PORTS}
        process = SwitchProcess([{"name": "s0", "datapath_id": 5, "ports": ports}], tmp_path, undo)
        listener = undo.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(TIMEOUT_S)
        process.connect({"s0": listener.getsockname()[:2]})
        peer = Peer(undo.enter_context(listener.accept()[0]))
        assert peer.greet().datapath_id == 5
        yield Bench(process, peer, {port: undo.enter_context(_raw(f"p{port}e")) for port in PORTS})


def test_ports_report_carrier_addresses_and_counters(bench: Bench) -> None:
    ports = bench.peer.statistics(parser.OFPPortDescStatsRequest(DATAPATH, 0))
    addresses = {link["ifname"]: link["address"] for link in json.loads(must("ip", "-j", "link"))}
    assert [(port.port_no, port.name, port.hw_addr, port.state) for port in ports] == [
        (n, f"p{n}".encode(), addresses[f"p{n}"], 0) for n in PORTS
    ]
    bench.peer.after(flow_mod(1, [output(2)]))
    bench.ends[1].send(ipv4())
    assert bench.next_frame(2) == ipv4()
    one, two, three = bench.peer.statistics(parser.OFPPortStatsRequest(DATAPATH, 0, of.OFPP_ANY))
    assert (one.rx_packets, one.rx_bytes, two.tx_packets, two.tx_bytes) == (
        1,
        len(ipv4()),
        1,
        len(ipv4()),
    )
    assert (three.rx_packets, three.tx_packets) == (0, 0)
    must("ip", "link", "set", "p2e", "down")
    status = bench.peer.receive()
    assert status.msg_type == of.OFPT_PORT_STATUS
    assert (status.desc.port_no, status.desc.state) == (2, of.OFPPS_LINK_DOWN)
    must("ip", "link", "set", "p2e", "up")
    assert bench.peer.receive().desc.state == 0


def test_packet_in_and_packet_out(bench: Bench) -> None:
    bench.peer.after(
        flow_mod(9, [output(of.OFPP_CONTROLLER)], parser.OFPMatch(in_port=3), cookie=7)
    )
    bench.ends[3].send(ipv4())
    packet = bench.peer.receive()
    assert (packet.msg_type, packet.cookie) == (of.OFPT_PACKET_IN, 7)
    assert (packet.match["in_port"], packet.data) == (3, ipv4())
    out = [parser.OFPActionSetField(eth_dst="02:00:00:00:00:09"), output(of.OFPP_ALL)]
    assert (
        bench.peer.after(parser.OFPPacketOut(DATAPATH, of.OFP_NO_BUFFER, 3, out, packet.data)) == []
    )
    expected = bytes.fromhex("020000000009") + ipv4()[6:]
    assert [bench.next_frame(1), bench.next_frame(2), bench.next_frame(3, 0.1)] == [
        expected,
        expected,
        None,
    ]


def test_idle_timeout_removes_unused_entry_only(bench: Bench) -> None:
    idle = flow_mod(
        9, [output(2)], parser.OFPMatch(in_port=1), idle_timeout=1, flags=of.OFPFF_SEND_FLOW_REM
    )
    used = flow_mod(
        9, [output(2)], parser.OFPMatch(in_port=3), idle_timeout=1, flags=of.OFPFF_SEND_FLOW_REM
    )
    bench.peer.after(idle, used)
    bench.ends[1].send(ipv4())
    sent, deadline = 0, time.monotonic() + TIMEOUT_S
    while not select.select([bench.peer.sock], [], [], 0.1)[0] and time.monotonic() < deadline:
        bench.ends[3].send(ipv4())
        sent += 1
    removal = bench.peer.receive()
    assert (removal.reason, removal.match["in_port"], removal.packet_count) == (
        of.OFPRR_IDLE_TIMEOUT,
        1,
        1,
    )
    (remaining,) = bench.peer.statistics(flows_request())
    assert (remaining.match["in_port"], remaining.packet_count) == (3, sent)


def test_datapath_forwards_after_agent_is_killed(bench: Bench) -> None:
    bench.peer.after(flow_mod(1, [output(2)]))
    bench.process.process.kill()
    bench.process.process.wait()
    bench.ends[1].send(ipv4())
    assert bench.next_frame(2) == ipv4()


def test_idle_agent_uses_no_cpu(bench: Bench) -> None:
    bench.peer.after(flow_mod(1, [output(2)]))
    before = _cpu_s(bench.process.process.pid)
    time.sleep(1)  # the idle time that is measured
    assert _cpu_s(bench.process.process.pid) - before <= 0.01


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
