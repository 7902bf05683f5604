"""Asking: controllers that move their regions' light in the background, each waited for as long as there is patience, and what is lit as far as is known."""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from statistics import median
from typing import Final

from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import ControlError
from moefabric.experiment.clock import Clock
from moefabric.experiment.diverting import light_after_s
from moefabric.experiment.lighting import Light
from moefabric.experiment.runs import Moved
from moefabric.records import Phases
from moefabric.topology import Fabric
from moefabric.units import NS_PER_S

PATIENCE_S: Final = 1.0
"""How long a region waits for its controller's word, besides twice the time that its light needs, before it goes by the EPS."""
OWES: Final = "its controller still owes an answer"
_REMEMBERED: Final = 8
"""Changes of light of a region from which the next one's time is expected."""


@dataclass(frozen=True)
class Answer:
    """What a controller said, or what is so while it says nothing (`moved.why`); when it was asked, and when that was known."""

    moved: Moved
    start_ns: int
    end_ns: int

    @property
    def changed(self) -> bool:
        """Whether light was moved, as it was asked for."""
        return self.moved.before != self.moved.after and not self.moved.why

    @property
    def settled_s(self) -> float:
        """For how many wall seconds what moved was dark."""
        return self.moved.phases.settle_s if self.changed else 0.0


Then = Callable[[Answer], None]
"""What is done with an answer."""


@dataclass
class _Asked:
    """A controller that owes an answer, and who waits for it while there is patience."""

    answer: "Future[Moved]"
    start_ns: int
    then: Then
    end_ns: int | None = None
    waited_for: bool = True


class Asking:
    """The controllers of a fabric's regions, in `lights`; a region without one keeps what is `lit`.

    `at` does something at an instant, and `wake` (any thread's) lets whoever waits look at what has been `answered`.
    """

    def __init__(
        self,
        fabric: Fabric,
        lights: Mapping[str, Light],
        lit: CircuitSet,
        clock: Clock,
        background: Executor,
        patience_s: float,
        at: Callable[[int, Callable[[], None]], None],
        wake: Callable[[], None],
    ) -> None:
        self.fabric, self.lights, self.clock = fabric, lights, clock
        self._background, self._at, self._wake = background, at, wake
        self._patience_ns = {
            region.name: round(patience_s * NS_PER_S)
            + (2 * (region.ocs.settle_ns + region.ocs.link_up_ns) if region.ocs else 0)
            for region in fabric.regions
        }
        self.lit = {
            region.name: CircuitSet(frozenset(c for c in lit if c.a.server in region.servers))
            for region in fabric.regions
        }
        """What each region may use."""
        self._dark_ns = dict.fromkeys(self.lit, 0)
        self._asked: dict[str, _Asked] = {}
        self._control_s: dict[str, deque[float]] = {name: deque(maxlen=_REMEMBERED) for name in self.lit}

    @property
    def owed(self) -> bool:
        """Whether some controller owes an answer."""
        return bool(self._asked)

    def ask(self, region: str, demand: DemandMatrix, then: Then) -> None:
        """Ask for light, and do something once it is known what there is of it. A controller that owes an answer isn't asked again."""
        now = self.clock.now_ns()
        if region in self._asked:
            then(self._without_light(region, now, OWES))
            return
        answer = self._background.submit(self.lights[region].reconfigure, demand)
        asked = self._asked[region] = _Asked(answer, now, then)
        self._at(now + self._patience_ns[region], lambda: self._out_of_patience(region, asked))

        def told(_: "Future[Moved]") -> None:
            asked.end_ns = self.clock.now_ns()
            self._wake()

        answer.add_done_callback(told)

    def answered(self) -> None:
        """Take all answers that have come, late though they may be."""
        for region in [name for name, asked in self._asked.items() if asked.answer.done()]:
            self._take(region, self._asked.pop(region))

    def expected_s(self, region: str, arming_ns: int) -> float | None:
        """Model seconds after which light that is asked for now may be used; None where none can be. `arming_ns` is what telling its users takes."""
        if region not in self.lights or region in self._asked:
            return None
        seen = self._control_s[region]
        overhead_s = (median(seen) if seen else 0.0) + arming_ns / NS_PER_S
        return light_after_s(self.fabric, overhead_s).get(region)

    def dark_ns(self, region: str) -> int:
        """For how long circuits of the region were dark since this was asked last."""
        dark, self._dark_ns[region] = self._dark_ns[region], 0
        return dark

    def _take(self, region: str, asked: _Asked) -> None:
        try:
            moved = asked.answer.result()
        except ControlError as fault:
            told = self._without_light(region, asked.start_ns, str(fault))
            if asked.waited_for:
                asked.then(told)
            return
        answer = Answer(moved, asked.start_ns, asked.end_ns or self.clock.now_ns())
        self.lit[region] = moved.after
        if not asked.waited_for:
            return
        self._dark_ns[region] += round(answer.settled_s * NS_PER_S)
        if answer.changed:
            took_s = (answer.end_ns - answer.start_ns) / NS_PER_S
            self._control_s[region].append(max(0.0, took_s - answer.settled_s))
        asked.then(answer)

    def _out_of_patience(self, region: str, asked: _Asked) -> None:
        if asked.waited_for and self._asked.get(region) is asked and not asked.answer.done():
            asked.waited_for = False
            waited_s = (self.clock.now_ns() - asked.start_ns) / NS_PER_S
            why = f"its controller didn't answer within {waited_s:.1f} s"
            asked.then(self._without_light(region, asked.start_ns, why))

    def _without_light(self, region: str, start_ns: int, why: str) -> Answer:
        """The region relies on no light until its controller has answered."""
        now, before = self.clock.now_ns(), self.lit[region]
        self.lit[region] = CircuitSet()
        waited = Phases(total_s=(now - start_ns) / NS_PER_S)
        return Answer(Moved(before, CircuitSet(), waited, why=why), start_ns, now)
