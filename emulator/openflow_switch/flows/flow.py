"""Flows and groups as values: which actions a switch applies to which packets."""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Final

from moefabric.emulator.openflow_switch.flows.match import FlowError, Match
from moefabric.emulator.openflow_switch.flows.packet import FIELD_BITS


class ReservedPort(Enum):
    """Outputs that are not ports of the switch (OpenFlow 1.3.5, 4.5)."""

    IN_PORT = "in_port"
    ALL = "all"
    CONTROLLER = "controller"


IN_PORT, ALL, CONTROLLER = ReservedPort.IN_PORT, ReservedPort.ALL, ReservedPort.CONTROLLER
WHOLE_FRAME: Final = 0xFFFF
"""`max_len` that sends a whole frame to the controller (OFPCML_NO_BUFFER)."""


@dataclass(frozen=True)
class Output:
    """Sends the packet to a port number or a reserved port, or `max_len` bytes to the controller.

    A packet leaves by the port where it arrived only with IN_PORT, not with that port's number.
    """

    port: int | ReservedPort
    max_len: int = WHOLE_FRAME

    def __str__(self) -> str:
        return f"output:{self.port if isinstance(self.port, int) else self.port.value}"


REWRITABLE: Final = ("eth_dst", "eth_src", "ip_dscp")


@dataclass(frozen=True)
class SetField:
    """Sets a field of the packet for all following actions."""

    name: str
    value: int

    def __post_init__(self) -> None:
        if self.name not in REWRITABLE:
            raise FlowError(f"set_field {self.name}: only {', '.join(REWRITABLE)} can be set")
        if not 0 <= self.value < 1 << (bits := FIELD_BITS[self.name]):
            raise FlowError(f"set_field {self.name}={self.value:#x}: the field has {bits} bits")

    def __str__(self) -> str:
        return f"set_field:{self.name}={self.value:#x}"


@dataclass(frozen=True)
class ToGroup:
    """Processes the packet by the group with this number."""

    id: int

    def __str__(self) -> str:
        return f"group:{self.id}"


Action = Output | SetField | ToGroup


def group_ids(actions: Iterable[object]) -> Iterator[int]:
    """Yield the numbers of the groups that the actions send packets to."""
    return (action.id for action in actions if isinstance(action, ToGroup))


@lru_cache(maxsize=1024)
def _mask_rank(mask: tuple[int, ...]) -> int:
    return sum(part.bit_count() for part in mask) << 32 | zlib.crc32(repr(mask).encode())


@dataclass(frozen=True)
class Flow:
    """The actions for the packets of a match that match no flow of a higher priority.

    A flow without actions drops its packets.
    """

    match: Match
    priority: int
    actions: tuple[Action, ...] = ()
    cookie: int = 0
    key: "FlowKey" = field(init=False, repr=False, compare=False)
    """Identity of the flow. Flows with equal keys differ in actions only, and share counters."""
    rank: int = field(init=False, repr=False, compare=False)
    """Order of flows: a packet goes to the matching flow of the highest rank.

    The priority decides, then the number of matched bits, then the mask's checksum. OpenFlow
    leaves the choice between flows of equal priority open; all datapaths here agree on it.
    """

    def __post_init__(self) -> None:
        if not 0 <= self.priority <= 0xFFFF:
            raise FlowError(f"flow {self}: priority {self.priority} is not in 0..65535")
        rank = (self.priority + 1) << 41 | _mask_rank(self.match.mask)
        vars(self).update(key=(self.match, self.priority), rank=rank)  # the dataclass is frozen

    @property
    def uses_groups(self) -> bool:
        """Whether an action sends packets to a group."""
        return any(type(action) is ToGroup for action in self.actions)

    def __str__(self) -> str:
        return f"{self.match} @{self.priority} -> {' '.join(map(str, self.actions)) or 'drop'}"


FlowKey = tuple[Match, int]


class GroupType(Enum):
    """How a group uses its buckets (OpenFlow 1.3.5, 5.6.1)."""

    INDIRECT = "indirect"
    """Executes its only bucket."""
    ALL = "all"
    """Executes every bucket, each on a copy of the packet."""
    SELECT = "select"
    """Executes one bucket, chosen by the packet's five-tuple and the buckets' weights."""
    FAST_FAILOVER = "fast-failover"
    """Executes the first bucket whose watched port is up."""


@dataclass(frozen=True)
class Bucket:
    """Actions of a group.

    `weight` applies to select groups, `watch_port` to fast-failover groups (None: always live).
    """

    actions: tuple[Action, ...]
    weight: int = 1
    watch_port: int | None = None


@dataclass(frozen=True)
class Group:
    """A group: alternative or parallel lists of actions."""

    id: int
    kind: GroupType
    buckets: tuple[Bucket, ...]

    def __str__(self) -> str:
        return f"group {self.id} ({self.kind.value}, {len(self.buckets)} buckets)"
