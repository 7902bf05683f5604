"""Faults: what a person can make an optical switch suffer, and clear again."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

from moefabric.errors import FabricError


class Ill(StrEnum):
    """Kinds of faults."""

    PORT = "port"
    """`ports` fail: no light through them, and no command for them."""
    STUCK = "stuck"
    """The mirrors of the inputs `ports` no longer move, though the device believes that they do."""
    LOSS = "loss"
    """The path from the first of `ports` to the second loses `value` dB more."""
    DENY = "deny"
    """Commands that change cross-connects or ports are refused."""
    DELAY = "delay"
    """Completion is told `value` seconds late."""
    NEVER = "never"
    """Completion is never told."""
    RESET = "reset"
    """A connection breaks off (TCP RST) when a command has come and before it is done; with `value` 1: when it is done, unanswered."""
    PARTIAL = "partial"
    """Of a command for several cross-connects only the first `value` are made."""


@dataclass(frozen=True)
class Fault:
    """A fault that a switch suffers until it is cleared, or has shown itself `times` times."""

    ill: Ill
    ports: tuple[int, ...] = ()
    value: float = 0.0
    times: int | None = None
    number: int = 0

    def __post_init__(self) -> None:
        wanted = {Ill.PORT: self.ports, Ill.STUCK: self.ports, Ill.LOSS: len(self.ports) == 2}
        if not wanted.get(self.ill, True):
            raise FabricError(f"fault {self.ill}: which {'path' if self.ill is Ill.LOSS else 'ports'}?")
        if self.value < 0 or (self.times is not None and self.times < 1):
            raise FabricError(f"fault {self.ill}: neither {self.value:g} nor {self.times} times may be less")

    def __str__(self) -> str:
        said = [self.ill.value, *([",".join(map(str, self.ports))] if self.ports else [])]
        said += [f"{self.value:g}"] if self.value else []
        said += [f"x{self.times}"] if self.times is not None else []
        return " ".join(said)

    def as_json(self) -> dict[str, Any]:
        """As it goes over a wire."""
        return asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """The inverse of `as_json`. FabricError for what is no fault."""
        try:
            times = told.get("times")
            return cls(
                Ill(told["ill"]),
                tuple(int(port) for port in told.get("ports", ())),
                float(told.get("value", 0.0)),
                None if times is None else int(times),
                int(told.get("number", 0)),
            )
        except (KeyError, TypeError, ValueError) as wrong:
            raise FabricError(f"fault: {wrong!r} in {dict(told)}") from wrong


class Faults:
    """The faults that a switch suffers now, by number."""

    def __init__(self, suffered: Mapping[int, Fault] | None = None) -> None:
        self._suffered = dict(suffered or {})

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._suffered.values())

    def add(self, fault: Fault) -> Fault:
        """Suffer this one too; it with its number."""
        numbered = replace(fault, number=max(self._suffered, default=0) + 1)
        self._suffered[numbered.number] = numbered
        return numbered

    def clear(self, number: int | None) -> list[Fault]:
        """Suffer that one no more, or none (None); which those were. FabricError if there is no such fault."""
        if number is not None and number not in self._suffered:
            raise FabricError(f"there is no fault {number}")
        gone = [fault for fault in self if number in (None, fault.number)]
        for fault in gone:
            del self._suffered[fault.number]
        return gone

    def ports(self, ill: Ill) -> frozenset[int]:
        """The ports that suffer from this."""
        return frozenset(port for fault in self if fault.ill is ill for port in fault.ports)

    def loss_db(self, pair: tuple[int, int]) -> float:
        """What a path loses by faults."""
        return sum(fault.value for fault in self if fault.ill is Ill.LOSS and fault.ports == pair)

    def having(self, ill: Ill) -> Fault | None:
        """The first fault of this kind, if there is one."""
        return next((fault for fault in self if fault.ill is ill), None)

    def strike(self, ill: Ill) -> Fault | None:
        """The first fault of this kind, which shows itself now: one of its times is over."""
        fault = self.having(ill)
        if fault is not None and fault.times is not None:
            if fault.times > 1:
                self._suffered[fault.number] = replace(fault, times=fault.times - 1)
            else:
                del self._suffered[fault.number]
        return fault
