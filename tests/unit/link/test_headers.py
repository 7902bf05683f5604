"""Fields of frames: class, ECN marks with a valid checksum, and flows."""

import pytest

from moefabric.emulator.link.headers import (
    flow_of,
    is_ecn_capable,
    traffic_class,
    with_congestion_mark,
)
from moefabric.emulator.openflow_switch.flows.packet import internet_checksum
from tests.support.switch_frames import udp_frame

ARP = bytes(12) + b"\x08\x06" + bytes(46)


@pytest.mark.parametrize("ecn", [1, 2, 3])
@pytest.mark.parametrize("length", range(60, 1500, 97))
def test_mark_keeps_the_header_valid(length: int, ecn: int) -> None:
    frame = udp_frame(length, traffic_class=3, ecn=ecn)
    marked = with_congestion_mark(frame)
    assert marked[15] == 3 << 5 | 3
    assert internet_checksum(marked[14:34]) == 0
    assert marked[:15] + marked[16:24] + marked[26:] == frame[:15] + frame[16:24] + frame[26:]


def test_class_is_the_upper_part_of_the_dscp() -> None:
    assert [traffic_class(udp_frame(60, traffic_class=number)) for number in range(8)] == [
        *range(8)
    ]
    assert traffic_class(ARP) == 7


def test_only_flows_that_react_are_capable() -> None:
    assert [is_ecn_capable(udp_frame(60, ecn=ecn)) for ecn in range(4)] == [False, True, True, True]
    assert not is_ecn_capable(ARP)


def test_flows_differ_by_ports_but_not_by_length_or_class() -> None:
    flow = flow_of(udp_frame(60, port=5))
    assert flow == flow_of(udp_frame(900, port=5, traffic_class=6, ecn=1))
    assert flow != flow_of(udp_frame(60, port=6))
    assert flow_of(ARP) == b"\x08\x06"


def test_fragments_of_a_datagram_are_one_flow() -> None:
    first, second = bytearray(udp_frame(200)), bytearray(udp_frame(200, port=77))
    first[20:22], second[20:22] = b"\x20\x00", b"\x00\x17"
    assert flow_of(bytes(first)) == flow_of(bytes(second))
