"""Messages of a controller are those that Ryu serialises, and Ryu's parser reads them alike."""

import struct
from ipaddress import IPv4Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.controller.southbound.openflow import messages
from moefabric.controller.southbound.openflow.flow_entries import FlowEntry
from moefabric.core.openflow.constants import OpenFlowError
from moefabric.core.openflow.messages import (
    HEADER,
    Message,
    decode_flow_stats,
    decode_packet_in,
    split_messages,
)
from tests.support.openflow_lab import DATAPATH as SWITCH
from tests.support.openflow_lab import of, ofproto_parser, parser

COOKIE = 0x0123456789ABCDEE


@st.composite
def entries(draw: st.DrawFn) -> FlowEntry:
    length = draw(st.sampled_from([8, 16, 24, 32]))
    network = draw(st.integers(0, 2**32 - 1)) >> (32 - length) << (32 - length)
    return FlowEntry(
        draw(st.integers(0, 0xFFFF)),
        network,
        length,
        draw(st.none() | st.integers(0, 63)),
        draw(st.none() | st.integers(1, 255)),
        mac=draw(st.none() | st.integers(0, 2**48 - 1)),
    )


def serialised(message: Any) -> bytes:
    message.set_xid(0)
    message.serialize()
    return bytes(message.buf)


def entry_match(entry: FlowEntry) -> Any:
    mask = (0xFFFFFFFF << (32 - entry.length)) & 0xFFFFFFFF
    marked = {} if entry.dscp is None else {"ip_dscp": entry.dscp}
    return parser.OFPMatch(eth_type=0x0800, ipv4_dst=(entry.network, mask), **marked)


def flow_mod(entry: FlowEntry, **fields: Any) -> bytes:
    """Return the flow-mod of an entry as Ryu makes it."""
    match = entry_match(entry)
    wide = {"out_port": of.OFPP_ANY, "out_group": of.OFPG_ANY, "priority": entry.priority}
    return serialised(parser.OFPFlowMod(SWITCH, match=match, **wide, **fields))


def apply_actions(entry: FlowEntry, *outputs: Any) -> list[Any]:
    """Return the instructions of an entry that sends to these outputs."""
    actions = list(outputs)
    if entry.mac is not None:
        mac = ":".join(f"{octet:02x}" for octet in entry.mac.to_bytes(6, "big"))
        actions.insert(0, parser.OFPActionSetField(eth_dst=mac))
    return [parser.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, actions)] if actions else []


@given(entries())
def test_addition_is_the_flow_mod_of_ryu(entry: FlowEntry) -> None:
    actions = [] if entry.port is None else [parser.OFPActionOutput(entry.port, 0xFFFF)]
    expected = flow_mod(entry, cookie=COOKIE, instructions=apply_actions(entry, *actions))
    assert messages.addition(entry, COOKIE) == expected


@given(entries(), st.integers(1, 0xFFFF))
def test_addition_that_sends_to_a_group_is_the_flow_mod_of_ryu(
    entry: FlowEntry, group: int
) -> None:
    apply = apply_actions(entry, parser.OFPActionGroup(group))
    expected = flow_mod(entry, cookie=COOKIE, instructions=apply)
    assert messages.addition(entry, COOKIE, group) == expected


@given(entries())
def test_deletion_is_the_flow_mod_of_ryu(entry: FlowEntry) -> None:
    assert messages.deletion(entry) == flow_mod(
        entry, command=of.OFPFC_DELETE_STRICT, instructions=[]
    )


def test_entries_for_the_controller_are_those_of_ryu() -> None:
    to_controller = [parser.OFPActionOutput(of.OFPP_CONTROLLER, of.OFPCML_NO_BUFFER)]
    apply = [parser.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, to_controller)]
    expected = [
        parser.OFPFlowMod(
            SWITCH,
            cookie=COOKIE,
            priority=priority,
            out_port=of.OFPP_ANY,
            out_group=of.OFPG_ANY,
            match=match,
            instructions=apply,
        )
        for priority, match in (
            (0xFFFF, parser.OFPMatch(in_port=1, eth_type=0x0806)),
            (0xFFFE, parser.OFPMatch(eth_type=0x88B5)),
        )
    ]
    assert [messages.arp_to_controller(COOKIE), messages.probes_to_controller(COOKIE, 0x88B5)] == [
        serialised(message) for message in expected
    ]


def test_group_mods_are_those_of_ryu() -> None:
    buckets = [
        parser.OFPBucket(weight, of.OFPP_ANY, of.OFPG_ANY, [parser.OFPActionOutput(port, 0xFFFF)])
        for port, weight in ((1, 3), (4, 1))
    ]
    add = parser.OFPGroupMod(SWITCH, of.OFPGC_ADD, of.OFPGT_SELECT, 7, buckets)
    delete = parser.OFPGroupMod(SWITCH, of.OFPGC_DELETE, of.OFPGT_SELECT, 7, [])
    clear = parser.OFPGroupMod(SWITCH, of.OFPGC_DELETE, of.OFPGT_SELECT, of.OFPG_ALL, [])
    assert messages.group_addition(7, ((1, 3), (4, 1))) == serialised(add)
    assert messages.group_deletion(7) == serialised(delete)
    assert messages.group_deletion() == serialised(clear)


def test_deletions_of_others_barrier_and_statistics_request_are_those_of_ryu() -> None:
    deletions = messages.deletions_of_others(COOKIE)
    assert len(deletions) == 64
    for bit, deletion in enumerate(deletions):
        expected = parser.OFPFlowMod(
            SWITCH,
            cookie=~COOKIE & 1 << bit,
            cookie_mask=1 << bit,
            table_id=of.OFPTT_ALL,
            command=of.OFPFC_DELETE,
            priority=0,
            out_port=of.OFPP_ANY,
            out_group=of.OFPG_ANY,
            match=parser.OFPMatch(),
        )
        assert deletion == serialised(expected)
    assert serialised(parser.OFPBarrierRequest(SWITCH)) == messages.BARRIER
    every = of.OFPTT_ALL, of.OFPP_ANY, of.OFPG_ANY, 0, 0, parser.OFPMatch()
    assert serialised(parser.OFPFlowStatsRequest(SWITCH, 0, *every)) == messages.STATISTICS_REQUEST


@given(st.integers(1, 0xFFFF), st.binary(max_size=100))
def test_packet_out_is_that_of_ryu(port: int, frame: bytes) -> None:
    out = [parser.OFPActionOutput(port, of.OFPCML_NO_BUFFER)]
    expected = parser.OFPPacketOut(SWITCH, of.OFP_NO_BUFFER, of.OFPP_CONTROLLER, out, frame)
    assert messages.packet_out(port, frame) == serialised(expected)


def read(wire: bytes) -> Message:
    (message,), rest = split_messages(wire)
    assert rest == b""
    return message


def packet_in(match: Any, frame: bytes) -> bytes:
    """Return a packet-in, which Ryu can only parse."""
    body, fields = bytearray(16), bytearray()
    struct.pack_into("!IHBBQ", body, 0, of.OFP_NO_BUFFER, len(frame), 1, 0, COOKIE)
    match.serialize(fields, 0)
    length = 8 + len(body) + len(fields) + 2 + len(frame)
    header = HEADER.pack(of.OFP_VERSION, of.OFPT_PACKET_IN, length, 7)
    return bytes(header + body + fields + bytes(2) + frame)


@given(st.integers(1, 0xFFFF), st.binary(max_size=100))
def test_packet_in_reads_as_by_ryu(port: int, frame: bytes) -> None:
    wire = packet_in(parser.OFPMatch(in_port=port), frame)
    by_ryu = ofproto_parser.msg(SWITCH, of.OFP_VERSION, of.OFPT_PACKET_IN, len(wire), 7, wire)
    expected = by_ryu.match["in_port"], bytes(by_ryu.data)
    assert decode_packet_in(read(wire)) == (port, frame) == expected


def test_packet_in_may_match_more_than_the_port() -> None:
    match = parser.OFPMatch(in_port=7, in_phy_port=9, tunnel_id=5)
    assert decode_packet_in(read(packet_in(match, b"frame"))) == (7, b"frame")


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(packet_in(parser.OFPMatch(eth_type=5), bytes(60)), id="no-port"),
        pytest.param(packet_in(parser.OFPMatch(in_port=1), bytes(60))[:30], id="cut-off"),
        pytest.param(packet_in(parser.OFPMatch(in_port=1), b"")[:10], id="without-a-match"),
    ],
)
def test_packet_in_without_a_port_is_refused(wire: bytes) -> None:
    with pytest.raises(OpenFlowError):
        decode_packet_in(Message(of.OFP_VERSION, of.OFPT_PACKET_IN, 7, wire))


def statistics_reply(*entries: Any) -> bytes:
    """Return flow statistics; Ryu can only parse them."""
    body = bytearray(struct.pack("!HH4x", of.OFPMP_FLOW, 0))
    for priority, match, counts, instructions in entries:
        tail = bytearray()
        match.serialize(tail, 0)
        for instruction in instructions:
            instruction.serialize(tail, len(tail))
        fixed = len(tail) + 48, 3, 1, 2, priority, 0, 0, 0, COOKIE, *counts
        body += struct.pack("!HBxIIHHHH4xQQQ", *fixed) + tail
    return HEADER.pack(of.OFP_VERSION, of.OFPT_MULTIPART_REPLY, 8 + len(body), 7) + body


@given(st.lists(entries(), max_size=3), st.integers(0, 2**64 - 1))
def test_flow_statistics_read_as_by_ryu(flows: list[FlowEntry], count: int) -> None:
    apply = [parser.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, [parser.OFPActionOutput(1)])]
    counts = count, count
    reply = [(entry.priority, entry_match(entry), counts, apply) for entry in flows]
    wire = statistics_reply(*reply)
    by_ryu = ofproto_parser.msg(SWITCH, of.OFP_VERSION, of.OFPT_MULTIPART_REPLY, len(wire), 7, wire)
    counted = list(decode_flow_stats(read(wire)))
    assert [(flow.priority, flow.packet_count, flow.byte_count) for flow in by_ryu.body] == [
        (one.priority, one.packets, one.bytes) for one in counted
    ]
    assert list(map(messages.counted_match, counted)) == [entry.match for entry in flows]


def test_flow_statistics_of_exact_and_absent_destinations() -> None:
    exact = parser.OFPMatch(eth_type=0x0800, ipv4_dst="10.0.1.3")
    wire = statistics_reply((5, exact, (1, 2), []), (0, parser.OFPMatch(), (3, 4), []))
    address = int(IPv4Address("10.0.1.3"))
    counted = [(messages.counted_match(one), one) for one in decode_flow_stats(read(wire))]
    assert [(match, one.packets, one.bytes) for match, one in counted] == [
        ((5, address, 32, None), 1, 2),
        ((0, 0, 0, None), 3, 4),
    ]
