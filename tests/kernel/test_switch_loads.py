"""Loads of the kernel datapath: refusals, atomicity, and equivalence with the one in memory."""

import itertools
import multiprocessing
import os
from contextlib import closing

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from moefabric.core.openflow.actions import Output, ToGroup
from moefabric.core.openflow.match import FlowError, Match
from moefabric.emulator.linux import bpf_syscalls as bpf_calls
from moefabric.emulator.linux.bpf_assembler import BpfError
from moefabric.emulator.openflow_switch.datapath.flow_map import FlowMap, StoredFlow
from moefabric.emulator.openflow_switch.datapath.interface import Flow, FlowCount, Group
from moefabric.emulator.openflow_switch.datapath.map_layout import KEY_BYTES, VALUE_BYTES, match_key
from tests.kernel.switch_bench import HOSTS, Lab, heard_by
from tests.support.memory_datapath import MemoryDatapath
from tests.support.switch_frames import MACS, flows, frames, groups, ipv4

FRAMES = 50_000
IP = {"eth_type": 0x0800}


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        pytest.param(
            [Flow(Match.of(in_port=(0, 1 << bit)), bit, (Output(2),)) for bit in range(17)],
            r"flow in_port=0x0/0x10000 @16 -> output:2: one mask too many, .* 16 different masks",
            id="masks",
        ),
        pytest.param(
            [Flow(Match(), 0, tuple(Output(2) for _ in range(17)))],
            "flow any @0 .*: 17 outputs",
            id="steps",
        ),
        pytest.param(
            [Flow(Match(), 0, (ToGroup(4),))], "flow any @0 -> group:4: no group 4", id="group"
        ),
        pytest.param(
            [Flow(Match(), i) for i in range(257)], "257 flows: .* room for 256", id="flows"
        ),
    ],
)
def test_refused_load_names_flow_and_changes_nothing(
    bench: Lab, refused: list[Flow], message: str
) -> None:
    before = Flow(Match(), 1, (Output(3),))
    bench.switch.load([before])
    with pytest.raises(FlowError, match=message):
        bench.switch.load(refused)
    assert heard_by(bench, 1, ipv4()) == [3]
    assert bench.switch.counters() == {before.key: FlowCount(1, len(ipv4()))}


def test_sixteen_masks_replace_sixteen_others(bench: Lab) -> None:
    for attempt in range(4):
        table = [
            Flow(
                Match.of(in_port=(1, 1 | 1 << attempt * 3 + bit + 2)),
                bit,
                (Output(2 + attempt % 2),),
            )
            for bit in range(16)
        ]
        bench.switch.load(table)
        assert heard_by(bench, 1, ipv4()) == [2 + attempt % 2]


def test_load_is_atomic_for_frames(bench: Lab) -> None:
    """Numbered frames meet three alternating tables: each frame leaves once, by one of two ports.

    With three tables a generation is never overwritten with its own contents.
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
    )  # a thread would share the interpreter lock
    sender.start()
    while sender.is_alive():
        bench.switch.load(tables[next(loads) % 3])
    assert sender.exitcode == 0
    two, three, four = (
        [int.from_bytes(frame[42:46]) for frame in bench.heard(host)] for host in (2, 3, 4)
    )
    assert next(loads) > 500
    assert sorted(two + three) == four == list(range(FRAMES))
    assert two
    assert three


def test_full_map_keeps_flows_and_next_change_works() -> None:
    """A map of three entries has no room for two flows in both generations."""
    fd = bpf_calls.create_map(
        bpf_calls.MAP_TYPE_HASH, "flows", KEY_BYTES, VALUE_BYTES, 3, bpf_calls.F_NO_PREALLOC
    )
    try:
        flow_map = FlowMap(fd)
        a, b = (Flow(Match.of(in_port=port), 0) for port in (1, 2))
        value = bytes(VALUE_BYTES)
        flow_map.change({flow.key: StoredFlow(flow, value) for flow in (a, b)}, ())
        flow_map.write(0)
        with pytest.raises(BpfError, match=r"BPF_MAP_UPDATE_BATCH.* of 2 entries"):
            flow_map.write(1)
        other = bytes(KEY_BYTES)
        bpf_calls.update_map(fd, {other: value})  # succeeds only if the partial write was undone
        bpf_calls.delete_from_map(fd, [other])
        flow_map.change({}, [b.key])
        flow_map.write(1)
        flow_map.change({b.key: StoredFlow(b, value)}, [a.key])
        flow_map.write(0)
        with pytest.raises(BpfError, match="of 1 entries: No such file"):
            bpf_calls.delete_from_map(fd, [match_key(a.match) + bytes(4)])
    finally:
        os.close(fd)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(flows(HOSTS, groups=4), max_size=12),
    groups(HOSTS),
    st.lists(st.tuples(st.integers(1, HOSTS), frames()), min_size=1, max_size=6),
    st.sets(st.integers(1, HOSTS), max_size=2),
)
def test_kernel_agrees_with_memory(
    bench: Lab,
    table: list[Flow],
    group_table: tuple[Group, ...],
    traffic: list[tuple[int, bytes]],
    down: set[int],
) -> None:
    """Kernel and memory agree on copies, punted packets and counters."""
    memory = MemoryDatapath(bench.switch.ports.values())
    bench.switch.load([])
    with closing(memory):
        try:
            bench.switch.load(table, group_table)
        except FlowError as full:
            assume("the limit is 16" not in str(full))
            raise
        memory.load(table, group_table)
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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(flows(HOSTS), min_size=1, max_size=10),
    st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, HOSTS), frames()), min_size=1, max_size=4),
)
def test_last_load_decides_whatever_preceded(
    bench: Lab, pool: list[Flow], tables: list[set[int]], traffic: list[tuple[int, bytes]]
) -> None:
    """Tables of one pool of flows replace each other; the switch writes differences only."""
    bench.switch.load([])
    with closing(MemoryDatapath(bench.switch.ports.values())) as memory:
        for chosen in tables:
            table = [pool[place % len(pool)] for place in sorted(chosen)]
            for switch in (memory, bench.switch):
                switch.load(table)
            for host, frame in traffic:
                assert sorted(bench.sent(host, frame)) == sorted(memory.forward(host, frame))
            assert bench.switch.counters() == memory.counters()
