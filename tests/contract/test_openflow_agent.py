"""The agent's OpenFlow over a loopback connection, decoded by Ryu."""

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.openflow_bench import TO_B, Bench, frame
from tests.support.openflow_lab import DATAPATH, Peer, flow_mod, flows_request, output

# isort: split
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser


def test_features_and_port_descriptions(peer: Peer) -> None:
    ports = peer.statistics(parser.OFPPortDescStatsRequest(DATAPATH, 0))
    assert [(port.port_no, port.name, port.hw_addr) for port in ports] == [
        (1, b"a", "00:00:00:00:00:07"),
        (2, b"b", "00:00:00:00:00:00"),
        (3, b"c", "00:00:00:00:00:00"),
    ]


@pytest.mark.parametrize(
    ("hello", "accepted"),
    [
        pytest.param(struct.pack("!BBHI", 4, 0, 8, 1), True, id="1.3"),
        pytest.param(struct.pack("!BBHI", 5, 0, 8, 1), True, id="1.4-which-can-speak-1.3"),
        pytest.param(
            struct.pack("!BBHIHHI", 6, 0, 16, 1, 1, 8, 0x70), True, id="a-bitmap-with-1.3"
        ),
        pytest.param(
            struct.pack("!BBHIHHI", 6, 0, 16, 1, 1, 8, 0x60), False, id="a-bitmap-without-1.3"
        ),
        pytest.param(struct.pack("!BBHI", 1, 0, 8, 1), False, id="1.0"),
    ],
)
def test_hello_negotiates_version_or_ends_connection(
    bench: Bench, hello: bytes, accepted: bool
) -> None:
    peer = bench.accept()
    peer.receive()
    peer.sock.sendall(hello)
    if accepted:
        assert peer.ask(parser.OFPFeaturesRequest(DATAPATH)).n_tables == 8
        return
    error = peer.receive()
    assert (error.type, error.code) == (of.OFPET_HELLO_FAILED, of.OFPHFC_INCOMPATIBLE)
    with pytest.raises(ConnectionError):
        peer.receive()


def test_echo_reply_has_data_of_request(peer: Peer) -> None:
    assert (
        peer.ask(parser.OFPEchoRequest(DATAPATH, data=b"are you there?")).data == b"are you there?"
    )


def test_barrier_reply_follows_change_of_datapath(bench: Bench, peer: Peer) -> None:
    assert peer.after(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B))) == []
    assert bench.datapath.forward(1, frame()) == [(2, frame())]
    assert peer.after(flow_mod(command=of.OFPFC_DELETE)) == []
    assert list(bench.datapath.forward(1, frame())) == []


def test_changes_between_barriers_are_one_load(bench: Bench, peer: Peer) -> None:
    before = len(bench.datapath.loads)
    mods = [flow_mod(priority, [output(2)], parser.OFPMatch(**TO_B)) for priority in range(1, 1001)]
    assert peer.after(*mods) == []
    assert bench.datapath.loads[before:] == [1000]


def test_statistics_include_changes_without_barrier(bench: Bench, peer: Peer) -> None:
    peer.send(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B)))
    (flow,) = peer.statistics(flows_request())
    assert flow.priority == 10


def test_flow_statistics_return_entry_and_counters(bench: Bench, peer: Peer) -> None:
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
        parser.OFPAggregateStatsRequest(
            DATAPATH, 0, 0, of.OFPP_ANY, of.OFPG_ANY, 0, 0, parser.OFPMatch()
        )
    )
    assert (total.packet_count, total.byte_count, total.flow_count) == (2, 2 * len(frame()), 1)


def test_statistics_of_several_messages_are_complete(peer: Peer) -> None:
    peer.after(
        *(
            flow_mod(number, [output(2)], parser.OFPMatch(**TO_B), cookie=number)
            for number in range(1500)
        )
    )
    assert sorted(flow.cookie for flow in peer.statistics(flows_request())) == list(range(1500))


def test_flow_removed_precedes_barrier_reply(bench: Bench, peer: Peer) -> None:
    peer.after(
        flow_mod(10, [output(2)], parser.OFPMatch(**TO_B), cookie=7, flags=of.OFPFF_SEND_FLOW_REM)
    )
    bench.datapath.forward(1, frame())
    (removal,) = peer.after(flow_mod(command=of.OFPFC_DELETE))
    assert (removal.msg_type, removal.cookie, removal.reason) == (
        of.OFPT_FLOW_REMOVED,
        7,
        of.OFPRR_DELETE,
    )
    assert (removal.packet_count, removal.byte_count) == (1, len(frame()))


def test_hard_timeout_removes_entry(bench: Bench, peer: Peer) -> None:
    peer.after(flow_mod(10, [output(2)], hard_timeout=1, flags=of.OFPFF_SEND_FLOW_REM))
    removal = peer.receive()
    assert (removal.msg_type, removal.reason) == (of.OFPT_FLOW_REMOVED, of.OFPRR_HARD_TIMEOUT)
    assert list(bench.datapath.forward(1, frame())) == []


def test_packet_is_processed_by_several_tables(bench: Bench, peer: Peer) -> None:
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
    ((port, emitted),) = bench.datapath.forward(1, frame())
    assert (port, emitted[15] >> 2) == (2, 9)
    entries = {
        flow.table_id * 100 + flow.priority: flow for flow in peer.statistics(flows_request())
    }
    assert {key: flow.packet_count for key, flow in entries.items()} == {5: 1, 209: 1, 208: 0}


def test_group_executes_buckets_and_has_statistics(bench: Bench, peer: Peer) -> None:
    buckets = [parser.OFPBucket(0, of.OFPP_ANY, of.OFPG_ANY, [output(port)]) for port in (2, 3)]
    assert (
        peer.after(
            parser.OFPGroupMod(DATAPATH, of.OFPGC_ADD, of.OFPGT_ALL, 1, buckets),
            flow_mod(1, [parser.OFPActionGroup(1)]),
        )
        == []
    )
    assert [port for port, _ in bench.datapath.forward(1, frame())] == [2, 3]
    (description,) = peer.statistics(parser.OFPGroupDescStatsRequest(DATAPATH, 0))
    assert [bucket.actions[0].port for bucket in description.buckets] == [2, 3]
    (stats,) = peer.statistics(parser.OFPGroupStatsRequest(DATAPATH, 0, of.OFPG_ALL))
    assert (stats.group_id, stats.ref_count) == (1, 1)
    peer.after(parser.OFPGroupMod(DATAPATH, of.OFPGC_DELETE, of.OFPGT_ALL, of.OFPG_ALL, []))
    assert peer.statistics(flows_request()) == []


def test_entries_outlive_controller_connection(bench: Bench) -> None:
    first = bench.greeted()
    with first.sock:
        first.after(flow_mod(10, [output(2)], parser.OFPMatch(**TO_B)))
    assert bench.datapath.forward(1, frame()) == [(2, frame())]
    second = bench.greeted()
    with second.sock:
        (flow,) = second.statistics(flows_request())
        assert (flow.priority, flow.packet_count) == (10, 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=4))
def test_agent_survives_random_messages(bench: Bench, bodies: list[bytes]) -> None:
    peer = bench.accept()
    with peer.sock:
        peer.sock.sendall(struct.pack("!BBHI", 4, 0, 8, 1))
        for octets in bodies:
            kind = octets[0] % 31
            peer.sock.sendall(struct.pack("!BBHI", 4, kind, 8 + len(octets), 9) + octets)
        peer.receive()
        peer.send(parser.OFPEchoRequest(DATAPATH, data=b"still there?"))
        while (
            reply := peer.receive()
        ).msg_type != of.OFPT_ECHO_REPLY or reply.data != b"still there?":
            pass
