"""The switch's program and the bytes that it works on, without a kernel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.openflow.actions import ALL, CONTROLLER, IN_PORT, Output, SetField, ToGroup
from moefabric.core.openflow.constants import GroupType
from moefabric.core.openflow.match import FlowError, Match
from moefabric.core.openflow.messages import Bucket
from moefabric.emulator.linux import bpf_assembler as bpf
from moefabric.emulator.linux.bpf_assembler import Reg, Size
from moefabric.emulator.openflow_switch.datapath.flow_map import FlowMap, StoredFlow, flow_changes
from moefabric.emulator.openflow_switch.datapath.interface import Flow, Group, Port
from moefabric.emulator.openflow_switch.datapath.map_layout import (
    EVERY_SLOT,
    KEY_BYTES,
    MASK,
    VALUE,
    VALUE_BYTES,
    KeyOffset,
    MemoryLayout,
    StepKind,
    flow_steps,
    mask_key,
    match_key,
    packed_masks,
    packed_steps,
)
from moefabric.emulator.openflow_switch.datapath.program_parts import MapDescriptors, Stack
from moefabric.emulator.openflow_switch.datapath.switch_program import ProgramMaps, switch_program
from moefabric.emulator.openflow_switch.flows.packet import packet_fields
from tests.support.switch_frames import MACS, frames, ipv4, matches

LAYOUT = MemoryLayout(ports=10, flows=8)


PORTS = {number: Port(number, f"p{number}") for number in (1, 2, 3)}


def steps_of(
    *actions: Output | SetField | ToGroup, groups: tuple[Group, ...] = ()
) -> tuple[tuple[StepKind, int, int], ...]:
    return flow_steps(Flow(Match(), 0, actions), {group.id: group for group in groups}, PORTS)


def packet_key(frame: bytes, in_port: int) -> bytes:
    """The key that the program makes of a frame: its packet_fields, exactly."""
    packet = packet_fields(frame, in_port)
    fields = {name: packet[name] for name in ("in_port", "eth_dst", "eth_src", "eth_type")}
    if packet["eth_type"] == 0x0800:
        fields |= {name: packet[name] for name in ("ipv4_src", "ipv4_dst", "ip_dscp", "ip_proto")}
        if packet["ip_proto"] in (6, 17, 132):
            fields |= {name: packet[name] for name in ("tp_src", "tp_dst")}
    if packet["eth_type"] == 0x0806:
        fields |= {name: packet[name] for name in ("arp_op", "arp_spa", "arp_tpa")}
    return match_key(Match.of(**fields)) + b"\xff" * 4


def masked(key: bytes, mask: bytes) -> bytes:
    return bytes(a & b for a, b in zip(key, mask, strict=True))


@given(matches(), frames(), st.integers(1, 4))
def test_masked_key_equals_match_key_of_fitting_packets_only(
    match: Match, frame: bytes, port: int
) -> None:
    key, mask = match_key(match), mask_key(match.mask)
    prefix = packet_key(frame, port)[: KeyOffset.LAST_WORD]
    assert (masked(prefix, mask) == key) == match.fits(packet_fields(frame, port))


def test_key_has_fields_in_network_order() -> None:
    frame = ipv4(src=0x01020304, dst=0x05060708, ports=(0x1122, 0x3344), dscp=9)
    key = packet_key(frame, 2)
    assert len(key) == KEY_BYTES == 40
    assert key[:4] == b"\0\0\0\2"
    assert key[4:18] == frame[:14]
    assert key[18:24] == b"\0\x11\0\x09\0\0"
    assert key[24 : KeyOffset.LAST_WORD] == b"\1\2\3\4\5\6\7\x08\x11\x22\x33\x44"


def test_memory_layout_does_not_overlap() -> None:
    places = [
        (LAYOUT.SELECT, 4),
        *((LAYOUT.masks(generation), LAYOUT.generation_bytes) for generation in (0, 1)),
        *((LAYOUT.interface(port), 4) for port in range(1, 11)),
        *((LAYOUT.counter(place), 16) for place in range(LAYOUT.counters)),
    ]
    ends = [0, *(start + length for start, length in places)]
    assert all(end <= start for end, (start, _) in zip(ends, places, strict=False))
    assert ends[-1] == LAYOUT.length
    assert LAYOUT.counter(0) % 8 == LAYOUT.masks(0) % 8 == 0


def test_last_output_redirects_and_earlier_ones_copy() -> None:
    assert steps_of(Output(2), Output(3)) == (
        (StepKind.OUTPUT, EVERY_SLOT, 2),
        (StepKind.LAST, EVERY_SLOT, 3),
    )
    assert steps_of(Output(IN_PORT), Output(CONTROLLER, 60)) == (
        (StepKind.BACK, EVERY_SLOT, 0),
        (StepKind.PUNT, EVERY_SLOT, 60),
    )


def test_empty_actions_and_unused_rewrites_need_no_step() -> None:
    assert steps_of() == ()
    assert steps_of(Output(2), SetField("ip_dscp", 1)) == ((StepKind.LAST, EVERY_SLOT, 2),)


def test_later_copy_has_rewrites_reset() -> None:
    bucket = Bucket((SetField("ip_dscp", 3), Output(2)))
    group = Group(1, GroupType.ALL, (bucket, Bucket((Output(3),))))
    assert [kind for kind, _, _ in steps_of(ToGroup(1), groups=(group,))] == [
        *(StepKind.SET_DSCP, StepKind.OUTPUT, StepKind.RESET_DSCP, StepKind.LAST)
    ]


def test_select_group_divides_slots_among_buckets() -> None:
    group = Group(
        1, GroupType.SELECT, (Bucket((Output(2),), weight=1), Bucket((Output(3),), weight=3))
    )
    assert steps_of(ToGroup(1), groups=(group,)) == (
        (StepKind.LAST, 0xFF, 2),
        (StepKind.LAST, 0xFFFFFF00, 3),
    )


def test_flood_is_last_step() -> None:
    assert steps_of(Output(ALL)) == ((StepKind.FLOOD, EVERY_SLOT, 0),)
    assert steps_of(Output(ALL), Output(CONTROLLER, 9)) == (
        (StepKind.PUNT, EVERY_SLOT, 9),
        (StepKind.FLOOD, EVERY_SLOT, 0),
    )
    assert steps_of(Output(ALL), SetField("ip_dscp", 1), Output(ALL)) == (
        *((StepKind.OUTPUT, EVERY_SLOT, number) for number in (1, 2, 3)),
        (StepKind.SET_DSCP, EVERY_SLOT, 1),
        (StepKind.FLOOD, EVERY_SLOT, 0),
    )


def test_step_has_mac_in_network_order() -> None:
    (_, _, argument), _ = steps_of(SetField("eth_dst", MACS[1]), Output(1))
    differ, steps = packed_steps(steps_of(SetField("eth_dst", MACS[1]), Output(1)))
    value = VALUE.pack(1, 2, differ) + steps
    assert MACS[1].to_bytes(6) in value
    assert argument.bit_length() <= 48
    assert len(value) == VALUE_BYTES


def test_masks_are_ordered_by_rank() -> None:
    low, high = b"l" * 40, b"h" * 40
    assert packed_masks({low: 1, high: 2}).index(high) == 0
    assert packed_masks({low: 1, high: 2}).index(low) == 48


def test_flow_map_refuses_seventeenth_mask() -> None:
    table = [Flow(Match.of(in_port=(0, 1 << bit)), 0) for bit in range(17)]
    flow_map = FlowMap(-1)
    flow_map.check(table[:16], ())
    with pytest.raises(FlowError, match=r"flow in_port=0x0/0x10000 @0 -> drop: one mask too many"):
        flow_map.check(table, ())
    flow_map.change({flow.key: StoredFlow(flow, b"") for flow in table[:16]}, ())
    flow_map.check(table[16:], [table[3].key])
    with pytest.raises(FlowError, match="one mask too many"):
        flow_map.check(table[16:], ())


def test_flow_map_masks_follow_flows() -> None:
    flow_map = FlowMap(-1)
    low, high = Flow(Match.of(in_port=1), 1), Flow(Match.of(in_port=2), 9)
    flow_map.change({flow.key: StoredFlow(flow, b"") for flow in (low, high)}, ())
    first = flow_map.masks(0)
    assert MASK.unpack_from(first)[1] == high.rank
    assert (
        first[KeyOffset.LAST_WORD : KEY_BYTES] != flow_map.masks(1)[KeyOffset.LAST_WORD : KEY_BYTES]
    )
    flow_map.change({}, [high.key])
    assert MASK.unpack_from(flow_map.masks(0))[1] == low.rank
    flow_map.change({}, [low.key])
    assert not any(flow_map.masks(0))


def test_flow_changes_have_new_and_removed_flows() -> None:
    a, b, c = (Flow(Match.of(in_port=port), 0) for port in (1, 2, 3))
    first = flow_changes({}, (), [a, b])
    assert (first.put, first.drop) == ({a.key: a, b.key: b}, [])
    again = Flow(Match.of(in_port=2), 0, (Output(1),))
    changes = flow_changes(first.by_identity, first.put, [a, again, c])
    assert (changes.put, changes.drop) == ({again.key: again, c.key: c}, [])
    known = {flow.key for flow in changes.by_identity.values()}
    assert known == {a.key, b.key, c.key}
    assert flow_changes(changes.by_identity, known, [c]).put == {}
    assert set(flow_changes(changes.by_identity, known, [c]).drop) == {a.key, b.key}


def test_flow_changes_keep_last_flow_of_a_key() -> None:
    first, last = (Flow(Match(), 0, (Output(port),)) for port in (1, 2))
    assert flow_changes({}, (), [first, last]).put == {first.key: last}
    present = {id(last): last}
    assert flow_changes(present, {last.key}, [last, first]).put == {first.key: first}
    assert flow_changes(present, {last.key}, [first, last]).put == {}


def test_program_is_short_and_fits_the_stack() -> None:
    code = bpf.assemble(switch_program(LAYOUT, MapDescriptors(3, 4, 5), ProgramMaps(6, 7, 12)))
    assert len(code) // 8 < 700
    assert min(Stack) >= -512


def test_places_of_the_stack_do_not_overlap() -> None:
    lengths = {"KEY": KEY_BYTES, "MASKED_KEY": KEY_BYTES, "FLOW": VALUE_BYTES, "IPV4_HEADER": 20}
    places = sorted((place, place + lengths.get(place.name, 8)) for place in Stack)
    ends = [-512, *(end for _, end in places)]
    assert all(end <= start for end, (start, _) in zip(ends, places, strict=False))
    assert ends[-1] <= 0


@pytest.mark.parametrize(
    ("instruction", "encoded"),
    [  # RFC 9669, section 4 and 5
        pytest.param(bpf.store(Size.HALF, Reg.R10, -2, Reg.R1), "6b1afeff00000000", id="stx"),
        pytest.param(bpf.store(Size.WORD, Reg.R10, -4, -1), "620afcffffffffff", id="st"),
        pytest.param(bpf.big_endian(Reg.R3, 32), "dc03000020000000", id="be32"),
        pytest.param(bpf.shift_right(Reg.R2, 5), "7702000005000000", id="rsh"),
        pytest.param(bpf.bit_or(Reg.R4, Reg.R1), "4f14000000000000", id="or"),
        pytest.param(
            bpf.constant(Reg.R1, 0x1122334455667788), "18010000887766550000000044332211", id="ld64"
        ),
        pytest.param(bpf.map_reference(Reg.R1, 9), "18110000090000000000000000000000", id="map"),
        pytest.param(bpf.barrier(Reg.R1, -8), "db1af8ff01000000", id="fetch-add"),
        pytest.param(bpf.load(Size.BYTE, Reg.R1, Reg.R10, -1), "71a1ffff00000000", id="ldxb"),
    ],
)
def test_bpf_instructions_are_encoded_as_in_rfc_9669(
    instruction: bpf.Instruction, encoded: str
) -> None:
    assert instruction.packed().hex() == encoded
