"""Entries of flow tables and of the group table (OpenFlow 1.3.5, 5.2, 5.6 and 6.5)."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from moefabric.core.openflow import constants as ofp
from moefabric.core.openflow.actions import Action, Instructions, Output, group_ids
from moefabric.core.openflow.constants import ErrorCode, GroupType, OpenFlowError, refuse_if
from moefabric.core.openflow.match import Match
from moefabric.core.openflow.messages import Bucket, GroupMod
from moefabric.emulator.openflow_switch.datapath.emissions import ordered_actions
from moefabric.emulator.openflow_switch.datapath.interface import Flow, Group, Groups

MAX_BUCKETS: Final = 256
MAX_GROUPS: Final = 4096


def check_ports(actions: Iterable[Action], ports: AbstractSet[int]) -> None:
    """Raise OpenFlowError for an output to a port that the switch doesn't have."""
    for action in actions:
        if isinstance(action, Output) and ofp.PortNumber.MAX >= action.port not in ports:
            raise OpenFlowError(ErrorCode.ACTION_BAD_OUT_PORT, f"port {action.port}")


def check_groups(actions: Iterable[Action], groups: Groups) -> None:
    """Raise OpenFlowError for a group that the switch doesn't have."""
    for number in group_ids(actions):
        if number not in groups:
            raise OpenFlowError(ErrorCode.ACTION_BAD_OUT_GROUP, f"group {number}")


def new_group(mod: GroupMod, groups: Groups, ports: AbstractSet[int], created_ns: int) -> Group:
    """Build the group that a group-mod asks for.

    Args:
        mod: A group-mod to add or modify a group.
        groups: The groups of the switch by number.
        ports: The ports of the switch.
        created_ns: When the group was added.

    Raises:
        OpenFlowError: With an error code of a failed group-mod (7.4.4).
    """
    count, is_new = len(mod.buckets), mod.group not in groups
    is_full = is_new and len(groups) >= MAX_GROUPS
    refuse_if(mod.type >= len(GroupType), ErrorCode.GROUP_BAD_TYPE, f"type {mod.type}")
    refuse_if(mod.group > ofp.MAX_GROUP, ErrorCode.GROUP_INVALID, f"group {mod.group:#x}")
    refuse_if(is_full, ErrorCode.GROUP_OUT_OF_GROUPS, f"{MAX_GROUPS} groups")
    refuse_if(count > MAX_BUCKETS, ErrorCode.GROUP_OUT_OF_BUCKETS, f"{count} buckets")
    kind, detail = GroupType(mod.type), f"an indirect group of {count} buckets"
    refuse_if(kind is GroupType.INDIRECT and count != 1, ErrorCode.GROUP_INVALID, detail)
    for bucket in mod.buckets:
        _check_bucket(bucket, kind, ports)
        check_groups(bucket.actions, groups)
    group = Group(mod.group, kind, mod.buckets, created_ns)
    reached = list(group.next_groups)
    for number in reached:  # which grows meanwhile
        reached += groups[number].next_groups.difference(reached)
    is_loop = mod.group in reached
    refuse_if(is_loop, ErrorCode.GROUP_LOOP, f"group {mod.group} sends packets to itself")
    return group


def _check_bucket(bucket: Bucket, kind: GroupType, ports: AbstractSet[int]) -> None:
    has_weight, is_failover = bucket.weight > 0, kind is GroupType.FAST_FAILOVER
    detail = f"a weight in a group of type {kind!s}"
    refuse_if(has_weight and kind is not GroupType.SELECT, ErrorCode.GROUP_INVALID, detail)
    # Ryu's older examples write 0 for no port and no group.
    watches_port = bucket.watch_port not in {0, ofp.PortNumber.ANY}
    watches_group = bucket.watch_group not in {0, ofp.ANY_GROUP}
    is_unsupported = watches_group or (watches_port and not is_failover)
    detail = "only fast-failover groups watch ports; groups can't be watched"
    refuse_if(is_unsupported, ErrorCode.GROUP_WATCH_UNSUPPORTED, detail)
    is_absent, detail = bucket.watch_port not in ports, f"port {bucket.watch_port:#x}"
    refuse_if(is_failover and is_absent, ErrorCode.GROUP_BAD_WATCH, detail)
    check_ports(bucket.actions, ports)


_SECOND_NS: Final = 1_000_000_000
_flow = lru_cache(maxsize=16384)(Flow)  # reconfigurations add earlier entries again

EntryKey = tuple[int, int, Match]
"""Identity of a flow entry: table, priority and match."""


class _Fields(NamedTuple):
    serial: int
    table: int
    priority: int
    match: Match
    instructions: Instructions
    cookie: int = 0
    flags: int = 0
    idle_s: int = 0
    hard_s: int = 0
    created_ns: int = 0


class FlowEntry(_Fields):
    """A flow entry of an OpenFlow table.

    `serial` identifies the counters of the entry. Changes of the instructions keep it.
    """

    @property
    def key(self) -> EntryKey:
        """The identity of the entry."""
        return self.table, self.priority, self.match

    @property
    def notifies_removal(self) -> bool:
        """True if the controller asked for a flow-removed message (OFPFF_SEND_FLOW_REM)."""
        return bool(self.flags & ofp.FlowFlag.SEND_FLOW_REM)

    @property
    def is_table_miss(self) -> bool:
        """True if the entry is the table-miss entry of its table (5.4)."""
        return not self.priority and not self.match.masked

    @cached_property
    def flow(self) -> Flow:
        """The flow of the entry if the packet visits no other table."""
        apply, write = self.instructions.apply, self.instructions.write
        actions = (*apply, *ordered_actions(write)) if write else apply
        return _flow(self.match, self.priority, actions)

    def outputs_to(self, port: int, group: int) -> bool:
        """Return whether the entry outputs to the port and the group; ANY stands for all (6.4)."""
        actions = self.instructions.actions
        ports = (action.port for action in actions if isinstance(action, Output))
        has_port = port == ofp.PortNumber.ANY or port in ports
        return has_port and (group == ofp.ANY_GROUP or group in group_ids(actions))

    def expiry(self, used_ns: int) -> tuple[int, ofp.RemovedReason] | None:
        """Return when, and by which timeout, an entry last used at `used_ns` expires."""
        timeouts = (
            (self.created_ns, self.hard_s, ofp.RemovedReason.HARD_TIMEOUT),
            (max(self.created_ns, used_ns), self.idle_s, ofp.RemovedReason.IDLE_TIMEOUT),
        )
        expiries = ((start_ns + s * _SECOND_NS, reason) for start_ns, s, reason in timeouts if s)
        return min(expiries, default=None)
