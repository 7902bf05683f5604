"""Matchings: which inputs of an optical switch are joined to which outputs, and how one matching becomes another."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Self

from emulator.light import Ports

Pair = tuple[int, int]  # input port, output port


class Busy(Enum):
    """What `add` does with a port that is joined already. Real devices differ, and their manuals are silent."""

    MOVE = "move"
    """The older cross-connect of either port gives way."""
    REFUSE = "refuse"
    """The command is refused, and nothing moves."""


class Refusal(Enum):
    """What kind of wrong a refusal is; what it is called is the protocol's affair."""

    NO_SUCH_PORT = "no such port"
    CONFLICT = "conflict"
    NOT_CONNECTED = "not connected"
    MISMATCH = "mismatch"
    FAILED = "failed"
    """A port of it is out of order, or is disabled where that counts."""
    DENIED = "denied"
    """The device says no, whatever is asked."""
    HARDWARE = "hardware"
    """The mirrors did not move."""


class RefusedError(ValueError):
    """A change that the switch will not make; nothing has changed."""

    def __init__(self, kind: Refusal, why: str) -> None:
        self.kind = kind
        super().__init__(why)


@dataclass(frozen=True)
class CrossConnects:
    """A partial matching of inputs 1..N with outputs N+1..N+M. Changes give a new one, or say what is wrong with them."""

    ports: Ports
    joined: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self.ports, list(self.joined.items()))
        object.__setattr__(self, "joined", dict(sorted(self.joined.items())))

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.joined.items())

    @cached_property
    def by_output(self) -> Mapping[int, Pair]:
        """The cross-connect of each output that has one."""
        return {q: (p, q) for p, q in self}

    def __len__(self) -> int:
        return len(self.joined)

    def __str__(self) -> str:
        return " ".join(f"{p}-{q}" for p, q in self) or "nothing joined"

    def add(self, pairs: Collection[Pair], busy: Busy = Busy.MOVE) -> Self:
        """These pairs joined as well; `busy` says what becomes of other cross-connects of their ports."""
        _check(self.ports, pairs)
        inputs, outputs = {p for p, _ in pairs}, {q for _, q in pairs}
        in_the_way = {(p, q) for p, q in self if (p in inputs or q in outputs)} - set(pairs)
        if in_the_way and busy is Busy.REFUSE:
            said = ", ".join(f"{p} is joined to {q}" for p, q in sorted(in_the_way))
            raise RefusedError(Refusal.CONFLICT, f"busy: {said}")
        return type(self)(self.ports, dict({*self} - in_the_way | {*pairs}))

    def only(self, pairs: Collection[Pair]) -> Self:
        """These pairs joined, and no others."""
        _check(self.ports, pairs)
        return type(self)(self.ports, dict(pairs))

    def sub(self, pairs: Collection[Pair]) -> Self:
        """These pairs parted. Each has to be joined: a controller that is wrong about it should hear so."""
        _check(self.ports, pairs)
        if missing := sorted({*pairs} - {*self}):
            said = ", ".join(f"{p} is not joined to {q}" for p, q in missing)
            raise RefusedError(Refusal.NOT_CONNECTED, said)
        return type(self)(self.ports, dict({*self} - {*pairs}))

    def sub_inputs(self, inputs: Collection[int]) -> Self:
        """Whatever these inputs are joined to, parted from them. Each has to be joined to something."""
        _check_numbers("input", inputs, self.ports.input_numbers)
        if missing := sorted({*inputs} - {*self.joined}):
            raise RefusedError(Refusal.NOT_CONNECTED, f"not joined: {', '.join(map(str, missing))}")
        return self.sub([(p, self.joined[p]) for p in inputs])


def paired(inputs: Collection[int], outputs: Collection[int]) -> list[Pair]:
    """Two lists of ports, element by element. RefusedError if one is longer."""
    if len(inputs) != len(outputs):
        raise RefusedError(Refusal.MISMATCH, f"{len(inputs)} inputs for {len(outputs)} outputs")
    return list(zip(inputs, outputs, strict=True))


def _check(ports: Ports, pairs: Collection[Pair]) -> None:
    inputs, outputs = {p for p, _ in pairs}, {q for _, q in pairs}
    there = inputs <= ports.input_set and outputs <= ports.output_set
    if there and len(inputs) == len(outputs) == len(pairs):
        return  # most are right, and a reason takes longer to find
    _check_numbers("input", [p for p, _ in pairs], ports.input_numbers)
    _check_numbers("output", [q for _, q in pairs], ports.output_numbers)


def _check_numbers(side: str, numbers: Iterable[int], valid: range) -> None:
    """All of the numbers are ports of that side, none twice."""
    times = Counter(numbers)
    if strange := sorted(set(times) - set(valid)):
        said = ", ".join(map(str, strange))
        raise RefusedError(Refusal.NO_SUCH_PORT, f"{said}: {side}s are {valid.start}..{valid.stop - 1}")
    if twice := sorted(number for number, n in times.items() if n > 1):
        raise RefusedError(Refusal.CONFLICT, f"{side} {', '.join(map(str, twice))} twice")
