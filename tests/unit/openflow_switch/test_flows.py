"""Packets, matches, flows and groups, and the datapath in memory that executes them."""

from contextlib import closing
from select import select

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.openflow.actions import ALL, CONTROLLER, IN_PORT, Output, SetField, ToGroup
from moefabric.core.openflow.constants import GroupType
from moefabric.core.openflow.match import FIELD_BITS, FlowError, Match
from moefabric.core.openflow.messages import Bucket
from moefabric.emulator.openflow_switch.datapath.emissions import select_slot, slot_buckets
from moefabric.emulator.openflow_switch.datapath.interface import (
    Flow,
    FlowCount,
    Group,
    Port,
    PuntedPacket,
)
from moefabric.emulator.openflow_switch.flows.packet import (
    complete_checksum,
    internet_checksum,
    packet_fields,
    rewritten_frame,
)
from tests.support.memory_datapath import MemoryDatapath
from tests.support.switch_frames import ADDRESSES, MACS, arp, frames, ipv4, ipv6, lldp, matches

IP = {"eth_type": 0x0800}


def switch(*flows: Flow, groups: tuple[Group, ...] = ()) -> MemoryDatapath:
    datapath = MemoryDatapath([Port(1, "p1"), Port(2, "p2"), Port(3, "p3")])
    datapath.load(flows, groups)
    return datapath


def outputs(datapath: MemoryDatapath, in_port: int = 1, frame: bytes = b"") -> list[int]:
    return [port for port, _ in datapath.forward(in_port, frame or ipv4())]


def test_packet_fields_of_udp() -> None:
    frame = ipv4(src=0x0A000001, dst=0x0A000002, dscp=5, ports=(7, 8), options=b"\1" * 8)
    assert packet_fields(frame, 4) == dict.fromkeys(FIELD_BITS, 0) | {
        "in_port": 4,
        "eth_dst": MACS[1],
        "eth_src": MACS[0],
        "eth_type": 0x0800,
        "ipv4_src": 0x0A000001,
        "ipv4_dst": 0x0A000002,
        "ip_dscp": 5,
        "ip_proto": 17,
        "tp_src": 7,
        "tp_dst": 8,
    }


def test_packet_fields_of_arp() -> None:
    packet = packet_fields(arp(op=2, spa=3, tpa=4), 1)
    names = ("eth_type", "arp_op", "arp_spa", "arp_tpa")
    assert [packet[name] for name in names] == [0x0806, 2, 3, 4]


def test_packet_fields_ignore_tag() -> None:
    frame = ipv4()
    assert packet_fields(frame[:12] + b"\x81\x00\x00\x05" + frame[12:], 1) == packet_fields(
        frame, 1
    )


def test_later_fragment_has_no_ports() -> None:
    assert packet_fields(ipv4(ports=(7, 8), fragment=1), 1)["tp_src"] == 0
    assert packet_fields(ipv4(ports=(7, 8), fragment=0x2000), 1)["tp_src"] == 7


@pytest.mark.parametrize("length", range(60))
def test_packet_fields_of_truncated_frame(length: int) -> None:
    for frame in (ipv4(), arp()):
        assert packet_fields(frame[:length], 1).keys() == FIELD_BITS.keys()


def test_transport_ports_need_no_byte_behind_them() -> None:
    frame = ipv4(ports=(7, 8))
    assert [packet_fields(frame[:length], 1)["tp_dst"] for length in (37, 38)] == [0, 8]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"ipv4_dst": 1}, "match ipv4_dst without eth_type=0x0800", id="ipv4"),
        pytest.param({"ip_dscp": 1, "eth_type": 0x0806}, "ip_dscp without", id="dscp-of-arp"),
        pytest.param({"arp_op": 1, **IP}, "match arp_op without eth_type=0x0806", id="arp-of-ipv4"),
        pytest.param({"tp_dst": 1, **IP}, "tp_dst without ip_proto=0x0006 or", id="port-of-any"),
        pytest.param({"tp_dst": 1, "ip_proto": 1, **IP}, "tp_dst without", id="port-of-icmp"),
        pytest.param({"eth_type": 1 << 16}, "the field has 16 bits", id="wide"),
        pytest.param({"in_port": (0, -1)}, "the field has 32 bits", id="negative"),
    ],
)
def test_match_refuses_missing_prerequisite_and_wide_value(
    fields: dict[str, int], message: str
) -> None:
    with pytest.raises(FlowError, match=message):
        Match.of(**fields)


def test_match_ignores_masked_bits() -> None:
    assert Match.of(eth_dst=(0xFF, 0xF0)) == Match.of(eth_dst=(0xF5, 0xF0))
    assert Match.of(eth_dst=(5, 0)) == Match()
    assert hash(Match.of(eth_dst=(0xFF, 0xF0))) == hash(Match.of(eth_dst=(0xF5, 0xF0)))


def test_match_and_flow_as_text() -> None:
    assert (
        str(Match.of(**IP, ipv4_dst=(0x0A000000, 0xFF000000)))
        == "eth_type=0x800,ipv4_dst=0xa000000/0xff000000"
    )
    assert str(Flow(Match(), 3, (SetField("ip_dscp", 2), Output(1), Output(ALL)))) == (
        "any @3 -> set_field:ip_dscp=0x2 output:1 output:all"
    )
    assert str(Flow(Match(), 0)) == "any @0 -> drop"


@given(matches(), matches(), frames())
def test_match_fits_what_it_covers(wide: Match, narrow: Match, frame: bytes) -> None:
    packet = packet_fields(frame, 1)
    assert wide.covers(wide)
    assert Match().covers(wide)
    if wide.covers(narrow) and narrow.fits(packet):
        assert wide.fits(packet)
    if wide.fits(packet) and narrow.fits(packet):
        assert wide.overlaps(narrow)
        assert narrow.overlaps(wide)


def test_prefix_covers_longer_prefixes() -> None:
    ten, here, there = (
        Match.of(**IP, ipv4_dst=pair)
        for pair in ((10 << 24, 0xFF000000), (0x0A090000, 0xFFFF0000), (0x0B000000, 0xFFFF0000))
    )
    assert ten.covers(here)
    assert not here.covers(ten)
    assert not ten.covers(there)
    assert not ten.overlaps(there)


def test_priority_decides_before_matched_bits() -> None:
    narrow = Flow(Match.of(**IP, ipv4_dst=ADDRESSES[1]), 1, (Output(2),))
    wide = Flow(Match.of(**IP), 1, (Output(3),))
    with closing(switch(wide, narrow)) as same:
        assert outputs(same) == [2]
    with closing(switch(narrow, Flow(wide.match, 2, wide.actions))) as higher:
        assert outputs(higher) == [3]


def test_missing_flow_and_empty_actions_drop() -> None:
    with closing(switch()) as empty, closing(switch(Flow(Match(), 0))) as dropping:
        assert outputs(empty) == outputs(dropping) == []
        assert dropping.counters() == {(Match(), 0): FlowCount(1, len(ipv4()))}


def test_output_to_ingress_port_needs_in_port() -> None:
    with closing(
        switch(Flow(Match(), 0, (Output(1), Output(3), Output(IN_PORT), Output(9))))
    ) as datapath:
        assert outputs(datapath) == [3, 1]
        assert outputs(datapath, in_port=3) == [1, 3]


def test_all_excludes_ingress_port() -> None:
    with closing(switch(Flow(Match(), 0, (Output(ALL),)))) as datapath:
        assert outputs(datapath, in_port=2) == [1, 3]


def test_punted_packet_is_received_once() -> None:
    flow = Flow(Match(), 0, (Output(CONTROLLER, 10),))
    with closing(switch(flow)) as datapath:
        assert select([datapath.fileno()], [], [], 0)[0] == []
        datapath.forward(2, lldp())
        assert select([datapath.fileno()], [], [], 0)[0] == [datapath.fileno()]
        assert datapath.received() == (PuntedPacket(2, lldp()[:10], len(lldp()), flow.key),)
        assert datapath.received() == ()
        assert select([datapath.fileno()], [], [], 0)[0] == []


def test_load_keeps_counters_of_remaining_flows() -> None:
    stays, goes = Flow(Match.of(**IP), 1), Flow(Match(), 0)
    with closing(switch(stays, goes)) as datapath:
        outputs(datapath)
        datapath.load([stays])
        assert datapath.counters() == {stays.key: FlowCount(1, len(ipv4()))}


@given(st.sampled_from([0, 1, 63]), st.sampled_from([0, 5, 63]))
def test_set_dscp_updates_checksum(before: int, after: int) -> None:
    assert rewritten_frame(ipv4(dscp=before), [("ip_dscp", after)]) == ipv4(dscp=after)
    assert rewritten_frame(arp(), [("ip_dscp", after)]) == arp()


@pytest.mark.parametrize("tag", [b"", b"\x81\x00\x00\x05"], ids=["untagged", "tagged"])
def test_set_dscp_needs_a_whole_ipv4_header(tag: bytes) -> None:
    frame, changed = (whole[:12] + tag + whole[12:] for whole in (ipv4(), ipv4(dscp=5)))
    end = 34 + len(tag)
    for length in range(end):
        assert rewritten_frame(frame[:length], [("ip_dscp", 5)]) == frame[:length]
    assert rewritten_frame(frame[:end], [("ip_dscp", 5)]) == changed[:end]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any))
def test_slots_follow_weights_within_one_slot(weights: list[int]) -> None:
    slots = slot_buckets(weights)
    assert len(slots) == 32
    for i, weight in enumerate(weights):
        assert abs(slots.count(i) - 32 * weight / sum(weights)) < 1
    assert slots == tuple(sorted(slots))


def test_connections_use_all_slots() -> None:
    used = {select_slot(packet_fields(ipv4(ports=(port, 80)), 1)) for port in range(1000, 1400)}
    assert used == set(range(32))


@pytest.mark.parametrize("end", ["src", "dst"])
@pytest.mark.parametrize("word", range(4))
def test_each_word_of_an_ipv6_address_decides_the_slot(end: str, word: int) -> None:
    addresses = [number << 32 * word for number in range(1, 1000)]
    used = {select_slot(packet_fields(ipv6(**{end: address}), 1)) for address in addresses}
    assert used == set(range(32))


def test_select_group_executes_one_bucket_and_all_group_every_bucket() -> None:
    ends = (SetField("ip_dscp", 7), Output(2)), (Output(3),)
    buckets = tuple(Bucket(actions, weight=1) for actions in ends)
    to_group = Flow(Match(), 0, (ToGroup(1), Output(2)))
    with closing(switch(to_group, groups=(Group(1, GroupType.ALL, buckets),))) as every:
        assert every.forward(1, ipv4()) == [(2, ipv4(dscp=7)), (3, ipv4()), (2, ipv4())]
    with closing(switch(to_group, groups=(Group(1, GroupType.SELECT, buckets),))) as one:
        assert {tuple(outputs(one, frame=ipv4(ports=(p, 1)))) for p in range(99)} == {
            (2, 2),
            (3, 2),
        }


def test_fast_failover_uses_first_live_bucket() -> None:
    buckets = tuple(Bucket((Output(port),), watch_port=port) for port in (2, 3))
    with closing(
        switch(
            Flow(Match(), 0, (ToGroup(1),)), groups=(Group(1, GroupType.FAST_FAILOVER, buckets),)
        )
    ) as datapath:
        assert outputs(datapath) == [2]
        datapath.port_changed(2, up=False)
        assert outputs(datapath) == [3]
        datapath.port_changed(3, up=False)
        assert outputs(datapath) == []


def test_load_refuses_missing_group_and_loop() -> None:
    loop = (
        Group(1, GroupType.INDIRECT, (Bucket((ToGroup(2),)),)),
        Group(2, GroupType.ALL, (Bucket((ToGroup(1),)),)),
    )
    with closing(switch()) as datapath:
        with pytest.raises(FlowError, match="flow any @0 -> group:1: group 1 goes through itself"):
            datapath.load([Flow(Match(), 0, (ToGroup(1),))], loop)
        with pytest.raises(FlowError, match="flow any @0 -> group:3: no group 3"):
            datapath.load([Flow(Match(), 0, (ToGroup(3),))], loop)


@pytest.mark.parametrize("proto", [6, 17])
def test_complete_checksum_left_to_hardware(proto: int) -> None:
    frame = ipv4(proto=proto, payload=bytes(range(33)))
    at = 34 + (16 if proto == 6 else 6)
    pseudo = frame[26:34] + proto.to_bytes(2) + (len(frame) - 34).to_bytes(2)
    left_open = (~internet_checksum(pseudo) & 0xFFFF).to_bytes(2)
    completed = complete_checksum(frame[:at] + left_open + frame[at + 2 :])
    assert internet_checksum(pseudo + completed[34:]) == 0
    assert completed[:at] + completed[at + 2 :] == frame[:at] + frame[at + 2 :]
    assert complete_checksum(completed) == completed


@pytest.mark.parametrize("proto", [6, 17])
def test_complete_checksum_keeps_wrong_checksum(proto: int) -> None:
    frame = ipv4(proto=proto, payload=b"\x12\x34" * 20)
    assert complete_checksum(frame) == frame


@given(frames())
def test_complete_checksum_keeps_other_frames(frame: bytes) -> None:
    assert complete_checksum(frame) == frame
