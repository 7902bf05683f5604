"""Cross-connects of an optical switch: which inputs are connected to which outputs."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Self

from moefabric.emulator.crossbar.crossbar import Ports, PortsError

Pair = tuple[int, int]  # input port, output port


class Refusal(StrEnum):
    """Reasons for a refusal; each protocol has its own codes for them."""

    NO_SUCH_PORT = "no such port"
    CONFLICT = "conflict"
    NOT_CONNECTED = "not connected"
    MISMATCH = "mismatch"
    FAILED = "failed"
    """A port has failed, or is disabled where the profile does not allow that."""
    DENIED = "denied"
    """The device refuses all commands."""
    HARDWARE = "hardware"
    """The mirrors did not move."""
    NOT_LOGGED_IN = "not logged in"
    NO_SUCH_COMMAND = "no such command"


class RefusedError(ValueError):
    """The switch refuses a command; nothing has changed."""

    def __init__(self, reason: Refusal, message: str) -> None:
        self.reason = reason
        super().__init__(message)


def refused_ports(reason: Refusal, prefix: str, ports: Iterable[int]) -> RefusedError:
    """Return a refusal whose message names ports."""
    return RefusedError(reason, f"{prefix} {', '.join(map(str, ports))}")


@dataclass(frozen=True)
class CrossConnects:
    """A partial matching of inputs 1..N with outputs N+1..N+M.

    Changes return a new matching.

    Raises:
        RefusedError: if a pair names an unknown port, or a port occurs twice.
    """

    ports: Ports
    output_of: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self.ports, list(self.output_of.items()))
        object.__setattr__(self, "output_of", dict(sorted(self.output_of.items())))

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.output_of.items())

    @cached_property
    def pairs(self) -> frozenset[Pair]:
        """The cross-connects as a set."""
        return frozenset(self)

    @cached_property
    def by_output(self) -> Mapping[int, Pair]:
        """The cross-connect of each connected output."""
        return {q: (p, q) for p, q in self}

    def __len__(self) -> int:
        return len(self.output_of)

    def pair_of(self, port: int) -> Pair | None:
        """Return the cross-connect of an input or output."""
        if port in self.output_of:
            return port, self.output_of[port]
        return self.by_output.get(port)

    def partner(self, port: int) -> int | None:
        """Return the port that an input or output is connected to."""
        pair = self.pair_of(port)
        return None if pair is None else pair[1] if pair[0] == port else pair[0]

    def add(self, pairs: Collection[Pair], *, move: bool = True) -> Self:
        """Connect these pairs too, and remove older cross-connects of their ports.

        Devices differ in that, and their manuals do not specify it: without `move`, a command for
        a connected port is refused.
        """
        _check(self.ports, pairs)
        inputs, outputs = {p for p, _ in pairs}, {q for _, q in pairs}
        older = {(p, q) for p, q in self if p in inputs or q in outputs}.difference(pairs)
        if older and not move:
            connected = ", ".join(f"{p} is joined to {q}" for p, q in sorted(older))
            raise RefusedError(Refusal.CONFLICT, f"busy: {connected}")
        return self._changed(older, pairs)

    def only(self, pairs: Collection[Pair]) -> Self:
        """Connect these pairs and no others."""
        _check(self.ports, pairs)
        return type(self)(self.ports, dict(pairs))

    def sub(self, pairs: Collection[Pair]) -> Self:
        """Disconnect these pairs. Each must be connected, to reveal errors of a controller."""
        _check(self.ports, pairs)
        if missing := sorted({*pairs} - self.pairs):
            absent = ", ".join(f"{p} is not joined to {q}" for p, q in missing)
            raise RefusedError(Refusal.NOT_CONNECTED, absent)
        return self._changed(pairs, ())

    def _changed(self, removed: Iterable[Pair], added: Iterable[Pair]) -> Self:
        """Return a matching whose parts have been checked."""
        output_of = dict(self.output_of)
        for port, _ in removed:
            del output_of[port]
        output_of.update(added)
        changed = object.__new__(type(self))
        vars(changed).update(ports=self.ports, output_of=dict(sorted(output_of.items())))
        return changed


def pair_up(inputs: Collection[int], outputs: Collection[int]) -> list[Pair]:
    """Pair two lists of ports element by element.

    Raises:
        RefusedError: if their lengths differ.
    """
    if len(inputs) != len(outputs):
        raise RefusedError(Refusal.MISMATCH, f"{len(inputs)} inputs for {len(outputs)} outputs")
    return list(zip(inputs, outputs, strict=True))


def _check(ports: Ports, pairs: Collection[Pair]) -> None:
    try:
        ports.check(pairs)
    except PortsError as error:
        reason = Refusal.NO_SUCH_PORT if error.is_unknown else Refusal.CONFLICT
        raise RefusedError(reason, str(error)) from error
