"""Time of the control plane for a request for circuits: measured, fixed or predicted."""

from dataclasses import dataclass
from typing import Final, Self

from moefabric.core.transition import ReconfigurationPhases

CONTROL_S: Final = 0.008
UNCHANGED_S: Final = 0.003
"""Predicted model seconds of a request that changes circuits, and of one that doesn't, until some
are measured: medians of `moefabric run examples/dilation.yaml` on two quiet cores (7.6, 7.7 and
8.0 ms of 21 requests each), and of `examples/prototype.yaml` (2.3 and 2.6 ms of 25 each)."""


_CONTROL_PHASES: Final = ("demand", "plan", "divert", "command", "verify", "admit")


@dataclass(frozen=True)
class ControlPrediction:
    """Predicted model seconds for a request that changes circuits, and for one that doesn't."""

    changed_s: float = CONTROL_S
    unchanged_s: float = UNCHANGED_S

    @classmethod
    def fixed(cls, control_s: float | None) -> Self:
        """Return a fixed time for each request; the defaults without one."""
        return cls() if control_s is None else cls(control_s, control_s)

    def seconds(self, *, changed: bool) -> float:
        """Return the predicted time of a request that changes circuits, or doesn't."""
        return self.changed_s if changed else self.unchanged_s


JUDGED: Final = ControlPrediction(0.025, 0.005)
"""Times by which a verdict judges controllers: two to three times those of quiet cores."""


def model_phases(
    phases: ReconfigurationPhases,
    took_s: float,
    dilation: float,
    *,
    most_settling_s: float,
    control_s: float | None,
) -> ReconfigurationPhases:
    """Return the phases of a controller's reply in model seconds.

    Only the OCS's own time is dilated already. What the controller took to notice that the OCS has
    settled counts as verification, the journey of request and reply as a part of the demand's.

    Args:
        phases: The reply's phases in wall seconds.
        took_s: Wall seconds from the request to the reply.
        dilation: Factor by which the run's times are stretched.
        most_settling_s: Wall seconds that the OCS and the optics take at most.
        control_s: Fixed model seconds of all phases but settling, which shrink or grow alike; None
            for as many as they took in wall seconds.
    """
    reported_s = min(phases.settle_s, took_s)
    settle_s = min(reported_s, most_settling_s)
    phases_s = {f"{name}_s": getattr(phases, f"{name}_s") for name in _CONTROL_PHASES}
    measured_s = took_s - settle_s
    phases_s["verify_s"] += reported_s - settle_s
    phases_s["demand_s"] += measured_s - sum(phases_s.values())
    model_s = measured_s if control_s is None else max(control_s, measured_s / dilation)
    factor = model_s / measured_s if measured_s > 0 else 0.0
    phases_s = {name: seconds * factor for name, seconds in phases_s.items()}
    phases_s["demand_s"] += model_s - sum(phases_s.values())
    settle_s /= dilation
    return ReconfigurationPhases(**phases_s, settle_s=settle_s, total_s=model_s + settle_s)
