"""Forwarding of frames by flows and groups of the kernel datapath, between namespaces."""

import pytest

from moefabric.core.openflow.actions import ALL, CONTROLLER, IN_PORT, Output, SetField, ToGroup
from moefabric.core.openflow.constants import GroupType
from moefabric.core.openflow.match import FlowError, Match
from moefabric.core.openflow.messages import Bucket
from moefabric.emulator.openflow_switch.datapath.emissions import select_slot
from moefabric.emulator.openflow_switch.datapath.interface import Flow, FlowCount, Group
from moefabric.emulator.openflow_switch.flows.packet import internet_checksum, packet_fields
from tests.kernel.switch_bench import Lab, heard_by
from tests.support.switch_frames import MACS, arp, ipv4, lldp, tagged

IP = {"eth_type": 0x0800}


def test_frame_without_flow_is_dropped(bench: Lab) -> None:
    assert bench.sent(1, ipv4()) == []


def test_output_forwards_frame_unchanged(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 0, (Output(3),))])
    assert bench.sent(1, ipv4()) == [(3, ipv4())]


@pytest.mark.parametrize(
    ("match", "fitting", "other"),
    [
        pytest.param(Match.of(eth_dst=MACS[1]), ipv4(), ipv4(eth=(MACS[2], MACS[0])), id="mac"),
        pytest.param(Match.of(eth_type=0x88CC), lldp(), arp(), id="type"),
        pytest.param(
            Match.of(**IP, ipv4_dst=(0x0A090000, 0xFFFF0000)),
            ipv4(dst=0x0A09FFFE),
            ipv4(dst=0x0A0A0001),
            id="prefix",
        ),
        pytest.param(
            Match.of(**IP, ipv4_src=(0x00000001, 0x000000FF)),
            ipv4(src=0x0A0A0A01),
            ipv4(src=0x0A0A0A02),
            id="any-bits-of-an-address",
        ),
        pytest.param(Match.of(**IP, ip_dscp=5), ipv4(dscp=5), ipv4(dscp=4), id="dscp"),
        pytest.param(Match.of(**IP, ip_proto=6), ipv4(proto=6), ipv4(proto=17), id="protocol"),
        pytest.param(
            Match.of(**IP, ip_proto=17, tp_dst=9), ipv4(ports=(9, 9)), ipv4(ports=(9, 8)), id="port"
        ),
        pytest.param(
            Match.of(**IP, ip_proto=17, tp_src=9),
            ipv4(ports=(9, 1), options=b"\1" * 40),
            ipv4(ports=(9, 1), fragment=5),
            id="port-behind-options-and-none-in-a-fragment",
        ),
        pytest.param(Match.of(eth_type=0x0806, arp_tpa=7), arp(tpa=7), arp(tpa=8), id="arp"),
        pytest.param(Match.of(eth_type=0x0806, arp_op=2), arp(op=2), arp(op=1), id="arp-op"),
    ],
)
def test_flow_takes_packets_of_its_match_only(
    bench: Lab, match: Match, fitting: bytes, other: bytes
) -> None:
    bench.switch.load([Flow(match, 1, (Output(2),))])
    assert bench.sent(1, fitting) == [(2, fitting)]
    assert bench.sent(1, other) == []


def test_flow_matches_ingress_port(bench: Lab) -> None:
    bench.switch.load([Flow(Match.of(in_port=2), 1, (Output(3),))])
    assert heard_by(bench, 2, ipv4()) == [3]
    assert heard_by(bench, 1, ipv4()) == []


def test_higher_priority_wins_with_any_mask(bench: Lab) -> None:
    wide, narrow = Match.of(**IP), Match.of(**IP, ipv4_dst=0x0A090002)
    for high, low in ((wide, narrow), (narrow, wide)):
        bench.switch.load([Flow(low, 1, (Output(2),)), Flow(high, 2, (Output(3),))])
        assert heard_by(bench, 1, ipv4()) == [3]


def test_mask_searched_first_does_not_win(bench: Lab) -> None:
    first = [Flow(Match.of(in_port=2), 10), Flow(Match.of(in_port=1), 5, (Output(2),))]
    second = [Flow(Match.of(eth_type=0x0806), 9), Flow(Match.of(**IP), 3, (Output(3),))]
    third = [Flow(Match.of(eth_dst=MACS[2]), 8), Flow(Match.of(eth_dst=MACS[1]), 7, (Output(4),))]
    bench.switch.load([*first, *second])
    assert heard_by(bench, 1, ipv4()) == [2]
    bench.switch.load([*first, *second, *third])
    assert heard_by(bench, 1, ipv4()) == [4]


def test_higher_priority_of_equal_matches_wins(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 2, (Output(2),)), Flow(Match(), 1, (Output(3),))])
    assert heard_by(bench, 1, ipv4()) == [2]
    bench.switch.load([Flow(Match(), 1, (Output(3),))])
    assert heard_by(bench, 1, ipv4()) == [3]


def test_removed_flow_takes_no_packets_though_its_mask_remains(bench: Lab) -> None:
    here, there = (Flow(Match.of(in_port=port), 1, (Output(3),)) for port in (1, 2))
    for table, expected in (
        ([here, there], [3]),
        ([there], []),
        ([there], []),
        ([here, there], [3]),
        ([], []),
    ):
        bench.switch.load(table)
        assert heard_by(bench, 1, ipv4()) == expected


def test_each_output_is_a_copy(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 0, (Output(2), Output(4), Output(3)))])
    assert heard_by(bench, 1, ipv4()) == [2, 3, 4]


def test_output_to_ingress_port_needs_in_port(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 0, (Output(1), Output(2)))])
    assert heard_by(bench, 1, ipv4()) == [2]
    bench.switch.load([Flow(Match(), 0, (Output(IN_PORT),))])
    assert heard_by(bench, 1, ipv4()) == [1]


def test_all_excludes_ingress_port(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 0, (Output(ALL),))])
    assert heard_by(bench, 2, ipv4()) == [1, 3, 4]


def test_actions_after_flood_are_executed(bench: Lab) -> None:
    bench.switch.load(
        [Flow(Match(), 0, (Output(ALL), SetField("ip_dscp", 1), Output(ALL), Output(3)))]
    )
    rewritten = ipv4(dscp=1)
    assert bench.sent(2, ipv4()) == [
        *(
            (1, ipv4()),
            (1, rewritten),
            (3, ipv4()),
            (3, rewritten),
            (3, rewritten),
            (4, ipv4()),
            (4, rewritten),
        )
    ]


def test_set_field_affects_later_outputs(bench: Lab) -> None:
    actions = (Output(2), SetField("eth_dst", MACS[2]), SetField("ip_dscp", 9), Output(3))
    bench.switch.load([Flow(Match(), 0, actions)])
    original, rewritten = bench.sent(1, ipv4(dscp=1, ecn=3))
    assert original == (2, ipv4(dscp=1, ecn=3))
    assert rewritten == (3, ipv4(dscp=9, ecn=3, eth=(MACS[2], MACS[0])))
    assert internet_checksum(rewritten[1][14:34]) == 0


@pytest.mark.parametrize("tags", [((5, 0x8100),), ((5, 0x88A8),), ((7, 0x8100), (5, 0x88A8))])
def test_tag_is_kept_and_counted(bench: Lab, tags: tuple[tuple[int, int], ...]) -> None:
    flow = Flow(Match(), 0, (Output(CONTROLLER), SetField("ip_dscp", 9), Output(2)))
    bench.switch.load([flow])
    before, after = ipv4(), ipv4(dscp=9)
    for tag, protocol in tags:
        before, after = tagged(before, tag, protocol), tagged(after, tag, protocol)
    assert bench.sent(1, before) == [(2, after if len(tags) == 1 else before)]
    assert [punt.frame for punt in bench.switch.received()] == [before]
    assert bench.switch.counters() == {flow.key: FlowCount(1, len(before))}


def test_counters_are_exact_and_survive_loads(bench: Lab) -> None:
    flow = Flow(Match.of(**IP), 1, (Output(2),))
    other = Flow(Match.of(eth_type=0x0806), 1)
    bench.switch.load([flow, other])
    for size in (1, 50, 1400):
        bench.send(1, ipv4(payload=bytes(size)))
    bench.send(1, arp())
    assert bench.switch.counters() == {
        flow.key: FlowCount(3, 3 * 42 + 1451),
        other.key: FlowCount(1, 42),
    }
    bench.switch.load([Flow(Match.of(**IP), 1, (Output(3),))])
    assert bench.switch.counters() == {flow.key: FlowCount(3, 3 * 42 + 1451)}
    bench.switch.load([other])
    assert bench.switch.counters() == {other.key: FlowCount(0, 0)}


def test_send_emits_frame_by_port(bench: Lab) -> None:
    bench.switch.send(4, lldp())
    assert bench.heard(4) == [lldp()]
    with pytest.raises(FlowError, match="no port 9"):
        bench.switch.send(9, lldp())


def test_select_group_splits_by_weight_and_keeps_connections_together(bench: Lab) -> None:
    group = Group(
        1, GroupType.SELECT, tuple(Bucket((Output(p),), weight=w) for p, w in ((2, 1), (3, 3)))
    )
    bench.switch.load([Flow(Match(), 0, (ToGroup(1),))], [group])
    for port in range(200):
        frame = ipv4(ports=(port, 80))
        expected = 2 if select_slot(packet_fields(frame, 1)) < 8 else 3
        assert heard_by(bench, 1, frame) == heard_by(bench, 1, frame) == [expected]


def test_buckets_of_all_group_are_independent(bench: Lab) -> None:
    buckets = Bucket((SetField("ip_dscp", 3), Output(2))), Bucket((Output(3),))
    bench.switch.load(
        [Flow(Match(), 0, (ToGroup(1), Output(4)))], [Group(1, GroupType.ALL, buckets)]
    )
    assert bench.sent(1, ipv4(dscp=1)) == [(2, ipv4(dscp=3)), (3, ipv4(dscp=1)), (4, ipv4(dscp=1))]


def test_fast_failover_follows_carrier(bench: Lab) -> None:
    buckets = tuple(Bucket((Output(p),), watch_port=p) for p in (2, 3))
    bench.switch.load(
        [Flow(Match(), 0, (ToGroup(1),))], [Group(1, GroupType.FAST_FAILOVER, buckets)]
    )
    assert heard_by(bench, 1, ipv4()) == [2]
    bench.switch.port_changed(2, up=False)
    assert heard_by(bench, 1, ipv4()) == [3]
    bench.switch.port_changed(2, up=True)
    assert heard_by(bench, 1, ipv4()) == [2]
