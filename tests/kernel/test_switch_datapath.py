"""The switch in the kernel, with real frames between namespaces."""

import itertools
import multiprocessing
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from emulator import bpf, namespaces
from emulator.bpf import BpfError
from emulator.switch.checksums import internet_checksum
from emulator.switch.datapath import BpfDatapath, Chassis
from emulator.switch.flow import (
    ALL,
    CONTROLLER,
    IN_PORT,
    Bucket,
    Count,
    Flow,
    FlowError,
    Group,
    GroupKind,
    Match,
    Output,
    SetField,
    ToGroup,
    fields,
)
from emulator.switch.layout import KEY, VALUE_BYTES, key_of
from emulator.switch.memory import MemoryDatapath
from emulator.switch.program import switch_program
from emulator.switch.steps import slot
from emulator.switch.tables import Tables, Written
from moefabric.errors import FabricError
from tests.kernel.optical_bench import missing_for_kernel_tests
from tests.kernel.switch_bench import Lab, lab
from tests.namespaces import must
from tests.switch_frames import MACS, arp, flows, frames, groups, ipv4, lldp, tagged

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
]

N = 4
FRAMES = 50_000
IP = {"eth_type": 0x0800}


@pytest.fixture(scope="module")
def chassis() -> Iterator[Chassis]:
    with closing(Chassis(8, flows=256)) as made:
        yield made


@pytest.fixture(scope="module")
def plugged(chassis: Chassis) -> Iterator[Lab]:
    with lab(N, chassis, number=7) as made:
        for host in made.nics:  # a host with an address would answer ARP
            must(*made.hosts.argv(host, "ip", "address", "flush", "dev", "nic"))
        yield made


@pytest.fixture
def bench(plugged: Lab) -> Lab:
    """A switch without flows, and nothing waiting anywhere."""
    plugged.switch.load([])
    plugged.switch.received()
    for host in plugged.nics:
        plugged.heard(host)
    return plugged


def heard_by(bench: Lab, host: int, frame: bytes) -> list[int]:
    return [other for other, _ in bench.sent(host, frame)]


def test_without_a_flow_a_frame_is_dropped(bench: Lab) -> None:
    assert bench.sent(1, ipv4()) == []


def test_a_frame_leaves_as_it_came_by_the_port_of_its_flow(bench: Lab) -> None:
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
def test_a_flow_takes_the_packets_of_its_match_and_no_other(
    bench: Lab, match: Match, fitting: bytes, other: bytes
) -> None:
    bench.switch.load([Flow(match, 1, (Output(2),))])
    assert bench.sent(1, fitting) == [(2, fitting)]
    assert bench.sent(1, other) == []


def test_a_flow_for_one_port_is_for_no_other(bench: Lab) -> None:
    bench.switch.load([Flow(Match.of(in_port=2), 1, (Output(3),))])
    assert heard_by(bench, 2, ipv4()) == [3]
    assert heard_by(bench, 1, ipv4()) == []


def test_the_higher_priority_wins_whatever_its_mask(bench: Lab) -> None:
    wide, narrow = Match.of(**IP), Match.of(**IP, ipv4_dst=0x0A090002)
    for high, low in ((wide, narrow), (narrow, wide)):
        bench.switch.load([Flow(low, 1, (Output(2),)), Flow(high, 2, (Output(3),))])
        assert heard_by(bench, 1, ipv4()) == [3]


def test_a_mask_that_is_searched_first_for_other_packets_does_not_win(bench: Lab) -> None:
    first = [Flow(Match.of(in_port=2), 10), Flow(Match.of(in_port=1), 5, (Output(2),))]
    second = [Flow(Match.of(eth_type=0x0806), 9), Flow(Match.of(**IP), 3, (Output(3),))]
    third = [Flow(Match.of(eth_dst=MACS[2]), 8), Flow(Match.of(eth_dst=MACS[1]), 7, (Output(4),))]
    bench.switch.load([*first, *second])
    assert heard_by(bench, 1, ipv4()) == [2]
    bench.switch.load([*first, *second, *third])
    assert heard_by(bench, 1, ipv4()) == [4]


def test_of_flows_that_differ_in_priority_alone_the_higher_counts(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 2, (Output(2),)), Flow(Match(), 1, (Output(3),))])
    assert heard_by(bench, 1, ipv4()) == [2]
    bench.switch.load([Flow(Match(), 1, (Output(3),))])
    assert heard_by(bench, 1, ipv4()) == [3]


def test_a_flow_that_goes_takes_no_packet_more_though_others_have_its_mask(bench: Lab) -> None:
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


def test_several_outputs_are_as_many_copies(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 0, (Output(2), Output(4), Output(3)))])
    assert heard_by(bench, 1, ipv4()) == [2, 3, 4]


def test_a_frame_goes_back_by_in_port_alone(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 0, (Output(1), Output(2)))])
    assert heard_by(bench, 1, ipv4()) == [2]
    bench.switch.load([Flow(Match(), 0, (Output(IN_PORT),))])
    assert heard_by(bench, 1, ipv4()) == [1]


def test_all_is_every_port_but_its_own(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 0, (Output(ALL),))])
    assert heard_by(bench, 2, ipv4()) == [1, 3, 4]


def test_all_in_the_middle_is_no_end(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 0, (Output(ALL), SetField("ip_dscp", 1), Output(ALL), Output(3)))])
    changed = ipv4(dscp=1)
    assert bench.sent(2, ipv4()) == [
        *((1, ipv4()), (1, changed), (3, ipv4()), (3, changed), (3, changed), (4, ipv4()), (4, changed)),
    ]


def test_what_is_set_is_set_from_there_on(bench: Lab) -> None:
    actions = (Output(2), SetField("eth_dst", MACS[2]), SetField("ip_dscp", 9), Output(3))
    bench.switch.load([Flow(Match(), 0, actions)])
    as_it_was, changed = bench.sent(1, ipv4(dscp=1, ecn=3))
    assert as_it_was == (2, ipv4(dscp=1, ecn=3))
    assert changed == (3, ipv4(dscp=9, ecn=3, eth=(MACS[2], MACS[0])))
    assert internet_checksum(changed[1][14:34]) == 0


@pytest.mark.parametrize("tags", [((5, 0x8100),), ((5, 0x88A8),), ((7, 0x8100), (5, 0x88A8))])
def test_a_tag_stays_on_and_counts(bench: Lab, tags: tuple[tuple[int, int], ...]) -> None:
    flow = Flow(Match(), 0, (Output(CONTROLLER), SetField("ip_dscp", 9), Output(2)))
    bench.switch.load([flow])
    before, after = ipv4(), ipv4(dscp=9)
    for tag, protocol in tags:
        before, after = tagged(before, tag, protocol), tagged(after, tag, protocol)
    assert bench.sent(1, before) == [(2, after if len(tags) == 1 else before)]
    assert [punt.frame for punt in bench.switch.received()] == [before]
    assert bench.switch.counters() == {flow.key: Count(1, len(before))}


def test_counters_are_true_to_the_byte_and_outlive_other_flows(bench: Lab) -> None:
    kept = Flow(Match.of(**IP), 1, (Output(2),))
    other = Flow(Match.of(eth_type=0x0806), 1)
    bench.switch.load([kept, other])
    for size in (1, 50, 1400):
        bench.send(1, ipv4(payload=bytes(size)))
    bench.send(1, arp())
    assert bench.switch.counters() == {kept.key: Count(3, 3 * 42 + 1451), other.key: Count(1, 42)}
    bench.switch.load([Flow(Match.of(**IP), 1, (Output(3),), cookie=5)])
    assert bench.switch.counters() == {kept.key: Count(3, 3 * 42 + 1451)}
    bench.switch.load([other])
    assert bench.switch.counters() == {other.key: Count(0, 0)}


def test_the_controller_gets_a_frame_with_its_port_and_flow(bench: Lab) -> None:
    flow = Flow(
        Match(), 0, (Output(CONTROLLER), SetField("eth_src", MACS[2]), Output(CONTROLLER, 20), Output(2))
    )
    bench.switch.load([flow])
    assert heard_by(bench, 3, lldp()) == [2]
    first, second = bench.switch.received()
    assert (first.in_port, first.frame, first.length, first.flow) == (3, lldp(), len(lldp()), flow.key)
    assert second.frame == lldp()[:6] + MACS[2].to_bytes(6) + lldp()[12:20]
    assert (second.length, second.max_len) == (len(lldp()), 20)
    assert bench.switch.received() == ()


def test_a_full_ring_loses_packets_for_the_controller_and_no_others(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 0, (Output(CONTROLLER), Output(2)))])
    for _ in range(200):
        bench.send(1, lldp())
    assert len(bench.heard(2)) == 200
    assert 0 < len(bench.switch.received()) < 200
    bench.send(1, lldp())
    assert len(bench.switch.received()) == 1


@pytest.mark.parametrize("size", [1, 1500, 2003, 2004, 9000], ids=str)
def test_the_controller_gets_large_frames_whole(bench: Lab, size: int) -> None:
    for host, netns in ((1, bench.hosts.host(1)), (0, bench.hosts.ocs)):
        must("ip", "-n", netns, "link", "set", "nic" if host else "p1", "mtu", "9100")
    bench.switch.load([Flow(Match(), 0, (Output(CONTROLLER), Output(CONTROLLER, 60)))])
    frame = ipv4(payload=random.Random(size).randbytes(size - 22 if size > 22 else 1))
    bench.send(1, frame)
    assert [punt.frame for punt in bench.switch.received()] == [frame, frame[:60]]


def test_the_ring_goes_round(bench: Lab) -> None:
    bench.switch.load([Flow(Match(), 0, (Output(CONTROLLER),))])
    for turn in range(500):
        bench.send(1, ipv4(dst=turn))
        assert [fields(punt.frame, 1)["ipv4_dst"] for punt in bench.switch.received()] == [turn]


def test_a_packet_out_leaves_by_its_port(bench: Lab) -> None:
    bench.switch.send(4, lldp())
    assert bench.heard(4) == [lldp()]
    with pytest.raises(FlowError, match="no port 9"):
        bench.switch.send(9, lldp())


def test_a_select_group_splits_by_weight_and_keeps_connections_together(bench: Lab) -> None:
    group = Group(1, GroupKind.SELECT, tuple(Bucket((Output(p),), weight=w) for p, w in ((2, 1), (3, 3))))
    bench.switch.load([Flow(Match(), 0, (ToGroup(1),))], [group])
    for port in range(200):
        frame = ipv4(ports=(port, 80))
        expected = 2 if slot(fields(frame, 1)) < 8 else 3
        assert heard_by(bench, 1, frame) == heard_by(bench, 1, frame) == [expected]


def test_buckets_of_an_all_group_do_not_see_each_others_changes(bench: Lab) -> None:
    buckets = Bucket((SetField("ip_dscp", 3), Output(2))), Bucket((Output(3),))
    bench.switch.load([Flow(Match(), 0, (ToGroup(1), Output(4)))], [Group(1, GroupKind.ALL, buckets)])
    assert bench.sent(1, ipv4(dscp=1)) == [(2, ipv4(dscp=3)), (3, ipv4(dscp=1)), (4, ipv4(dscp=1))]


def test_fast_failover_follows_its_port(bench: Lab) -> None:
    buckets = tuple(Bucket((Output(p),), watch_port=p) for p in (2, 3))
    bench.switch.load([Flow(Match(), 0, (ToGroup(1),))], [Group(1, GroupKind.FAST_FAILOVER, buckets)])
    assert heard_by(bench, 1, ipv4()) == [2]
    bench.switch.port_changed(2, up=False)
    assert heard_by(bench, 1, ipv4()) == [3]
    bench.switch.port_changed(2, up=True)
    assert heard_by(bench, 1, ipv4()) == [2]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        pytest.param(
            [Flow(Match.of(in_port=(0, 1 << bit)), bit, (Output(2),)) for bit in range(17)],
            r"flow in_port=0x0/0x10000 @16 -> output:2: one mask too many, .* under 16 different masks",
            id="masks",
        ),
        pytest.param(
            [Flow(Match(), 0, tuple(Output(2) for _ in range(17)))], "flow any @0 .*: 17 outputs", id="steps"
        ),
        pytest.param([Flow(Match(), 0, (ToGroup(4),))], "flow any @0 -> group:4: no group 4", id="group"),
        pytest.param([Flow(Match(), i) for i in range(257)], "257 flows: .* room for 256", id="flows"),
    ],
)
def test_a_refusal_names_the_flow_and_changes_nothing(bench: Lab, wanted: list[Flow], said: str) -> None:
    before = Flow(Match(), 1, (Output(3),))
    bench.switch.load([before])
    with pytest.raises(FlowError, match=said):
        bench.switch.load(wanted)
    assert heard_by(bench, 1, ipv4()) == [3]
    assert bench.switch.counters() == {before.key: Count(1, len(ipv4()))}


def test_sixteen_masks_in_turn_for_others_find_their_room(bench: Lab) -> None:
    for turn in range(4):
        wanted = [
            Flow(Match.of(in_port=(1, 1 | 1 << turn * 3 + bit + 2)), bit, (Output(2 + turn % 2),))
            for bit in range(16)
        ]
        bench.switch.load(wanted)
        assert heard_by(bench, 1, ipv4()) == [2 + turn % 2]


def test_a_change_is_one_flip_for_frames_under_way(bench: Lab) -> None:
    """Numbered frames meet three tables of one flow each, which replace each other: each frame goes out once, by one of two ports.

    Three, so that a generation is never overwritten with what it holds.
    """
    tables = [
        [Flow(Match.of(eth_dst=MACS[1]), 3, (Output(2), Output(4)))],
        [Flow(Match.of(in_port=1), 5, (Output(2), Output(4)))],
        [Flow(Match.of(**IP), 1, (Output(3), Output(4)))],
    ]

    def send_all() -> None:
        for number in range(FRAMES):
            bench.send(1, ipv4(payload=number.to_bytes(4)))

    loads = itertools.count()
    bench.switch.load(tables[1])
    sender = multiprocessing.get_context("fork").Process(
        target=send_all
    )  # a thread would take turns with this one
    sender.start()
    while sender.is_alive():
        bench.switch.load(tables[next(loads) % 3])
    assert sender.exitcode == 0
    two, three, four = ([int.from_bytes(frame[42:46]) for frame in bench.heard(host)] for host in (2, 3, 4))
    assert next(loads) > 500
    assert sorted(two + three) == four == list(range(FRAMES))
    assert two
    assert three
    assert bench.switch.exhausted == 0


def carried(bench: Lab, length: int) -> bytes:
    """What a TCP connection from host 1 brings to host 2 when so many bytes are written to it."""
    ends = ("10.9.0.2", 5001)
    with (
        namespaces.within(bench.hosts.path(bench.hosts.host(2)), partial(socket.create_server, ends)) as door,
        namespaces.within(
            bench.hosts.path(bench.hosts.host(1)), partial(socket.create_connection, ends, 5)
        ) as near,
        door.accept()[0] as far,
    ):
        far.settimeout(10)
        sender = threading.Thread(
            target=near.sendall, args=(random.Random(1).randbytes(length),), daemon=True
        )
        sender.start()
        found = bytearray()
        while len(found) < length and (part := far.recv(1 << 20)):
            found += part
        sender.join(timeout=10)
    return bytes(found)


def segment_checksum(frame: bytes) -> int:
    """0 if the TCP checksum is right."""
    return internet_checksum(frame[26:34] + struct.pack(">HH", 6, len(frame) - 34) + frame[34:])


@pytest.mark.parametrize("left_to_hardware", [True, False], ids=["offload", "no-offload-behind-the-switch"])
def test_super_packets_pass_with_their_fields_set(chassis: Chassis, *, left_to_hardware: bool) -> None:
    """Hosts hand over up to 64 KB in one piece, without checksum; with fields set it arrives, and is cut and summed where it must be."""
    there = Flow(
        Match.of(**IP, ipv4_dst=0x0A090002),
        1,
        (SetField("ip_dscp", 12), SetField("eth_src", MACS[2]), Output(2)),
    )
    back = Flow(Match.of(**IP, ipv4_dst=0x0A090001), 1, (Output(1),))
    with lab(2, chassis, number=int(left_to_hardware)) as bench:
        if not left_to_hardware:
            off = ("tso", "off", "gso", "off", "tx", "off", "sg", "off")
            must("ip", "netns", "exec", bench.hosts.ocs, "ethtool", "-K", "p2", *off)
        bench.switch.load([there, back])
        assert carried(bench, 2_000_000) == random.Random(1).randbytes(2_000_000)
        frames = [frame for frame in bench.heard(2) if len(frame) > 1000]
        counted = bench.switch.counters()[there.key]
    assert all(frame[6:12] == MACS[2].to_bytes(6) and frame[15] >> 2 == 12 for frame in frames)
    assert all(internet_checksum(frame[14:34]) == 0 for frame in frames)
    assert counted.bytes > 2_000_000
    assert counted.packets >= 2_000_000 / 1460  # as many as it would be cut into
    if left_to_hardware:
        assert max(map(len, frames)) > 10_000
    else:
        assert max(map(len, frames)) == 1514
        assert all(segment_checksum(frame) == 0 for frame in frames)


def test_a_punted_segment_has_the_checksum_that_was_left_to_hardware(chassis: Chassis) -> None:
    flow = Flow(Match(), 0, (Output(CONTROLLER),))
    with lab(2, chassis, number=2) as bench:
        bench.switch.load([flow])
        there = bench.hosts.path(bench.hosts.host(1))
        with namespaces.within(there, socket.socket) as near:
            near.setblocking(False)
            near.connect_ex(("10.9.0.2", 5001))
            (punt, *_) = bench.switch.received()
    assert fields(punt.frame, 1)["tp_dst"] == 5001
    assert segment_checksum(punt.frame) == 0


def test_where_a_map_is_full_the_flows_before_are_in_force_and_the_next_change_works() -> None:
    """A map of three entries: two flows lie in one generation, and no room is left for both in the other."""
    fd = bpf.create_map(bpf.MAP_TYPE_HASH, "flows", KEY.size, VALUE_BYTES, 3, bpf.F_NO_PREALLOC)
    try:
        tables = Tables(fd)
        a, b = (Flow(Match.of(in_port=port), 0) for port in (1, 2))
        value = bytes(VALUE_BYTES)
        tables.change({flow.key: Written(flow, value) for flow in (a, b)}, ())
        tables.write(0)
        with pytest.raises(BpfError, match=r"BPF_MAP_UPDATE_BATCH.* of 2 entries"):
            tables.write(1)
        other = bytes(KEY.size)
        bpf.put_in_map(fd, {other: value})  # what had come in has gone again, or there were no room
        bpf.delete_from_map(fd, [other])
        tables.change({}, [b.key])
        tables.write(1)
        tables.change({b.key: Written(b, value)}, [a.key])
        tables.write(0)
        with pytest.raises(BpfError, match="of 1 entries: No such file"):
            bpf.delete_from_map(fd, [key_of(a.match)])
    finally:
        os.close(fd)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(flows(N, groups=4), max_size=12),
    groups(N),
    st.lists(st.tuples(st.integers(1, N), frames()), min_size=1, max_size=6),
    st.sets(st.integers(1, N), max_size=2),
)
def test_the_kernel_does_what_the_flows_mean(
    bench: Lab,
    table: list[Flow],
    through: tuple[Group, ...],
    traffic: list[tuple[int, bytes]],
    down: set[int],
) -> None:
    """The same flows, groups and frames on the switch in memory and on the one in the kernel: copies, punts and counts are the same."""
    memory = MemoryDatapath(bench.switch.ports.values())
    bench.switch.load([])
    with closing(memory):
        try:
            bench.switch.load(table, through)
        except FlowError as full:
            assume("there is room for 16" not in str(full))
            raise
        memory.load(table, through)
        for port in down:
            memory.port_changed(port, up=False)
            bench.switch.port_changed(port, up=False)
        bench.switch.received()
        for host, frame in traffic:
            assert sorted(bench.sent(host, frame)) == sorted(memory.forward(host, frame))
            assert bench.switch.received() == memory.received()
        assert bench.switch.counters() == memory.counters()
        for port in down:
            bench.switch.port_changed(port, up=True)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(flows(N), min_size=1, max_size=10),
    st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, N), frames()), min_size=1, max_size=4),
)
def test_a_table_is_what_was_loaded_last_whatever_came_before(
    bench: Lab, pool: list[Flow], tables: list[set[int]], traffic: list[tuple[int, bytes]]
) -> None:
    """Tables of one pool of flows replace each other, of which the switch rewrites only what differs."""
    bench.switch.load([])
    with closing(MemoryDatapath(bench.switch.ports.values())) as memory:
        for chosen in tables:
            table = [pool[place % len(pool)] for place in sorted(chosen)]
            for switch in (memory, bench.switch):
                switch.load(table)
            for host, frame in traffic:
                assert sorted(bench.sent(host, frame)) == sorted(memory.forward(host, frame))
            assert bench.switch.counters() == memory.counters()


def test_a_switch_does_without_its_owner(chassis: Chassis) -> None:
    with lab(2, chassis, number=3) as bench:
        bench.switch.load([Flow(Match(), 0, (Output(2),))])
        bench.switch.close()
        assert heard_by(bench, 1, ipv4()) == [2]


def test_a_port_that_comes_later_is_one_of_all(chassis: Chassis) -> None:
    flow = Flow(Match(), 0, (Output(ALL), SetField("ip_dscp", 1), Output(ALL)))
    with lab(3, chassis, number=4, ports=2) as bench:
        bench.switch.load([flow])
        assert heard_by(bench, 1, ipv4()) == [2, 2]
        bench.switch.attach({3: "p3"}, bench.hosts.path(bench.hosts.ocs))
        assert heard_by(bench, 1, ipv4()) == [2, 2, 3, 3]
        assert bench.switch.counters() == {flow.key: Count(2, 2 * len(ipv4()))}


def test_wrong_numbers_and_interfaces_are_refused(chassis: Chassis, bench: Lab) -> None:
    with pytest.raises(FabricError, match=r"switch 8: the chassis has room for 0\.\.7"):
        BpfDatapath(chassis, 8)
    with pytest.raises(FabricError, match="switch 7 of the chassis is taken"):
        BpfDatapath(chassis, 7)
    with pytest.raises(FabricError, match=r"ports \[0, 256\] are not among 1\.\.255"):
        bench.switch.attach({0: "p1", 256: "p2"})
    with pytest.raises(FabricError, match="no interface nix"):
        bench.switch.attach({1: "nix"}, bench.hosts.path(bench.hosts.ocs))
    with pytest.raises(FabricError, match="512 switches of 255 ports: a chassis has room for 256"):
        Chassis(512)


def test_the_program_for_processors_that_reorder_loads_is_one_too(chassis: Chassis) -> None:
    with closing(Chassis(1)) as other, closing(BpfDatapath(other, 0)) as switch:
        switch.load([Flow(Match(), 0, (Output(CONTROLLER),))])
        program = bpf.load_classifier("ordered", switch_program(other.layout, other.maps, barriers=True))
        try:
            bpf.run_classifier(program, lldp(), 1)
        finally:
            os.close(program)
        assert [punt.frame for punt in switch.received()] == [lldp()]


def test_nothing_stays_open(chassis: Chassis) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counting is all
    with closing(Chassis(1)) as other, closing(BpfDatapath(other, 0)):
        pass
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
