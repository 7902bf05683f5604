"""Requests to a region's controller that may be away: a second attempt, then probes only."""

from typing import Protocol

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import ControlError
from moefabric.core.failures import FailurePhase
from moefabric.core.transition import ReconfigurationPhases
from moefabric.core.units import NS_PER_S
from moefabric.execution.clock import Clock
from moefabric.planner.horizon import Horizon
from moefabric.results.records.records import CircuitChange
from moefabric.testbed.testbed import PROBE_S

ControllerEvent = tuple[int, FailurePhase, str]
"""The instant and phase of a controller's failure, and the reason or action."""


class RegionController(Protocol):
    """The controller of a region's circuits. Its calls time out by themselves."""

    def reconfigure(self, demand: DemandMatrix, horizon: Horizon) -> CircuitChange:
        """Light the circuits that the demand deserves, given the all-to-alls to come.

        Returns when traffic may use them. Raises ControlError if they can't be lit.
        """

    def ready(self, deadline_s: float) -> bool:
        """Return whether it answers, connected to all of its devices, within `deadline_s`."""

    def relied_on(self) -> CircuitSet:
        """Return the circuits that have rules; raises ControlError if there is no answer."""


class RetriedController:
    """A region's controller, asked a second time if it is back in time.

    A controller that is still away is only probed.

    Args:
        controller: The controller.
        clock: The clock of the run.
        timeout_s: Wall seconds that it may take, besides settling.
    """

    def __init__(self, controller: RegionController, clock: Clock, timeout_s: float) -> None:
        self.controller, self._clock, self._timeout_s = controller, clock, timeout_s
        self._away = False

    def reconfigure(
        self, demand: DemandMatrix, horizon: Horizon, events: list[ControllerEvent]
    ) -> CircuitChange:
        """Ask for circuits; append phases of the controller's failure to `events`."""
        start_ns = self._clock.now_ns()
        if self._away and not self.controller.ready(PROBE_S):
            return _unchanged("its controller doesn't answer yet")
        try:
            change = self.controller.reconfigure(demand, horizon)
        except ControlError as fault:
            left_s = self._timeout_s - (self._clock.now_ns() - start_ns) / NS_PER_S
            events.append((self._clock.now_ns(), "detected", str(fault)))
            change, action = self._retry(demand, horizon, str(fault), max(left_s, PROBE_S))
            events.append((self._clock.now_ns(), "recovered", action))
        else:
            self._away = False
        return change

    def _retry(
        self, demand: DemandMatrix, horizon: Horizon, error: str, left_s: float
    ) -> tuple[CircuitChange, str]:
        """Ask again if the controller answers; return the outcome and how the region goes on."""
        if not self.controller.ready(left_s):
            self._away = True
            action = "the region's traffic is on the EPS until its controller answers"
            return _unchanged(error), action
        try:
            change = self.controller.reconfigure(demand, horizon)
        except ControlError as fault:
            change = self._refused(str(fault))
            action = f"the region's traffic is on the lit circuits ({change.after}) and the EPS"
        else:
            action = "asked again"
        return change, action

    def _refused(self, error: str) -> CircuitChange:
        """Return the state after a refusal: the circuits for which the controller has rules."""
        try:
            return _unchanged(error, self.controller.relied_on())
        except ControlError:
            return _unchanged(error)


def _unchanged(error: str, circuits: CircuitSet | None = None) -> CircuitChange:
    lit = circuits or CircuitSet()
    return CircuitChange(lit, lit, ReconfigurationPhases(), error=error)
