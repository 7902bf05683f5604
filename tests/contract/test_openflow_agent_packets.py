"""Packets between a switch and its controller, and the ports that they use."""

import pytest

from tests.support.openflow_bench import TO_B, Bench, frame
from tests.support.openflow_lab import DATAPATH, Peer, flow_mod, output

# isort: split
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser


def test_packet_in_and_packet_out(bench: Bench, peer: Peer) -> None:
    peer.after(
        flow_mod(7, [output(of.OFPP_CONTROLLER)], parser.OFPMatch(eth_type=0x0800), cookie=5)
    )
    bench.datapath.forward(3, frame())
    packet = peer.receive()
    assert (packet.reason, packet.cookie, packet.match["in_port"]) == (of.OFPR_ACTION, 5, 3)
    assert (packet.data, packet.total_len) == (frame(), len(frame()))
    back = [output(of.OFPP_IN_PORT)]
    assert peer.after(parser.OFPPacketOut(DATAPATH, of.OFP_NO_BUFFER, 3, back, packet.data)) == []
    assert bench.datapath.sent == [(3, frame())]


def test_table_miss_is_reason_of_packet_in(bench: Bench, peer: Peer) -> None:
    peer.after(flow_mod(0, [output(of.OFPP_CONTROLLER)]))
    bench.datapath.forward(1, frame())
    assert peer.receive().reason == of.OFPR_NO_MATCH


def test_packet_out_to_tables(bench: Bench, peer: Peer) -> None:
    peer.after(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B)))
    out = [output(of.OFPP_TABLE)]
    peer.after(parser.OFPPacketOut(DATAPATH, of.OFP_NO_BUFFER, of.OFPP_CONTROLLER, out, frame()))
    assert bench.datapath.sent == [(2, frame())]


def test_lost_carrier_sends_port_status(bench: Bench, peer: Peer) -> None:
    bench.interfaces.carrier("b", up=False)
    status = peer.receive()
    assert (status.msg_type, status.reason) == (of.OFPT_PORT_STATUS, of.OFPPR_MODIFY)
    assert status.desc.port_no == 2
    assert status.desc.state == of.OFPPS_LINK_DOWN


def test_fast_failover_follows_carrier(bench: Bench, peer: Peer) -> None:
    buckets = [parser.OFPBucket(0, port, of.OFPG_ANY, [output(port)]) for port in (2, 3)]
    group = parser.OFPGroupMod(DATAPATH, of.OFPGC_ADD, of.OFPGT_FF, 1, buckets)
    assert peer.after(group, flow_mod(1, [parser.OFPActionGroup(1)])) == []
    assert [port for port, _ in bench.datapath.forward(1, frame())] == [2]
    bench.interfaces.carrier("b", up=False)
    assert peer.receive().msg_type == of.OFPT_PORT_STATUS
    assert [port for port, _ in bench.datapath.forward(1, frame())] == [3]


def test_port_statistics_are_those_of_interface(peer: Peer) -> None:
    (port,) = peer.statistics(parser.OFPPortStatsRequest(DATAPATH, 0, 1))
    assert (port.rx_packets, port.tx_packets, port.rx_bytes, port.tx_bytes) == (5, 6, 500, 600)


@pytest.mark.parametrize(
    "request_",
    [
        parser.OFPDescStatsRequest(DATAPATH, 0),
        parser.OFPTableStatsRequest(DATAPATH, 0),
        parser.OFPTableFeaturesStatsRequest(DATAPATH, 0),
        parser.OFPGroupFeaturesStatsRequest(DATAPATH, 0),
        parser.OFPMeterFeaturesStatsRequest(DATAPATH, 0),
        parser.OFPMeterConfigStatsRequest(DATAPATH, 0),
        parser.OFPQueueStatsRequest(DATAPATH, 0, of.OFPP_ANY, of.OFPQ_ALL),
    ],
    ids=lambda request: type(request).__name__,
)
def test_ryu_decodes_all_statistics(peer: Peer, request_: object) -> None:
    assert isinstance(peer.statistics(request_), list)
