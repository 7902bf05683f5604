"""Failures that can be injected into an optical switch."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Self

from moefabric.core.errors import FabricError
from moefabric.emulator.ocs.cross_connects import CrossConnects, Refusal, RefusedError
from moefabric.emulator.ocs.events import EventBus, OcsEventKind


class OcsFailureKind(StrEnum):
    """Kinds of failures."""

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

    @property
    def is_of_commands(self) -> bool:
        """True if it affects commands, which can be counted, and no particular ports."""
        return self not in _OF_PORTS


_OF_PORTS: Final = (OcsFailureKind.PORT, OcsFailureKind.STUCK, OcsFailureKind.LOSS)
_VALUED: Final = (
    OcsFailureKind.LOSS,
    OcsFailureKind.DELAY,
    OcsFailureKind.RESET,
    OcsFailureKind.PARTIAL_APPLY,
)


@dataclass(frozen=True)
class OcsFailure:
    """A failure that lasts until it is cleared or has affected `times` commands."""

    kind: OcsFailureKind
    ports: tuple[int, ...] = ()
    value: float = 0.0
    times: int | None = None
    number: int = 0

    def __post_init__(self) -> None:
        is_path = self.kind is OcsFailureKind.LOSS
        has_ports = len(self.ports) == 2 if is_path else bool(self.ports)
        of_commands = self.kind.is_of_commands
        if not of_commands and not has_ports:
            raise FabricError(f"fault {self.kind}: needs {'two ports' if is_path else 'ports'}")
        if of_commands and self.ports:
            raise FabricError(f"fault {self.kind}: takes no ports")
        if not of_commands and self.times is not None:
            counted = ", ".join(kind for kind in OcsFailureKind if kind.is_of_commands)
            raise FabricError(
                f"fault {self.kind}: lasts until it is cleared; times is of {counted}"
            )
        if self.value and self.kind not in _VALUED:
            raise FabricError(f"fault {self.kind}: takes no value; {', '.join(_VALUED)} do")
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

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read a failure from a JSON object of its fields.

        Raises:
            FabricError: if the document describes no failure.
        """
        try:
            times = document.get("times")
            return cls(
                OcsFailureKind(document["kind"]),
                tuple(int(port) for port in document.get("ports", ())),
                float(document.get("value", 0.0)),
                None if times is None else int(times),
                int(document.get("number", 0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FabricError(f"fault: {error!r} in {dict(document)}") from error


class ActiveFailures:
    """The active failures of a switch, by number."""

    def __init__(self, events: EventBus, failures: Iterable[OcsFailure] = ()) -> None:
        self.events = events
        self._by_number = {failure.number: failure for failure in failures}
        self._last = max(self._by_number, default=0)

    def __iter__(self) -> Iterator[OcsFailure]:
        return iter(self._by_number.values())

    def add(self, failure: OcsFailure) -> None:
        """Add a failure, which gets a number."""
        self._last += 1  # no number twice, or who clears a used-up failure would clear another
        numbered = replace(failure, number=self._last)
        self._by_number[numbered.number] = numbered
        self._publish(numbered, OcsEventKind.FAILURE, OcsEventKind.PORT_FAILED)

    def clear(self, number: int | None) -> list[OcsFailure]:
        """Remove the failure with this number, or all (None), and return the removed failures.

        Raises:
            FabricError: if no failure has this number.
        """
        if number is not None and number not in self._by_number:
            raise FabricError(f"there is no fault {number}")
        cleared = [failure for failure in self if number in (None, failure.number)]
        for failure in cleared:
            del self._by_number[failure.number]
            self._publish(failure, OcsEventKind.FAILURE_CLEARED, OcsEventKind.PORT_RECOVERED)
        return cleared

    def _publish(self, failure: OcsFailure, kind: OcsEventKind, port_kind: OcsEventKind) -> None:
        self.events.publish(kind, ports=failure.ports, words=f"{failure.number}: {failure}")
        if failure.kind is OcsFailureKind.PORT:
            self.events.publish(port_kind, ports=failure.ports)

    def ports(self, kind: OcsFailureKind) -> frozenset[int]:
        """Return the ports with failures of this kind."""
        return frozenset(port for failure in self if failure.kind is kind for port in failure.ports)

    def loss_db(self, pair: tuple[int, int]) -> float:
        """Return the additional loss of a path."""
        losses = (failure for failure in self if failure.kind is OcsFailureKind.LOSS)
        return sum(failure.value for failure in losses if failure.ports == pair)

    def first(self, kind: OcsFailureKind) -> OcsFailure | None:
        """Return the first failure of this kind, if any."""
        return next((failure for failure in self if failure.kind is kind), None)

    def strike(self, kind: OcsFailureKind) -> OcsFailure | None:
        """Apply the first failure of this kind to a command, which counts as one of its `times`."""
        failure = self.first(kind)
        if failure is None:
            return None
        if failure.times is not None and failure.times > 1:
            self._by_number[failure.number] = replace(failure, times=failure.times - 1)
        elif failure.times is not None:
            del self._by_number[failure.number]
        self.events.publish(OcsEventKind.FAILURE_SHOWN, words=kind.value)
        return failure

    def check_reject(self) -> None:
        """Refuse a command under the failure `reject`."""
        if self.strike(OcsFailureKind.REJECT):
            raise RefusedError(Refusal.DENIED, "the device is not ready for this")

    def partly_applied(self, before: CrossConnects, requested: CrossConnects) -> CrossConnects:
        """Return what a command achieves: under `partial-apply` less than was requested."""
        failure = self.first(OcsFailureKind.PARTIAL_APPLY)
        if failure is None:
            return requested
        old = set(before)
        new = [pair for pair in requested if pair not in old]
        if len(new) <= failure.value:
            return requested
        self.strike(OcsFailureKind.PARTIAL_APPLY)
        missed = set(new[int(failure.value) :])
        return CrossConnects(requested.ports, dict(set(requested) - missed))
