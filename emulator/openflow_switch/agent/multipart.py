"""Replies to multipart requests: statistics and descriptions (OpenFlow 1.3.5, 7.3.5).

Asynchronous messages share the encodings of flow entries and ports.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from moefabric.core.openflow import constants as ofp
from moefabric.core.openflow.actions import REWRITABLE, group_ids
from moefabric.core.openflow.constants import ErrorCode, OpenFlowError, refuse_if
from moefabric.core.openflow.match import FIELDS, encode_match
from moefabric.core.openflow.messages import FLOW_STATS, decode_flow_stats_request
from moefabric.emulator.openflow_switch.agent.switch import OpenFlowSwitch
from moefabric.emulator.openflow_switch.datapath.interface import Port
from moefabric.emulator.openflow_switch.tables.counters import (
    CounterKey,
    SwitchCounters,
    TrafficCount,
    executes_all_buckets,
    is_group_counted,
)
from moefabric.emulator.openflow_switch.tables.entries import MAX_GROUPS, FlowEntry
from moefabric.emulator.openflow_switch.tables.flow_tables import (
    MAX_ENTRIES,
    TABLE_COUNT,
    RemovedEntry,
)

Bodies = Iterable[bytes]

_ALL_METERS = _ALL_QUEUES = 0xFFFFFFFF
_UNCOUNTED: Final = struct.pack("!QQ", *(0xFFFFFFFFFFFFFFFF,) * 2)
"""Packets and bytes that are not counted: all ones (7.3.5.9)."""
_ACTIONS: Final = (ofp.ActionType.OUTPUT, ofp.ActionType.GROUP, ofp.ActionType.SET_FIELD)
_INSTRUCTIONS: Final = (
    ofp.InstructionType.GOTO_TABLE,
    ofp.InstructionType.WRITE_ACTIONS,
    ofp.InstructionType.APPLY_ACTIONS,
    ofp.InstructionType.CLEAR_ACTIONS,
)


def multipart_bodies(switch: OpenFlowSwitch, kind: int, body: bytes, now_ns: int) -> Bodies:
    """Execute a multipart request.

    Returns:
        Bodies that may be divided among several replies.

    Raises:
        OpenFlowError: If the type isn't supported or a requested object doesn't exist.
    """
    handler = _HANDLERS.get(kind)
    if handler is None:
        is_experimenter = kind == ofp.MultipartType.EXPERIMENTER
        code = ErrorCode.BAD_EXPERIMENTER if is_experimenter else ErrorCode.BAD_MULTIPART
        raise OpenFlowError(code, f"type {kind}")
    return handler(switch, body, now_ns)


def _age(created_ns: int, now_ns: int) -> tuple[int, int]:
    """Return the seconds and nanoseconds since a time."""
    return divmod(max(0, now_ns - created_ns), 1_000_000_000)


# --- switch and tables ----------------------------------------------------------------------------


def _description(switch: OpenFlowSwitch, _body: bytes, _now_ns: int) -> Bodies:
    yield struct.pack(
        "!256s256s256s32s256s",
        b"moefabric",
        b"tc-BPF on Linux",
        b"moefabric.emulator.openflow_switch",
        f"{switch.datapath_id:016x}".encode(),
        b"OpenFlow switch whose packets are moved by BPF",
    )


def _table_stats(switch: OpenFlowSwitch, _body: bytes, now_ns: int) -> Bodies:
    received = sum(switch.interfaces.look(port.name).counts[0] for port in switch.ports.values())
    counters, active = switch.counters(now_ns), [0] * TABLE_COUNT
    for entry in switch.tables.entries.values():
        active[entry.table] += 1
    for number, count in enumerate(active):
        matches = counters.count(("matches", number)).packets
        lookups = counters.count(("lookups", number)).packets
        lookups = max(received, matches) if number == 0 else lookups
        yield struct.pack("!B3xIQQ", number, count, lookups, matches)


def _table_features(_switch: OpenFlowSwitch, body: bytes, _now_ns: int) -> Bodies:
    """Return the features of all tables, which can't be changed."""
    refuse_if(body, ErrorCode.REQUEST_NOT_PERMITTED, "tables can't be configured")
    return map(table_features, range(TABLE_COUNT))


def table_features(number: int) -> bytes:
    """Return the required properties of a table (ofp_table_features, 7.3.5.5.2)."""
    onward = bytes(range(number + 1, TABLE_COUNT))
    kinds = [kind for kind in _INSTRUCTIONS if kind is not ofp.InstructionType.GOTO_TABLE or onward]
    instructions = b"".join(struct.pack("!HH", kind, 4) for kind in kinds)
    actions = b"".join(struct.pack("!HH", kind, 4) for kind in _ACTIONS)
    settable = b"".join(field.header() for field in FIELDS if field.name in REWRITABLE)
    properties = {
        **dict.fromkeys((0, 1), instructions),  # each pair: ordinary entries, table-miss entry
        **dict.fromkeys((2, 3), onward),
        **dict.fromkeys((4, 5, 6, 7), actions),  # written, applied
        8: b"".join(field.header(masked=field.maskable) for field in FIELDS),
        10: b"".join(field.header() for field in FIELDS),
        **dict.fromkeys((12, 13, 14, 15), settable),  # written, applied
    }
    encoded = b"".join(
        struct.pack("!HH", kind, 4 + len(body)) + body + bytes(-(4 + len(body)) % 8)
        for kind, body in properties.items()
    )
    name = f"table {number}".encode()
    head = struct.pack("!HB5x32sQQII", 64 + len(encoded), number, name, 0, 0, 0, MAX_ENTRIES)
    return head + encoded


# --- flow entries ---------------------------------------------------------------------------------


def _flow_stats(switch: OpenFlowSwitch, body: bytes, now_ns: int) -> Bodies:
    selected = switch.selected_entries(decode_flow_stats_request(body), now_ns)
    return [_flow_entry(entry, count, now_ns) for entry, count in selected]


def _flow_entry(entry: FlowEntry, count: TrafficCount, now_ns: int) -> bytes:
    """Return the statistics of an entry (ofp_flow_stats, 7.3.5.2)."""
    tail = encode_match(entry.match) + entry.instructions.wire
    place = FLOW_STATS.size + len(tail), entry.table, *_age(entry.created_ns, now_ns)
    of_entry = entry.priority, entry.idle_s, entry.hard_s, entry.flags, entry.cookie
    head = FLOW_STATS.pack(*place, *of_entry, count.packets, count.bytes)
    return head + tail


def flow_removed(removal: RemovedEntry, now_ns: int) -> bytes:
    """Return the body of a flow-removed message (7.4.2)."""
    entry, count = removal.entry, removal.count
    of_entry = entry.cookie, entry.priority, removal.reason, entry.table
    counts = entry.idle_s, entry.hard_s, count.packets, count.bytes
    head = struct.pack("!QHBBIIHHQQ", *of_entry, *_age(entry.created_ns, now_ns), *counts)
    return head + encode_match(entry.match)


def _aggregate_stats(switch: OpenFlowSwitch, body: bytes, now_ns: int) -> Bodies:
    selected = switch.selected_entries(decode_flow_stats_request(body), now_ns)
    packets = sum(count.packets for _, count in selected)
    octets = sum(count.bytes for _, count in selected)
    return [struct.pack("!QQI4x", packets, octets, len(selected))]


# --- ports ----------------------------------------------------------------------------------------


def _requested_ports(switch: OpenFlowSwitch, body: bytes, missing: ErrorCode) -> list[Port]:
    (number,) = struct.unpack_from("!I", body)
    if number == ofp.PortNumber.ANY:
        return [port for _, port in sorted(switch.ports.items())]
    refuse_if(number not in switch.ports, missing, f"port {number:#x}")
    return [switch.ports[number]]


def _port_stats(switch: OpenFlowSwitch, body: bytes, now_ns: int) -> Bodies:
    """Return port statistics; a veth has no framing, overrun or CRC errors or collisions."""
    for port in _requested_ports(switch, body, ErrorCode.BAD_PORT):
        counts, age = switch.interfaces.look(port.name).counts, _age(switch.created_ns, now_ns)
        traffic, errors, dropped = counts[:4], counts[4:6], counts[6:]
        yield struct.pack("!I4x8Q32xII", port.number, *traffic, *dropped, *errors, *age)


def port_description(switch: OpenFlowSwitch, port: Port) -> bytes:
    """Return an ofp_port (7.2.1) without features and speeds, since none fits a veth."""
    address, name = switch.interfaces.look(port.name).address, port.name.encode()[:15]
    state = 0 if port.up else ofp.LINK_DOWN
    return struct.pack("!I4x6s2x16s4xI24x", port.number, address, name, state)


def _queue_stats(switch: OpenFlowSwitch, body: bytes, _now_ns: int) -> Bodies:
    """Return no statistics, as ports have no queues."""
    _requested_ports(switch, body, ErrorCode.QUEUE_BAD_PORT)
    _, queue = struct.unpack_from("!II", body)
    refuse_if(queue != _ALL_QUEUES, ErrorCode.QUEUE_BAD_QUEUE, f"queue {queue}")
    return []


# --- groups and meters ----------------------------------------------------------------------------


def _group_stats(switch: OpenFlowSwitch, body: bytes, now_ns: int) -> Bodies:
    (requested,) = struct.unpack_from("!I", body)
    counters, groups = switch.counters(now_ns), switch.tables.groups
    for number, group in sorted(groups.items()):
        if requested in {number, ofp.ALL_GROUPS}:
            is_counted, places = is_group_counted(number, groups), range(len(group.buckets))
            total = _packed_count(counters, (number, None)) if is_counted else _UNCOUNTED
            buckets = [_UNCOUNTED] * len(places)
            if is_counted and executes_all_buckets(group.kind):
                buckets = [_packed_count(counters, (number, place)) for place in places]
            length, references = 40 + 16 * len(places), _references(switch, number)
            head = struct.pack("!H2xII4x", length, number, references)
            age = struct.pack("!II", *_age(group.created_ns, now_ns))
            yield head + total + age + b"".join(buckets)


def _packed_count(counters: SwitchCounters, key: CounterKey) -> bytes:
    count = counters.count(key)
    return struct.pack("!QQ", count.packets, count.bytes)


def _references(switch: OpenFlowSwitch, number: int) -> int:
    """Count the flow entries and groups that send packets to a group."""
    entries = switch.tables.entries.values()
    by_entries = sum(number in group_ids(entry.instructions.actions) for entry in entries)
    return by_entries + sum(number in group.next_groups for group in switch.tables.groups.values())


def _group_descriptions(switch: OpenFlowSwitch, _body: bytes, _now_ns: int) -> Bodies:
    for number, group in sorted(switch.tables.groups.items()):
        buckets = b"".join(bucket.encode() for bucket in group.buckets)
        yield struct.pack("!HBxI", 8 + len(buckets), group.kind, number) + buckets


def _group_features(_switch: OpenFlowSwitch, _body: bytes, _now_ns: int) -> Bodies:
    """Return all group types, with weights, watched ports, and chains checked for loops."""
    actions = sum(1 << kind for kind in _ACTIONS)
    yield struct.pack("!II4I4I", 0b1111, 0b1111, *[MAX_GROUPS] * 4, *[actions] * 4)


def _meters(_switch: OpenFlowSwitch, body: bytes, _now_ns: int) -> Bodies:
    """Return no statistics, as the switch has no meters."""
    (meter,) = struct.unpack_from("!I", body)
    refuse_if(meter != _ALL_METERS, ErrorCode.METER_UNKNOWN, f"meter {meter}")
    return []


_HANDLERS: Final[Mapping[int, Callable[[OpenFlowSwitch, bytes, int], Bodies]]] = {
    ofp.MultipartType.DESC: _description,
    ofp.MultipartType.FLOW: _flow_stats,
    ofp.MultipartType.AGGREGATE: _aggregate_stats,
    ofp.MultipartType.TABLE: _table_stats,
    ofp.MultipartType.PORT_STATS: _port_stats,
    ofp.MultipartType.QUEUE: _queue_stats,
    ofp.MultipartType.GROUP: _group_stats,
    ofp.MultipartType.GROUP_DESC: _group_descriptions,
    ofp.MultipartType.GROUP_FEATURES: _group_features,
    ofp.MultipartType.METER: _meters,
    ofp.MultipartType.METER_CONFIG: _meters,
    ofp.MultipartType.METER_FEATURES: lambda _switch, _body, _now_ns: [bytes(16)],
    ofp.MultipartType.TABLE_FEATURES: _table_features,
    ofp.MultipartType.PORT_DESC: lambda switch, _body, _now_ns: [
        port_description(switch, port) for _, port in sorted(switch.ports.items())
    ],
}
