"""Layout of the memory that the switch's program shares with its owner, and of flows in maps.

A packet's key has 40 bytes: the packet's fields in network order, and a last word of ones. A mask
has 40 bytes too: it selects the matched bits of the fields, and its last word holds the numbers of
the mask and of its generation. The bitwise AND of key and mask is looked up in a hash map that
holds the flows of both generations. `select` counts the changes of the table; its lowest bit is the
active generation.
"""

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import Final

from moefabric.core.openflow.constants import PortNumber
from moefabric.core.openflow.match import FIELD_BITS, FlowError, Match
from moefabric.emulator.openflow_switch.datapath.emissions import SLOTS, Emission, emissions
from moefabric.emulator.openflow_switch.datapath.interface import Flow, Groups, Ports

KEY_BYTES: Final = 40
_PREFIX_BYTES: Final = 36  # of a key without its last word
MAX_MASKS: Final = 16
"""Maximum number of different masks of a switch's flows; each costs a packet one lookup."""
MAX_STEPS: Final = 16
"""Maximum number of steps of a flow, over all slots of its select groups."""
STEP: Final = struct.Struct("=IIQ")  # kind, slots, argument
VALUE: Final = struct.Struct("=QII")  # rank, index of the counters, whether slots differ
VALUE_BYTES: Final = VALUE.size + MAX_STEPS * STEP.size
MASK: Final = struct.Struct(f"={KEY_BYTES}sQ")  # mask, its highest rank; rank 0 ends the masks
COUNTER: Final = struct.Struct("=QQ")
PUNT: Final = struct.Struct("=IIIIII")
"""in_port, length, index of the flow's counters, max_len, VLAN tag, protocol of the tag."""
PUNT_BYTES, LARGE_PUNT_BYTES = 2048, 1 << 14
"""Sizes of ring records, for most frames and for jumbo frames; larger frames are truncated."""
RING_BYTES: Final = 1 << 17  # a power of two, of pages; the kernel has rings since Linux 5.8
EVERY_SLOT: Final = (1 << SLOTS) - 1


class KeyOffset(IntEnum):
    """Offsets of fields in a key, in bytes. ARP fields and IPv4 fields share offsets."""

    IN_PORT = 0
    ETH_DST = 4
    ETH_SRC = 10
    ETH_TYPE = 16
    ARP_OP = 18
    IP_PROTO = 19
    IP_DSCP = 21
    IPV4_SRC = ARP_SPA = 24
    IPV4_DST = ARP_TPA = 28
    TP_SRC = 32
    TP_DST = 34
    LAST_WORD = 36


_SHIFTS: Final = {
    name: (_PREFIX_BYTES - KeyOffset[name.upper()] - (bits + 7) // 8) * 8
    for name, bits in FIELD_BITS.items()
}
"""Bit position of each field in a key without its last word, read as one number."""


class StepKind(IntEnum):
    """Kind of a step.

    The argument is a port, a length in bytes, a MAC address in network order or a DSCP.
    """

    END = 0
    LAST = 1  # moves the frame to a port; ends the program
    OUTPUT = 2  # copies it to a port
    BACK = 3  # copies it to the port where it arrived
    FLOOD = 4  # copies it to every other port; ends the program
    PUNT = 5  # copies it to the controller
    SET_ETH_DST = 6
    SET_ETH_SRC = 7
    SET_DSCP = 8
    RESET_ETH_DST = 9  # to the value on arrival
    RESET_ETH_SRC = 10
    RESET_DSCP = 11


_SET: Final = {
    "eth_dst": (StepKind.SET_ETH_DST, StepKind.RESET_ETH_DST),
    "eth_src": (StepKind.SET_ETH_SRC, StepKind.RESET_ETH_SRC),
    "ip_dscp": (StepKind.SET_DSCP, StepKind.RESET_DSCP),
}

_OUTPUTS: Final[Mapping[int, StepKind]] = {
    PortNumber.CONTROLLER: StepKind.PUNT,
    PortNumber.IN_PORT: StepKind.BACK,
    PortNumber.ALL: StepKind.FLOOD,
}
"""Steps of outputs to reserved ports."""

Step = tuple[StepKind, int, int]
"""Kind, the slots that it applies to as bits, argument."""


@dataclass(frozen=True)
class MemoryLayout:
    """Byte offsets in the shared memory of a switch.

    Attributes:
        ports: The switch has ports 1 to `ports`.
        flows: Maximum number of flows of the switch.
    """

    ports: int
    flows: int

    SELECT = 0  # u32
    GENERATIONS = 64

    @property
    def generation_bytes(self) -> int:
        """Length of the masks of a generation."""
        return MASK.size * MAX_MASKS

    def masks(self, generation: int) -> int:
        """Offset of the masks of a generation."""
        return self.GENERATIONS + generation * self.generation_bytes

    def interface(self, port: int) -> int:
        """Offset of the interface index of a port (u32)."""
        return self.masks(2) + port * 4

    def counter(self, index: int) -> int:
        """Offset of a flow's counters."""
        return (self.interface(self.ports + 1) + 15) // 16 * 16 + index * COUNTER.size

    @property
    def counters(self) -> int:
        """Number of counters: enough for the flows of two generations."""
        return 2 * self.flows

    @property
    def length(self) -> int:
        """Length of the memory."""
        return self.counter(self.counters)


@lru_cache(maxsize=16384)  # reconfigurations reuse earlier circuits, and so earlier matches
def match_key(match: Match) -> bytes:
    """Return the values of a match as a key without its last word."""
    number = 0
    for name, (value, _) in match.masked.items():
        number |= value << _SHIFTS[name]
    return number.to_bytes(_PREFIX_BYTES)


def mask_key(mask: Sequence[int]) -> bytes:
    """Return the mask of a match (`Match.mask`) as a key without its last word."""
    parts = zip(mask, _SHIFTS.values(), strict=True)
    return sum(part << shift for part, shift in parts).to_bytes(_PREFIX_BYTES)


def flow_steps(flow: Flow, groups: Groups, ports: Ports) -> tuple[Step, ...]:
    """Return the steps of a flow's packets.

    Raises:
        FlowError: If the flow, which the error names, has too many steps or an invalid group.
    """
    slots: dict[tuple[Emission, ...], int] = {}
    for slot in range(SLOTS if flow.uses_groups else 1):
        emitted = emissions(flow, groups, slot, ports)
        slots[emitted] = slots.get(emitted, 0) | 1 << slot
    if len(slots) == 1:
        slots = dict.fromkeys(slots, EVERY_SLOT)
    sequences = (_sequence(emitted, bits, ports) for emitted, bits in slots.items())
    steps = tuple(itertools.chain.from_iterable(sequences))
    if (count := len(steps)) > MAX_STEPS:
        raise FlowError(f"flow {flow}: {count} outputs and rewrites, the limit is {MAX_STEPS}")
    return steps


def _with_one_flood(emitted: tuple[Emission, ...], ports: Ports) -> tuple[Emission, ...]:
    """Move the last flood to the end, where the program can loop; expand others to ports."""
    floods = [i for i, emission in enumerate(emitted) if emission.port == PortNumber.ALL]
    if not floods:
        return emitted
    listed: list[Emission] = []
    for i, emission in enumerate(emitted[: floods[-1]] + emitted[floods[-1] + 1 :]):
        numbers = sorted(ports) if i in floods[:-1] else [emission.port]
        listed += (replace(emission, port=number) for number in numbers)
    return (*listed, emitted[floods[-1]])


def _sequence(emitted: tuple[Emission, ...], slots: int, ports: Ports) -> Iterator[Step]:
    """Return the steps that emit copies of one packet, with as few rewrites as possible."""
    ordered = _with_one_flood(emitted, ports)
    fields: dict[str, int] = {}
    for i, emission in enumerate(ordered):
        rewrites = dict(emission.rewrites)
        for name in sorted(fields.keys() - rewrites.keys()):
            yield _SET[name][1], slots, 0
        for name, value in rewrites.items():
            if fields.get(name) != value:
                yield _SET[name][0], slots, _argument(name, value)
        fields = rewrites
        to_port = StepKind.LAST if i == len(ordered) - 1 else StepKind.OUTPUT
        kind = _OUTPUTS.get(emission.port, to_port)
        arguments = {to_port: emission.port, StepKind.PUNT: emission.max_len}
        yield kind, slots, arguments.get(kind, 0)


def _argument(name: str, value: int) -> int:
    return value if name == "ip_dscp" else int(struct.unpack("=Q", value.to_bytes(6) + bytes(2))[0])


def packed_steps(steps: Sequence[Step]) -> tuple[int, bytes]:
    """Return whether slots differ, and the steps in the encoding of the map."""
    differ = any(slots != EVERY_SLOT for _, slots, _ in steps)
    packed = b"".join(STEP.pack(*step) for step in steps)
    return int(differ), packed.ljust(MAX_STEPS * STEP.size, b"\0")


def packed_masks(ranks: Mapping[bytes, int]) -> bytes:
    """Return the masks of a generation in descending order of their highest ranks."""
    ordered = sorted(ranks.items(), key=lambda item: -item[1])
    packed = b"".join(MASK.pack(mask, rank) for mask, rank in ordered)
    return packed.ljust(MASK.size * MAX_MASKS, b"\0")
