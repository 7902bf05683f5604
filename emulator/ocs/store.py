"""The crosspoint store: which input a switch joins to which output, and since when each has light."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self

from emulator.light import Light, Ports

Pair = tuple[int, int]  # input port, output port


class Busy(Enum):
    """What `add` does with a port that is joined already. Real devices differ, and their manuals are silent."""

    MOVE = "move"
    """The older cross-connect of either port gives way."""
    REFUSE = "refuse"
    """The command is refused, and nothing moves."""


class Fault(Enum):
    """What kind of wrong a refusal is; what it is called is the protocol's affair."""

    NO_SUCH_PORT = "no such port"
    CONFLICT = "conflict"
    NOT_CONNECTED = "not connected"
    MISMATCH = "mismatch"


class RefusedError(ValueError):
    """A change that the switch will not make; nothing has changed."""

    def __init__(self, fault: Fault, why: str) -> None:
        self.fault = fault
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
            raise RefusedError(Fault.CONFLICT, f"busy: {said}")
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
            raise RefusedError(Fault.NOT_CONNECTED, said)
        return type(self)(self.ports, dict({*self} - {*pairs}))

    def sub_inputs(self, inputs: Collection[int]) -> Self:
        """Whatever these inputs are joined to, parted from them. Each has to be joined to something."""
        _check_numbers("input", inputs, self.ports.input_numbers)
        if missing := sorted({*inputs} - {*self.joined}):
            raise RefusedError(Fault.NOT_CONNECTED, f"not joined: {', '.join(map(str, missing))}")
        return self.sub([(p, self.joined[p]) for p in inputs])


def paired(inputs: Collection[int], outputs: Collection[int]) -> list[Pair]:
    """Two lists of ports, element by element. RefusedError if one is longer."""
    if len(inputs) != len(outputs):
        raise RefusedError(Fault.MISMATCH, f"{len(inputs)} inputs for {len(outputs)} outputs")
    return list(zip(inputs, outputs, strict=True))


def _check(ports: Ports, pairs: Collection[Pair]) -> None:
    _check_numbers("input", [p for p, _ in pairs], ports.input_numbers)
    _check_numbers("output", [q for _, q in pairs], ports.output_numbers)


def _check_numbers(side: str, numbers: Iterable[int], valid: range) -> None:
    """All of the numbers are ports of that side, none twice."""
    times = Counter(numbers)
    if strange := sorted(set(times) - set(valid)):
        said = ", ".join(map(str, strange))
        raise RefusedError(Fault.NO_SUCH_PORT, f"{said}: {side}s are {valid.start}..{valid.stop - 1}")
    if twice := sorted(number for number, n in times.items() if n > 1):
        raise RefusedError(Fault.CONFLICT, f"{side} {', '.join(map(str, twice))} twice")


def lit(before: Mapping[int, Light], target: CrossConnects, now_ns: int, settle_ns: int) -> dict[int, Light]:
    """The light that `target` has if it is commanded now: what stays joined stays lit, the rest is dark until it settles."""

    def light(in_port: int, out_port: int) -> Light:
        old = before.get(in_port)
        return old if old is not None and old.out_port == out_port else Light(out_port, now_ns + settle_ns)

    return {p: light(p, q) for p, q in target}


@dataclass(frozen=True)
class Store:
    """What the switch was commanded to join, with the instant from which each cross-connect has light."""

    ports: Ports
    settle_ns: int
    busy: Busy = Busy.MOVE
    lights: Mapping[int, Light] = field(default_factory=dict)

    @property
    def connects(self) -> CrossConnects:
        return CrossConnects(self.ports, {p: light.out_port for p, light in self.lights.items()})

    @property
    def settled_at_ns(self) -> int:
        """When everything commanded so far has light (CLOCK_MONOTONIC); 0 where nothing is joined."""
        return max((light.lit_at_ns for light in self.lights.values()), default=0)

    def towards(self, target: CrossConnects, now_ns: int) -> Self:
        """The store after `target` is commanded at `now_ns`."""
        lights = lit(self.lights, target, now_ns, self.settle_ns)
        return replace(self, lights=lights)
