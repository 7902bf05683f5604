"""The flow cache never changes by which flow a packet is taken.

Frames run through the program without leaving it (BPF_PROG_TEST_RUN); the flows' counters tell who
took them.
"""

from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from moefabric.core.openflow.actions import Output
from moefabric.core.openflow.match import FlowError, Match
from moefabric.emulator.openflow_switch.datapath.bpf_datapath import BpfDatapath, SharedProgram
from moefabric.emulator.openflow_switch.datapath.interface import Flow
from moefabric.emulator.openflow_switch.datapath.map_layout import MAX_MASKS
from moefabric.emulator.openflow_switch.flows.packet import VLAN_TAGS
from tests.kernel.switch_bench import attach, heard_by, lab
from tests.support.classifiers import LOOPBACK, run_classifier
from tests.support.memory_datapath import MemoryDatapath
from tests.support.switch_frames import flows, frames, ipv4

IP = {"eth_type": 0x0800}
UDP = {**IP, "ip_proto": 17}


@pytest.fixture(scope="module")
def one() -> Iterator[SharedProgram]:
    """A program of one switch: frames of BPF_PROG_TEST_RUN come to switch 0 at port 0."""
    with closing(SharedProgram(1)) as shared:
        shared.assign(0, {0: LOOPBACK})
        yield shared


@pytest.fixture(scope="module")
def switch(one: SharedProgram) -> Iterator[BpfDatapath]:
    with closing(BpfDatapath(one, 0)) as datapath:
        yield datapath


def runs_here(frame: bytes) -> bool:
    """Whether the kernel runs a frame as it would receive it: it removes no tag here."""
    return len(frame) >= 34 and int.from_bytes(frame[12:14]) not in VLAN_TAGS


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(flows(0), min_size=1, max_size=14),
    st.lists(frames().filter(runs_here), min_size=1, max_size=4),
    st.lists(
        st.tuples(st.sets(st.integers(0, 13)), st.lists(st.integers(0, 3), max_size=8)),
        min_size=1,
        max_size=8,
    ),
)
def test_repeated_packets_are_counted_as_in_memory(
    one: SharedProgram,
    switch: BpfDatapath,
    pool: list[Flow],
    packets: list[bytes],
    history: list[tuple[set[int], list[int]]],
) -> None:
    """Few packets come again and again while tables of one pool of flows replace each other."""
    switch.load([])
    with closing(MemoryDatapath([])) as memory:
        for chosen, traffic in history:
            table = [pool[place % len(pool)] for place in sorted(chosen)]
            try:
                switch.load(table)
            except FlowError as full:
                assume("the limit is 16" not in str(full))
                raise
            memory.load(table)
            for place in traffic:
                frame = packets[place % len(packets)]
                run_classifier(one.fd, frame, 1)
                memory.forward(0, frame)
            assert switch.counters() == memory.counters()


def test_remembered_mask_is_that_of_the_flow_that_won(
    one: SharedProgram, switch: BpfDatapath
) -> None:
    """The mask that is searched first has a flow for the packet, which another one outranks."""
    first = Flow(Match.of(**IP, ipv4_dst=1), 9)
    outranked = Flow(Match.of(**IP, ipv4_dst=2), 1)
    winner = Flow(Match.of(**IP, ipv4_src=3), 5)
    switch.load([first, outranked, winner])
    for _ in range(3):
        run_classifier(one.fd, ipv4(src=3, dst=2), 1)
    assert {key: count.packets for key, count in switch.counters().items()} == {
        first.key: 0,
        outranked.key: 0,
        winner.key: 3,
    }


def test_more_packets_than_slots_find_their_flows(one: SharedProgram, switch: BpfDatapath) -> None:
    """Packets of many connections take over each other's slots; 16 masks hold their flows."""
    table = [
        Flow(Match.of(**UDP, tp_src=(1 << bit, 1 << bit)), 1 + bit) for bit in range(MAX_MASKS)
    ]
    switch.load(table)
    counts = [0] * MAX_MASKS
    for source in range(1, 2 << one.slot_bits):
        frame = ipv4(ports=(source, 9))
        for _ in "ab":
            run_classifier(one.fd, frame, 1)
        counts[source.bit_length() - 1] += 2
    counters = switch.counters()
    assert [counters[flow.key].packets for flow in table] == counts


def test_switches_of_one_program_keep_their_own_flows() -> None:
    with lab(6, ports=3) as bench, closing(BpfDatapath(bench.program, 1)) as other:
        attach(bench, {1: "p4", 2: "p5", 3: "p6"}, other)
        bench.switch.load([Flow(Match.of(**IP), 0, (Output(2),))])
        other.load([Flow(Match(), 0, (Output(3),))])
        for _ in range(3):
            assert heard_by(bench, 1, ipv4()) == [2]
            assert heard_by(bench, 4, ipv4()) == [6]
