"""Interface between a switch and a datapath: flows and groups as values, ports, and counters.

A datapath takes flows, and returns counters and packets for the controller.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from moefabric.core.openflow.actions import Action, ToGroup, group_ids
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
        """True if an action sends packets to a group."""
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
    created_ns: int = field(default=0, compare=False)

    @property
    def next_groups(self) -> frozenset[int]:
        """Numbers of the groups that the buckets send packets to."""
        return frozenset(one for bucket in self.buckets for one in group_ids(bucket.actions))

    def __str__(self) -> str:
        return f"group {self.id} ({self.kind!s}, {len(self.buckets)} buckets)"


@dataclass(frozen=True)
class Port:
    """A port of a switch: its number, the name of its interface, and whether it has carrier."""

    number: int
    name: str
    up: bool = True


@dataclass(frozen=True)
class PuntedPacket:
    """A packet that a flow sent to the controller.

    Attributes:
        in_port: The port where it arrived.
        frame: Its first bytes, at most as many as the flow's output action asks for. A datapath may
            truncate it further (OpenFlow 1.3.5, 7.4.1): the kernel's returns at most 16,360 bytes.
        length: Its length in bytes.
        flow: The flow that sent it; None for a packet-out.
    """

    in_port: int
    frame: bytes
    length: int
    flow: FlowKey | None


@dataclass(frozen=True)
class FlowCount:
    """Packets and bytes of a flow, bytes without the frame check sequence.

    A frame before segmentation offload counts as the number of packets that it becomes. Its bytes
    are those of the frame, so the headers of all packets but the first aren't counted.
    """

    packets: int = 0
    bytes: int = 0


Groups = Mapping[int, Group]
Ports = Mapping[int, Port]


class Datapath(Protocol):
    """Forwards the packets of a switch by its flows. One thread makes all calls."""

    @property
    def ports(self) -> Mapping[int, Port]:
        """The ports by number, with the carrier that was reported last."""

    def load(self, flows: Sequence[Flow], groups: Sequence[Group] = ()) -> None:
        """Replace the flows and groups; no packet sees a mixture of old and new.

        The last of several flows with equal keys counts. A flow keeps the counters of a previous
        flow with its key.

        Raises:
            FlowError: If a flow, which the error names, is invalid or doesn't fit. Nothing has
                changed.
        """

    def port_changed(self, number: int, *, up: bool) -> None:
        """Report the carrier of a port, which fast-failover groups follow."""

    def counters(self, keys: Iterable[FlowKey] | None = None) -> Mapping[FlowKey, FlowCount]:
        """Return the counters of flows by key, since a flow with the key was first loaded.

        Args:
            keys: Keys of flows; None for all. Unknown keys are left out.
        """

    def send(self, port: int, frame: bytes) -> None:
        """Send a frame out of a port without any flow (packet-out).

        Raises:
            FlowError: If there is no such port, or the frame can't be sent.
        """

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are punted packets."""

    def received(self) -> Sequence[PuntedPacket]:
        """Take the packets that flows have sent to the controller; never block."""

    def close(self) -> None:
        """Release the datapath's descriptors."""
