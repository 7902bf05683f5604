"""A controller session with bytes and time passed in: batches of changes, silence, errors."""

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.openflow import messages
from moefabric.core.openflow.constants import MessageType
from moefabric.emulator.openflow_switch.agent import multipart
from moefabric.emulator.openflow_switch.agent.session import (
    BATCH_MAX_NS,
    BATCH_QUIET_NS,
    ECHO_INTERVAL_NS,
    MAX_UNSENT_BYTES,
    NEVER,
    ControllerSession,
)
from moefabric.emulator.openflow_switch.agent.switch import OpenFlowSwitch
from moefabric.emulator.openflow_switch.datapath.interface import Port
from tests.support.memory_datapath import MemoryDatapath, MemoryInterfaces
from tests.support.openflow_frames import taken_output
from tests.support.openflow_lab import DATAPATH, flow_mod, flows_request, output

# isort: split
from ryu.ofproto import ofproto_parser
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser

HELLO = struct.pack("!BBHI", 4, 0, 8, 1)
BARRIER = messages.encode_message(MessageType.BARRIER_REQUEST, 77)


class RecordingDatapath(MemoryDatapath):
    """A datapath that records the number of flows of each load."""

    def __init__(self) -> None:
        super().__init__((Port(1, "a"), Port(2, "b"), Port(3, "c")))
        self.loads = list[int]()

    def load(self, flows: Any, groups: Any = ()) -> None:
        super().load(flows, groups)
        self.loads.append(len(flows))


class SessionBench:
    """A switch and a session whose time the test sets."""

    def __init__(self, *, passive: bool = False) -> None:
        self.datapath, self.interfaces = RecordingDatapath(), MemoryInterfaces()
        self.switch = OpenFlowSwitch(5, self.datapath, self.interfaces, 0)
        self.session = ControllerSession(self.switch, 0, passive=passive)
        self.session.receive(HELLO, 0)
        taken_output(self.session)
        self.datapath.loads.clear()

    def request(self, wire: bytes, now_ns: int = 0) -> list[Any]:
        """The replies to these bytes, decoded by Ryu."""
        self.session.receive(wire, now_ns)
        return self.replies()

    def replies(self) -> list[Any]:
        replies, rest = messages.split_messages(taken_output(self.session))
        assert rest == b""
        return [
            ofproto_parser.msg(DATAPATH, m.version, m.type, len(m.wire), m.xid, m.wire)
            for m in replies
        ]

    def close(self) -> None:
        self.datapath.close()
        self.interfaces.close()


@pytest.fixture
def bench() -> Iterator[SessionBench]:
    bench = SessionBench()
    yield bench
    bench.close()


def wire(message: Any, xid: int = 9) -> bytes:
    message.xid = None
    message.set_xid(xid)
    message.serialize()
    return bytes(message.buf)


ADD = wire(flow_mod(7, [output(2)], parser.OFPMatch(eth_type=0x0800, ipv4_dst="10.0.0.1")))
OTHER = wire(flow_mod(8, [output(3)], parser.OFPMatch(eth_type=0x0806)))


# --- batches of changes -------------------------------------------------------------------------


def test_barrier_commits_changes_by_one_load(bench: SessionBench) -> None:
    bench.request(ADD)
    bench.request(OTHER, BATCH_QUIET_NS // 2)
    assert bench.datapath.loads == []
    assert [reply.msg_type for reply in bench.request(BARRIER)] == [of.OFPT_BARRIER_REPLY]
    assert bench.datapath.loads == [2]


def test_quiet_time_commits_changes(bench: SessionBench) -> None:
    bench.request(ADD, 5)
    assert bench.session.due_ns == 5 + BATCH_QUIET_NS
    bench.session.tick(4 + BATCH_QUIET_NS)
    assert bench.datapath.loads == []
    bench.session.tick(5 + BATCH_QUIET_NS)
    assert bench.datapath.loads == [1]


def test_other_requests_do_not_delay_changes(bench: SessionBench) -> None:
    """A learning switch follows every change by a packet-out, and sends no barrier."""
    echo, step = messages.encode_message(MessageType.ECHO_REQUEST, 3), BATCH_QUIET_NS // 4
    bench.request(ADD)
    for number in range(1, 4):
        bench.request(echo, number * step)
    bench.session.tick(BATCH_QUIET_NS)
    assert bench.datapath.loads == [1]


def test_continuous_changes_are_committed_at_maximum_delay(bench: SessionBench) -> None:
    for now_ns in range(0, BATCH_MAX_NS + 1, BATCH_QUIET_NS // 2):
        bench.session.tick(now_ns)
        bench.request(OTHER, now_ns)
    assert len(bench.datapath.loads) == 1


def test_statistics_request_commits_changes_of_other_sessions(bench: SessionBench) -> None:
    bench.request(ADD)
    other = ControllerSession(bench.switch, 0, passive=True)
    other.receive(HELLO, 0)
    taken_output(other)
    request = parser.OFPFlowStatsRequest(
        DATAPATH, 0, of.OFPTT_ALL, of.OFPP_ANY, of.OFPG_ANY, 0, 0, parser.OFPMatch()
    )
    other.receive(wire(request), 0)
    assert bench.datapath.loads == [1]
    other.close()


def test_partial_message_delays_commit(bench: SessionBench) -> None:
    bench.request(ADD + OTHER[:20])
    bench.session.tick(BATCH_QUIET_NS)
    assert bench.datapath.loads == []
    bench.request(OTHER[20:] + BARRIER, BATCH_QUIET_NS)
    assert bench.datapath.loads == [2]


def test_partial_message_delays_commit_no_longer_than_maximum(bench: SessionBench) -> None:
    bench.request(ADD + OTHER[:20])
    bench.session.tick(BATCH_MAX_NS)
    assert bench.datapath.loads == [1]


def test_close_commits_changes(bench: SessionBench) -> None:
    bench.request(ADD)
    bench.session.close()
    assert bench.datapath.loads == [1]
    assert bench.switch.listeners == []


def test_refused_change_does_not_stop_others(bench: SessionBench) -> None:
    bad = wire(flow_mod(1, [output(77)]), xid=4)
    error, barrier = bench.request(ADD + bad + OTHER + BARRIER)
    assert (error.type, error.code, error.xid) == (of.OFPET_BAD_ACTION, of.OFPBAC_BAD_OUT_PORT, 4)
    assert (barrier.xid, bench.datapath.loads) == (77, [2])


# --- silence ------------------------------------------------------------------------------------


def test_silent_controller_gets_echo_and_then_session_is_over(bench: SessionBench) -> None:
    bench.session.tick(ECHO_INTERVAL_NS - 1)
    assert bench.replies() == []
    bench.session.tick(ECHO_INTERVAL_NS)
    assert [reply.msg_type for reply in bench.replies()] == [of.OFPT_ECHO_REQUEST]
    assert not bench.session.is_over
    bench.session.tick(2 * ECHO_INTERVAL_NS)
    assert bench.session.is_over


def test_echo_reply_keeps_session(bench: SessionBench) -> None:
    bench.session.tick(ECHO_INTERVAL_NS)
    (echo,) = bench.replies()
    bench.request(messages.encode_message(MessageType.ECHO_REPLY, echo.xid), ECHO_INTERVAL_NS + 1)
    bench.session.tick(2 * ECHO_INTERVAL_NS)
    assert not bench.session.is_over


def test_passive_session_may_be_silent() -> None:
    bench = SessionBench(passive=True)
    assert bench.session.due_ns == NEVER
    bench.close()


def test_passive_session_gets_no_asynchronous_messages_by_default() -> None:
    bench = SessionBench(passive=True)
    (reply,) = bench.request(wire(parser.OFPGetAsyncRequest(DATAPATH)))
    masks = reply.packet_in_mask, reply.port_status_mask, reply.flow_removed_mask
    assert [mask for by_role in masks for mask in by_role] == [0] * 6
    bench.close()


def test_unread_replies_stop_input_until_they_are_sent(bench: SessionBench) -> None:
    count, body = 3000, bytes(1000)
    echoes = b"".join(
        messages.encode_message(MessageType.ECHO_REQUEST, number, body) for number in range(count)
    )
    bench.session.receive(echoes, 0)
    assert bench.session.unsent_bytes < MAX_UNSENT_BYTES + 2 * len(body)
    assert not bench.session.wants_input
    sent = bytearray()

    def send(waiting: bytearray) -> int:
        sent.extend(waiting[:100_000])
        return min(len(waiting), 100_000)

    while bench.session.unsent_bytes:
        bench.session.transmit(send, 0)
    assert [message.xid for message in messages.split_messages(bytes(sent))[0]] == list(
        range(count)
    )
    assert bench.session.wants_input


def test_slow_reader_is_not_silent(bench: SessionBench) -> None:
    bench.session.receive(messages.encode_message(MessageType.ECHO_REQUEST, 1, bytes(1000)), 0)
    bench.session.transmit(lambda _: 1, ECHO_INTERVAL_NS - 2)
    bench.session.transmit(lambda _: 1, ECHO_INTERVAL_NS - 1)
    assert bench.session.due_ns == 2 * ECHO_INTERVAL_NS - 1


# --- groups and counters ------------------------------------------------------------------------


def test_groups_and_tables_count_packets(bench: SessionBench) -> None:
    buckets = [parser.OFPBucket(0, of.OFPP_ANY, of.OFPG_ANY, [output(port)]) for port in (2, 3)]
    watched = [parser.OFPBucket(0, port, of.OFPG_ANY, [output(port)]) for port in (2, 3)]
    through = parser.OFPMatch(eth_type=0x0800)
    bench.request(
        wire(parser.OFPGroupMod(DATAPATH, of.OFPGC_ADD, of.OFPGT_ALL, 1, buckets))
        + wire(parser.OFPGroupMod(DATAPATH, of.OFPGC_ADD, of.OFPGT_FF, 2, watched))
        + wire(flow_mod(7, [parser.OFPActionGroup(1), parser.OFPActionGroup(2)], through))
        + BARRIER
    )
    frame = bytes(12) + b"\x08\0" + bytes(46)
    bench.datapath.forward(1, frame)
    bench.request(
        wire(flow_mod(command=of.OFPFC_DELETE))
        + wire(flow_mod(7, [parser.OFPActionGroup(1)], through))
    )
    bench.datapath.forward(1, frame)  # counted by the old flow, which waits for the barrier
    bench.request(BARRIER)
    bench.datapath.forward(1, frame)
    (reply,) = bench.request(wire(parser.OFPGroupStatsRequest(DATAPATH, 0, of.OFPG_ALL)))
    uncounted = 2**64 - 1
    counted = [
        (stats.packet_count, stats.byte_count, [b.packet_count for b in stats.bucket_stats])
        for stats in reply.body
    ]
    assert counted == [(3, 180, [3, 3]), (2, 120, [uncounted, uncounted])]
    (reply,) = bench.request(wire(parser.OFPTableStatsRequest(DATAPATH, 0)))
    assert [(stats.active_count, stats.matched_count) for stats in reply.body][:2] == [
        (1, 3),
        (0, 0),
    ]


# --- malformed messages -------------------------------------------------------------------------

REQUESTS: dict[str, bytes] = {
    "add": ADD,
    "add through tables": wire(
        flow_mod(
            9,
            match=parser.OFPMatch(
                in_port=1,
                eth_type=0x0800,
                ip_proto=6,
                ipv4_src=("10.0.0.0", "255.0.0.0"),
                tcp_dst=9,
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
        parser.OFPMeterMod(
            DATAPATH, of.OFPMC_ADD, of.OFPMF_KBPS, 1, [parser.OFPMeterBandDrop(1, 1)]
        )
    ),
    "queues": wire(parser.OFPQueueGetConfigRequest(DATAPATH, 1)),
    "flow statistics": wire(flows_request()),
    "port statistics": wire(parser.OFPPortStatsRequest(DATAPATH, 0, of.OFPP_ANY)),
    "group statistics": wire(parser.OFPGroupStatsRequest(DATAPATH, 0, of.OFPG_ALL)),
    "table features": wire(parser.OFPTableFeaturesStatsRequest(DATAPATH, 0)),
}


def _cut(request: bytes, length: int) -> bytes:
    """Truncates a message, and sets its length field accordingly."""
    return request[:2] + struct.pack("!H", length) + request[4:length]


def _set(request: bytes, at: int, value: bytes) -> bytes:
    return request[:at] + value + request[at + len(value) :]


MALFORMED: dict[str, tuple[Callable[[dict[str, bytes]], bytes], int, int]] = {
    "an unknown version": (
        lambda requests: _set(requests["features"], 0, b"\x05"),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_VERSION,
    ),
    "an unknown type": (
        lambda requests: _set(requests["features"], 1, b"\x63"),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_TYPE,
    ),
    "a reply as a request": (
        lambda requests: _set(requests["features"], 1, b"\x06"),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_TYPE,
    ),
    "an unexpected body": (
        lambda _: messages.encode_message(MessageType.FEATURES_REQUEST, 9, bytes(8)),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_LEN,
    ),
    "a flow-mod truncated": (
        lambda requests: _cut(requests["add"], 40),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_LEN,
    ),
    "a match truncated": (
        lambda requests: _cut(requests["add"], 56),
        of.OFPET_BAD_MATCH,
        of.OFPBMC_BAD_LEN,
    ),
    "an action truncated": (
        lambda requests: _cut(requests["add"], 88),
        of.OFPET_BAD_INSTRUCTION,
        of.OFPBIC_BAD_LEN,
    ),
    "a role truncated": (
        lambda requests: _cut(requests["role"], 16),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_LEN,
    ),
    "a packet-out truncated": (
        lambda requests: _cut(requests["packet-out"], 20),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_LEN,
    ),
    "unknown statistics": (
        lambda requests: _set(requests["flow statistics"], 8, b"\0\x63"),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_MULTIPART,
    ),
    "statistics truncated": (
        lambda requests: _cut(requests["flow statistics"], 24),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_LEN,
    ),
    "a bucket truncated": (
        lambda requests: _cut(requests["group"], 24),
        of.OFPET_BAD_REQUEST,
        of.OFPBRC_BAD_LEN,
    ),
    "an unknown command": (
        lambda requests: _set(requests["add"], 25, b"\x09"),
        of.OFPET_FLOW_MOD_FAILED,
        of.OFPFMFC_BAD_COMMAND,
    ),
    "an unknown role": (
        lambda requests: _set(requests["role"], 8, b"\0\0\0\x09"),
        of.OFPET_ROLE_REQUEST_FAILED,
        of.OFPRRFC_BAD_ROLE,
    ),
}


@pytest.mark.parametrize("name", MALFORMED, ids=lambda name: name.replace(" ", "-"))
def test_malformed_message_gets_specific_error(bench: SessionBench, name: str) -> None:
    malformed, kind, code = MALFORMED[name]
    error, *rest = bench.request(malformed(REQUESTS) + BARRIER)
    assert (error.type, error.code, error.xid) == (kind, code, 9), of.ofp_error_code_to_str(
        error.type, error.code
    )
    assert [reply.msg_type for reply in rest] == [of.OFPT_BARRIER_REPLY]
    assert bench.switch.tables.entries == {}


requests = st.sampled_from(sorted(REQUESTS))
flips = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 7)), min_size=1, max_size=4)


def _survives(wires: list[bytes]) -> None:
    """Checks that the session still answers or is over, and that Ryu reads all its replies."""
    bench = SessionBench()
    try:
        replies = bench.request(b"".join(wires))
        bench.session.tick(BATCH_QUIET_NS)
        replies += bench.replies()
        if not bench.session.is_over:
            replies += bench.request(
                messages.encode_message(MessageType.BARRIER_REQUEST, 4242), BATCH_MAX_NS
            )
            is_whole = messages.split_messages(b"".join(wires))[1] == b""
            assert not is_whole or replies[-1].xid == 4242
    finally:
        bench.close()


@given(st.lists(st.tuples(requests, flips), min_size=1, max_size=6))
def test_session_survives_flipped_bits(chosen: list[tuple[str, list[tuple[int, int]]]]) -> None:
    wires = []
    for name, flipped in chosen:
        wire_ = bytearray(REQUESTS[name])
        for place, bit in flipped:
            at = place % len(wire_)
            if at not in {2, 3}:  # a wrong length would end the session
                wire_[at] ^= 1 << bit
        wires.append(bytes(wire_))
    _survives(wires)


@given(st.lists(st.tuples(requests, st.integers(8, 200)), min_size=1, max_size=6))
def test_session_survives_truncated_messages(chosen: list[tuple[str, int]]) -> None:
    _survives([_cut(REQUESTS[name], min(length, len(REQUESTS[name]))) for name, length in chosen])


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=120)), min_size=1, max_size=6))
def test_session_survives_random_messages(chosen: list[tuple[int, bytes]]) -> None:
    _survives([struct.pack("!BBHI", 4, kind, 8 + len(body), 9) + body for kind, body in chosen])


@given(st.binary(max_size=300))
def test_session_survives_random_bytes(octets: bytes) -> None:
    _survives([octets])


def test_impossible_length_ends_session(bench: SessionBench) -> None:
    bench.request(struct.pack("!BBHI", 4, 2, 3, 9))
    assert bench.session.is_over


def test_table_features_are_decoded_by_ryu() -> None:
    body = multipart.table_features(6)
    features = parser.OFPTableFeaturesStats.parser(body, 0)
    assert (features.length, features.table_id, features.name) == (len(body), 6, b"table 6")
    goto = next(p for p in features.properties if p.type == of.OFPTFPT_NEXT_TABLES)
    assert list(goto.table_ids) == [7]
