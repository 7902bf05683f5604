"""Flows: who sends whom how much, and by which NIC; a demand split over light and EPS."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from moefabric.circuits import CircuitSet
from moefabric.topology import Fabric


@dataclass(frozen=True, order=True)
class Flow:
    """Bytes that one server sends another by one path: the sender's NIC (`o1`, `e0`)."""

    src: str
    dst: str
    path: str
    bytes: float

    @property
    def by_light(self) -> bool:
        """Whether it leaves by an optical NIC."""
        return self.path[0] == "o"


@dataclass(frozen=True, order=True)
class Share:
    """What one server owes another, parted: `light_bytes` over the pair's circuits, `eps_bytes` over the EPS."""

    src: str
    dst: str
    light_bytes: float
    eps_bytes: float


@dataclass(frozen=True)
class Split:
    """Which share of each pair's bytes goes by which light, and which by the EPS."""

    shares: tuple[Share, ...]

    def __iter__(self) -> Iterator[Share]:
        return iter(self.shares)

    @property
    def light_bytes(self) -> float:
        """All bytes that go by light."""
        return sum(share.light_bytes for share in self.shares)

    @property
    def eps_bytes(self) -> float:
        """All bytes that go by the EPS."""
        return sum(share.eps_bytes for share in self.shares)


def flows(fabric: Fabric, circuits: CircuitSet, split: Iterable[Share]) -> tuple[Flow, ...]:
    """A split as flows: light spread evenly over a pair's circuits, the rest evenly over the electrical NICs.

    ValueError where a share has bytes for light and its pair has no circuit, or bytes for an EPS that isn't there.
    """
    made: list[Flow] = []
    for share in split:
        lit = circuits.between(share.src, share.dst)
        ends = [c.a if c.a.server == share.src else c.b for c in lit]
        if share.light_bytes > 0 and not ends:
            raise ValueError(
                f"{share.src} has no circuit to {share.dst} for {share.light_bytes:g} bytes by light"
            )
        if share.eps_bytes > 0 and not fabric.electrical:
            raise ValueError(
                f"{share.src} has no electrical NIC for {share.eps_bytes:g} bytes to {share.dst}"
            )
        made += [
            Flow(share.src, share.dst, nic.path, share.light_bytes / len(ends))
            for nic in ends
            if share.light_bytes
        ]
        wires = fabric.electrical_nics(share.src)
        made += [
            Flow(share.src, share.dst, nic.path, share.eps_bytes / len(wires))
            for nic in wires
            if share.eps_bytes
        ]
    return tuple(made)
