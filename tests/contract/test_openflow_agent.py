"""What a controller may expect of a switch of ours, over a real connection on loopback and in Ryu's own reading of OpenFlow 1.3."""

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.openflow_bench import TO_B, Bench, frame
from tests.openflow_lab import DATAPATH, Peer, flow_mod, flows_request, output

# isort: split
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser


def test_a_switch_says_who_it_is_and_what_ports_it_has(peer: Peer) -> None:
    ports = peer.statistics(parser.OFPPortDescStatsRequest(DATAPATH, 0))
    assert [(port.port_no, port.name, port.hw_addr) for port in ports] == [
        (1, b"a", "00:00:00:00:00:07"),
        (2, b"b", "00:00:00:00:00:00"),
        (3, b"c", "00:00:00:00:00:00"),
    ]


@pytest.mark.parametrize(
    ("hello", "speaks"),
    [
        pytest.param(struct.pack("!BBHI", 4, 0, 8, 1), True, id="1.3"),
        pytest.param(struct.pack("!BBHI", 5, 0, 8, 1), True, id="1.4-which-can-speak-1.3"),
        pytest.param(struct.pack("!BBHIHHI", 6, 0, 16, 1, 1, 8, 0x70), True, id="a-bitmap-with-1.3"),
        pytest.param(struct.pack("!BBHIHHI", 6, 0, 16, 1, 1, 8, 0x60), False, id="a-bitmap-without-1.3"),
        pytest.param(struct.pack("!BBHI", 1, 0, 8, 1), False, id="1.0"),
    ],
)
def test_both_speak_openflow_13_or_part(bench: Bench, hello: bytes, speaks: bool) -> None:
    peer = bench.accept()
    peer.hear()
    peer.sock.sendall(hello)
    if speaks:
        assert peer.ask(parser.OFPFeaturesRequest(DATAPATH)).n_tables == 8
        return
    error = peer.hear()
    assert (error.type, error.code) == (of.OFPET_HELLO_FAILED, of.OFPHFC_INCOMPATIBLE)
    with pytest.raises(ConnectionError):
        peer.hear()


def test_an_echo_comes_back_as_it_went(peer: Peer) -> None:
    assert peer.ask(parser.OFPEchoRequest(DATAPATH, data=b"are you there?")).data == b"are you there?"


def test_a_barrier_is_answered_when_packets_meet_the_change(bench: Bench, peer: Peer) -> None:
    assert peer.after(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B))) == []
    assert bench.datapath.forward(1, frame()) == [(2, frame())]
    assert peer.after(flow_mod(command=of.OFPFC_DELETE)) == []
    assert list(bench.datapath.forward(1, frame())) == []


def test_all_between_two_barriers_is_one_flip(bench: Bench, peer: Peer) -> None:
    before = len(bench.datapath.loads)
    mods = [flow_mod(priority, [output(2)], parser.OFPMatch(**TO_B)) for priority in range(1, 1001)]
    assert peer.after(*mods) == []
    assert bench.datapath.loads[before:] == [1000]


def test_a_change_without_a_barrier_is_done_all_the_same(bench: Bench, peer: Peer) -> None:
    peer.send(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B)))
    (flow,) = peer.statistics(flows_request())
    assert flow.priority == 10


def test_statistics_tell_the_entry_as_it_was_given_and_what_it_carried(bench: Bench, peer: Peer) -> None:
    match = parser.OFPMatch(**TO_B, ip_dscp=3, ip_proto=17, udp_dst=9)
    peer.after(flow_mod(10, [output(2)], match, cookie=0xC0FFEE, idle_timeout=60))
    bench.datapath.forward(1, frame(dscp=3))
    bench.datapath.forward(1, frame(dscp=3))
    (flow,) = peer.statistics(flows_request())
    assert (flow.priority, flow.cookie, flow.idle_timeout, flow.table_id) == (10, 0xC0FFEE, 60, 0)
    assert (flow.packet_count, flow.byte_count) == (2, 2 * len(frame()))
    assert dict(flow.match.items()) == dict(match.items())
    assert flow.instructions[0].actions[0].port == 2
    (total,) = peer.statistics(
        parser.OFPAggregateStatsRequest(DATAPATH, 0, 0, of.OFPP_ANY, of.OFPG_ANY, 0, 0, parser.OFPMatch())
    )
    assert (total.packet_count, total.byte_count, total.flow_count) == (2, 2 * len(frame()), 1)


def test_statistics_that_fill_several_messages_arrive_whole(peer: Peer) -> None:
    peer.after(
        *(flow_mod(number, [output(2)], parser.OFPMatch(**TO_B), cookie=number) for number in range(1500))
    )
    assert sorted(flow.cookie for flow in peer.statistics(flows_request())) == list(range(1500))


def test_who_is_promised_word_of_an_entrys_end_gets_it_before_the_barrier(bench: Bench, peer: Peer) -> None:
    peer.after(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B), cookie=7, flags=of.OFPFF_SEND_FLOW_REM))
    bench.datapath.forward(1, frame())
    (gone,) = peer.after(flow_mod(command=of.OFPFC_DELETE))
    assert (gone.msg_type, gone.cookie, gone.reason) == (of.OFPT_FLOW_REMOVED, 7, of.OFPRR_DELETE)
    assert (gone.packet_count, gone.byte_count) == (1, len(frame()))


def test_an_entry_goes_when_its_time_is_out(bench: Bench, peer: Peer) -> None:
    peer.after(flow_mod(10, [output(2)], hard_timeout=1, flags=of.OFPFF_SEND_FLOW_REM))
    gone = peer.hear()
    assert (gone.msg_type, gone.reason) == (of.OFPT_FLOW_REMOVED, of.OFPRR_HARD_TIMEOUT)
    assert list(bench.datapath.forward(1, frame())) == []


def test_a_packet_goes_through_several_tables(bench: Bench, peer: Peer) -> None:
    first = [parser.OFPActionSetField(ip_dscp=9)]
    peer.after(
        flow_mod(
            5,
            match=parser.OFPMatch(**TO_B),
            instructions=[
                parser.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, first),
                parser.OFPInstructionGotoTable(2),
            ],
        ),
        flow_mod(9, [output(2)], parser.OFPMatch(eth_type=0x0800, ip_dscp=9), table_id=2),
        flow_mod(8, [output(3)], table_id=2),
    )
    ((port, sent),) = bench.datapath.forward(1, frame())
    assert (port, sent[15] >> 2) == (2, 9)
    counted = {flow.table_id * 100 + flow.priority: flow for flow in peer.statistics(flows_request())}
    assert {key: flow.packet_count for key, flow in counted.items()} == {5: 1, 209: 1, 208: 0}


def test_a_group_shares_out_and_can_be_asked_about(bench: Bench, peer: Peer) -> None:
    buckets = [parser.OFPBucket(0, of.OFPP_ANY, of.OFPG_ANY, [output(port)]) for port in (2, 3)]
    assert (
        peer.after(
            parser.OFPGroupMod(DATAPATH, of.OFPGC_ADD, of.OFPGT_ALL, 1, buckets),
            flow_mod(1, [parser.OFPActionGroup(1)]),
        )
        == []
    )
    assert [port for port, _ in bench.datapath.forward(1, frame())] == [2, 3]
    (told,) = peer.statistics(parser.OFPGroupDescStatsRequest(DATAPATH, 0))
    assert [bucket.actions[0].port for bucket in told.buckets] == [2, 3]
    (counted,) = peer.statistics(parser.OFPGroupStatsRequest(DATAPATH, 0, of.OFPG_ALL))
    assert (counted.group_id, counted.ref_count) == (1, 1)
    peer.after(parser.OFPGroupMod(DATAPATH, of.OFPGC_DELETE, of.OFPGT_ALL, of.OFPG_ALL, []))
    assert peer.statistics(flows_request()) == []


def test_rules_go_on_without_a_controller_and_are_there_when_it_comes_back(bench: Bench) -> None:
    first = bench.greeted()
    with first.sock:
        first.after(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B)))
    assert bench.datapath.forward(1, frame()) == [(2, frame())]
    second = bench.greeted()
    with second.sock:
        (flow,) = second.statistics(flows_request())
        assert (flow.priority, flow.packet_count) == (10, 1)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=4))
def test_nonsense_never_ends_the_agent(bench: Bench, nonsense: list[bytes]) -> None:
    peer = bench.accept()
    with peer.sock:
        peer.sock.sendall(struct.pack("!BBHI", 4, 0, 8, 1))
        for bytes_ in nonsense:
            kind = bytes_[0] % 31
            peer.sock.sendall(struct.pack("!BBHI", 4, kind, 8 + len(bytes_), 9) + bytes_)
        peer.hear()
        peer.send(parser.OFPEchoRequest(DATAPATH, data=b"still there?"))
        while (heard := peer.hear()).msg_type != of.OFPT_ECHO_REPLY or heard.data != b"still there?":
            pass
