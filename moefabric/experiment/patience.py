"""Patience: a region's light, moved by a controller that may die, stand still or refuse; then the region's traffic goes by the EPS."""

import time
from collections.abc import Callable
from typing import Protocol

from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import ControlError
from moefabric.experiment.runs import Moved
from moefabric.failure_log import Do
from moefabric.records import Phases


class Controller(Protocol):
    """A region's controller, for whoever can't rely on it. Times out by itself."""

    def reconfigure(self, demand: DemandMatrix) -> Moved:
        """Light what the demand deserves. ControlError where it refuses, is gone or says nothing in time."""

    def ready(self, deadline_s: float) -> bool:
        """Whether it answers, and has all it needs, within that time."""

    def relied_on(self) -> CircuitSet:
        """What it has rules for now. ControlError where it doesn't answer."""


class PatientLight:
    """The light of one region. While its controller is away the region does without light, and each demand looks only once whether it is back."""

    def __init__(
        self,
        controller: Controller,
        patience_s: float,
        seen: Callable[[Do, str], object] = lambda _do, _why: None,
        glance_s: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seen` is told what happened, and how."""
        self._controller, self._patience_s, self._glance_s = controller, patience_s, glance_s
        self._seen, self._clock = seen, clock
        self._away = False

    def reconfigure(self, demand: DemandMatrix) -> Moved:
        """Light what the demand deserves, or no light for traffic to use, and `why`."""
        if self._away and not self._controller.ready(self._glance_s):
            return _without("its controller doesn't answer yet")
        asked_s = self._clock()
        try:
            moved = self._controller.reconfigure(demand)
        except ControlError as fault:
            return self._missed(demand, str(fault), self._patience_s - (self._clock() - asked_s))
        self._away = False
        return moved

    def _missed(self, demand: DemandMatrix, why: str, left_s: float) -> Moved:
        """One more try where it comes back in time; else without it. One that only refused has its rules on what is lit."""
        self._seen("detected", why)
        if self._controller.ready(max(left_s, self._glance_s)):
            try:
                moved = self._controller.reconfigure(demand)
            except ControlError as fault:
                return self._refused(str(fault))
            self._seen("recovered", "asked again")
            return moved
        self._away = True
        self._seen("recovered", "the region's traffic is on the EPS until its controller answers")
        return _without(why)

    def _refused(self, why: str) -> Moved:
        try:
            lit = self._controller.relied_on()
        except ControlError:
            lit = CircuitSet()
        self._seen("recovered", f"the region's traffic is on what is lit ({lit}) and the EPS")
        return Moved(lit, lit, Phases(), why=why)


def _without(why: str) -> Moved:
    return Moved(CircuitSet(), CircuitSet(), Phases(), why=why)
