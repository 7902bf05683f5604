"""Groups as OpenFlow describes them (OpenFlow 1.3.5, 5.6 and 6.5), checked and made into the datapath's own."""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from emulator.switch import flow
from emulator.switch.flow import Action, Group, GroupKind, Output, SetField, ToGroup
from emulator.switch.messages import Bucket, GroupMod
from emulator.switch.openflow_numbers import ANY_GROUP, MAX_GROUP, OpenFlowError, PortNumber, Refusal

KINDS: Final = (GroupKind.ALL, GroupKind.SELECT, GroupKind.INDIRECT, GroupKind.FAST_FAILOVER)
"""In the order of OpenFlow's numbers."""
BUCKETS: Final = 256
GROUPS: Final = 4096


@dataclass(frozen=True)
class GroupEntry:
    """A group: as the controller told it, and as the datapath is told."""

    kind: int
    told: tuple[Bucket, ...]
    group: Group
    made_ns: int = 0

    @property
    def goes_through(self) -> frozenset[int]:
        """The groups that its buckets send packets to."""
        return frozenset(_next(bucket.actions for bucket in self.told))


def _next(lists: Iterable[tuple[Action, ...]]) -> Iterator[int]:
    return (action.id for actions in lists for action in actions if isinstance(action, ToGroup))


def in_order(actions: Iterable[Action]) -> tuple[Action, ...]:
    """An action set as it is done (5.10): fields first, the last value of each; then the group, or the output if there is none."""
    fields, out = dict[str, Action](), dict[type, Action]()
    for action in actions:
        if isinstance(action, SetField):
            fields[action.name] = action
        else:
            out[type(action)] = action
    last = out.get(ToGroup) or out.get(Output)
    return (*fields.values(), *((last,) if last else ()))


def check_ports(actions: Iterable[Action], ports: AbstractSet[int]) -> None:
    """OpenFlowError for an output to a port that the switch doesn't have."""
    for action in actions:
        if isinstance(action, Output) and isinstance(action.port, int) and action.port not in ports:
            raise OpenFlowError(Refusal.ACTION_BAD_OUT_PORT, f"port {action.port}")


def entry(
    mod: GroupMod, groups: Mapping[int, GroupEntry], ports: AbstractSet[int], made_ns: int
) -> GroupEntry:
    """The group that a message asks for. OpenFlowError with one of the codes for a bad group (7.4.6)."""
    if mod.type >= len(KINDS):
        raise OpenFlowError(Refusal.GROUP_BAD_TYPE, f"type {mod.type}")
    if mod.group > MAX_GROUP:
        raise OpenFlowError(Refusal.GROUP_INVALID, f"group {mod.group:#x}")
    if len(groups) >= GROUPS and mod.group not in groups:
        raise OpenFlowError(Refusal.GROUP_OUT_OF_GROUPS, f"{GROUPS} groups")
    if len(mod.buckets) > BUCKETS:
        raise OpenFlowError(Refusal.GROUP_OUT_OF_BUCKETS, f"{len(mod.buckets)} buckets")
    kind = KINDS[mod.type]
    if kind is GroupKind.INDIRECT and len(mod.buckets) != 1:
        raise OpenFlowError(Refusal.GROUP_INVALID, f"an indirect group of {len(mod.buckets)} buckets")
    for bucket in mod.buckets:
        _check(bucket, kind, groups, ports)
    _check_loops(mod, groups)
    buckets = tuple(
        flow.Bucket(
            in_order(bucket.actions),
            bucket.weight if kind is GroupKind.SELECT else 1,
            bucket.watch_port if kind is GroupKind.FAST_FAILOVER else None,
        )
        for bucket in mod.buckets
    )
    return GroupEntry(mod.type, mod.buckets, Group(mod.group, kind, buckets), made_ns)


def _check(
    bucket: Bucket, kind: GroupKind, groups: Mapping[int, GroupEntry], ports: AbstractSet[int]
) -> None:
    if bucket.weight and kind is not GroupKind.SELECT:
        raise OpenFlowError(Refusal.GROUP_INVALID, f"a weight in a group of kind {kind.value}")
    watches = bucket.watch_port not in {0, PortNumber.ANY}  # Ryu's older examples say 0 for none
    if bucket.watch_group not in {0, ANY_GROUP} or (watches and kind is not GroupKind.FAST_FAILOVER):
        raise OpenFlowError(
            Refusal.GROUP_WATCH_UNSUPPORTED, "ports are watched, and for fast fail-over alone"
        )
    if kind is GroupKind.FAST_FAILOVER and bucket.watch_port not in ports:
        raise OpenFlowError(Refusal.GROUP_BAD_WATCH, f"port {bucket.watch_port:#x}")
    check_ports(bucket.actions, ports)
    for number in _next([bucket.actions]):
        if number not in groups:
            raise OpenFlowError(Refusal.ACTION_BAD_OUT_GROUP, f"group {number}")


def _check_loops(mod: GroupMod, groups: Mapping[int, GroupEntry]) -> None:
    pending, seen = list(_next(bucket.actions for bucket in mod.buckets)), set[int]()
    while pending:
        if (number := pending.pop()) == mod.group:
            raise OpenFlowError(Refusal.GROUP_LOOP, f"group {number} through itself")
        if number not in seen:
            seen.add(number)
            pending += groups[number].goes_through
