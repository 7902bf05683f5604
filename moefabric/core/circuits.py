"""Circuits between optical NICs, sets of them, and transitions from one set to another."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple, Self

from moefabric.core.nic import Nic, NicKind
from moefabric.core.topology import Fabric, Region


class CircuitConflictError(ValueError):
    """More than one circuit would end at each NIC of `nics`."""

    def __init__(self, nics: Iterable[Nic]) -> None:
        self.nics = tuple(sorted(nics))
        super().__init__("more than one circuit would end at " + ", ".join(map(str, self.nics)))


class _Ends(NamedTuple):
    a: Nic
    b: Nic


class Circuit(_Ends):
    """Light between two optical NICs, end to end: `s0/o0~s3/o2`.

    `a` is the lesser NIC, whichever was given first.

    Example:
        >>> circuit = Circuit.parse("s3/o2~s0/o0")
        >>> str(circuit), circuit.pair
        ('s0/o0~s3/o2', ('s0', 's3'))

    Raises:
        ValueError: If a NIC isn't optical, or if both are on one server.
    """

    __slots__ = ()

    def __new__(cls, a: Nic, b: Nic) -> Self:
        """Return the circuit between two NICs."""
        if electrical := [nic for nic in (a, b) if nic.kind is not NicKind.OPTICAL]:
            raise ValueError(f"{a}~{b}: {electrical[0]} is not an optical NIC")
        if a.server == b.server:
            raise ValueError(f"{a}~{b}: both ends are on {a.server}")
        return super().__new__(cls, *sorted((a, b)))

    @lru_cache(maxsize=1 << 16)  # noqa: B019 - a value; replies name the same circuits often
    def __str__(self) -> str:
        return f"{self.a}~{self.b}"

    @classmethod
    @lru_cache(maxsize=1 << 16)
    def parse(cls, text: str) -> Self:
        """Return the circuit with this name.

        Args:
            text: Such as `s0/o0~s3/o2`.

        Raises:
            ValueError: If the text names no circuit.
        """
        a, tilde, b = text.partition("~")
        fault = f"{text!r} is not a circuit such as s0/o0~s3/o2"
        if not tilde:
            raise ValueError(fault)
        try:
            ends = Nic.parse(a), Nic.parse(b)
        except ValueError as error:
            raise ValueError(f"{fault}: {error}") from error
        return cls(*ends)

    @property
    def pair(self) -> tuple[str, str]:
        """The two servers, in the order of the NICs."""
        return self.a.server, self.b.server

    @property
    def directions(self) -> tuple[tuple[Nic, Nic], tuple[Nic, Nic]]:
        """The two directions, each as (sending NIC, receiving NIC)."""
        return (self.a, self.b), (self.b, self.a)

    def end_at(self, server: str) -> Nic:
        """Return the end on a server.

        Raises:
            ValueError: If the circuit doesn't end on the server.
        """
        if server not in self.pair:
            raise ValueError(f"{self} doesn't end on {server}")
        return self.a if self.a.server == server else self.b

    def far_end(self, server: str) -> Nic:
        """Return the end opposite to a server.

        Raises:
            ValueError: If the circuit doesn't end on the server.
        """
        return self.b if self.end_at(server) == self.a else self.a


_circuit = lru_cache(maxsize=1 << 16)(Circuit)  # reconfigurations repeat circuits


@dataclass(frozen=True)
class CircuitSet:
    """Circuits that are lit together. At most one circuit ends at each NIC.

    Iteration and the text form are in sorted order.

    Example:
        >>> lit = CircuitSet.of(["s0/o0~s1/o0", "s2/o0~s3/o0"])
        >>> target = CircuitSet.of(["s0/o0~s2/o1", "s2/o0~s3/o0"])
        >>> change = lit.transition_to(target)
        >>> str(change.teardown), str(change.kept), str(change.setup)
        ('s0/o0~s1/o0', 's2/o0~s3/o0', 's0/o0~s2/o1')

    Raises:
        CircuitConflictError: If several circuits would end at one NIC.
    """

    circuits: frozenset[Circuit] = frozenset()

    def __post_init__(self) -> None:
        if len(self.nics) < 2 * len(self.circuits):
            ends = Counter(nic for c in self.circuits for nic in (c.a, c.b))
            raise CircuitConflictError(nic for nic, times in ends.items() if times > 1)

    @classmethod
    def of(cls, circuits: Iterable[Circuit | str]) -> Self:
        """Return a set of circuits that are given as values or as text (`s0/o0~s3/o2`)."""
        return cls(frozenset(c if isinstance(c, Circuit) else Circuit.parse(c) for c in circuits))

    def __iter__(self) -> Iterator[Circuit]:
        return iter(self._sorted)

    @cached_property
    def _sorted(self) -> tuple[Circuit, ...]:
        return tuple(sorted(self.circuits))

    def __len__(self) -> int:
        return len(self.circuits)

    def __and__(self, other: "CircuitSet") -> "CircuitSet":
        """Return the circuits that are in both sets."""
        return self._part(self.circuits & other.circuits)

    def __sub__(self, other: "CircuitSet") -> "CircuitSet":
        """Return the circuits that are not in another set."""
        return self._part(self.circuits - other.circuits)

    def _part(self, circuits: frozenset[Circuit]) -> "CircuitSet":
        """Return a set of some of these circuits, in which no NIC needs to be looked for twice."""
        if len(circuits) == len(self.circuits):
            return self
        part = object.__new__(CircuitSet)
        part.__dict__["circuits"] = circuits
        return part

    def __str__(self) -> str:
        return " ".join(map(str, self)) or "no light"

    @cached_property
    def nics(self) -> frozenset[Nic]:
        """The NICs at which the circuits end."""
        return frozenset([nic for c in self.circuits for nic in (c.a, c.b)])

    def without_nics(self, nics: Collection[Nic]) -> "CircuitSet":
        """Return the circuits that end at none of these NICs."""
        if self.nics.isdisjoint(nics):
            return self
        return self._part(
            frozenset(c for c in self.circuits if c.a not in nics and c.b not in nics)
        )

    def between(self, a: str, b: str) -> tuple[Circuit, ...]:
        """Return the circuits between two servers, sorted."""
        return self._by_pair.get((a, b), ())

    @cached_property
    def _by_pair(self) -> dict[tuple[str, str], tuple[Circuit, ...]]:
        by_pair: dict[tuple[str, str], tuple[Circuit, ...]] = {}
        for circuit in self:
            a, b = circuit.pair
            by_pair[a, b] = by_pair[b, a] = (*by_pair.get((a, b), ()), circuit)
        return by_pair

    def transition_to(self, target: "CircuitSet") -> "Transition":
        """Return the transition from these circuits to `target`."""
        return Transition(teardown=self - target, kept=self & target, setup=target - self)


@dataclass(frozen=True)
class Transition:
    """A change of circuits, as set differences.

    Attributes:
        teardown: Circuits that go dark.
        kept: Circuits that stay lit.
        setup: Circuits that light up.
    """

    teardown: CircuitSet
    kept: CircuitSet
    setup: CircuitSet

    @property
    def is_empty(self) -> bool:
        """True if nothing changes."""
        return not self.teardown.circuits and not self.setup.circuits


def cross_connects(
    fabric: Fabric, region: Region, circuits: CircuitSet
) -> tuple[tuple[int, int], ...]:
    """Return the cross-connects that form circuits on their OCS.

    Inputs are numbered 1..N and outputs N+1..2N, as in the Polatis user guide. A region's NICs
    begin at the OCS's `first_port`. A NIC on input p is also on output N+p. A circuit is two
    simplex cross-connects.

    Args:
        region: A region with an OCS.
        circuits: Circuits of the region.

    Returns:
        (input, output) port pairs, sorted.
    """
    n, first = fabric.ocses[region].ports, fabric.ocses[region].first_port
    before = {server: first + fabric.optical * i for i, server in enumerate(region.servers)}
    ends = [(before[a.server] + a.index, before[b.server] + b.index) for a, b in circuits.circuits]
    return tuple(sorted(chain.from_iterable([((p, n + q), (q, n + p)) for p, q in ends])))


def circuits_from_cross_connects(
    fabric: Fabric, region: Region, connects: Iterable[tuple[int, int]]
) -> CircuitSet:
    """Return the circuits that an OCS's cross-connects form.

    A circuit needs cross-connects in both directions, between NICs of two servers.

    Args:
        region: A region with an OCS.
        connects: (input, output) port pairs, numbered as in `cross_connects`.
    """
    n, first = fabric.ocses[region].ports, fabric.ocses[region].first_port
    nics = [nic for server in region.servers for nic in fabric.optical_nics(server)]
    wired = range(first, first + len(nics))
    inputs = {(p, q - n) for p, q in connects if p in wired and q - n in wired}
    ends = [(nics[p - first], nics[q - first]) for p, q in inputs if p < q and (q, p) in inputs]
    return CircuitSet(frozenset([_circuit(a, b) for a, b in ends if a.server != b.server]))
