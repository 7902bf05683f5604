"""Flows as values, and the switch in memory that says what they mean."""

from contextlib import closing
from select import select

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.switch.checksums import completed, internet_checksum
from emulator.switch.errors import FlowError
from emulator.switch.flow import (
    ALL,
    CONTROLLER,
    IN_PORT,
    Bucket,
    Flow,
    Group,
    GroupKind,
    Output,
    SetField,
    ToGroup,
)
from emulator.switch.match import Match
from emulator.switch.memory import MemoryDatapath, rewritten
from emulator.switch.packet import WIDTHS, fields
from emulator.switch.seam import Count, Port, Punt
from emulator.switch.steps import shares, slot, uses_select
from tests.switch_frames import ADDRESSES, MACS, arp, frames, ipv4, lldp, matches

IP = {"eth_type": 0x0800}


def switch(*flows: Flow, groups: tuple[Group, ...] = ()) -> MemoryDatapath:
    made = MemoryDatapath([Port(1, "p1"), Port(2, "p2"), Port(3, "p3")])
    made.load(flows, groups)
    return made


def outputs(of: MemoryDatapath, in_port: int = 1, frame: bytes = b"") -> list[int]:
    return [port for port, _ in of.forward(in_port, frame or ipv4())]


def test_a_frame_of_udp_has_these_fields() -> None:
    frame = ipv4(src=0x0A000001, dst=0x0A000002, dscp=5, ports=(7, 8), options=b"\1" * 8)
    assert fields(frame, 4) == dict.fromkeys(WIDTHS, 0) | {
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


def test_a_frame_of_arp_has_these_fields() -> None:
    found = fields(arp(op=2, spa=3, tpa=4), 1)
    assert (found["eth_type"], found["arp_op"], found["arp_spa"], found["arp_tpa"]) == (0x0806, 2, 3, 4)


def test_behind_a_tag_the_fields_are_the_same() -> None:
    frame = ipv4()
    assert fields(frame[:12] + b"\x81\x00\x00\x05" + frame[12:], 1) == fields(frame, 1)


def test_a_later_fragment_has_no_ports() -> None:
    assert fields(ipv4(ports=(7, 8), fragment=1), 1)["tp_src"] == 0
    assert fields(ipv4(ports=(7, 8), fragment=0x2000), 1)["tp_src"] == 7


@pytest.mark.parametrize("length", range(60))
def test_a_cut_frame_is_no_fault(length: int) -> None:
    for frame in (ipv4(), arp()):
        assert fields(frame[:length], 1).keys() == WIDTHS.keys()


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        pytest.param({"ipv4_dst": 1}, "match ipv4_dst without eth_type=0x0800", id="ipv4"),
        pytest.param({"ip_dscp": 1, "eth_type": 0x0806}, "ip_dscp without", id="dscp-of-arp"),
        pytest.param({"arp_op": 1, **IP}, "match arp_op without eth_type=0x0806", id="arp-of-ipv4"),
        pytest.param({"tp_dst": 1, **IP}, "tp_dst without ip_proto 6, 17, 132", id="port-of-any"),
        pytest.param({"tp_dst": 1, "ip_proto": 1, **IP}, "tp_dst without", id="port-of-icmp"),
        pytest.param({"eth_type": 1 << 16}, "the field has 16 bits", id="wide"),
        pytest.param({"in_port": (0, -1)}, "the field has 32 bits", id="negative"),
    ],
)
def test_a_match_that_makes_no_sense_is_refused(wanted: dict[str, int], said: str) -> None:
    with pytest.raises(FlowError, match=said):
        Match.of(**wanted)


def test_bits_that_do_not_count_do_not_make_another_match() -> None:
    assert Match.of(eth_dst=(0xFF, 0xF0)) == Match.of(eth_dst=(0xF5, 0xF0))
    assert Match.of(eth_dst=(5, 0)) == Match()
    assert hash(Match.of(eth_dst=(0xFF, 0xF0))) == hash(Match.of(eth_dst=(0xF5, 0xF0)))


def test_a_match_says_what_it_is() -> None:
    assert (
        str(Match.of(**IP, ipv4_dst=(0x0A000000, 0xFF000000)))
        == "eth_type=0x800,ipv4_dst=0xa000000/0xff000000"
    )
    assert str(Flow(Match(), 3, (SetField("ip_dscp", 2), Output(1), Output(ALL)))) == (
        "any @3 -> set_field:ip_dscp=0x2 output:1 output:all"
    )
    assert str(Flow(Match(), 0)) == "any @0 -> drop"


@given(matches(), matches(), frames())
def test_what_a_match_covers_it_takes(wide: Match, narrow: Match, frame: bytes) -> None:
    packet = fields(frame, 1)
    assert wide.covers(wide)
    assert Match().covers(wide)
    if wide.covers(narrow) and narrow.fits(packet):
        assert wide.fits(packet)
    if wide.fits(packet) and narrow.fits(packet):
        assert wide.overlaps(narrow)
        assert narrow.overlaps(wide)


def test_a_prefix_covers_longer_ones_of_its_own() -> None:
    ten, here, there = (
        Match.of(**IP, ipv4_dst=pair)
        for pair in ((10 << 24, 0xFF000000), (0x0A090000, 0xFFFF0000), (0x0B000000, 0xFFFF0000))
    )
    assert ten.covers(here)
    assert not here.covers(ten)
    assert not ten.covers(there)
    assert not ten.overlaps(there)


def test_the_priority_decides_then_the_bits() -> None:
    narrow = Flow(Match.of(**IP, ipv4_dst=ADDRESSES[1]), 1, (Output(2),))
    wide = Flow(Match.of(**IP), 1, (Output(3),))
    with closing(switch(wide, narrow)) as same:
        assert outputs(same) == [2]
    with closing(switch(narrow, Flow(wide.match, 2, wide.actions))) as higher:
        assert outputs(higher) == [3]


def test_no_flow_and_no_action_drop() -> None:
    with closing(switch()) as empty, closing(switch(Flow(Match(), 0))) as dropping:
        assert outputs(empty) == outputs(dropping) == []
        assert dropping.counters() == {(Match(), 0): Count(1, len(ipv4()))}


def test_a_ports_own_number_is_no_way_back() -> None:
    with closing(switch(Flow(Match(), 0, (Output(1), Output(3), Output(IN_PORT), Output(9))))) as made:
        assert outputs(made) == [3, 1]
        assert outputs(made, in_port=3) == [1, 3]


def test_all_is_every_other_port() -> None:
    with closing(switch(Flow(Match(), 0, (Output(ALL),)))) as made:
        assert outputs(made, in_port=2) == [1, 3]


def test_the_controller_hears_of_a_frame_once() -> None:
    flow = Flow(Match(), 0, (Output(CONTROLLER, 10),))
    with closing(switch(flow)) as made:
        assert select([made.fileno()], [], [], 0)[0] == []
        made.forward(2, lldp())
        assert select([made.fileno()], [], [], 0)[0] == [made.fileno()]
        assert made.received() == (Punt(2, lldp()[:10], len(lldp()), flow.key, 10),)
        assert made.received() == ()
        assert select([made.fileno()], [], [], 0)[0] == []


def test_a_load_keeps_the_counts_of_flows_that_stay() -> None:
    stays, goes = Flow(Match.of(**IP), 1), Flow(Match(), 0)
    with closing(switch(stays, goes)) as made:
        outputs(made)
        made.load([stays])
        assert made.counters() == {stays.key: Count(1, len(ipv4()))}


@given(st.sampled_from([0, 1, 63]), st.sampled_from([0, 5, 63]))
def test_a_dscp_is_set_with_its_checksum(before: int, after: int) -> None:
    assert rewritten(ipv4(dscp=before), [("ip_dscp", after)]) == ipv4(dscp=after)
    assert rewritten(arp(), [("ip_dscp", after)]) == arp()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any))
def test_shares_follow_weights_to_one_slot(weights: list[int]) -> None:
    cut = shares(weights)
    assert len(cut) == 32
    for i, weight in enumerate(weights):
        assert abs(cut.count(i) - 32 * weight / sum(weights)) < 1
    assert cut == tuple(sorted(cut))


def test_connections_spread_over_all_slots() -> None:
    used = {slot(fields(ipv4(ports=(port, 80)), 1)) for port in range(1000, 1400)}
    assert used == set(range(32))


def test_a_select_group_takes_one_bucket_and_any_other_all_of_theirs() -> None:
    buckets = Bucket((SetField("ip_dscp", 7), Output(2))), Bucket((Output(3),))
    to_group = Flow(Match(), 0, (ToGroup(1), Output(2)))
    with closing(switch(to_group, groups=(Group(1, GroupKind.ALL, buckets),))) as every:
        assert every.forward(1, ipv4()) == [(2, ipv4(dscp=7)), (3, ipv4()), (2, ipv4())]
    with closing(switch(to_group, groups=(Group(1, GroupKind.SELECT, buckets),))) as one:
        assert {tuple(outputs(one, frame=ipv4(ports=(p, 1)))) for p in range(99)} == {(2, 2), (3, 2)}


def test_a_live_bucket_takes_over() -> None:
    buckets = tuple(Bucket((Output(port),), watch_port=port) for port in (2, 3))
    with closing(
        switch(Flow(Match(), 0, (ToGroup(1),)), groups=(Group(1, GroupKind.FAST_FAILOVER, buckets),))
    ) as made:
        assert outputs(made) == [2]
        made.port_changed(2, up=False)
        assert outputs(made) == [3]
        made.port_changed(3, up=False)
        assert outputs(made) == []


def test_a_group_that_is_not_there_or_goes_in_circles_is_refused() -> None:
    circle = (
        Group(1, GroupKind.INDIRECT, (Bucket((ToGroup(2),)),)),
        Group(2, GroupKind.ALL, (Bucket((ToGroup(1),)),)),
    )
    with closing(switch()) as made:
        with pytest.raises(FlowError, match="flow any @0 -> group:1: group 1 goes through itself"):
            made.load([Flow(Match(), 0, (ToGroup(1),))], circle)
        with pytest.raises(FlowError, match="flow any @0 -> group:3: no group 3"):
            made.load([Flow(Match(), 0, (ToGroup(3),))], circle)
    assert not uses_select(Flow(Match(), 0, (ToGroup(1),)), {group.id: group for group in circle})


@pytest.mark.parametrize("proto", [6, 17])
def test_a_checksum_left_to_hardware_is_completed(proto: int) -> None:
    frame = ipv4(proto=proto, payload=bytes(range(33)))
    at = 34 + (16 if proto == 6 else 6)
    pseudo = frame[26:34] + proto.to_bytes(2) + (len(frame) - 34).to_bytes(2)
    left_open = (~internet_checksum(pseudo) & 0xFFFF).to_bytes(2)
    done = completed(frame[:at] + left_open + frame[at + 2 :])
    assert internet_checksum(pseudo + done[34:]) == 0
    assert done[:at] + done[at + 2 :] == frame[:at] + frame[at + 2 :]
    assert completed(done) == done


@pytest.mark.parametrize("proto", [6, 17])
def test_a_wrong_checksum_stays_wrong(proto: int) -> None:
    frame = ipv4(proto=proto, payload=b"\x12\x34" * 20)
    assert completed(frame) == frame


@given(frames())
def test_frames_with_checksums_of_their_own_stay_as_they_are(frame: bytes) -> None:
    assert completed(frame) == frame
