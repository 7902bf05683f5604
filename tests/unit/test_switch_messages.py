"""OpenFlow messages as bytes: what Ryu writes is read as it was meant, what is written Ryu reads, and nonsense is told apart by its error."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.switch import messages, openflow_actions, openflow_match, written
from emulator.switch import openflow_statistics as statistics
from emulator.switch.errors import FlowError
from emulator.switch.flow import ALL, CONTROLLER, IN_PORT, Output, SetField, ToGroup
from emulator.switch.match import Match
from emulator.switch.messages import Message
from emulator.switch.openflow_numbers import Multipart, OpenFlowError, Type
from tests.openflow_lab import DATAPATH, flow_mod, output

# isort: split
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser

FIELDS: dict[str, dict[str, Any]] = {
    "in_port=0x3": {"in_port": 3},
    "eth_dst=0x20304050607/0xffffff000000": {"eth_dst": ("00:02:03:04:05:06", "ff:ff:ff:00:00:00")},
    "eth_src=0x10203040506": {"eth_src": "01:02:03:04:05:06"},
    "eth_type=0x800,ipv4_dst=0xa000000/0xffff0000,ip_dscp=0x3": {
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
    "eth_type=0x806,arp_op=0x1,arp_tpa=0xa000001": {"eth_type": 0x0806, "arp_op": 1, "arp_tpa": "10.0.0.1"},
    "any": {},
}


def wire(message: Any) -> bytes:
    message.set_xid(7)
    message.serialize()
    return bytes(message.buf)


def read(message: Any) -> Message:
    (told,), rest = messages.split(wire(message))
    assert rest == b""
    return told


def oxm(*fields: bytes) -> bytes:
    body = b"".join(fields)
    return struct.pack("!HH", 1, 4 + len(body)) + body


@pytest.mark.parametrize("said", [said for said in FIELDS if "/0xffffff000000" not in said])
def test_a_match_that_ryu_writes_is_read_and_written_again_as_it_was(said: str) -> None:
    told = wire(flow_mod(match=parser.OFPMatch(**FIELDS[said])))
    found = messages.flow_mod(messages.split(told)[0][0])
    assert str(found.match) == said
    again = openflow_match.encoded(found.match)
    assert told[48 : 48 + len(again)] == again


def test_a_flow_mod_is_read_whole() -> None:
    actions = [parser.OFPActionSetField(ip_dscp=5), output(of.OFPP_IN_PORT), output(of.OFPP_CONTROLLER)]
    told = flow_mod(
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
    found = messages.flow_mod(read(told))
    assert (found.cookie, found.cookie_mask, found.table, found.command) == (1, 2, 3, of.OFPFC_MODIFY)
    assert (found.idle_s, found.hard_s, found.priority, found.flags) == (4, 5, 9, of.OFPFF_RESET_COUNTS)
    assert (found.out_port, found.out_group, found.buffer) == (6, 7, of.OFP_NO_BUFFER)
    assert found.instructions.apply == (SetField("ip_dscp", 5), Output(IN_PORT), Output(CONTROLLER))
    assert found.instructions.write == (ToGroup(8), Output(ALL))
    assert (found.instructions.clear, found.instructions.goto) == (True, 4)


ETH_TYPE_IP = bytes.fromhex("80000a020800")


@pytest.mark.parametrize(
    ("match", "why"),
    [
        pytest.param(struct.pack("!HH", 0, 4), "MATCH_BAD_TYPE", id="standard-match-of-1.1"),
        pytest.param(oxm(b"\x80\0"), "MATCH_BAD_LEN", id="half-a-field"),
        pytest.param(oxm(bytes.fromhex("80000a040800")), "MATCH_BAD_LEN", id="a-field-longer-than-its-match"),
        pytest.param(oxm(bytes.fromhex("80000a0108")), "MATCH_BAD_LEN", id="a-field-too-short"),
        pytest.param(oxm(bytes.fromhex("80000c020800")), "MATCH_BAD_FIELD", id="vlan"),
        pytest.param(oxm(bytes.fromhex("ffff000400000000")), "MATCH_BAD_FIELD", id="experimenter"),
        pytest.param(oxm(ETH_TYPE_IP, ETH_TYPE_IP), "MATCH_DUPLICATE_FIELD", id="twice"),
        pytest.param(oxm(bytes.fromhex("8000100103")), "MATCH_BAD_PREREQUISITE", id="dscp-of-anything"),
        pytest.param(
            oxm(ETH_TYPE_IP, bytes.fromhex("80001a020009")), "MATCH_BAD_PREREQUISITE", id="tcp-of-ip"
        ),
        pytest.param(oxm(ETH_TYPE_IP, bytes.fromhex("8000100140")), "MATCH_BAD_VALUE", id="dscp-of-64"),
        pytest.param(oxm(bytes.fromhex("80000b040800ff00")), "MATCH_BAD_MASK", id="a-mask-of-an-ethertype"),
        pytest.param(
            oxm(ETH_TYPE_IP, bytes.fromhex("800019080a000001ffffff00")),
            "MATCH_BAD_WILDCARDS",
            id="bits-outside-the-mask",
        ),
    ],
)
def test_a_match_that_is_wrong_is_told_by_openflows_own_code(match: bytes, why: str) -> None:
    with pytest.raises(OpenFlowError, match="^" + why):
        openflow_match.decoded(match)


def test_a_mask_of_nothing_is_no_field() -> None:
    assert openflow_match.decoded(oxm(ETH_TYPE_IP, bytes.fromhex("800019080000000000000000"))) == Match.of(
        eth_type=0x0800
    )


@pytest.mark.parametrize(
    ("instruction", "why"),
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
        pytest.param("0004001000000000" + "0000000800000001", "ACTION_BAD_LEN", id="half-an-output"),
        pytest.param(
            "0004001800000000" + "00000010fffffffa0000000000000000", "ACTION_BAD_OUT_PORT", id="normal"
        ),
        pytest.param(
            "0004001800000000" + "00000010fffffff90000000000000000", "ACTION_BAD_OUT_PORT", id="table"
        ),
        pytest.param("0004001000000000" + "00160008ffffff01", "ACTION_BAD_OUT_GROUP", id="group-all"),
        pytest.param(
            "0004001800000000" + "0019001080001004" + "0a00000100000000", "ACTION_BAD_SET_LEN", id="set-len"
        ),
        pytest.param(
            "0004001800000000" + "0019001080001001" + "4000000000000000",
            "ACTION_BAD_SET_ARGUMENT",
            id="set-dscp-64",
        ),
    ],
)
def test_an_instruction_that_is_wrong_is_told_by_openflows_own_code(
    instruction: str, why: str | None
) -> None:
    told = bytes.fromhex(instruction)
    if why is None:
        assert openflow_actions.instructions(told).goto == 3
        return
    with pytest.raises(OpenFlowError, match="^" + why):
        openflow_actions.instructions(told)


def test_actions_are_written_as_ryu_writes_them() -> None:
    told = [
        parser.OFPActionSetField(eth_dst="01:02:03:04:05:06"),
        parser.OFPActionGroup(3),
        output(of.OFPP_ALL),
    ]
    out = messages.packet_out(read(parser.OFPPacketOut(DATAPATH, of.OFP_NO_BUFFER, 1, told, b"frame")))
    assert out.frame == b"frame"
    wrote = bytearray()
    for action in told:
        action.serialize(wrote, len(wrote))
    actions = openflow_actions.actions(bytes(wrote))
    assert actions == out.actions == (SetField("eth_dst", 0x010203040506), ToGroup(3), Output(ALL))
    assert openflow_actions.encoded(actions) == bytes(wrote)


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(0, 300), max_size=5))
def test_messages_are_found_however_the_bytes_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(written.message(Type.ECHO_REQUEST, n, body) for n, body in enumerate(bodies))
    ends = sorted({min(cut, len(whole)) for cut in cuts} | {len(whole)})
    found, rest, begin = list[Message](), b"", 0
    for end in ends:
        more, rest = messages.split(rest + whole[begin:end])
        found, begin = found + more, end
    assert [(told.xid, told.body) for told in found] == list(enumerate(bodies))
    assert rest == b""


def test_a_length_that_can_be_none_is_an_error() -> None:
    with pytest.raises(OpenFlowError, match=r"^BAD_LEN"):
        messages.split(struct.pack("!BBHI", 4, 0, 7, 1))


@given(st.sampled_from([14, 15, 13]), st.binary(max_size=160))
def test_nonsense_raises_what_can_be_told(kind: int, body: bytes) -> None:
    (told,), _ = messages.split(written.message(Type(kind), 1, body))
    reading = {14: messages.flow_mod, 15: messages.group_mod, 13: messages.packet_out}[kind]
    try:
        reading(told)
    except (OpenFlowError, struct.error, FlowError):
        return


@given(st.data())
def test_a_flow_mod_with_a_byte_changed_is_read_or_told_why_not(data: st.DataObject) -> None:
    good = wire(
        flow_mod(
            9, [parser.OFPActionSetField(ip_dscp=5), output(3)], parser.OFPMatch(eth_type=0x0800, ip_dscp=3)
        )
    )
    at = data.draw(st.integers(8, len(good) - 1))
    bad = good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1 :]
    (told,), _ = messages.split(bad)
    try:
        messages.flow_mod(told)
    except (OpenFlowError, struct.error, FlowError):
        return


def test_statistics_fill_a_message_and_then_the_next() -> None:
    parts = written.parts(Multipart.FLOW, 1, [bytes(30_000)] * 5)
    assert [len(part) - 16 for part in parts] == [60_000, 60_000, 30_000]
    assert [struct.unpack_from("!H", part, 10)[0] for part in parts] == [1, 1, 0]
    assert [len(part) for part in written.parts(Multipart.FLOW, 1, [])] == [16]


def test_table_features_are_read_by_ryu() -> None:
    body = statistics.table_features(6)
    told = parser.OFPTableFeaturesStats.parser(body, 0)
    assert (told.length, told.table_id, told.name) == (len(body), 6, b"table 6")
    goto = next(each for each in told.properties if each.type == of.OFPTFPT_NEXT_TABLES)
    assert list(goto.table_ids) == [7]
