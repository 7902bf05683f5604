"""Flows and groups as values: which actions a switch applies to which packets."""

import zlib
from dataclasses import dataclass, field
from functools import lru_cache

from moefabric.core.openflow.actions import Action, ToGroup
from moefabric.core.openflow.constants import GroupType
from moefabric.core.openflow.match import FlowError, Match
from moefabric.core.openflow.messages import Bucket


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


@dataclass(frozen=True)
class Group:
    """A group: alternative or parallel lists of actions."""

    id: int
    kind: GroupType
    buckets: tuple[Bucket, ...]

    def __str__(self) -> str:
        return f"group {self.id} ({self.kind!s}, {len(self.buckets)} buckets)"
