"""The light of all regions as a replay moves it: each region's controller asked by a thread of its own, and what is lit and was dark since."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from statistics import median
from typing import Final, Protocol

from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.experiment.clock import Clock
from moefabric.experiment.diverting import light_after_s
from moefabric.experiment.runs import Moved, ReconfigurationRun, Span
from moefabric.experiment.sending import lit_together
from moefabric.health import planned_for
from moefabric.iteration import Reconfigure
from moefabric.topology import Fabric, Region
from moefabric.units import NS_PER_S

_REMEMBERED: Final = 8
"""Changes of light from which the next one's time is expected."""


class Light(Protocol):
    """A region's controller, as the experiment sees it."""

    def reconfigure(self, demand: DemandMatrix) -> Moved:
        """Light what the demand deserves; returns when traffic may use it."""


@dataclass(frozen=True)
class Moving:
    """A reconfiguration that goes on: what each region's controller will tell, and from when to when it took."""

    number: int
    operation: Reconfigure
    regions: Mapping[str, "Future[tuple[Moved, int, int]]"]


class Lighting:
    """What is lit in each region, and who moves it: `lights` by region. A region without one keeps what is `lit`."""

    def __init__(
        self, fabric: Fabric, lights: Mapping[str, Light], lit: CircuitSet, clock: Clock, background: Executor
    ) -> None:
        self.fabric, self.lights, self.clock = fabric, lights, clock
        self._background = background
        self._lit = {
            region.name: CircuitSet(frozenset(c for c in lit if c.a.server in region.servers))
            for region in fabric.regions
        }
        self._dark_ns = dict.fromkeys(self._lit, 0)
        self._control_s: deque[float] = deque(maxlen=_REMEMBERED)

    @property
    def circuits(self) -> CircuitSet:
        """What is lit in all regions, as far as it has been told."""
        return lit_together(self._lit.values())

    def begin(self, number: int, operation: Reconfigure, regions: Collection[str] | None = None) -> Moving:
        """Tell all of these regions at once, or all there are, in iteration `number`; `done` waits for them."""
        return Moving(
            number,
            operation,
            {
                region.name: self._background.submit(
                    self._moved, region, planned_for(region.servers, operation.demand)
                )
                for region in self.fabric.regions
                if region.name in self.lights and (regions is None or region.name in regions)
            },
        )

    def done(self, moving: Moving) -> list[ReconfigurationRun]:
        """Each region's reconfiguration, once the last one's light may be used."""
        runs = []
        for region, told in moving.regions.items():
            moved, start, end = told.result()
            self._lit[region] = moved.after
            if moved.before != moved.after:
                self._control_s.append((end - start) / NS_PER_S - moved.phases.settle_s)
                self._dark_ns[region] += round(moved.phases.settle_s * NS_PER_S)
            runs.append(
                ReconfigurationRun(moving.number, moving.operation, moved, start, end, region, why=moved.why)
            )
        return runs

    @property
    def control_s(self) -> float:
        """Wall seconds that a change of light is expected to take besides settling: what the last ones took, in the median."""
        return median(self._control_s) if self._control_s else 0.0

    def after_s(self, arming_ns: int = 0) -> dict[str, float]:
        """Model seconds after which light that is asked for now may be used, by region; `arming_ns` is what telling its users takes on the wall's clock."""
        overhead_s = self.control_s + arming_ns / NS_PER_S
        return {
            name: seconds
            for name, seconds in light_after_s(self.fabric, overhead_s).items()
            if name in self.lights
        }

    def dark_ns(self, region: str) -> int:
        """For how long circuits of the region were dark since this was asked last."""
        dark, self._dark_ns[region] = self._dark_ns[region], 0
        return dark

    def _moved(self, region: Region, demand: DemandMatrix) -> tuple[Moved, int, int]:
        start = self.clock.now_ns()
        moved = self.lights[region.name].reconfigure(demand)
        return moved, start, self.clock.now_ns()


def moving_spans(fabric: Fabric, runs: Sequence[ReconfigurationRun]) -> list[Span]:
    """For the picture: when each server whose light moved was being reconfigured, and when it was dark."""
    return [span for run in runs for span in _moving_spans(fabric, run)]


def _moving_spans(fabric: Fabric, run: ReconfigurationRun) -> list[Span]:
    moved, what, phases = run.moved, run.operation, run.moved.phases
    change = moved.before.towards(moved.after)
    moving = {server for each in (change.teardown, change.setup) for c in each for server in c.pair}
    dark = run.start_ns + round((phases.demand_s + phases.plan_s + phases.divert_s) * NS_PER_S)
    lit = min(run.end_ns, dark + round(phases.settle_s * NS_PER_S))
    spans = []
    for server in sorted(moving, key=fabric.index.__getitem__):
        spans.append(Span(server, "reconfiguration", what.direction, what.layer, run.start_ns, run.end_ns))
        spans.append(Span(server, "dark", what.direction, what.layer, dark, lit))
    return spans
