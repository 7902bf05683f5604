"""Statistics as they are asked for: a multipart request's kind and body (OpenFlow 1.3.5, 7.3.5) to the bodies of its replies."""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from emulator.switch import openflow_statistics as statistics
from emulator.switch.flow import ToGroup
from emulator.switch.messages import flows_asked
from emulator.switch.openflow_counts import Carried, Ledger, counts_buckets, is_counted
from emulator.switch.openflow_groups import GroupEntry
from emulator.switch.openflow_numbers import ALL_GROUPS, Multipart, OpenFlowError, PortNumber, Refusal
from emulator.switch.openflow_switch import Switch
from emulator.switch.seam import Port
from emulator.switch.table import TABLES

_ALL_METERS: Final = 0xFFFFFFFF
Bodies = Iterable[bytes]


def multipart_bodies(switch: Switch, kind: int, body: bytes, now_ns: int) -> Bodies:
    """OpenFlowError with the code for what isn't supported or doesn't exist."""
    answer = _ANSWERS.get(kind)
    if answer is None:
        refusal = Refusal.BAD_EXPERIMENTER if kind == Multipart.EXPERIMENTER else Refusal.BAD_MULTIPART
        raise OpenFlowError(refusal, f"kind {kind}")
    return answer(switch, body, now_ns)


def _description(switch: Switch, _body: bytes, _now_ns: int) -> Bodies:
    return [statistics.description(switch.datapath_id)]


def _flows(switch: Switch, body: bytes, now_ns: int) -> Bodies:
    found = switch.flows(flows_asked(body), now_ns)
    return [statistics.flow(entry, carried, now_ns) for entry, carried in found]


def _aggregate(switch: Switch, body: bytes, now_ns: int) -> Bodies:
    return [statistics.aggregate(carried for _, carried in switch.flows(flows_asked(body), now_ns))]


def _tables(switch: Switch, _body: bytes, now_ns: int) -> Bodies:
    came = sum(switch.interface(port).count.packets_in for port in switch.ports.values())
    return statistics.tables(switch.tables.entries.values(), came, switch.counted(now_ns))


def _port_stats(switch: Switch, body: bytes, now_ns: int) -> Bodies:
    return [
        statistics.port_count(port.number, switch.interface(port).count, switch.made_ns, now_ns)
        for port in _ports(switch, body, Refusal.BAD_PORT)
    ]


def _ports(switch: Switch, body: bytes, refusal: Refusal) -> list[Port]:
    (number,) = struct.unpack_from("!I", body)
    if number == PortNumber.ANY:
        return [switch.ports[each] for each in sorted(switch.ports)]
    if number not in switch.ports:
        raise OpenFlowError(refusal, f"port {number:#x}")
    return [switch.ports[number]]


def _port_descriptions(switch: Switch, _body: bytes, _now_ns: int) -> Bodies:
    for _, port in sorted(switch.ports.items()):
        it = switch.interface(port)
        yield statistics.port(port, it.address, it.rate_kbps)


def _queues(switch: Switch, body: bytes, _now_ns: int) -> Bodies:
    """Ports have no queues."""
    _ports(switch, body, Refusal.QUEUE_BAD_PORT)
    (_, queue) = struct.unpack_from("!II", body)
    if queue != 0xFFFFFFFF:
        raise OpenFlowError(Refusal.QUEUE_BAD_QUEUE, f"queue {queue}")
    return []


def _groups(switch: Switch, body: bytes, now_ns: int) -> Bodies:
    (number,) = struct.unpack_from("!I", body)
    ledger = switch.counted(now_ns)
    return [
        statistics.group(entry, _references(switch, each), _group_counts(switch, each, ledger), now_ns)
        for each, entry in sorted(switch.tables.groups.items())
        if number in {each, ALL_GROUPS}
    ]


def _group_counts(switch: Switch, number: int, ledger: Ledger) -> list[Carried | None]:
    """What the group and then each of its buckets has carried; None where nobody counts."""
    groups = switch.tables.groups
    if not is_counted(number, groups):
        return [None] * (1 + len(groups[number].told))
    each = counts_buckets(groups[number].group.kind)
    buckets = [ledger.of_group(number, place) if each else None for place in range(len(groups[number].told))]
    return [ledger.of_group(number), *buckets]


def _references(switch: Switch, number: int) -> int:
    """How many entries and groups send packets through a group."""
    entries = sum(
        any(isinstance(action, ToGroup) and action.id == number for action in entry.instructions.actions)
        for entry in switch.tables.entries.values()
    )
    return entries + sum(number in group.goes_through for group in switch.tables.groups.values())


def _group_descriptions(switch: Switch, _body: bytes, _now_ns: int) -> Bodies:
    groups: Mapping[int, GroupEntry] = switch.tables.groups
    return [statistics.group_description(entry) for _, entry in sorted(groups.items())]


def _group_features(_switch: Switch, _body: bytes, _now_ns: int) -> Bodies:
    return [statistics.group_features()]


def _meters(_switch: Switch, body: bytes, _now_ns: int) -> Bodies:
    """There are none."""
    (meter,) = struct.unpack_from("!I", body)
    if meter != _ALL_METERS:
        raise OpenFlowError(Refusal.METER_UNKNOWN, f"meter {meter}")
    return []


def _meter_features(_switch: Switch, _body: bytes, _now_ns: int) -> Bodies:
    return [statistics.meter_features()]


def _table_features(_switch: Switch, body: bytes, _now_ns: int) -> Bodies:
    """Tables are what they are."""
    if body:
        raise OpenFlowError(Refusal.REQUEST_NOT_PERMITTED, "tables can't be configured")
    return [statistics.table_features(number) for number in range(TABLES)]


_ANSWERS: Final[Mapping[int, Callable[[Switch, bytes, int], Bodies]]] = {
    Multipart.DESC: _description,
    Multipart.FLOW: _flows,
    Multipart.AGGREGATE: _aggregate,
    Multipart.TABLE: _tables,
    Multipart.PORT_STATS: _port_stats,
    Multipart.QUEUE: _queues,
    Multipart.GROUP: _groups,
    Multipart.GROUP_DESC: _group_descriptions,
    Multipart.GROUP_FEATURES: _group_features,
    Multipart.METER: _meters,
    Multipart.METER_CONFIG: _meters,
    Multipart.METER_FEATURES: _meter_features,
    Multipart.TABLE_FEATURES: _table_features,
    Multipart.PORT_DESC: _port_descriptions,
}
