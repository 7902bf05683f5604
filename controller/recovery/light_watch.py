"""Watch of lit circuits: notices that light goes away although its controller has moved nothing.

An operator at the OCS, another program that commands it, or a pulled fibre takes light without a
failed component. The watch sends frames through all lit circuits, beside whatever else the
controller does. If none arrive from some, it asks the OCS for its connections. Circuits that the
controller has moved since the frames were sent are left out, so that its own changes never count as
lost light. Without probes (`verify: read-back`), the OCS's connections alone tell.

Lost circuits carry no traffic any more, as at a failure. They are lit again at once, and in growing
intervals if their light does not last.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from moefabric.controller.reconfiguration import Reconciler
from moefabric.controller.recovery.region_recovery import RegionRecovery
from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.errors import ControlError
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import NS_PER_S
from moefabric.runtime.processes import Restarts

log = logging.getLogger(__name__)

MOST_FRAMES: Final = 1000
"""Frames a second by which the controllers of a fabric check light together."""
SILENT_S: Final = 0.4
"""Model time without an arriving frame after which circuits have no light: with the period, less
than a second."""


def check_period_s(fabric: Fabric, region: Region) -> float:
    """Return the wall seconds between two checks of a region's circuits; 0 for none.

    The period is longer in fabrics whose regions together would need more than `MOST_FRAMES`.
    """
    if region.ocs is None or not region.ocs.control.light_check_ns:
        return 0.0
    fibres = sum(len(r.servers) for r in fabric.regions if r.ocs) * fabric.optical
    period_s = region.ocs.control.light_check_ns / NS_PER_S
    return max(period_s * fabric.scale.dilation, fibres / MOST_FRAMES)


def lost_light(suspects: CircuitSet, shown: CircuitSet, *, is_probed: bool) -> dict[Circuit, str]:
    """Return the circuits that have lost their light, each with the evidence.

    Args:
        suspects: Circuits that nobody has moved and that no frame is known to pass.
        shown: The circuits that the OCS shows.
        is_probed: Whether frames were sent through the suspects.
    """
    gone = dict.fromkeys(suspects - shown, "the OCS doesn't connect it any more")
    return dict.fromkeys(suspects & shown, "no frame passes it") | gone if is_probed else gone


@dataclass(eq=False)
class LightWatch:
    """Checks the lit circuits of a region, and takes traffic off those without light.

    Attributes:
        lock: Held while circuits change.
        delayed: Context of work on failures, which takes as long in model time as in wall time.
        repair: Has circuits lit again; None if they stay dark until the next request.
        dilation: Factor by which the run's times are stretched.
        clock_ns: CLOCK_MONOTONIC.
    """

    recovery: RegionRecovery
    reconciler: Reconciler
    lock: AbstractContextManager[Any]
    delayed: Callable[[], AbstractContextManager[Any]]
    repair: Callable[[], object] | None
    dilation: float = 1.0
    clock_ns: Callable[[], int] = time.monotonic_ns
    _repairs: Restarts = field(default_factory=Restarts, init=False)

    def __post_init__(self) -> None:
        """Regard no light as proved yet."""
        self._proved_ns = self.clock_ns()

    def check(self) -> None:
        """Check all lit circuits once, and have lost ones lit again when it is time.

        Raises:
            ControlError: If a switch, or an OCS that alone tells of light, doesn't answer.
        """
        checked_ns, lit = self.clock_ns(), self.reconciler.mark_lit()
        suspects = lit - self._carrying(lit)
        if not (suspects.circuits and self._lose(suspects)):
            self._proved_ns = checked_ns
        now_s = self.clock_ns() / NS_PER_S
        if self.repair and self.recovery.lacks_light and now_s >= self._repairs.not_before_s:
            self._repairs.note_end(now_s)
            self._repairs.started_s = now_s
            self.repair()

    def _carrying(self, lit: CircuitSet) -> CircuitSet:
        """Return the circuits that frames pass; without probes, none is known to carry any."""
        probe = self.reconciler.probe
        if probe is None or not lit.circuits:
            return CircuitSet()
        return probe.probe(lit, SILENT_S * self.dilation).carrying

    def _lose(self, suspects: CircuitSet) -> bool:
        """Take traffic off suspects that nobody has moved; return whether there are any."""
        with self.lock:
            unmoved = suspects & self.reconciler.unmoved
            if not unmoved.circuits or not (lost := self._reasons(unmoved)):
                return False
            with self.delayed():
                self.recovery.lose_light(lost, self._proved_ns)
            return True

    def _reasons(self, suspects: CircuitSet) -> dict[Circuit, str]:
        """Return the evidence of lost light, by circuit."""
        is_probed = self.reconciler.probe is not None
        try:
            shown = self.reconciler.ocs.circuits()
        except ControlError:
            if not is_probed:
                raise
            shown = suspects
        return lost_light(suspects, shown, is_probed=is_probed)
