"""Controllers of regions as a run asks them: again after a failure, for circuits and splits."""

from dataclasses import dataclass, field
from typing import Protocol

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import ControlError
from moefabric.core.failures import FailurePhase
from moefabric.core.flows import Split
from moefabric.core.topology import Fabric
from moefabric.core.transition import ReconfigurationPhases
from moefabric.core.units import NS_PER_S
from moefabric.execution.clock import Clock
from moefabric.planner.horizon import Horizon
from moefabric.planner.sending.flow_pacing import SplitPolicy
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


class ControllerSplits:
    """A policy that reuses the split of a region's last controller reply."""

    def __init__(self, policy: SplitPolicy) -> None:
        self.policy = policy
        self._known: dict[tuple[str, ...], tuple[DemandMatrix, CircuitSet, Split]] = {}
        self.circuits = policy.circuits

    def remember(self, demand: DemandMatrix, change: CircuitChange) -> None:
        """Keep the split that a controller planned for a demand."""
        self._known.pop(demand.servers, None)
        if change.split is not None:
            self._known[demand.servers] = demand, change.after, change.split

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """Return the split of a region's demand over its lit circuits."""
        if (known := self._known.get(demand.servers)) is not None:
            lit = frozenset(c for c in circuits if c.a.server in demand.servers)
            if known[0] == demand and known[1].circuits == lit:
                return known[2]
        return self.policy.split(fabric, demand, circuits)


@dataclass
class RetriedController:
    """A region's controller, asked a second time if it is back in time.

    A controller that is still away is only probed.

    Attributes:
        clock: The clock of the run.
        timeout_s: Wall seconds that a request may take, besides settling.
        splits: Remembers the splits in the controller's replies.
    """

    controller: RegionController
    clock: Clock
    timeout_s: float
    splits: ControllerSplits
    _away: bool = field(default=False, init=False)

    def reconfigure(
        self, demand: DemandMatrix, horizon: Horizon, events: list[ControllerEvent]
    ) -> CircuitChange:
        """Ask for circuits; append phases of the controller's failure to `events`."""
        start_ns = self.clock.now_ns()
        if self._away and not self.controller.ready(PROBE_S):
            return _unchanged("its controller doesn't answer yet")
        try:
            change = self.controller.reconfigure(demand, horizon)
        except ControlError as fault:
            left_s = self.timeout_s - (self.clock.now_ns() - start_ns) / NS_PER_S
            events.append((self.clock.now_ns(), "detected", str(fault)))
            change, action = self._retry(demand, horizon, str(fault), max(left_s, PROBE_S))
            events.append((self.clock.now_ns(), "recovered", action))
        else:
            self._away = False
        if not change.error:
            self.splits.remember(demand, change)
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
