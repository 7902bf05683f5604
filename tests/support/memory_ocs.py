"""An OCS in memory: ports, dark time and refusals of the hardware without network or kernel."""

from dataclasses import dataclass

from moefabric.controller.southbound.ocs.cross_connects import (
    CrossConnect,
    PortConflictError,
    plan_change,
)
from moefabric.controller.southbound.ocs.remote_ocs import requested_change
from moefabric.core.circuits import Circuit, CircuitSet, Transition, circuits_from_cross_connects
from moefabric.core.errors import ControlError
from moefabric.core.ocs import CrossConnectMode
from moefabric.core.protocols import ProbeResult
from moefabric.core.topology import Fabric, Region, ocs_port


@dataclass
class VirtualClock:
    """A monotonic clock that advances only by `wait_until`, so that waits take no real time."""

    seconds: float = 0.0

    def now_s(self) -> float:
        """Return the time so far."""
        return self.seconds

    def wait_until(self, instant_s: float) -> None:
        """Advance to an instant, unless it has passed."""
        self.seconds = max(self.seconds, instant_s)


class MemoryOcs:
    """A region's OCS as an `OpticalSwitch` and a `LightProbe`.

    The OCS reports a change at once; changed ports have light after the settling time.

    Attributes:
        refusal: The error by which the device refuses the next command, if it does.
        stuck: Input ports whose mirror doesn't move.
        opaque: Input ports that report no fault but let no light in.
        gone: Whether the device answers no command.
    """

    def __init__(self, fabric: Fabric, region: Region, clock: VirtualClock | None = None) -> None:
        if region.ocs is None:
            raise ValueError(f"{region.name} has no OCS")
        self.fabric, self.region, self.clock = fabric, region, clock or VirtualClock()
        self.name, self._settle_s = region.ocs.name, region.ocs.settle_ns / 1e9
        self.refusal: str | None = None
        self.stuck: frozenset[int] = frozenset()
        self.opaque: frozenset[int] = frozenset()
        self.gone = False
        self._lit_at_s: dict[CrossConnect, float] = {}

    def circuits(self) -> CircuitSet:
        """Return the circuits that the cross-connects form."""
        self._check_reachable()
        return circuits_from_cross_connects(self.fabric, self.region, self._lit_at_s)

    @property
    def has_strays(self) -> bool:
        """Whether there are cross-connects that form no circuit."""
        found = circuits_from_cross_connects(self.fabric, self.region, self._lit_at_s)
        return len(self._lit_at_s) > 2 * len(found)

    def connect(self, *connects: CrossConnect) -> None:
        """Make cross-connects that have light at once, as an operator at the device does."""
        self._lit_at_s |= dict.fromkeys(connects, self.clock.now_s())

    def reconfigure(
        self, transition: Transition, mode: CrossConnectMode = CrossConnectMode.SAFE
    ) -> None:
        """Execute a transition; raise ControlError, without any change, if the mode forbids it."""
        self._check_reachable()
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise ControlError(f"{self.name} refuses: {refusal}; nothing has changed")
        request = requested_change(self.fabric, self.region, transition)
        try:
            change = plan_change(tuple(self._lit_at_s), request, mode)
        except PortConflictError as error:
            raise ControlError(f"{self.name} can't: {error}; nothing has changed") from error
        settled_s = self.clock.now_s() + self._settle_s
        for connect in change.remove:
            if connect[0] not in self.stuck:
                del self._lit_at_s[connect]
        self._lit_at_s |= {c: settled_s for c in change.add if c[0] not in self.stuck}

    def disconnect_all(self) -> None:
        """Remove all cross-connects, as an operator at the device does."""
        self._lit_at_s.clear()

    def wait_settled(self, deadline_s: float) -> None:
        """Let the settling time pass; raise ControlError if it is longer than `deadline_s`."""
        self._check_reachable()
        lit_at_s = max(self._lit_at_s.values(), default=0.0)
        if lit_at_s > self.clock.now_s() + deadline_s:
            raise ControlError(f"{self.name}: not settled within {deadline_s:g} s")
        self.clock.wait_until(lit_at_s)

    def settled_circuits(self, deadline_s: float) -> CircuitSet:
        """Let the settling time pass as `wait_settled` does; return the circuits."""
        self.wait_settled(deadline_s)
        return self.circuits()

    def dark(self) -> frozenset[Circuit]:
        """Return the circuits that are connected but have not settled."""
        now_s = self.clock.now_s()
        settled = [connect for connect, at_s in self._lit_at_s.items() if at_s <= now_s]
        return (
            self.circuits().circuits
            - circuits_from_cross_connects(self.fabric, self.region, settled).circuits
        )

    def prepare(self, circuits: CircuitSet) -> None:
        """Do nothing: a probe in memory sends no frames."""

    def probe(self, circuits: CircuitSet, timeout_s: float) -> ProbeResult:
        """Return which circuits have light; advance the clock by `timeout_s` if one has none."""
        settled = circuits.circuits & self.circuits().circuits - self.dark()
        carrying = CircuitSet(frozenset(c for c in settled if not self._ports(c) & self.opaque))
        if carrying != circuits:
            self.clock.wait_until(self.clock.now_s() + timeout_s)
        return ProbeResult(carrying)

    def _ports(self, circuit: Circuit) -> set[int]:
        return {ocs_port(self.fabric, circuit.a), ocs_port(self.fabric, circuit.b)}

    def _check_reachable(self) -> None:
        if self.gone:
            raise ControlError(f"{self.name}: no answer")
