"""A conversation with a controller as bytes and time: when changes are done, when silence is broken, and that nonsense is answered and survived."""

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.switch import messages, written
from emulator.switch.memory import MemoryDatapath
from emulator.switch.openflow import ECHO_NS, GATHER_NS, HALF_HEARD_NS, NEVER, UNSENT_BYTES, Conversation
from emulator.switch.openflow_numbers import Type
from emulator.switch.openflow_ports import MemoryInterfaces
from emulator.switch.openflow_switch import Switch
from emulator.switch.seam import Port
from tests.openflow_lab import DATAPATH, flow_mod, flows_request, output

# isort: split
from ryu.ofproto import ofproto_parser
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser

HELLO = struct.pack("!BBHI", 4, 0, 8, 1)
BARRIER = written.message(Type.BARRIER_REQUEST, 77)


class Counting(MemoryDatapath):
    """A datapath that remembers how many flows each load gave it."""

    def __init__(self) -> None:
        super().__init__((Port(1, "a"), Port(2, "b"), Port(3, "c")))
        self.loads = list[int]()

    def load(self, flows: Any, groups: Any = ()) -> None:
        super().load(flows, groups)
        self.loads.append(len(flows))


class Desk:
    """One switch and one conversation, whose time stands still unless it is moved."""

    def __init__(self, *, guest: bool = False) -> None:
        self.datapath, self.interfaces = Counting(), MemoryInterfaces()
        self.switch = Switch(5, self.datapath, self.interfaces, 0)
        self.conversation = Conversation(self.switch, 0, guest=guest)
        self.conversation.hear(HELLO, 0)
        self.conversation.say()
        self.datapath.loads.clear()

    def asked(self, wire: bytes, now_ns: int = 0) -> list[Any]:
        """What is said to these bytes, as Ryu reads it."""
        self.conversation.hear(wire, now_ns)
        return self.said()

    def said(self) -> list[Any]:
        told, rest = messages.split(self.conversation.say())
        assert rest == b""
        return [
            ofproto_parser.msg(DATAPATH, it.version, it.type, len(it.wire), it.xid, it.wire) for it in told
        ]

    def close(self) -> None:
        self.datapath.close()
        self.interfaces.close()


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


def wire(message: Any, xid: int = 9) -> bytes:
    message.xid = None
    message.set_xid(xid)
    message.serialize()
    return bytes(message.buf)


ADD = wire(flow_mod(7, [output(2)], parser.OFPMatch(eth_type=0x0800, ipv4_dst="10.0.0.1")))
OTHER = wire(flow_mod(8, [output(3)], parser.OFPMatch(eth_type=0x0806)))


# --- when changes are done -----------------------------------------------------------------------------------------------


def test_changes_wait_for_their_barrier_and_are_one_flip(desk: Desk) -> None:
    desk.asked(ADD)
    desk.asked(OTHER, GATHER_NS // 2)
    assert desk.datapath.loads == []
    assert [said.msg_type for said in desk.asked(BARRIER)] == [of.OFPT_BARRIER_REPLY]
    assert desk.datapath.loads == [2]


def test_changes_are_done_when_no_more_come(desk: Desk) -> None:
    desk.asked(ADD, 5)
    assert desk.conversation.due_ns == 5 + GATHER_NS
    desk.conversation.tick(4 + GATHER_NS)
    assert desk.datapath.loads == []
    desk.conversation.tick(5 + GATHER_NS)
    assert desk.datapath.loads == [1]


def test_changes_do_not_wait_for_a_controller_that_goes_on_about_other_things(desk: Desk) -> None:
    """A learning switch follows every change by a packet-out, and sends no barrier."""
    echo, step = written.message(Type.ECHO_REQUEST, 3), GATHER_NS // 4
    desk.asked(ADD)
    for number in range(1, 4):
        desk.asked(echo, number * step)
    desk.conversation.tick(GATHER_NS)
    assert desk.datapath.loads == [1]


def test_changes_without_end_are_done_now_and_then(desk: Desk) -> None:
    for now_ns in range(0, HALF_HEARD_NS + 1, GATHER_NS // 2):
        desk.conversation.tick(now_ns)
        desk.asked(OTHER, now_ns)
    assert len(desk.datapath.loads) == 1


def test_who_looks_sees_what_another_has_asked_for(desk: Desk) -> None:
    desk.asked(ADD)
    beside = Conversation(desk.switch, 0, guest=True)
    beside.hear(HELLO, 0)
    beside.say()
    request = parser.OFPFlowStatsRequest(
        DATAPATH, 0, of.OFPTT_ALL, of.OFPP_ANY, of.OFPG_ANY, 0, 0, parser.OFPMatch()
    )
    beside.hear(wire(request), 0)
    assert desk.datapath.loads == [1]
    beside.close()


def test_half_a_message_says_that_more_is_to_come(desk: Desk) -> None:
    desk.asked(ADD + OTHER[:20])
    desk.conversation.tick(GATHER_NS)
    assert desk.datapath.loads == []
    desk.asked(OTHER[20:] + BARRIER, GATHER_NS)
    assert desk.datapath.loads == [2]


def test_half_a_message_is_not_waited_for_without_end(desk: Desk) -> None:
    desk.asked(ADD + OTHER[:20])
    desk.conversation.tick(HALF_HEARD_NS)
    assert desk.datapath.loads == [1]


def test_what_was_asked_for_is_done_when_the_controller_hangs_up(desk: Desk) -> None:
    desk.asked(ADD)
    desk.conversation.close()
    assert desk.datapath.loads == [1]
    assert desk.switch.listeners == []


def test_one_message_that_is_refused_stops_no_other(desk: Desk) -> None:
    bad = wire(flow_mod(1, [output(77)]), xid=4)
    error, barrier = desk.asked(ADD + bad + OTHER + BARRIER)
    assert (error.type, error.code, error.xid) == (of.OFPET_BAD_ACTION, of.OFPBAC_BAD_OUT_PORT, 4)
    assert (barrier.xid, desk.datapath.loads) == (77, [2])


# --- silence -------------------------------------------------------------------------------------------------------------


def test_a_silent_controller_is_asked_and_then_given_up(desk: Desk) -> None:
    desk.conversation.tick(ECHO_NS - 1)
    assert desk.said() == []
    desk.conversation.tick(ECHO_NS)
    assert [said.msg_type for said in desk.said()] == [of.OFPT_ECHO_REQUEST]
    assert not desk.conversation.over
    desk.conversation.tick(2 * ECHO_NS)
    assert desk.conversation.over


def test_a_controller_that_answers_is_not_given_up(desk: Desk) -> None:
    desk.conversation.tick(ECHO_NS)
    (asked,) = desk.said()
    desk.asked(written.message(Type.ECHO_REPLY, asked.xid), ECHO_NS + 1)
    desk.conversation.tick(2 * ECHO_NS)
    assert not desk.conversation.over


def test_a_guest_may_be_silent_as_long_as_it_likes() -> None:
    desk = Desk(guest=True)
    assert desk.conversation.due_ns == NEVER
    desk.close()


def test_who_takes_no_answers_is_heard_no_further_and_goes_on_where_it_was(desk: Desk) -> None:
    asked, body = 3000, bytes(1000)
    echoes = b"".join(written.message(Type.ECHO_REQUEST, number, body) for number in range(asked))
    desk.conversation.hear(echoes, 0)
    assert desk.conversation.unsaid < UNSENT_BYTES + 2 * len(body)
    assert not desk.conversation.listens
    taken = bytearray()

    def take(waiting: bytearray) -> int:
        taken.extend(waiting[:100_000])
        return min(len(waiting), 100_000)

    while desk.conversation.unsaid:
        desk.conversation.take(take, 0)
    assert [said.xid for said in messages.split(bytes(taken))[0]] == list(range(asked))
    assert desk.conversation.listens


def test_who_takes_answers_slowly_is_not_called_silent(desk: Desk) -> None:
    desk.conversation.hear(written.message(Type.ECHO_REQUEST, 1, bytes(1000)), 0)
    desk.conversation.take(lambda _: 1, ECHO_NS - 2)
    desk.conversation.take(lambda _: 1, ECHO_NS - 1)
    assert desk.conversation.due_ns == 2 * ECHO_NS - 1


# --- groups and counters -------------------------------------------------------------------------------------------------


def test_groups_and_tables_count_what_goes_through_them(desk: Desk) -> None:
    buckets = [parser.OFPBucket(0, of.OFPP_ANY, of.OFPG_ANY, [output(port)]) for port in (2, 3)]
    watched = [parser.OFPBucket(0, port, of.OFPG_ANY, [output(port)]) for port in (2, 3)]
    through = parser.OFPMatch(eth_type=0x0800)
    desk.asked(
        wire(parser.OFPGroupMod(DATAPATH, of.OFPGC_ADD, of.OFPGT_ALL, 1, buckets))
        + wire(parser.OFPGroupMod(DATAPATH, of.OFPGC_ADD, of.OFPGT_FF, 2, watched))
        + wire(flow_mod(7, [parser.OFPActionGroup(1), parser.OFPActionGroup(2)], through))
        + BARRIER
    )
    frame = bytes(12) + b"\x08\0" + bytes(46)
    desk.datapath.forward(1, frame)
    desk.asked(
        wire(flow_mod(command=of.OFPFC_DELETE)) + wire(flow_mod(7, [parser.OFPActionGroup(1)], through))
    )
    desk.datapath.forward(1, frame)  # the old flow's, not yet gone
    desk.asked(BARRIER)
    desk.datapath.forward(1, frame)
    (reply,) = desk.asked(wire(parser.OFPGroupStatsRequest(DATAPATH, 0, of.OFPG_ALL)))
    uncounted = 2**64 - 1
    counted = [
        (it.packet_count, it.byte_count, [b.packet_count for b in it.bucket_stats]) for it in reply.body
    ]
    assert counted == [(3, 180, [3, 3]), (2, 120, [uncounted, uncounted])]
    (reply,) = desk.asked(wire(parser.OFPTableStatsRequest(DATAPATH, 0)))
    assert [(it.active_count, it.matched_count) for it in reply.body][:2] == [(1, 3), (0, 0)]


# --- nonsense ------------------------------------------------------------------------------------------------------------

SENT: dict[str, bytes] = {
    "add": ADD,
    "add through tables": wire(
        flow_mod(
            9,
            match=parser.OFPMatch(
                in_port=1, eth_type=0x0800, ip_proto=6, ipv4_src=("10.0.0.0", "255.0.0.0"), tcp_dst=9
            ),
            instructions=[
                parser.OFPInstructionActions(
                    of.OFPIT_WRITE_ACTIONS, [parser.OFPActionSetField(ip_dscp=3), output(1)]
                ),
                parser.OFPInstructionActions(of.OFPIT_CLEAR_ACTIONS, []),
                parser.OFPInstructionGotoTable(3),
            ],
        )
    ),
    "delete": wire(flow_mod(command=of.OFPFC_DELETE, table_id=of.OFPTT_ALL)),
    "group": wire(
        parser.OFPGroupMod(
            DATAPATH,
            of.OFPGC_ADD,
            of.OFPGT_SELECT,
            1,
            [parser.OFPBucket(2, of.OFPP_ANY, of.OFPG_ANY, [output(1)])],
        )
    ),
    "packet-out": wire(
        parser.OFPPacketOut(DATAPATH, of.OFP_NO_BUFFER, 1, [output(of.OFPP_TABLE)], bytes(60))
    ),
    "features": wire(parser.OFPFeaturesRequest(DATAPATH)),
    "set-config": wire(parser.OFPSetConfig(DATAPATH, 0, 128)),
    "role": wire(parser.OFPRoleRequest(DATAPATH, of.OFPCR_ROLE_EQUAL, 0)),
    "async": wire(parser.OFPSetAsync(DATAPATH, [3, 3], [7, 7], [15, 15])),
    "port": wire(parser.OFPPortMod(DATAPATH, 1, "00:00:00:00:00:00", 0, 0, 0)),
    "meter": wire(
        parser.OFPMeterMod(DATAPATH, of.OFPMC_ADD, of.OFPMF_KBPS, 1, [parser.OFPMeterBandDrop(1, 1)])
    ),
    "queues": wire(parser.OFPQueueGetConfigRequest(DATAPATH, 1)),
    "flow statistics": wire(flows_request()),
    "port statistics": wire(parser.OFPPortStatsRequest(DATAPATH, 0, of.OFPP_ANY)),
    "group statistics": wire(parser.OFPGroupStatsRequest(DATAPATH, 0, of.OFPG_ALL)),
    "table features": wire(parser.OFPTableFeaturesStatsRequest(DATAPATH, 0)),
}


def _cut(sent: bytes, length: int) -> bytes:
    """The message, cut, that says itself how long it is."""
    return sent[:2] + struct.pack("!H", length) + sent[4:length]


def _set(sent: bytes, at: int, value: bytes) -> bytes:
    return sent[:at] + value + sent[at + len(value) :]


MALFORMED: dict[str, tuple[Callable[[dict[str, bytes]], bytes], int, int]] = {
    "a version of its own": (
        lambda it: _set(it["features"], 0, b"\x05"),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_VERSION,
    ),
    "an unknown type": (
        lambda it: _set(it["features"], 1, b"\x63"),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_TYPE,
    ),
    "a reply asked for": (
        lambda it: _set(it["features"], 1, b"\x06"),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_TYPE,
    ),
    "a question with a body": (
        lambda _: written.message(Type.FEATURES_REQUEST, 9, bytes(8)),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_LEN,
    ),
    "a flow-mod cut short": (lambda it: _cut(it["add"], 40), of.OFPET_BAD_REQUEST, of.OFPBRC_BAD_LEN),
    "a match cut short": (lambda it: _cut(it["add"], 56), of.OFPET_BAD_MATCH, of.OFPBMC_BAD_LEN),
    "an action cut short": (lambda it: _cut(it["add"], 88), of.OFPET_BAD_INSTRUCTION, of.OFPBIC_BAD_LEN),
    "a role cut short": (lambda it: _cut(it["role"], 16), of.OFPET_BAD_REQUEST, of.OFPBRC_BAD_LEN),
    "a packet-out cut short": (
        lambda it: _cut(it["packet-out"], 20),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_LEN,
    ),
    "unknown statistics": (
        lambda it: _set(it["flow statistics"], 8, b"\0\x63"),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_MULTIPART,
    ),
    "statistics cut short": (
        lambda it: _cut(it["flow statistics"], 24),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_LEN,
    ),
    "a bucket cut short": (lambda it: _cut(it["group"], 24), of.OFPET_BAD_REQUEST, of.OFPBRC_BAD_LEN),
    "an unknown command": (
        lambda it: _set(it["add"], 25, b"\x09"),
        of.OFPET_FLOW_MOD_FAILED,
        of.OFPFMFC_BAD_COMMAND,
    ),
    "an unknown role": (
        lambda it: _set(it["role"], 8, b"\0\0\0\x09"),
        of.OFPET_ROLE_REQUEST_FAILED,
        of.OFPRRFC_BAD_ROLE,
    ),
}


@pytest.mark.parametrize("name", MALFORMED, ids=lambda name: name.replace(" ", "-"))
def test_a_malformed_message_is_answered_by_its_own_error(desk: Desk, name: str) -> None:
    made, kind, code = MALFORMED[name]
    error, *rest = desk.asked(made(SENT) + BARRIER)
    assert (error.type, error.code, error.xid) == (kind, code, 9), of.ofp_error_code_to_str(
        error.type, error.code
    )
    assert [said.msg_type for said in rest] == [of.OFPT_BARRIER_REPLY]
    assert desk.switch.tables.entries == {}


sents = st.sampled_from(sorted(SENT))
flips = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 7)), min_size=1, max_size=4)


def _survives(wires: list[bytes]) -> None:
    """A conversation that has heard these still answers, or is over; and all that it says can be read."""
    desk = Desk()
    try:
        said = desk.asked(b"".join(wires))
        desk.conversation.tick(GATHER_NS)
        said += desk.said()
        if not desk.conversation.over:
            said += desk.asked(written.message(Type.BARRIER_REQUEST, 4242), HALF_HEARD_NS)
            whole = messages.split(b"".join(wires))[1] == b""
            assert not whole or said[-1].xid == 4242
    finally:
        desk.close()


@given(st.lists(st.tuples(sents, flips), min_size=1, max_size=6))
def test_flipped_bits_are_survived(told: list[tuple[str, list[tuple[int, int]]]]) -> None:
    made = []
    for name, flipped in told:
        wire_ = bytearray(SENT[name])
        for place, bit in flipped:
            at = place % len(wire_)
            if at not in {2, 3}:  # a wrong length ends the conversation: what follows can't be told apart
                wire_[at] ^= 1 << bit
        made.append(bytes(wire_))
    _survives(made)


@given(st.lists(st.tuples(sents, st.integers(8, 200)), min_size=1, max_size=6))
def test_messages_cut_short_are_survived(told: list[tuple[str, int]]) -> None:
    _survives([_cut(SENT[name], min(length, len(SENT[name]))) for name, length in told])


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=120)), min_size=1, max_size=6))
def test_random_messages_are_survived(told: list[tuple[int, bytes]]) -> None:
    _survives([struct.pack("!BBHI", 4, kind, 8 + len(body), 9) + body for kind, body in told])


@given(st.binary(max_size=300))
def test_random_bytes_are_survived(told: bytes) -> None:
    _survives([told])


def test_a_length_that_can_be_none_ends_the_conversation(desk: Desk) -> None:
    desk.asked(struct.pack("!BBHI", 4, 2, 3, 9))
    assert desk.conversation.over
