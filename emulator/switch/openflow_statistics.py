"""What a switch tells of itself when asked for statistics (OpenFlow 1.3.5, 7.3.5): each function gives bodies, which `written.parts` puts into replies."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from emulator.switch import openflow_actions as actions
from emulator.switch import openflow_match as match
from emulator.switch.entry import Entry
from emulator.switch.flow import REWRITABLE
from emulator.switch.openflow_counts import Carried, Ledger
from emulator.switch.openflow_groups import GROUPS, GroupEntry
from emulator.switch.openflow_match import FIELDS, Field
from emulator.switch.openflow_numbers import ActionType, InstructionType
from emulator.switch.openflow_ports import PortCount
from emulator.switch.seam import Port
from emulator.switch.table import ENTRIES, TABLES

UNCOUNTED: Final = 0xFFFFFFFFFFFFFFFF
_UNCOUNTED_32: Final = 0xFFFFFFFF
_SECOND_NS: Final = 1_000_000_000
_ACTIONS: Final = (ActionType.OUTPUT, ActionType.GROUP, ActionType.SET_FIELD)
_INSTRUCTIONS: Final = (
    InstructionType.GOTO_TABLE,
    InstructionType.WRITE_ACTIONS,
    InstructionType.APPLY_ACTIONS,
    InstructionType.CLEAR_ACTIONS,
)
LINK_DOWN: Final = 1
"""OFPPS_LINK_DOWN, of a port's state."""


def description(datapath_id: int) -> bytes:
    return struct.pack(
        "!256s256s256s32s256s",
        b"moefabric",
        b"tc-BPF on Linux",
        b"emulator.switch",
        f"{datapath_id:016x}".encode(),
        b"OpenFlow switch whose packets are moved by BPF",
    )


def _since(made_ns: int, now_ns: int) -> tuple[int, int]:
    return divmod(max(0, now_ns - made_ns), _SECOND_NS)


def flow(entry: Entry, carried: Carried, now_ns: int) -> bytes:
    """One `ofp_flow_stats`."""
    told = match.encoded(entry.match) + entry.instructions.wire
    return (
        struct.pack(
            "!HBxIIHHHH4xQQQ",
            48 + len(told),
            entry.table,
            *_since(entry.made_ns, now_ns),
            entry.priority,
            entry.idle_s,
            entry.hard_s,
            entry.flags,
            entry.cookie,
            carried.packets,
            carried.bytes,
        )
        + told
    )


def removed(entry: Entry, why: int, carried: Carried, now_ns: int) -> bytes:
    """The body of a flow-removed message (7.4.2)."""
    return struct.pack(
        "!QHBBIIHHQQ",
        entry.cookie,
        entry.priority,
        why,
        entry.table,
        *_since(entry.made_ns, now_ns),
        entry.idle_s,
        entry.hard_s,
        carried.packets,
        carried.bytes,
    ) + match.encoded(entry.match)


def aggregate(carried: Iterable[Carried]) -> bytes:
    listed = list(carried)
    return struct.pack(
        "!QQI4x", sum(each.packets for each in listed), sum(each.bytes for each in listed), len(listed)
    )


def tables(entries: Iterable[Entry], looked_up: int, ledger: Ledger) -> Iterator[bytes]:
    """`looked_up` packets have come to table 0; the ledger knows the rest."""
    active = [0] * TABLES
    for entry in entries:
        active[entry.table] += 1
    for number, count in enumerate(active):
        it = ledger.of_table(number)
        came = max(looked_up, it.taken) if number == 0 else it.came
        yield struct.pack("!B3xIQQ", number, count, came, it.taken)


def port_count(number: int, count: PortCount, made_ns: int, now_ns: int) -> bytes:
    """One `ofp_port_stats`. Framing, overrun, CRC errors and collisions are things that a veth doesn't know."""
    return struct.pack(
        "!I4x12QII",
        number,
        *(count.packets_in, count.packets_out, count.bytes_in, count.bytes_out),
        *(count.dropped_in, count.dropped_out, count.errors_in, count.errors_out),
        *(0, 0, 0, 0),
        *_since(made_ns, now_ns),
    )


def port(it: Port, address: bytes, rate_kbps: int) -> bytes:
    """One `ofp_port`. Its features are 0: no bit of OpenFlow's stands for a veth; its speed is told."""
    state = 0 if it.up else LINK_DOWN
    name = it.name.encode()[:15]
    return struct.pack(
        "!I4x6s2x16sII4I2I", it.number, address, name, 0, state, 0, 0, 0, 0, rate_kbps, rate_kbps
    )


def group(entry: GroupEntry, references: int, counts: Sequence[Carried | None], now_ns: int) -> bytes:
    """One `ofp_group_stats`, with what the group and then each bucket has carried: all ones where nobody counts (7.3.5.9)."""
    told = [(it.packets, it.bytes) if it else (UNCOUNTED, UNCOUNTED) for it in counts]
    length = 40 + 16 * len(entry.told)
    head = struct.pack("!H2xII4xQQ", length, entry.group.id, references, *told[0])
    since = struct.pack("!II", *_since(entry.made_ns, now_ns))
    return head + since + b"".join(struct.pack("!QQ", *each) for each in told[1:])


def group_description(entry: GroupEntry) -> bytes:
    buckets = b""
    for bucket in entry.told:
        done = bucket.wire or actions.encoded(bucket.actions)
        head = struct.pack("!HHII4x", 16 + len(done), bucket.weight, bucket.watch_port, bucket.watch_group)
        buckets += head + done
    return struct.pack("!HBxI", 8 + len(buckets), entry.kind, entry.group.id) + buckets


def group_features() -> bytes:
    """All four kinds, with weights, watched ports, and groups through groups, which are checked for loops."""
    every = sum(1 << kind for kind in _ACTIONS)
    weight, liveness, chaining, checks = 1, 2, 4, 8
    return struct.pack("!II4I4I", 0b1111, weight | liveness | chaining | checks, *[GROUPS] * 4, *[every] * 4)


def meter_features() -> bytes:
    """There are no meters."""
    return struct.pack("!IIIBB2x", 0, 0, 0, 0, 0)


def table_features(number: int) -> bytes:
    """One `ofp_table_features`, of the properties that OpenFlow requires (7.3.5.18.2)."""
    onward = bytes(range(number + 1, TABLES))
    told = [kind for kind in _INSTRUCTIONS if kind is not InstructionType.GOTO_TABLE or onward]
    instructions = b"".join(struct.pack("!HH", kind, 4) for kind in told)
    done = b"".join(struct.pack("!HH", kind, 4) for kind in _ACTIONS)
    rewritten = b"".join(_oxm_id(field) for field in FIELDS if field.name in REWRITABLE)
    properties = [
        *((kind, instructions) for kind in (0, 1)),
        *((kind, onward) for kind in (2, 3)),
        *((kind, done) for kind in (4, 5, 6, 7)),
        (8, b"".join(_oxm_id(field, masked=field.maskable) for field in FIELDS)),
        (10, b"".join(_oxm_id(field) for field in FIELDS)),
        *((kind, rewritten) for kind in (12, 13, 14, 15)),
    ]
    body = b"".join(_property(kind, its) for kind, its in properties)
    name = f"table {number}".encode()
    return struct.pack("!HB5x32sQQII", 64 + len(body), number, name, 0, 0, 0, ENTRIES) + body


def _oxm_id(field: Field, *, masked: bool = False) -> bytes:
    return struct.pack("!HBB", 0x8000, field.number << 1 | masked, field.octets * (1 + masked))


def _property(kind: int, body: bytes) -> bytes:
    length = 4 + len(body)
    return struct.pack("!HH", kind, length) + body + bytes(-length % 8)
