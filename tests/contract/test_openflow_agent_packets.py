"""Packets between a switch of ours and its controller, and the ports they take."""

import pytest

from tests.openflow_bench import TO_B, Bench, frame
from tests.openflow_lab import DATAPATH, Peer, flow_mod, output

# isort: split
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser


def test_a_packet_comes_to_the_controller_and_goes_back(bench: Bench, peer: Peer) -> None:
    peer.after(flow_mod(7, [output(of.OFPP_CONTROLLER)], parser.OFPMatch(eth_type=0x0800), cookie=5))
    bench.datapath.forward(3, frame())
    heard = peer.hear()
    assert (heard.reason, heard.cookie, heard.match["in_port"]) == (of.OFPR_ACTION, 5, 3)
    assert (heard.data, heard.total_len) == (frame(), len(frame()))
    back = [output(of.OFPP_IN_PORT)]
    assert peer.after(parser.OFPPacketOut(DATAPATH, of.OFP_NO_BUFFER, 3, back, heard.data)) == []
    assert bench.datapath.sent == [(3, frame())]


def test_what_no_entry_takes_is_said_to_be_so(bench: Bench, peer: Peer) -> None:
    peer.after(flow_mod(0, [output(of.OFPP_CONTROLLER)]))
    bench.datapath.forward(1, frame())
    assert peer.hear().reason == of.OFPR_NO_MATCH


def test_a_packet_out_can_go_through_the_tables(bench: Bench, peer: Peer) -> None:
    peer.after(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B)))
    out = [output(of.OFPP_TABLE)]
    peer.after(parser.OFPPacketOut(DATAPATH, of.OFP_NO_BUFFER, of.OFPP_CONTROLLER, out, frame()))
    assert bench.datapath.sent == [(2, frame())]


def test_a_port_that_loses_its_carrier_is_told_of(bench: Bench, peer: Peer) -> None:
    bench.interfaces.carrier("b", up=False)
    told = peer.hear()
    assert (told.msg_type, told.reason, told.desc.port_no) == (of.OFPT_PORT_STATUS, of.OFPPR_MODIFY, 2)
    assert told.desc.state == of.OFPPS_LINK_DOWN


def test_packets_turn_to_the_next_port_when_one_loses_its_carrier(bench: Bench, peer: Peer) -> None:
    buckets = [parser.OFPBucket(0, port, of.OFPG_ANY, [output(port)]) for port in (2, 3)]
    group = parser.OFPGroupMod(DATAPATH, of.OFPGC_ADD, of.OFPGT_FF, 1, buckets)
    assert peer.after(group, flow_mod(1, [parser.OFPActionGroup(1)])) == []
    assert [port for port, _ in bench.datapath.forward(1, frame())] == [2]
    bench.interfaces.carrier("b", up=False)
    assert peer.hear().msg_type == of.OFPT_PORT_STATUS
    assert [port for port, _ in bench.datapath.forward(1, frame())] == [3]


def test_port_statistics_are_those_of_the_interface(peer: Peer) -> None:
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
def test_every_kind_of_statistics_can_be_read(peer: Peer, request_: object) -> None:
    assert isinstance(peer.statistics(request_), list)
