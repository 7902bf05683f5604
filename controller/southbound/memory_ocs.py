"""An optical switch in memory: ports, dark time and refusals as the hardware has them, without a network or a kernel."""

from controller.clock import Clock, VirtualClock
from controller.southbound.crossconnects import CrossConnect, Moves, ObstacleError, Wanted, moves
from moefabric.circuits import Circuit, CircuitSet, Transition, cross_connects, seen_circuits
from moefabric.errors import ControlError
from moefabric.ocs_control import Mode
from moefabric.seams import Probed
from moefabric.topology import Fabric, Region


class MemoryOcs:
    """A region's OCS. What is commanded shows at once and has light after the device's settle time, on the ports that moved alone.

    Faults a person can set: `refusal` is what it says to the next command, `stuck` are input ports whose mirror no longer moves, `opaque` are input
    ports that show no fault and let no light in, `gone` a device that answers nothing.
    """

    def __init__(self, fabric: Fabric, region: Region, clock: Clock | None = None) -> None:
        if region.ocs is None:
            raise ValueError(f"{region.name} has no OCS")
        self.fabric, self.region, self.clock = fabric, region, clock or VirtualClock()
        self.name, self._settle_s = region.ocs.name, region.ocs.settle_ns / 1e9
        self.refusal: str | None = None
        self.stuck: frozenset[int] = frozenset()
        self.opaque: frozenset[int] = frozenset()
        self.gone = False
        self._lit_at: dict[CrossConnect, float] = {}

    def lit(self) -> CircuitSet:
        """The circuits that its cross-connects make."""
        self._answer()
        return seen_circuits(self.fabric, self.region, self._lit_at)

    def reconfigure(self, transition: Transition, mode: Mode = Mode.SAFE) -> None:
        """Take out, put in. ControlError, and nothing changed, for what the mode forbids."""
        self._answer()
        told = self._moves(transition, mode)
        settled = self.clock.now_s() + self._settle_s
        moving = {p for p, _ in (*told.out, *told.into)} - self.stuck
        gone = set(told.out)
        self._lit_at = {c: at for c, at in self._lit_at.items() if c not in gone or c[0] not in moving}
        self._lit_at |= {c: settled for c in told.into if c[0] in moving}

    def settled(self, deadline_s: float) -> None:
        """Let the settle time pass. ControlError if it is longer than `deadline_s`."""
        self._answer()
        lit_at = max(self._lit_at.values(), default=0.0)
        if lit_at > self.clock.now_s() + deadline_s:
            raise ControlError(f"{self.name}: not settled within {deadline_s:g} s")
        self.clock.wait_until(lit_at)

    def dark(self) -> frozenset[Circuit]:
        """The circuits that are joined but have no light yet."""
        now = self.clock.now_s()
        lit = seen_circuits(self.fabric, self.region, [c for c, at in self._lit_at.items() if at <= now])
        return self.lit().circuits - lit.circuits

    def through(self, circuits: CircuitSet, patience_s: float) -> Probed:
        """Which of these have light: the other half of a `LightProbe`, since the light is here. It takes no time, unless patience is at its end."""
        wanted = circuits.circuits - self.dark()
        ports = (
            (c, {self.fabric.ocs_port(c.a), self.fabric.ocs_port(c.b)}) for c in wanted & self.lit().circuits
        )
        carrying = CircuitSet(frozenset(c for c, ends in ports if not ends & self.opaque))
        if carrying != circuits:
            self.clock.wait_until(self.clock.now_s() + patience_s)
        return Probed(carrying)

    def _answer(self) -> None:
        if self.gone:
            raise ControlError(f"{self.name}: no answer")

    def _moves(self, transition: Transition, mode: Mode) -> Moves:
        if self.refusal is not None:
            said, self.refusal = self.refusal, None
            raise ControlError(f"{self.name} refuses: {said}; nothing has changed")
        parts = (transition.teardown, transition.kept, transition.setup)
        wanted = Wanted(*(cross_connects(self.fabric, self.region, part) for part in parts))
        try:
            return moves(tuple(self._lit_at), wanted, mode)
        except ObstacleError as why:
            raise ControlError(f"{self.name} can't: {why}; nothing has changed") from why
