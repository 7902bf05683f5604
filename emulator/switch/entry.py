"""A flow entry: what a flow table of OpenFlow holds of one flow, with its cookie, its flags and its time-outs (OpenFlow 1.3.5, 5.2)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from emulator.switch import openflow_groups as grouping
from emulator.switch.flow import Flow, Output, ToGroup
from emulator.switch.match import Match
from emulator.switch.openflow_actions import NUMBERS, Instructions
from emulator.switch.openflow_numbers import ANY_GROUP, FlowFlag, PortNumber, Removed

_SECOND_NS: Final = 1_000_000_000

Key = tuple[int, int, Match]
"""Table, priority and match: what makes an entry another one."""


@dataclass(frozen=True)
class Entry:
    """A flow entry. `serial` is its own for life, through any change of its instructions; its counters hang on it."""

    serial: int
    table: int
    priority: int
    match: Match
    instructions: Instructions
    cookie: int = 0
    flags: int = 0
    idle_s: int = 0
    hard_s: int = 0
    made_ns: int = 0

    @property
    def key(self) -> Key:
        return self.table, self.priority, self.match

    @property
    def tells(self) -> bool:
        """Whether the controller wants to hear when it goes."""
        return bool(self.flags & FlowFlag.SEND_FLOW_REM)

    @property
    def is_miss(self) -> bool:
        """Whether it is its table's own for packets that nothing else takes (5.4)."""
        return not self.priority and not self.match.masked

    @cached_property
    def flow(self) -> Flow:
        """What the datapath is told of it, if no other table comes into it."""
        done, last = self.instructions.apply, self.instructions.write
        return Flow(
            self.match, self.priority, (*done, *grouping.in_order(last)) if last else done, self.cookie
        )

    def sends_to(self, port: int, group: int) -> bool:
        """Whether it has actions to that port and that group, where they aren't any (6.4)."""
        done = self.instructions.actions
        return (port == PortNumber.ANY or port in _ports(done)) and (
            group == ANY_GROUP or any(isinstance(action, ToGroup) and action.id == group for action in done)
        )

    def ends_ns(self, used_ns: int) -> tuple[int, Removed] | None:
        """When its time is out if it was last used then, and why; None if it has no time-out."""
        ends = [(self.made_ns + self.hard_s * _SECOND_NS, Removed.HARD_TIMEOUT)] if self.hard_s else []
        if self.idle_s:
            last = max(self.made_ns, used_ns)
            ends.append((last + self.idle_s * _SECOND_NS, Removed.IDLE_TIMEOUT))
        return min(ends, default=None)


def _ports(actions: Iterable[object]) -> Iterator[int]:
    for action in actions:
        if isinstance(action, Output):
            yield action.port if isinstance(action.port, int) else NUMBERS[action.port]
