"""A region's optical switch behind whatever language it speaks: circuits in, cross-connects out, and the truth read back.

A command whose answer is lost is not given again blindly: the device is asked what is joined, and told what is still missing.
"""

import logging
import time
from types import TracebackType
from typing import Final, Protocol, Self

from controller.southbound.crossconnects import CrossConnect, Moves, ObstacleError, Wanted, between, moves
from controller.southbound.line import LostError, SilenceError
from moefabric.circuits import CircuitSet, Transition, cross_connects, seen_circuits
from moefabric.errors import ControlError
from moefabric.ocs_control import Mode
from moefabric.topology import Fabric, Region

log = logging.getLogger(__name__)

_TRIES: Final = 3
_LATELY_S: Final = 0.1
"""What a device showed so long ago is taken for what it shows, where one needn't be safe: whoever changes light has looked just before."""


class Device(Protocol):
    """A device in its own language. LostError where it doesn't answer; whatever else it says in vain is a ControlError."""

    @property
    def name(self) -> str:
        """What it is called in errors."""

    def joined(self) -> tuple[CrossConnect, ...]:
        """What it shows to be joined, no matter whether there is light yet."""

    def move(self, moves: Moves) -> str | None:
        """Take out, then put in; returns when it is accepted. If the device refuses, its words, and part of it may be done."""

    def settled(self, deadline_s: float) -> None:
        """Return when all that was accepted has light. ControlError after `deadline_s`, or where the device says it failed."""

    def close(self) -> None:
        """Hang up."""


class DrivenOcs:
    """An `OpticalSwitch`. Cross-connects of others on the same device are left alone, unless they are on the region's own ports."""

    def __init__(self, fabric: Fabric, region: Region, device: Device) -> None:
        if region.ocs is None:
            raise ValueError(f"{region.name} has no OCS")
        self.fabric, self.region, self.name, self._device = fabric, region, region.ocs.name, device
        wired, n = len(region.servers) * fabric.optical, region.ocs.ports
        self._shown: tuple[float, tuple[CrossConnect, ...]] | None = None
        self._own = frozenset(range(1, wired + 1)) | frozenset(range(n + 1, n + wired + 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up. What is lit stays lit."""
        self._device.close()

    def lit(self) -> CircuitSet:
        """The circuits whose both directions the device shows to be joined. ControlError if it doesn't answer."""
        joined = self._joined()
        self._shown = time.monotonic(), joined
        return seen_circuits(self.fabric, self.region, joined)

    def reconfigure(self, transition: Transition, mode: Mode = Mode.SAFE) -> None:
        """Command the change; what it takes depends on what is joined, and on the mode.

        If the device says no it is put back as it was, for it may have done a part of it; ControlError then, with its words.
        """
        wanted = Wanted(
            *(
                cross_connects(self.fabric, self.region, circuits)
                for circuits in (transition.teardown, transition.kept, transition.setup)
            )
        )
        if transition.empty and mode is Mode.SAFE:
            return
        before = self._joined() if mode is Mode.SAFE else self._lately()
        try:
            told = moves(before, wanted, mode, self._own)
        except ObstacleError as why:
            raise ControlError(f"{self.name} can't: {why}; nothing has changed") from why
        said = self._told(told, before)
        if said is None:
            return
        now = self._joined()
        if told.after(before) == frozenset(now):
            log.warning("%s has done it, and says: %s", self.name, said)
            return
        raise ControlError(f"{self.name} refuses: {said}; {self._undone(now, before)}")

    def settled(self, deadline_s: float) -> None:
        """Return when all that was commanded has light. ControlError after `deadline_s`."""
        self._device.settled(deadline_s)

    def _joined(self) -> tuple[CrossConnect, ...]:
        """What the device shows. One that was started anew since it was last spoken to has hung up, and is called again."""
        try:
            return self._device.joined()
        except SilenceError:
            raise
        except LostError as fault:
            log.info("asked again: %s", fault)
            return self._device.joined()

    def _lately(self) -> tuple[CrossConnect, ...]:
        """What the device shows, or showed when it was looked at just before; once, for then it is told to change."""
        shown, self._shown = self._shown, None
        if shown and time.monotonic() - shown[0] < _LATELY_S:
            return shown[1]
        return self._joined()

    def _told(self, told: Moves, before: tuple[CrossConnect, ...]) -> str | None:
        """Tell the device, and after a lost answer once more what it turns out not to have done; what it says against it."""
        target = told.after(before)
        for left in reversed(range(_TRIES)):
            if not told:
                return None
            try:
                return self._device.move(told)
            except LostError as fault:
                if not left:
                    raise
                log.warning("looked at again: %s", fault)
                told = between(self._joined(), target)
        return None

    def _undone(self, now: tuple[CrossConnect, ...], before: tuple[CrossConnect, ...]) -> str:
        """Put the device back as it was; in words, how that went."""
        try:
            said = self._told(between(now, before), now)
        except ControlError as fault:
            said = str(fault)
        if said is None:
            return "nothing has changed"
        return f"part of it may be done, for it can't be undone either: {said}"
