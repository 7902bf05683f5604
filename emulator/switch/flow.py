"""Flows: what a switch does with which packets, as values, and the datapath that is given them.

A packet is thirteen fields. One that a packet lacks reads as zero, so a match must ask for the header that a field is in (OpenFlow
1.3.5, 7.2.3.8). Of a tagged frame, the fields are those behind its first 802.1Q tag; of a later fragment, the transport ports are 0.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Final, Protocol

from moefabric.errors import FabricError

ARP, IPV4, IPV6, VLAN_TAGS = 0x0806, 0x0800, 0x86DD, (0x8100, 0x88A8)
TCP, UDP, SCTP = 6, 17, 132
WITH_PORTS: Final = (TCP, UDP, SCTP)

WIDTHS: Final[Mapping[str, int]] = {
    "in_port": 32,
    "eth_dst": 48,
    "eth_src": 48,
    "eth_type": 16,
    "ipv4_src": 32,
    "ipv4_dst": 32,
    "ip_dscp": 6,
    "ip_proto": 8,
    "tp_src": 16,
    "tp_dst": 16,
    "arp_op": 16,
    "arp_spa": 32,
    "arp_tpa": 32,
}
"""The fields of a packet, with their bits."""

Masked = tuple[int, int]
"""A value and the bits of it that count."""


class FlowError(FabricError):
    """A flow, a group or an action that makes no sense or finds no room; `str()` names it."""


@dataclass(frozen=True)
class Match:
    """The packets a flow is for: each field None (any), or (value, mask). Value bits outside the mask are cleared."""

    in_port: Masked | None = None
    eth_dst: Masked | None = None
    eth_src: Masked | None = None
    eth_type: Masked | None = None
    ipv4_src: Masked | None = None
    ipv4_dst: Masked | None = None
    ip_dscp: Masked | None = None
    ip_proto: Masked | None = None
    tp_src: Masked | None = None
    tp_dst: Masked | None = None
    arp_op: Masked | None = None
    arp_spa: Masked | None = None
    arp_tpa: Masked | None = None

    masked: Mapping[str, Masked] = field(init=False, repr=False, compare=False)
    """The fields that are asked for."""
    mask: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The mask of every field, in the order of WIDTHS; 0 where any value will do."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = vars(self)  # frozen for everybody else
        masked: dict[str, Masked] = {}
        masks = [0] * len(WIDTHS)
        for place, (name, bits) in enumerate(WIDTHS.items()):
            if (held := own[name]) is None:
                continue
            value, mask = held
            if not (0 <= mask < 1 << bits and 0 <= value < 1 << bits):
                raise FlowError(f"match {name}={value:#x}/{mask:#x}: the field has {bits} bits")
            if mask:
                own[name] = masked[name] = value & mask, mask
                masks[place] = mask
            else:
                own[name] = None
        for name in masked:
            self._require(name)
        own.update(masked=masked, mask=tuple(masks), _hash=hash(tuple(masked.items())))

    def __hash__(self) -> int:
        return self._hash  # a table is a dictionary of matches

    def _require(self, name: str) -> None:
        """FlowError unless the match asks for the header that the field is in."""
        if name.startswith("arp") and self.eth_type != (ARP, 0xFFFF):
            raise FlowError(f"match {name} without eth_type={ARP:#06x}")
        if name.startswith("ip") and self.eth_type != (IPV4, 0xFFFF):
            raise FlowError(f"match {name} without eth_type={IPV4:#06x}")
        if name.startswith("tp") and (not self.ip_proto or self.ip_proto not in _EXACT_WITH_PORTS):
            raise FlowError(f"match {name} without ip_proto {', '.join(map(str, WITH_PORTS))}")

    @classmethod
    def of(cls, **wanted: int | Masked) -> "Match":
        """A match by plain numbers, which are exact, or (value, mask)."""
        return cls(
            **{
                name: (value, (1 << WIDTHS[name]) - 1) if isinstance(value, int) else value
                for name, value in wanted.items()
            }
        )

    def fits(self, packet: Mapping[str, int]) -> bool:
        """Whether a packet of these fields (all of WIDTHS, as `fields` gives them) is one of its own."""
        return all(packet[name] & mask == value for name, (value, mask) in self.masked.items())

    def covers(self, other: "Match") -> bool:
        """Whether every packet of `other` is one of its own (OpenFlow's non-strict modify and delete)."""
        return all(
            (theirs := getattr(other, name)) is not None
            and theirs[1] & mask == mask
            and theirs[0] & mask == value
            for name, (value, mask) in self.masked.items()
        )

    def overlaps(self, other: "Match") -> bool:
        """Whether a packet may belong to both (OpenFlow's check-overlap)."""
        return all(
            (theirs := getattr(other, name)) is None or (theirs[0] ^ value) & theirs[1] & mask == 0
            for name, (value, mask) in self.masked.items()
        )

    def __str__(self) -> str:
        return (
            ",".join(
                f"{name}={value:#x}" if mask == (1 << WIDTHS[name]) - 1 else f"{name}={value:#x}/{mask:#x}"
                for name, (value, mask) in self.masked.items()
            )
            or "any"
        )


_EXACT_WITH_PORTS: Final = frozenset((protocol, 0xFF) for protocol in WITH_PORTS)


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


@dataclass(frozen=True)
class Port:
    """A port of a switch: its number, the name of its interface, and whether that has carrier."""

    number: int
    name: str
    up: bool = True


@dataclass(frozen=True)
class Punt:
    """A packet for the controller. `flow` sent it; `frame` is its first bytes, at most `max_len`, of `length` in all.

    A datapath may cut it shorter, as may any switch (OpenFlow 1.3.5, 7.4.1): the kernel's gives 16,360 bytes at most.
    """

    in_port: int
    frame: bytes
    length: int
    flow: FlowKey
    max_len: int


@dataclass(frozen=True)
class Count:
    """Packets and bytes of frames, without their checksum on the wire.

    What a host leaves to segmentation offload counts as the packets that it would be cut into, and with its bytes as handed over: the headers of
    all but the first are not in them.
    """

    packets: int = 0
    bytes: int = 0


class Datapath(Protocol):
    """What moves a switch's packets by its flows. Calls come from one thread."""

    @property
    def ports(self) -> Mapping[int, Port]: ...

    def load(self, flows: Sequence[Flow], groups: Sequence[Group] = ()) -> None:
        """The table becomes this one: each packet meets all of the old or all of the new. FlowError, naming the flow, changes nothing."""
        ...

    def port_changed(self, number: int, *, up: bool) -> None:
        """Tell of a port's carrier; fast-failover groups follow."""
        ...

    def counters(self, of: Iterable[FlowKey] | None = None) -> Mapping[FlowKey, Count]:
        """Of every flow in the table since it came in; or of these, those that are in the table. A flow of the same key keeps its count through any load."""
        ...

    def send(self, port: int, frame: bytes) -> None:
        """A frame out of a port, by no flow (packet-out). FlowError if there is no such port."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when `received` has something, for epoll."""
        ...

    def received(self) -> Sequence[Punt]:
        """What flows have sent to the controller since the last call. Never waits."""
        ...

    def close(self) -> None: ...


def fields(frame: bytes, in_port: int) -> dict[str, int]:
    """The fields of a frame that came in by a port, all of WIDTHS; and of IPv6, `ipv6`: both addresses as one number, source first."""
    found = dict.fromkeys(WIDTHS, 0)
    found["in_port"] = in_port
    if len(frame) < 14:
        return found
    if int.from_bytes(frame[12:14]) in VLAN_TAGS and len(frame) >= 18:
        frame = frame[:12] + frame[16:]
    found["eth_dst"], found["eth_src"] = int.from_bytes(frame[:6]), int.from_bytes(frame[6:12])
    found["eth_type"] = int.from_bytes(frame[12:14])
    if found["eth_type"] == IPV4:
        found |= _ipv4_fields(frame[14:])
    if found["eth_type"] == IPV6 and len(frame) >= 14 + 40:
        found["ipv6"] = int.from_bytes(frame[22:54])
    if found["eth_type"] == ARP and len(frame) >= 14 + 28:
        found["arp_op"] = int.from_bytes(frame[20:22])
        found["arp_spa"], found["arp_tpa"] = int.from_bytes(frame[28:32]), int.from_bytes(frame[38:42])
    return found


def _ipv4_fields(packet: bytes) -> dict[str, int]:
    if len(packet) < 20:
        return {}
    found = {
        "ip_dscp": packet[1] >> 2,
        "ip_proto": packet[9],
        "ipv4_src": int.from_bytes(packet[12:16]),
        "ipv4_dst": int.from_bytes(packet[16:20]),
    }
    start = (packet[0] & 0x0F) * 4
    later_fragment = int.from_bytes(packet[6:8]) & 0x1FFF
    if packet[9] in WITH_PORTS and not later_fragment and len(packet) >= start + 4:
        found["tp_src"] = int.from_bytes(packet[start : start + 2])
        found["tp_dst"] = int.from_bytes(packet[start + 2 : start + 4])
    return found
