"""Flows and groups as values: what a switch does with which packets."""

import zlib
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Final

from emulator.switch.errors import FlowError
from emulator.switch.match import Match
from emulator.switch.packet import WIDTHS


class Reserved(Enum):
    """Outputs that are no port of the switch (OpenFlow 1.3.5, 4.5)."""

    IN_PORT = "in_port"
    ALL = "all"
    CONTROLLER = "controller"


IN_PORT, ALL, CONTROLLER = Reserved.IN_PORT, Reserved.ALL, Reserved.CONTROLLER
WHOLE: Final = 0xFFFF
"""`max_len` for a whole frame to the controller."""


@dataclass(frozen=True)
class Output:
    """Out of a port, by number; back where it came from; out of all ports but that; or `max_len` bytes to the controller.

    A port's own number is no way back to it: that takes IN_PORT.
    """

    port: int | Reserved
    max_len: int = WHOLE

    def __str__(self) -> str:
        return f"output:{self.port if isinstance(self.port, int) else self.port.value}"


REWRITABLE: Final = ("eth_dst", "eth_src", "ip_dscp")


@dataclass(frozen=True)
class SetField:
    """From here on the packet's field has another value."""

    name: str
    value: int

    def __post_init__(self) -> None:
        if self.name not in REWRITABLE:
            raise FlowError(f"set_field {self.name}: only {', '.join(REWRITABLE)} can be set")
        if not 0 <= self.value < 1 << WIDTHS[self.name]:
            raise FlowError(f"set_field {self.name}={self.value:#x}: the field has {WIDTHS[self.name]} bits")

    def __str__(self) -> str:
        return f"set_field:{self.name}={self.value:#x}"


@dataclass(frozen=True)
class ToGroup:
    """Through the group of that number."""

    id: int

    def __str__(self) -> str:
        return f"group:{self.id}"


Action = Output | SetField | ToGroup


@lru_cache(maxsize=1024)
def _mask_rank(mask: tuple[int, ...]) -> int:
    return sum(part.bit_count() for part in mask) << 32 | zlib.crc32(repr(mask).encode())


@dataclass(frozen=True)
class Flow:
    """What becomes of the packets of a match that no flow of a higher priority takes. No action drops them."""

    match: Match
    priority: int
    actions: tuple[Action, ...] = ()
    cookie: int = 0
    key: "FlowKey" = field(init=False, repr=False, compare=False)
    """What makes it another flow, rather than the same flow with other actions. Its counters hang on this."""
    rank: int = field(init=False, repr=False, compare=False)
    """Of the flows that fit, the highest of this wins: priority, then more bits matched, then anything fixed.

    OpenFlow leaves the choice between flows of one priority open; every datapath here makes the same one.
    """

    def __post_init__(self) -> None:
        if not 0 <= self.priority <= 0xFFFF:
            raise FlowError(f"flow {self}: priority {self.priority} is not in 0..65535")
        rank = (self.priority + 1) << 41 | _mask_rank(self.match.mask)
        vars(self).update(key=(self.match, self.priority), rank=rank)  # frozen for everybody else

    @property
    def through_groups(self) -> bool:
        return any(type(action) is ToGroup for action in self.actions)

    def __str__(self) -> str:
        return f"{self.match} @{self.priority} -> {' '.join(map(str, self.actions)) or 'drop'}"


FlowKey = tuple[Match, int]


class GroupKind(Enum):
    """How a group uses its buckets (OpenFlow 1.3.5, 5.6.1)."""

    INDIRECT = "indirect"
    """the one it has"""
    ALL = "all"
    """every one, each on a copy of the packet"""
    SELECT = "select"
    """one, by the packet's five-tuple and the buckets' weights"""
    FAST_FAILOVER = "fast-failover"
    """the first whose watched port is up"""


@dataclass(frozen=True)
class Bucket:
    """Actions of a group. `weight` counts for select, `watch_port` for fast-failover (None: always live)."""

    actions: tuple[Action, ...]
    weight: int = 1
    watch_port: int | None = None


@dataclass(frozen=True)
class Group:
    """Several ways for packets that are sent through it."""

    id: int
    kind: GroupKind
    buckets: tuple[Bucket, ...]

    def __str__(self) -> str:
        return f"group {self.id} ({self.kind.value}, {len(self.buckets)} buckets)"
