"""Flows: who sends whom how much, and by which NIC; a demand split over light and EPS."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from moefabric import forwarding
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
    """What one server owes another, parted: `light_bytes` over the pair's circuits, `eps_bytes` over the EPS.

    `by_nic` parts the EPS's bytes over the sender's electrical NICs; without it they are spread evenly.
    """

    src: str
    dst: str
    light_bytes: float
    eps_bytes: float
    by_nic: tuple[float, ...] = ()


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
    """A split as flows: light spread evenly over a pair's circuits, the rest evenly over the electrical NICs, or as the share says.

    On a patch panel, what is not for light goes by servers that forward, spread evenly over the sender's NICs that lead there.
    ValueError where a share has bytes for light and its pair has no circuit, or bytes for an EPS or a way that isn't there.
    """
    made: list[Flow] = []
    for share in split:
        lit = circuits.between(share.src, share.dst)
        ends = [c.a if c.a.server == share.src else c.b for c in lit]
        if share.light_bytes > 0 and not ends:
            raise ValueError(
                f"{share.src} has no circuit to {share.dst} for {share.light_bytes:g} bytes by light"
            )
        made += [
            Flow(share.src, share.dst, nic.path, share.light_bytes / len(ends))
            for nic in ends
            if share.light_bytes
        ]
        if share.eps_bytes:
            made += _without_light(fabric, circuits, share)
    return tuple(made)


def _without_light(fabric: Fabric, circuits: CircuitSet, share: Share) -> Iterator[Flow]:
    """A share's bytes that have no circuit of their own."""
    if fabric.panel:
        nics = forwarding.ways(circuits).get((share.src, share.dst), ())
    else:
        nics = fabric.electrical_nics(share.src)
    if not nics:
        lacks = "way over circuits" if fabric.panel else "electrical NIC"
        raise ValueError(f"{share.src} has no {lacks} for {share.eps_bytes:g} bytes to {share.dst}")
    parts = share.by_nic or (share.eps_bytes / len(nics),) * len(nics)
    for nic, part in zip(nics, parts, strict=True):
        if part:
            yield Flow(share.src, share.dst, nic.path, part)
