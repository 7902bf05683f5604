"""OpenFlow messages as bytes: decoding what Ryu encodes, encoding what Ryu decodes, and errors."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.openflow import actions as action_codec
from moefabric.core.openflow import match as oxm
from moefabric.core.openflow import messages
from moefabric.core.openflow.actions import ALL, CONTROLLER, IN_PORT, Output, SetField, ToGroup
from moefabric.core.openflow.constants import MessageType, MultipartType, OpenFlowError
from moefabric.core.openflow.match import FlowError, Match
from moefabric.core.openflow.messages import Message
from tests.support.openflow_lab import DATAPATH, flow_mod, output

# isort: split
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser

FIELDS: dict[str, dict[str, Any]] = {
    "in_port=0x3": {"in_port": 3},
    "eth_dst=0x20304050607/0xffffff000000": {"eth_dst": ("00:02:03:04:05:06", "ff:ff:ff:00:00:00")},
    "eth_src=0x10203040506": {"eth_src": "01:02:03:04:05:06"},
    "eth_type=0x800,ip_dscp=0x3,ipv4_dst=0xa000000/0xffff0000": {
        "eth_type": 0x0800,
        "ip_dscp": 3,
        "ipv4_dst": ("10.0.0.0", "255.255.0.0"),
    },
    "eth_type=0x800,ip_proto=0x6,tp_src=0x7,tp_dst=0x9": {
        "eth_type": 0x0800,
        "ip_proto": 6,
        "tcp_src": 7,
        "tcp_dst": 9,
    },
    "eth_type=0x800,ip_proto=0x11,tp_dst=0x9": {"eth_type": 0x0800, "ip_proto": 17, "udp_dst": 9},
    "eth_type=0x806,arp_op=0x1,arp_tpa=0xa000001": {
        "eth_type": 0x0806,
        "arp_op": 1,
        "arp_tpa": "10.0.0.1",
    },
    "any": {},
}


def wire(message: Any) -> bytes:
    message.set_xid(7)
    message.serialize()
    return bytes(message.buf)


def read(message: Any) -> Message:
    (decoded,), rest = messages.split_messages(wire(message))
    assert rest == b""
    return decoded


def ofp_match(*fields: bytes) -> bytes:
    body = b"".join(fields)
    return struct.pack("!HH", 1, 4 + len(body)) + body


@pytest.mark.parametrize("text", [text for text in FIELDS if "/0xffffff000000" not in text])
def test_decode_match_of_ryu_and_encode_it_again(text: str) -> None:
    octets = wire(flow_mod(match=parser.OFPMatch(**FIELDS[text])))
    mod = messages.decode_flow_mod(messages.split_messages(octets)[0][0])
    assert str(mod.match) == text
    encoded = oxm.encode_match(mod.match)
    assert octets[48 : 48 + len(encoded)] == encoded


def test_decode_flow_mod() -> None:
    actions = [
        parser.OFPActionSetField(ip_dscp=5),
        output(of.OFPP_IN_PORT),
        output(of.OFPP_CONTROLLER),
    ]
    request = flow_mod(
        9,
        cookie=1,
        cookie_mask=2,
        table_id=3,
        command=of.OFPFC_MODIFY,
        idle_timeout=4,
        hard_timeout=5,
        flags=of.OFPFF_RESET_COUNTS,
        out_port=6,
        out_group=7,
        instructions=[
            parser.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, actions),
            parser.OFPInstructionActions(
                of.OFPIT_WRITE_ACTIONS, [parser.OFPActionGroup(8), output(of.OFPP_ALL)]
            ),
            parser.OFPInstructionActions(of.OFPIT_CLEAR_ACTIONS, []),
            parser.OFPInstructionGotoTable(4),
        ],
    )
    mod = messages.decode_flow_mod(read(request))
    assert (mod.cookie, mod.cookie_mask, mod.table) == (1, 2, 3)
    assert (mod.command, mod.flags) == (of.OFPFC_MODIFY, of.OFPFF_RESET_COUNTS)
    assert (mod.idle_s, mod.hard_s, mod.priority) == (4, 5, 9)
    assert (mod.out_port, mod.out_group, mod.buffer) == (6, 7, of.OFP_NO_BUFFER)
    assert mod.instructions.apply == (SetField("ip_dscp", 5), Output(IN_PORT), Output(CONTROLLER))
    assert mod.instructions.write == (ToGroup(8), Output(ALL))
    assert (mod.instructions.clear, mod.instructions.goto) == (True, 4)


ETH_TYPE_IP = bytes.fromhex("80000a020800")


@pytest.mark.parametrize(
    ("match", "code"),
    [
        pytest.param(struct.pack("!HH", 0, 4), "MATCH_BAD_TYPE", id="standard-match-of-1.1"),
        pytest.param(ofp_match(b"\x80\0"), "MATCH_BAD_LEN", id="half-a-field"),
        pytest.param(
            ofp_match(bytes.fromhex("80000a040800")),
            "MATCH_BAD_LEN",
            id="a-field-longer-than-its-match",
        ),
        pytest.param(
            ofp_match(bytes.fromhex("80000a0108")), "MATCH_BAD_LEN", id="a-field-too-short"
        ),
        pytest.param(ofp_match(bytes.fromhex("80000c020800")), "MATCH_BAD_FIELD", id="vlan"),
        pytest.param(
            ofp_match(bytes.fromhex("ffff000400000000")), "MATCH_BAD_FIELD", id="experimenter"
        ),
        pytest.param(ofp_match(ETH_TYPE_IP, ETH_TYPE_IP), "MATCH_DUPLICATE_FIELD", id="twice"),
        pytest.param(
            ofp_match(bytes.fromhex("8000100103")), "MATCH_BAD_PREREQUISITE", id="dscp-of-anything"
        ),
        pytest.param(
            ofp_match(ETH_TYPE_IP, bytes.fromhex("80001a020009")),
            "MATCH_BAD_PREREQUISITE",
            id="tcp-of-ip",
        ),
        pytest.param(
            ofp_match(ETH_TYPE_IP, bytes.fromhex("8000100140")), "MATCH_BAD_VALUE", id="dscp-of-64"
        ),
        pytest.param(
            ofp_match(bytes.fromhex("80000b040800ff00")),
            "MATCH_BAD_MASK",
            id="a-mask-of-an-ethertype",
        ),
        pytest.param(
            ofp_match(ETH_TYPE_IP, bytes.fromhex("800019080a000001ffffff00")),
            "MATCH_BAD_WILDCARDS",
            id="bits-outside-the-mask",
        ),
    ],
)
def test_decode_match_raises_specific_error(match: bytes, code: str) -> None:
    with pytest.raises(OpenFlowError, match="^" + code):
        oxm.decode_match(match)


def test_decode_match_ignores_empty_mask() -> None:
    assert oxm.decode_match(
        ofp_match(ETH_TYPE_IP, bytes.fromhex("800019080000000000000000"))
    ) == Match.of(eth_type=0x0800)


@pytest.mark.parametrize(
    ("instruction", "code"),
    [
        pytest.param("0001000803000000", None, id="goto"),
        pytest.param("0001000800", "INSTRUCTION_BAD_LEN", id="half"),
        pytest.param("00010007000000", "INSTRUCTION_BAD_LEN", id="odd"),
        pytest.param("00010008ff000000", "INSTRUCTION_BAD_TABLE", id="goto-all"),
        pytest.param("0002001800000000" + "00" * 16, "INSTRUCTION_UNSUPPORTED", id="metadata"),
        pytest.param("0006000800000001", "INSTRUCTION_UNSUPPORTED", id="meter"),
        pytest.param("0063000800000000", "INSTRUCTION_UNKNOWN", id="unknown"),
        pytest.param("ffff000800000000", "INSTRUCTION_BAD_EXPERIMENTER", id="experimenter"),
        pytest.param("0004001000000000" + "0012000800000000", "ACTION_BAD_TYPE", id="pop-vlan"),
        pytest.param(
            "0004001000000000" + "0000000800000001", "ACTION_BAD_LEN", id="half-an-output"
        ),
        pytest.param(
            "0004001800000000" + "00000010fffffffa0000000000000000",
            "ACTION_BAD_OUT_PORT",
            id="normal",
        ),
        pytest.param(
            "0004001800000000" + "00000010fffffff90000000000000000",
            "ACTION_BAD_OUT_PORT",
            id="table",
        ),
        pytest.param(
            "0004001000000000" + "00160008ffffff01", "ACTION_BAD_OUT_GROUP", id="group-all"
        ),
        pytest.param(
            "0004001800000000" + "0019001080001004" + "0a00000100000000",
            "ACTION_BAD_SET_LEN",
            id="set-len",
        ),
        pytest.param(
            "0004001800000000" + "0019001080001001" + "4000000000000000",
            "ACTION_BAD_SET_ARGUMENT",
            id="set-dscp-64",
        ),
    ],
)
def test_decode_instructions_raises_specific_error(instruction: str, code: str | None) -> None:
    octets = bytes.fromhex(instruction)
    if code is None:
        assert action_codec.decode_instructions(octets).goto == 3
        return
    with pytest.raises(OpenFlowError, match="^" + code):
        action_codec.decode_instructions(octets)


def test_actions_are_encoded_as_by_ryu() -> None:
    ryu_actions = [
        parser.OFPActionSetField(eth_dst="01:02:03:04:05:06"),
        parser.OFPActionGroup(3),
        output(of.OFPP_ALL),
    ]
    out = messages.decode_packet_out(
        read(parser.OFPPacketOut(DATAPATH, of.OFP_NO_BUFFER, 1, ryu_actions, b"frame"))
    )
    assert out.frame == b"frame"
    encoded = bytearray()
    for action in ryu_actions:
        action.serialize(encoded, len(encoded))
    actions = action_codec.decode_actions(bytes(encoded))
    assert actions == out.actions == (SetField("eth_dst", 0x010203040506), ToGroup(3), Output(ALL))
    assert action_codec.encode_actions(actions) == bytes(encoded)


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(0, 300), max_size=5))
def test_split_messages_of_any_pieces(bodies: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(
        messages.encode_message(MessageType.ECHO_REQUEST, n, body) for n, body in enumerate(bodies)
    )
    ends = sorted({min(cut, len(whole)) for cut in cuts} | {len(whole)})
    received, rest, begin = list[Message](), b"", 0
    for end in ends:
        more, rest = messages.split_messages(rest + whole[begin:end])
        received, begin = received + more, end
    assert [(message.xid, message.body) for message in received] == list(enumerate(bodies))
    assert rest == b""


def test_split_messages_refuses_impossible_length() -> None:
    with pytest.raises(OpenFlowError, match=r"^BAD_LEN"):
        messages.split_messages(struct.pack("!BBHI", 4, 0, 7, 1))


@given(st.sampled_from([14, 15, 13]), st.binary(max_size=160))
def test_decoders_raise_known_errors_for_random_bodies(kind: int, body: bytes) -> None:
    (message,), _ = messages.split_messages(messages.encode_message(MessageType(kind), 1, body))
    decode = {
        14: messages.decode_flow_mod,
        15: messages.decode_group_mod,
        13: messages.decode_packet_out,
    }[kind]
    try:
        decode(message)
    except (OpenFlowError, struct.error, FlowError):
        return


@given(st.data())
def test_flow_mod_with_changed_byte_is_decoded_or_refused(data: st.DataObject) -> None:
    good = wire(
        flow_mod(
            9,
            [parser.OFPActionSetField(ip_dscp=5), output(3)],
            parser.OFPMatch(eth_type=0x0800, ip_dscp=3),
        )
    )
    at = data.draw(st.integers(8, len(good) - 1))
    bad = good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1 :]
    (whole,), _ = messages.split_messages(good)
    (message,), _ = messages.split_messages(bad)
    try:
        changed = messages.decode_flow_mod(message)
    except (OpenFlowError, struct.error, FlowError):
        return
    intact = vars(messages.decode_flow_mod(whole))
    assert sum(value != intact[name] for name, value in vars(changed).items()) <= 1


def test_multipart_replies_fill_messages() -> None:
    wire = messages.encode_multipart_replies(MultipartType.FLOW, 1, [bytes(30_000)] * 5)
    parts, rest = messages.split_messages(wire)
    assert ([len(part.body) - 8 for part in parts], rest) == ([60_000, 60_000, 30_000], b"")
    assert [part.fields("2xH") for part in parts] == [(1,), (1,), (0,)]
    assert len(messages.encode_multipart_replies(MultipartType.FLOW, 1, [])) == 16
