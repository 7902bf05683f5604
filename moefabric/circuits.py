"""Circuits: which optical NICs are joined by light, and how one joining becomes another."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Self

from moefabric.topology import Fabric, Kind, Nic, Region


class CircuitConflictError(ValueError):
    """NICs that would end more than one circuit."""

    def __init__(self, clashing: Iterable[Nic]) -> None:
        self.clashing = tuple(sorted(clashing))
        super().__init__("more than one circuit would end at " + ", ".join(map(str, self.clashing)))


@dataclass(frozen=True, order=True)
class Circuit:
    """Light between two optical NICs, end to end: `s0/o0~s3/o2`. The lesser NIC comes first, whichever was given first."""

    a: Nic
    b: Nic

    def __post_init__(self) -> None:
        if wires := [nic for nic in (self.a, self.b) if nic.kind is not Kind.OPTICAL]:
            raise ValueError(f"{self.a}~{self.b}: {wires[0]} is not an optical NIC")
        if self.a.server == self.b.server:
            raise ValueError(f"{self.a}~{self.b}: both ends are on {self.a.server}")
        if self.b < self.a:
            first, second = self.b, self.a
            object.__setattr__(self, "a", first)
            object.__setattr__(self, "b", second)

    def __str__(self) -> str:
        return f"{self.a}~{self.b}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The circuit that `s0/o0~s3/o2` names. ValueError where it names none."""
        a, tilde, b = text.partition("~")
        if not tilde:
            raise ValueError(f"{text!r} is not a circuit such as s0/o0~s3/o2")
        return cls(Nic.parse(a), Nic.parse(b))

    @property
    def pair(self) -> tuple[str, str]:
        """The two servers, in the order of the NICs."""
        return self.a.server, self.b.server

    def end_at(self, server: str) -> Nic:
        """The NIC at which it ends on a server. ValueError where it doesn't."""
        for nic in (self.a, self.b):
            if nic.server == server:
                return nic
        raise ValueError(f"{self} doesn't end on {server}")

    def end_across(self, server: str) -> Nic:
        """The NIC at which it ends across from a server. ValueError where it doesn't end on that."""
        return self.b if self.end_at(server) == self.a else self.a


@dataclass(frozen=True)
class CircuitSet:
    """Circuits lit together. A matching: each NIC ends at most one of them."""

    circuits: frozenset[Circuit] = frozenset()

    def __post_init__(self) -> None:
        ends = Counter(chain.from_iterable((c.a, c.b) for c in self.circuits))
        if clashing := [nic for nic, times in ends.items() if times > 1]:
            raise CircuitConflictError(clashing)

    @classmethod
    def of(cls, circuits: Iterable[Circuit | str]) -> Self:
        """The set of circuits given as values or as text."""
        return cls(frozenset(c if isinstance(c, Circuit) else Circuit.parse(c) for c in circuits))

    def __iter__(self) -> Iterator[Circuit]:
        return iter(sorted(self.circuits))

    def __len__(self) -> int:
        return len(self.circuits)

    def __str__(self) -> str:
        return " ".join(map(str, self)) or "no light"

    def between(self, a: str, b: str) -> tuple[Circuit, ...]:
        """The circuits that join two servers, in order."""
        return self._by_pair().get(frozenset((a, b)), ())

    def _by_pair(self) -> dict[frozenset[str], tuple[Circuit, ...]]:
        cached: dict[frozenset[str], tuple[Circuit, ...]] | None = self.__dict__.get("_pairs")
        if cached is None:
            cached = {}
            for circuit in self:
                pair = frozenset(circuit.pair)
                cached[pair] = (*cached.get(pair, ()), circuit)
            object.__setattr__(self, "_pairs", cached)
        return cached

    def towards(self, target: "CircuitSet") -> "Transition":
        """What has to change for `target` to be lit."""
        return Transition(
            teardown=CircuitSet(self.circuits - target.circuits),
            kept=CircuitSet(self.circuits & target.circuits),
            setup=CircuitSet(target.circuits - self.circuits),
        )


@dataclass(frozen=True)
class Transition:
    """A change of light: what goes dark, what stays lit and what lights up."""

    teardown: CircuitSet
    kept: CircuitSet
    setup: CircuitSet

    @property
    def empty(self) -> bool:
        """Whether nothing moves."""
        return not self.teardown.circuits and not self.setup.circuits


def cross_connects(fabric: Fabric, region: Region, circuits: CircuitSet) -> tuple[tuple[int, int], ...]:
    """The circuits as their OCS sees them: (input, output) port pairs, two simplex ones a circuit, sorted.

    Inputs are 1..N, outputs N+1..2N (Polatis user guide's numbering); a NIC on input p is on output N+p.
    """
    assert region.ocs is not None
    n = region.ocs.ports
    ends = ((fabric.ocs_port(c.a), fabric.ocs_port(c.b)) for c in circuits)
    return tuple(sorted(chain.from_iterable(((p, n + q), (q, n + p)) for p, q in ends)))


def seen_circuits(fabric: Fabric, region: Region, connects: Iterable[tuple[int, int]]) -> CircuitSet:
    """The circuits that an OCS's cross-connects make: both directions joined, NICs of two servers behind the ports."""
    assert region.ocs is not None
    n, wired = region.ocs.ports, len(region.servers) * fabric.optical
    seen = {(p, q - n) for p, q in connects if p <= wired and q - n <= wired}
    ends = ((fabric.nic_at(region, p), fabric.nic_at(region, q)) for p, q in seen if p < q and (q, p) in seen)
    return CircuitSet(frozenset(Circuit(a, b) for a, b in ends if a.server != b.server))
