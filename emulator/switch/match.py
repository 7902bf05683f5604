"""A match: the packets that a flow is for.

A packet's field that it lacks reads as zero, so a match must ask for the header that a field is in (OpenFlow 1.3.5, 7.2.3.8).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from emulator.switch.errors import FlowError
from emulator.switch.packet import ARP, IPV4, WIDTHS, WITH_PORTS

Masked = tuple[int, int]
"""A value and the bits of it that count."""


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
