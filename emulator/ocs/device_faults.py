"""Faults that can be injected into an optical switch."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

from moefabric.core.errors import FabricError
from moefabric.emulator.ocs.events import EventBus, OcsEventKind


class OcsFaultKind(StrEnum):
    """Kinds of faults."""

    PORT = "port"
    """`ports` fail: they pass no light, and commands for them are refused."""
    STUCK = "stuck"
    """The mirrors of the inputs `ports` do not move, although the device believes that they do."""
    LOSS = "loss"
    """The path from the first of `ports` to the second has `value` dB of additional loss."""
    REJECT = "reject"
    """Commands that change cross-connects or ports are refused."""
    DELAY = "delay"
    """Completion is reported `value` seconds late."""
    DROP_COMPLETION = "drop-completion"
    """Completion is never reported."""
    RESET = "reset"
    """The switch resets the connection of a command (TCP RST): before it executes the command, or
    with `value` 1 between execution and reply."""
    PARTIAL_APPLY = "partial-apply"
    """Only the first `value` cross-connects of a command are made."""


@dataclass(frozen=True)
class OcsFault:
    """A fault that lasts until it is cleared or has affected `times` commands."""

    kind: OcsFaultKind
    ports: tuple[int, ...] = ()
    value: float = 0.0
    times: int | None = None
    number: int = 0

    def __post_init__(self) -> None:
        is_path = self.kind is OcsFaultKind.LOSS
        has_ports = len(self.ports) == 2 if is_path else bool(self.ports)
        needs_ports = self.kind in (OcsFaultKind.PORT, OcsFaultKind.STUCK, OcsFaultKind.LOSS)
        if needs_ports and not has_ports:
            raise FabricError(f"fault {self.kind}: needs {'two ports' if is_path else 'ports'}")
        if self.value < 0 or (self.times is not None and self.times < 1):
            raise FabricError(
                f"fault {self.kind}: value {self.value:g} or times {self.times} is too small"
            )

    def __str__(self) -> str:
        parts = [
            self.kind.value,
            ",".join(map(str, self.ports)),
            f"{self.value:g}" if self.value else "",
            f"x{self.times}" if self.times is not None else "",
        ]
        return " ".join(filter(None, parts))

    def as_json(self) -> dict[str, Any]:
        """Return the fault as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read a fault; the inverse of `as_json`.

        Raises:
            FabricError: if the document describes no fault.
        """
        try:
            times = document.get("times")
            return cls(
                OcsFaultKind(document["kind"]),
                tuple(int(port) for port in document.get("ports", ())),
                float(document.get("value", 0.0)),
                None if times is None else int(times),
                int(document.get("number", 0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FabricError(f"fault: {error!r} in {dict(document)}") from error


class ActiveFaults:
    """The active faults of a switch, by number."""

    def __init__(self, events: EventBus, faults: Iterable[OcsFault] = ()) -> None:
        self._events = events
        self._by_number = {fault.number: fault for fault in faults}

    def __iter__(self) -> Iterator[OcsFault]:
        return iter(self._by_number.values())

    def add(self, fault: OcsFault) -> OcsFault:
        """Add a fault, and return it with its number."""
        numbered = replace(fault, number=max(self._by_number, default=0) + 1)
        self._by_number[numbered.number] = numbered
        return numbered

    def clear(self, number: int | None) -> list[OcsFault]:
        """Remove the fault with this number, or all (None), and return the removed faults.

        Raises:
            FabricError: if no fault has this number.
        """
        if number is not None and number not in self._by_number:
            raise FabricError(f"there is no fault {number}")
        cleared = [fault for fault in self if number in (None, fault.number)]
        for fault in cleared:
            del self._by_number[fault.number]
        return cleared

    def ports(self, kind: OcsFaultKind) -> frozenset[int]:
        """Return the ports with faults of this kind."""
        return frozenset(port for fault in self if fault.kind is kind for port in fault.ports)

    def loss_db(self, pair: tuple[int, int]) -> float:
        """Return the additional loss of a path."""
        losses = (fault for fault in self if fault.kind is OcsFaultKind.LOSS)
        return sum(fault.value for fault in losses if fault.ports == pair)

    def first(self, kind: OcsFaultKind) -> OcsFault | None:
        """Return the first fault of this kind, if any."""
        return next((fault for fault in self if fault.kind is kind), None)

    def strike(self, kind: OcsFaultKind) -> OcsFault | None:
        """Apply the first fault of this kind to a command, which counts as one of its `times`."""
        fault = self.first(kind)
        if fault is None:
            return None
        if fault.times is not None and fault.times > 1:
            self._by_number[fault.number] = replace(fault, times=fault.times - 1)
        elif fault.times is not None:
            del self._by_number[fault.number]
        self._events.publish(OcsEventKind.FAULT_SHOWN, words=kind.value)
        return fault
