"""What lies where in the memory that a switch's program and its owner share, and how a flow is written there.

A packet's key is 40 bytes: its fields as the frame has them, and a last word that is all ones. A mask is 40 bytes that leave of
a key what counts, and of the last word the number of the mask and of its generation: the key of a hash map that holds the
flows of both generations. `select` counts the changes of the table; its lowest bit is the generation in force.
"""

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Final

from emulator.switch.errors import FlowError
from emulator.switch.flow import ALL, CONTROLLER, IN_PORT, Flow
from emulator.switch.match import Match
from emulator.switch.packet import WIDTHS
from emulator.switch.steps import SLOTS, Emission, Groups, Ports, emissions, live, uses_select

KEY: Final = struct.Struct(">I6s6sHHHHIIHHI")
KEY_IN_PORT, KEY_ETH_DST, KEY_ETH_SRC, KEY_ETH_TYPE, KEY_PROTO, KEY_DSCP = 0, 4, 10, 16, 18, 20
KEY_SRC, KEY_DST, KEY_TP_SRC, KEY_TP_DST, KEY_TABLE = 24, 28, 32, 34, 36

MASKS: Final = 16
"""So many different masks may the flows of a switch have: each costs a packet one look-up."""
STEPS: Final = 16
"""So many things may happen to a packet, over all slots of its select groups."""
STEP: Final = struct.Struct("=IIQ")  # kind, slots it is for, argument
VALUE: Final = struct.Struct("=QII")  # rank, place of the counters, whether slots differ; then STEPS steps
VALUE_BYTES: Final = VALUE.size + STEPS * STEP.size
MASK: Final = struct.Struct(f"={KEY.size}sQ")  # mask, and the highest rank under it: 0 ends the masks
COUNTER: Final = struct.Struct("=QQ")
PUNT: Final = struct.Struct(
    "=IIIIII"
)  # in_port, length, place of the flow's counters, max_len, VLAN tag, its protocol
PUNT_BYTES, LARGE_PUNT_BYTES = 2048, 1 << 14
"""Sizes of a record in the ring: of most frames, and of jumbo frames. What is larger yet is cut."""
CLASS_BITS: Final = 16  # that the kernel keeps of a class id
EVERY_SLOT: Final = (1 << SLOTS) - 1


class Kind(IntEnum):
    """What a step does. The argument of a rewriting step is the field as the frame has it, or a number for the DSCP."""

    END = 0
    LAST = 1  # out of a port; nothing follows
    OUTPUT = 2  # a copy out of a port
    BACK = 3  # a copy out of the port it came by
    FLOOD = 4  # a copy out of every other port; nothing follows
    PUNT = 5  # a copy to the controller
    SET_ETH_DST = 6
    SET_ETH_SRC = 7
    SET_DSCP = 8
    RESET_ETH_DST = 9  # as it came
    RESET_ETH_SRC = 10
    RESET_DSCP = 11


_SET: Final = {"eth_dst": Kind.SET_ETH_DST, "eth_src": Kind.SET_ETH_SRC, "ip_dscp": Kind.SET_DSCP}
_RESET: Final = {"eth_dst": Kind.RESET_ETH_DST, "eth_src": Kind.RESET_ETH_SRC, "ip_dscp": Kind.RESET_DSCP}

Step = tuple[Kind, int, int]
"""Kind, the slots it is for as bits, argument."""


@dataclass(frozen=True)
class Layout:
    """Places in the shared memory, in bytes, of a switch with ports 1..`ports` and room for `flows` flows."""

    ports: int
    flows: int

    SELECT = 0  # u32
    EXHAUSTED = 8  # u64: packets that met too many changes in a row, or a full ring
    GENERATIONS = 64

    @property
    def port_bits(self) -> int:
        """How many of a class id's bits are the port's number; those above are the switch's."""
        return self.ports.bit_length()

    @property
    def generation_bytes(self) -> int:
        return MASK.size * MASKS

    def masks(self, generation: int) -> int:
        return self.GENERATIONS + generation * self.generation_bytes

    def interface(self, port: int) -> int:
        return self.masks(2) + port * 4

    def counter(self, place: int) -> int:
        return (self.interface(self.ports + 1) + 15) // 16 * 16 + place * COUNTER.size

    @property
    def places(self) -> int:
        """Where flows count: enough for those of two generations."""
        return 2 * self.flows

    @property
    def length(self) -> int:
        return self.counter(self.places)


_SHIFTS: Final[Mapping[str, int]] = {
    name: (KEY.size - end) * 8
    for name, end in {
        "in_port": 4,
        "eth_dst": 10,
        "eth_src": 16,
        "eth_type": 18,
        "ip_proto": 20,
        "arp_op": 20,
        "ip_dscp": 22,
        "ipv4_src": 28,
        "arp_spa": 28,
        "ipv4_dst": 32,
        "arp_tpa": 32,
        "tp_src": 34,
        "tp_dst": 36,
    }.items()
}
"""Where each field is in a key read as one number. ARP's share their places with IPv4's, for no match asks for both headers."""
_IN_ORDER: Final = tuple(_SHIFTS[name] for name in WIDTHS)


def key_of(match: Match) -> bytes:
    """The match's values as a key, with nothing in the last word."""
    number = 0
    for name, (value, _) in match.masked.items():
        number |= value << _SHIFTS[name]
    return number.to_bytes(KEY.size)


def mask_of(mask: Sequence[int]) -> bytes:
    """A match's mask, its parts in the order of WIDTHS, as a key."""
    return sum(part << shift for part, shift in zip(mask, _IN_ORDER, strict=True)).to_bytes(KEY.size)


def steps(flow: Flow, groups: Groups, ports: Ports) -> tuple[Step, ...]:
    """What happens to the flow's packets. FlowError, naming it, for more than STEPS."""
    is_up = partial(live, ports)
    if not uses_select(flow, groups):
        made = tuple(_sequence(emissions(flow, groups, 0, is_up), EVERY_SLOT, ports))
    else:
        slots: dict[tuple[Emission, ...], int] = {}
        for part in range(SLOTS):
            left = emissions(flow, groups, part, is_up)
            slots[left] = slots.get(left, 0) | 1 << part
        made = tuple(
            itertools.chain.from_iterable(_sequence(left, bits, ports) for left, bits in slots.items())
        )
    if len(made) > STEPS:
        raise FlowError(f"flow {flow}: {len(made)} outputs and rewritings, and there is room for {STEPS}")
    return made


def _one_flood(left: Sequence[Emission], ports: Ports) -> Sequence[Emission]:
    """These emissions with one flood at most, and that at the end, where the program has its loop; others port by port."""
    floods = [i for i, emission in enumerate(left) if emission.port is ALL]
    if not floods:
        return left
    spelt: list[Emission] = []
    for i, emission in enumerate(left):
        if i not in floods:
            spelt.append(emission)
        elif i != floods[-1]:
            spelt += (replace(emission, port=number) for number in sorted(ports))
    return [*spelt, left[floods[-1]]]


def _sequence(emitted: Sequence[Emission], slots: int, ports: Ports) -> Iterator[Step]:
    """The steps that make these emissions of one packet, which is dressed anew only where it has to be."""
    left = _one_flood(emitted, ports)
    dress: dict[str, int] = {}
    for i, emission in enumerate(left):
        wanted = dict(emission.rewritten)
        for name in sorted(dress.keys() - wanted.keys()):
            yield _RESET[name], slots, 0
        for name, value in wanted.items():
            if dress.get(name) != value:
                yield _SET[name], slots, _argument(name, value)
        dress = wanted
        yield _output(emission, slots, last=i == len(left) - 1)


def _argument(name: str, value: int) -> int:
    return value if name == "ip_dscp" else int(struct.unpack("=Q", value.to_bytes(6) + bytes(2))[0])


def _output(emission: Emission, slots: int, *, last: bool) -> Step:
    match emission.port:
        case number if isinstance(number, int):
            return Kind.LAST if last else Kind.OUTPUT, slots, number
        case _ if emission.port is IN_PORT:
            return Kind.BACK, slots, 0
        case _ if emission.port is ALL:
            return Kind.FLOOD, slots, 0
        case _:
            assert emission.port is CONTROLLER
            return Kind.PUNT, slots, emission.max_len


def packed_steps(made: Sequence[Step]) -> tuple[int, bytes]:
    """Whether slots differ, and the steps as the map holds them."""
    differ = any(slots != EVERY_SLOT for _, slots, _ in made)
    return int(differ), b"".join(STEP.pack(*step) for step in made).ljust(STEPS * STEP.size, b"\0")


def value_of(rank: int, place: int, packed: tuple[int, bytes]) -> bytes:
    """A flow as the map holds it, its steps packed."""
    differ, listed = packed
    return VALUE.pack(rank, place, differ) + listed


def packed_masks(tops: Mapping[bytes, int]) -> bytes:
    """A generation of masks, with the highest rank under each: those come first that can outdo the rest."""
    ordered = sorted(tops.items(), key=lambda item: -item[1])
    return b"".join(MASK.pack(mask, top) for mask, top in ordered).ljust(MASK.size * MASKS, b"\0")
