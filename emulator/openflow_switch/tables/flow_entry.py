"""Flow entries: flows with cookie, flags and timeouts (OpenFlow 1.3.5, 5.2)."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from moefabric.core.openflow import constants as ofp
from moefabric.core.openflow.actions import Instructions, Output, group_ids
from moefabric.core.openflow.constants import RemovedReason
from moefabric.core.openflow.match import Match
from moefabric.emulator.openflow_switch.flows.flow import Flow
from moefabric.emulator.openflow_switch.tables.group_entry import ordered_actions

_SECOND_NS: Final = 1_000_000_000
_flow = lru_cache(maxsize=16384)(Flow)  # reconfigurations add earlier entries again

EntryKey = tuple[int, int, Match]
"""Identity of a flow entry: table, priority and match."""


@dataclass(frozen=True)
class FlowEntry:
    """A flow entry of an OpenFlow table.

    `serial` identifies the counters of the entry. Changes of the instructions keep it.
    """

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

    @property
    def key(self) -> EntryKey:
        """The identity of the entry."""
        return self.table, self.priority, self.match

    @property
    def notifies_removal(self) -> bool:
        """Whether the controller asked for a flow-removed message (OFPFF_SEND_FLOW_REM)."""
        return bool(self.flags & ofp.FlowFlag.SEND_FLOW_REM)

    @property
    def is_table_miss(self) -> bool:
        """Whether the entry is the table-miss entry of its table (5.4)."""
        return not self.priority and not self.match.masked

    @cached_property
    def flow(self) -> Flow:
        """The flow of the entry if the packet visits no other table."""
        apply, write = self.instructions.apply, self.instructions.write
        actions = (*apply, *ordered_actions(write)) if write else apply
        return _flow(self.match, self.priority, actions, self.cookie)

    def outputs_to(self, port: int, group: int) -> bool:
        """Whether the entry outputs to the port and the group, each of which may be ANY (6.4)."""
        actions = self.instructions.actions
        ports = (action.port for action in actions if isinstance(action, Output))
        return (port == ofp.PortNumber.ANY or port in ports) and (
            group == ofp.ANY_GROUP or group in group_ids(actions)
        )

    def expiry(self, used_ns: int) -> tuple[int, RemovedReason] | None:
        """Return when, and by which timeout, an entry last used at `used_ns` expires."""
        expiries = list[tuple[int, RemovedReason]]()
        if self.hard_s:
            expiries.append(
                (self.created_ns + self.hard_s * _SECOND_NS, RemovedReason.HARD_TIMEOUT)
            )
        if self.idle_s:
            last_ns = max(self.created_ns, used_ns)
            expiries.append((last_ns + self.idle_s * _SECOND_NS, RemovedReason.IDLE_TIMEOUT))
        return min(expiries, default=None)
