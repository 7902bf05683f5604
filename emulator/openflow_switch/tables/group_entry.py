"""Group entries: checked groups of controllers (OpenFlow 1.3.5, 5.6 and 6.5)."""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from moefabric.core.openflow import constants as ofp
from moefabric.core.openflow.actions import Action, Output, SetField, ToGroup, group_ids
from moefabric.core.openflow.constants import ErrorCode, GroupType, OpenFlowError
from moefabric.core.openflow.messages import Bucket, GroupMod
from moefabric.emulator.openflow_switch.flows.flow import Group

MAX_BUCKETS: Final = 256
MAX_GROUPS: Final = 4096


@dataclass(frozen=True)
class GroupEntry:
    """A group: the buckets that the controller sent, and the datapath's group."""

    buckets: tuple[Bucket, ...]
    group: Group
    created_ns: int = 0

    @property
    def next_groups(self) -> frozenset[int]:
        """Numbers of the groups that the buckets send packets to."""
        return frozenset(_next_groups(self.buckets))


def _next_groups(buckets: Iterable[Bucket]) -> Iterator[int]:
    return (number for bucket in buckets for number in group_ids(bucket.actions))


def ordered_actions(actions: Iterable[Action]) -> tuple[Action, ...]:
    """Return an action set in its order of execution (5.10).

    The last value set for each field comes first, then the group, or the output if there is no
    group.
    """
    fields, outputs = dict[str, Action](), dict[type, Action]()
    for action in actions:
        if isinstance(action, SetField):
            fields[action.name] = action
        else:
            outputs[type(action)] = action
    last = outputs.get(ToGroup) or outputs.get(Output)
    return (*fields.values(), *((last,) if last else ()))


def check_ports(actions: Iterable[Action], ports: AbstractSet[int]) -> None:
    """Raise OpenFlowError for an output to a port that the switch doesn't have."""
    for action in actions:
        if isinstance(action, Output) and ofp.PortNumber.MAX >= action.port not in ports:
            raise OpenFlowError(ErrorCode.ACTION_BAD_OUT_PORT, f"port {action.port}")


def check_groups(actions: Iterable[Action], groups: Mapping[int, GroupEntry]) -> None:
    """Raise OpenFlowError for a group that the switch doesn't have."""
    for number in group_ids(actions):
        if number not in groups:
            raise OpenFlowError(ErrorCode.ACTION_BAD_OUT_GROUP, f"group {number}")


def group_entry(
    mod: GroupMod, groups: Mapping[int, GroupEntry], ports: AbstractSet[int], created_ns: int
) -> GroupEntry:
    """Build the group that a group-mod asks for.

    Args:
        mod: A group-mod to add or modify a group.
        groups: The groups of the switch by number.
        ports: The ports of the switch.
        created_ns: When the group was added.

    Raises:
        OpenFlowError: With an error code of a failed group-mod (7.4.4).
    """
    if mod.type >= len(GroupType):
        raise OpenFlowError(ErrorCode.GROUP_BAD_TYPE, f"type {mod.type}")
    if mod.group > ofp.MAX_GROUP:
        raise OpenFlowError(ErrorCode.GROUP_INVALID, f"group {mod.group:#x}")
    if len(groups) >= MAX_GROUPS and mod.group not in groups:
        raise OpenFlowError(ErrorCode.GROUP_OUT_OF_GROUPS, f"{MAX_GROUPS} groups")
    if (count := len(mod.buckets)) > MAX_BUCKETS:
        raise OpenFlowError(ErrorCode.GROUP_OUT_OF_BUCKETS, f"{count} buckets")
    kind = GroupType(mod.type)
    if kind is GroupType.INDIRECT and count != 1:
        raise OpenFlowError(ErrorCode.GROUP_INVALID, f"an indirect group of {count} buckets")
    for bucket in mod.buckets:
        _check_bucket(bucket, kind, ports)
        check_groups(bucket.actions, groups)
    _check_loops(mod, groups)
    buckets = tuple(
        replace(bucket, actions=ordered_actions(bucket.actions)) for bucket in mod.buckets
    )
    return GroupEntry(mod.buckets, Group(mod.group, kind, buckets), created_ns)


def _check_bucket(bucket: Bucket, kind: GroupType, ports: AbstractSet[int]) -> None:
    if bucket.weight and kind is not GroupType.SELECT:
        raise OpenFlowError(ErrorCode.GROUP_INVALID, f"a weight in a group of type {kind!s}")
    # Ryu's older examples write 0 for no port and no group.
    watches_port = bucket.watch_port not in {0, ofp.PortNumber.ANY}
    watches_group = bucket.watch_group not in {0, ofp.ANY_GROUP}
    if watches_group or (watches_port and kind is not GroupType.FAST_FAILOVER):
        detail = "only fast-failover groups watch ports; groups can't be watched"
        raise OpenFlowError(ErrorCode.GROUP_WATCH_UNSUPPORTED, detail)
    if kind is GroupType.FAST_FAILOVER and bucket.watch_port not in ports:
        raise OpenFlowError(ErrorCode.GROUP_BAD_WATCH, f"port {bucket.watch_port:#x}")
    check_ports(bucket.actions, ports)


def _check_loops(mod: GroupMod, groups: Mapping[int, GroupEntry]) -> None:
    pending, visited = list(_next_groups(mod.buckets)), set[int]()
    while pending:
        if (number := pending.pop()) == mod.group:
            raise OpenFlowError(ErrorCode.GROUP_LOOP, f"group {number} sends packets to itself")
        if number not in visited:
            visited.add(number)
            pending += groups[number].next_groups
