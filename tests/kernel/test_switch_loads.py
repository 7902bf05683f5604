"""Tables that replace each other in the kernel: refused, in force as a whole, and the same as in memory."""

import itertools
import multiprocessing
import os
from contextlib import closing

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from emulator import bpf_calls
from emulator.bpf import BpfError
from emulator.switch.errors import FlowError
from emulator.switch.flow import Flow, Group, Output, ToGroup
from emulator.switch.flow_map import FlowMap, Written
from emulator.switch.layout import KEY, VALUE_BYTES, key_of
from emulator.switch.match import Match
from emulator.switch.memory import MemoryDatapath
from emulator.switch.seam import Count
from tests.kernel.optical_bench import missing_for_kernel_tests
from tests.kernel.switch_bench import HOSTS, Lab, heard_by
from tests.switch_frames import MACS, flows, frames, groups, ipv4

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
]

FRAMES = 50_000
IP = {"eth_type": 0x0800}


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


def test_where_a_map_is_full_the_flows_before_are_in_force_and_the_next_change_works() -> None:
    """A map of three entries: two flows lie in one generation, and no room is left for both in the other."""
    fd = bpf_calls.create_map(
        bpf_calls.MAP_TYPE_HASH, "flows", KEY.size, VALUE_BYTES, 3, bpf_calls.F_NO_PREALLOC
    )
    try:
        flow_map = FlowMap(fd)
        a, b = (Flow(Match.of(in_port=port), 0) for port in (1, 2))
        value = bytes(VALUE_BYTES)
        flow_map.change({flow.key: Written(flow, value) for flow in (a, b)}, ())
        flow_map.write(0)
        with pytest.raises(BpfError, match=r"BPF_MAP_UPDATE_BATCH.* of 2 entries"):
            flow_map.write(1)
        other = bytes(KEY.size)
        bpf_calls.put_in_map(fd, {other: value})  # what had come in has gone again, or there were no room
        bpf_calls.delete_from_map(fd, [other])
        flow_map.change({}, [b.key])
        flow_map.write(1)
        flow_map.change({b.key: Written(b, value)}, [a.key])
        flow_map.write(0)
        with pytest.raises(BpfError, match="of 1 entries: No such file"):
            bpf_calls.delete_from_map(fd, [key_of(a.match)])
    finally:
        os.close(fd)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(flows(HOSTS, groups=4), max_size=12),
    groups(HOSTS),
    st.lists(st.tuples(st.integers(1, HOSTS), frames()), min_size=1, max_size=6),
    st.sets(st.integers(1, HOSTS), max_size=2),
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
    st.lists(flows(HOSTS), min_size=1, max_size=10),
    st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, HOSTS), frames()), min_size=1, max_size=4),
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
