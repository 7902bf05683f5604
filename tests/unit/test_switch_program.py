"""A switch's program and the bytes it works on, without a kernel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator import bpf
from emulator.bpf import Reg, Size
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
from emulator.switch.flow_map import FlowMap, Written
from emulator.switch.instructions import NUMBER, Descriptors
from emulator.switch.layout import (
    EVERY_SLOT,
    KEY,
    KEY_TABLE,
    MASK,
    VALUE_BYTES,
    Kind,
    Layout,
    key_of,
    mask_of,
    packed_masks,
    packed_steps,
    steps,
    value_of,
)
from emulator.switch.match import Match
from emulator.switch.packet import fields
from emulator.switch.program import switch_program
from emulator.switch.roster import Roster
from emulator.switch.seam import Port
from tests.switch_frames import MACS, frames, ipv4, matches

LAYOUT = Layout(ports=10, flows=8)


PORTS = {number: Port(number, f"p{number}") for number in (1, 2, 3)}


def made(
    *actions: Output | SetField | ToGroup, groups: tuple[Group, ...] = ()
) -> tuple[tuple[Kind, int, int], ...]:
    return steps(Flow(Match(), 0, actions), {group.id: group for group in groups}, PORTS)


def packet_key(frame: bytes, in_port: int) -> bytes:
    """The key that the program makes of a frame: its fields, exactly."""
    found = fields(frame, in_port)
    wanted = {name: found[name] for name in ("in_port", "eth_dst", "eth_src", "eth_type")}
    if found["eth_type"] == 0x0800:
        wanted |= {name: found[name] for name in ("ipv4_src", "ipv4_dst", "ip_dscp", "ip_proto")}
        if found["ip_proto"] in (6, 17, 132):
            wanted |= {name: found[name] for name in ("tp_src", "tp_dst")}
    if found["eth_type"] == 0x0806:
        wanted |= {name: found[name] for name in ("arp_op", "arp_spa", "arp_tpa")}
    return key_of(Match.of(**wanted))[:KEY_TABLE] + b"\xff" * 4


def masked(key: bytes, mask: bytes) -> bytes:
    return bytes(a & b for a, b in zip(key, mask, strict=True))


@given(matches(), frames(), st.integers(1, 4))
def test_a_key_under_a_mask_is_the_flows_own_for_its_packets_alone(
    match: Match, frame: bytes, port: int
) -> None:
    key, mask = key_of(match), mask_of(match.mask)
    assert (masked(packet_key(frame, port), mask) == key) == match.fits(fields(frame, port))


def test_a_key_has_its_fields_where_a_frame_has_them() -> None:
    frame = ipv4(src=0x01020304, dst=0x05060708, ports=(0x1122, 0x3344), dscp=9)
    key = packet_key(frame, 2)
    assert len(key) == KEY.size == 40
    assert key[:4] == b"\0\0\0\2"
    assert key[4:18] == frame[:14]
    assert key[18:24] == b"\0\x11\0\x09\0\0"
    assert key[24:KEY_TABLE] == b"\1\2\3\4\5\6\7\x08\x11\x22\x33\x44"


def test_nothing_in_the_memory_overlaps() -> None:
    places = [
        (LAYOUT.SELECT, 4),
        (LAYOUT.EXHAUSTED, 8),
        *((LAYOUT.masks(generation), LAYOUT.generation_bytes) for generation in (0, 1)),
        *((LAYOUT.interface(port), 4) for port in range(1, 11)),
        *((LAYOUT.counter(place), 16) for place in range(LAYOUT.places)),
    ]
    ends = [0, *(start + length for start, length in places)]
    assert all(end <= start for end, (start, _) in zip(ends, places, strict=False))
    assert ends[-1] == LAYOUT.length
    assert LAYOUT.counter(0) % 8 == LAYOUT.masks(0) % 8 == LAYOUT.EXHAUSTED % 8 == 0


def test_the_last_output_is_handed_over_and_those_before_are_copies() -> None:
    assert made(Output(2), Output(3)) == ((Kind.OUTPUT, EVERY_SLOT, 2), (Kind.LAST, EVERY_SLOT, 3))
    assert made(Output(IN_PORT), Output(CONTROLLER, 60)) == (
        (Kind.BACK, EVERY_SLOT, 0),
        (Kind.PUNT, EVERY_SLOT, 60),
    )


def test_no_action_is_no_step_and_neither_is_a_field_that_nobody_gets() -> None:
    assert made() == ()
    assert made(Output(2), SetField("ip_dscp", 1)) == ((Kind.LAST, EVERY_SLOT, 2),)


def test_a_copy_is_dressed_as_it_was_when_it_left() -> None:
    bucket = Bucket((SetField("ip_dscp", 3), Output(2)))
    group = Group(1, GroupKind.ALL, (bucket, Bucket((Output(3),))))
    assert [kind for kind, _, _ in made(ToGroup(1), groups=(group,))] == [
        *(Kind.SET_DSCP, Kind.OUTPUT, Kind.RESET_DSCP, Kind.LAST),
    ]


def test_a_select_group_gives_each_bucket_its_slots() -> None:
    group = Group(1, GroupKind.SELECT, (Bucket((Output(2),), weight=1), Bucket((Output(3),), weight=3)))
    assert made(ToGroup(1), groups=(group,)) == ((Kind.LAST, 0xFF, 2), (Kind.LAST, 0xFFFFFF00, 3))


def test_all_ends_a_packets_way() -> None:
    assert made(Output(ALL)) == ((Kind.FLOOD, EVERY_SLOT, 0),)
    assert made(Output(ALL), Output(CONTROLLER, 9)) == (
        (Kind.PUNT, EVERY_SLOT, 9),
        (Kind.FLOOD, EVERY_SLOT, 0),
    )
    assert made(Output(ALL), SetField("ip_dscp", 1), Output(ALL)) == (
        *((Kind.OUTPUT, EVERY_SLOT, number) for number in (1, 2, 3)),
        (Kind.SET_DSCP, EVERY_SLOT, 1),
        (Kind.FLOOD, EVERY_SLOT, 0),
    )


def test_a_mac_lies_in_a_step_as_in_a_frame() -> None:
    (_, _, argument), _ = made(SetField("eth_dst", MACS[1]), Output(1))
    value = value_of(1, 2, packed_steps(made(SetField("eth_dst", MACS[1]), Output(1))))
    assert MACS[1].to_bytes(6) in value
    assert argument.bit_length() <= 48
    assert len(value) == VALUE_BYTES


def test_masks_are_searched_from_the_highest_rank() -> None:
    low, high = b"l" * 40, b"h" * 40
    assert packed_masks({low: 1, high: 2}).index(high) == 0
    assert packed_masks({low: 1, high: 2}).index(low) == 48


def test_the_seventeenth_mask_is_refused_by_name() -> None:
    table = [Flow(Match.of(in_port=(0, 1 << bit)), 0) for bit in range(17)]
    flow_map = FlowMap(-1)
    flow_map.check(table[:16], ())
    with pytest.raises(FlowError, match=r"flow in_port=0x0/0x10000 @0 -> drop: one mask too many"):
        flow_map.check(table, ())
    flow_map.change({flow.key: Written(flow, b"") for flow in table[:16]}, ())
    flow_map.check(table[16:], [table[3].key])
    with pytest.raises(FlowError, match="one mask too many"):
        flow_map.check(table[16:], ())


def test_masks_are_those_of_the_flows_and_ranked_by_the_highest() -> None:
    flow_map = FlowMap(-1)
    low, high = Flow(Match.of(in_port=1), 1), Flow(Match.of(in_port=2), 9)
    flow_map.change({flow.key: Written(flow, b"") for flow in (low, high)}, ())
    first = flow_map.masks(0)
    assert MASK.unpack_from(first)[1] == high.rank
    assert first[KEY_TABLE : KEY.size] != flow_map.masks(1)[KEY_TABLE : KEY.size]
    flow_map.change({}, [high.key])
    assert MASK.unpack_from(flow_map.masks(0))[1] == low.rank
    flow_map.change({}, [low.key])
    assert not any(flow_map.masks(0))


def test_a_roster_tells_what_is_new_and_what_goes() -> None:
    roster = Roster()
    a, b, c = (Flow(Match.of(in_port=port), 0) for port in (1, 2, 3))
    roster.become(roster.against([a, b]), {})
    again = Flow(Match.of(in_port=2), 0, (Output(1),))
    difference = roster.against([a, again, c])
    assert (difference.put, difference.drop) == ({again.key: again, c.key: c}, [])
    roster.become(difference, {})
    assert roster.against([c]).put == {}
    assert set(roster.against([c]).drop) == {a.key, b.key}
    assert roster.flows == {a.key: a, b.key: again, c.key: c}


def test_of_flows_with_one_key_the_last_counts() -> None:
    roster = Roster()
    first, last = (Flow(Match(), 0, (Output(port),)) for port in (1, 2))
    assert roster.against([first, last]).put == {first.key: last}
    roster.become(roster.against([last]), {})
    assert roster.against([last, first]).put == {first.key: first}
    assert roster.against([first, last]).put == {}


def test_the_program_is_short_and_its_jumps_end_in_it() -> None:
    code = bpf.assembled(switch_program(LAYOUT, Descriptors(3, 4, 5)))
    assert len(code) // 8 < 600
    assert NUMBER >= -512


@pytest.mark.parametrize(
    ("instruction", "encoded"),
    [  # RFC 9669, section 4 and 5
        pytest.param(bpf.store(Size.HALF, Reg.R10, -2, Reg.R1), "6b1afeff00000000", id="stx"),
        pytest.param(bpf.store(Size.WORD, Reg.R10, -4, -1), "620afcffffffffff", id="st"),
        pytest.param(bpf.big_endian(Reg.R3, 32), "dc03000020000000", id="be32"),
        pytest.param(bpf.shift_right(Reg.R2, 5), "7702000005000000", id="rsh"),
        pytest.param(bpf.bit_or(Reg.R4, Reg.R1), "4f14000000000000", id="or"),
        pytest.param(bpf.constant(Reg.R1, 0x1122334455667788), "18010000887766550000000044332211", id="ld64"),
        pytest.param(bpf.map_at(Reg.R1, 9), "18110000090000000000000000000000", id="map"),
        pytest.param(bpf.barrier(Reg.R1, -8), "db1af8ff01000000", id="fetch-add"),
        pytest.param(bpf.load(Size.BYTE, Reg.R1, Reg.R10, -1), "71a1ffff00000000", id="ldxb"),
    ],
)
def test_instructions_are_encoded_as_the_standard_says(instruction: bpf.Instruction, encoded: str) -> None:
    assert instruction.packed().hex() == encoded
