"""Messages packed here are those that Ryu would serialise, and Ryu's parser reads them alike."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.controller.southbound.openflow import messages
from moefabric.controller.southbound.openflow.flow_entries import FlowEntry

# isort: split
from ryu.ofproto import ofproto_parser
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser
from ryu.ofproto.ofproto_protocol import ProtocolDesc

SWITCH = ProtocolDesc(of.OFP_VERSION)
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
    )


def serialised(message: Any) -> bytes:
    message.set_xid(0)
    message.serialize()
    return bytes(message.buf)


def flow_mod(entry: FlowEntry, **fields: Any) -> bytes:
    """Return the flow-mod of an entry as Ryu makes it."""
    mask = (0xFFFFFFFF << (32 - entry.length)) & 0xFFFFFFFF
    marked = {} if entry.dscp is None else {"ip_dscp": entry.dscp}
    match = parser.OFPMatch(eth_type=0x0800, ipv4_dst=(entry.network, mask), **marked)
    wide = {"out_port": of.OFPP_ANY, "out_group": of.OFPG_ANY, "priority": entry.priority}
    return serialised(parser.OFPFlowMod(SWITCH, match=match, **wide, **fields))


@given(entries())
def test_addition_is_the_flow_mod_of_ryu(entry: FlowEntry) -> None:
    actions = [] if entry.port is None else [parser.OFPActionOutput(entry.port, 0xFFFF)]
    apply = [parser.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, actions)] if actions else []
    assert messages.addition(entry, COOKIE) == flow_mod(entry, cookie=COOKIE, instructions=apply)


@given(entries(), st.integers(1, 0xFFFF))
def test_addition_that_sends_to_a_group_is_the_flow_mod_of_ryu(
    entry: FlowEntry, group: int
) -> None:
    apply = [parser.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, [parser.OFPActionGroup(group)])]
    expected = flow_mod(entry, cookie=COOKIE, instructions=apply)
    assert messages.addition(entry, COOKIE, group) == expected


@given(entries())
def test_deletion_is_the_flow_mod_of_ryu(entry: FlowEntry) -> None:
    assert messages.deletion(entry) == flow_mod(
        entry, command=of.OFPFC_DELETE_STRICT, instructions=[]
    )


@given(st.integers(1, 0xFFFF), st.binary(max_size=100))
def test_packet_out_is_that_of_ryu(port: int, frame: bytes) -> None:
    out = [parser.OFPActionOutput(port)]
    expected = parser.OFPPacketOut(SWITCH, of.OFP_NO_BUFFER, of.OFPP_CONTROLLER, out, frame)
    assert messages.packet_out(port, frame) == serialised(expected)


def packet_in(match: Any, frame: bytes) -> bytes:
    """Return a packet-in, which Ryu can only parse."""
    body, fields = bytearray(16), bytearray()
    struct.pack_into("!IHBBQ", body, 0, of.OFP_NO_BUFFER, len(frame), 1, 0, COOKIE)
    match.serialize(fields, 0)
    length = 8 + len(body) + len(fields) + 2 + len(frame)
    header = messages.HEADER.pack(of.OFP_VERSION, of.OFPT_PACKET_IN, length, 7)
    return bytes(header + body + fields + bytes(2) + frame)


@given(st.integers(1, 0xFFFF), st.binary(max_size=100))
def test_packet_in_reads_as_by_ryu(port: int, frame: bytes) -> None:
    wire = packet_in(parser.OFPMatch(in_port=port), frame)
    read = ofproto_parser.msg(SWITCH, of.OFP_VERSION, of.OFPT_PACKET_IN, len(wire), 7, wire)
    assert messages.packet_in(wire) == (port, frame) == (read.match["in_port"], bytes(read.data))


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(packet_in(parser.OFPMatch(in_port=1, eth_type=5), bytes(60)), id="more"),
        pytest.param(packet_in(parser.OFPMatch(eth_type=5), bytes(60)), id="no-port"),
        pytest.param(packet_in(parser.OFPMatch(in_port=1), bytes(60))[:30], id="cut-off"),
    ],
)
def test_packet_in_with_another_match_is_left_to_ryu(wire: bytes) -> None:
    assert messages.packet_in(wire) is None
