"""The replay of one fabric: iterations of computing, moving light and sending, one operation after the other, every one timed.

All regions go through an iteration side by side: an all-to-all starts in all of them at the same instant, once the last one is ready, and each is
timed by itself. That is the most that their shared EPS can be asked for; in a job they would drift apart.

Computing is waiting, and nothing moves meanwhile: all but the end of a long wait is skipped, and the times that are told go on as if it
had passed. Light, bytes and rules never have their time cut.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from moefabric.circuits import CircuitSet
from moefabric.experiment.clock import Clock, MonotonicClock, SkippingClock
from moefabric.experiment.collective import ARMING_NS, Collectives, Waits, in_words, sending_spans
from moefabric.experiment.cpu import stolen_and_total
from moefabric.experiment.diverting import light_after_s
from moefabric.experiment.lighting import Light, Lighting, Moving, moving_spans
from moefabric.experiment.runs import CollectiveRun, IterationRun, Span
from moefabric.experiment.sending import Policy
from moefabric.fluid import works_for
from moefabric.iteration import Collective, Compute, Operation, Reconfigure
from moefabric.seams import Agents
from moefabric.topology import Fabric
from moefabric.units import NS_PER_S


class Replay:
    """Runs iterations of one fabric under one policy. Regions without a light to move, in `lights`, keep what is `lit`."""

    def __init__(
        self,
        fabric: Fabric,
        policy: Policy,
        agents: Agents,
        lights: Mapping[str, Light],
        lit: CircuitSet,
        *,
        paced: bool = True,
        clock: Clock | None = None,
        background: Executor | None = None,
        arming_ns: int = ARMING_NS,
        stolen: Callable[[], tuple[int, int]] = stolen_and_total,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.fabric, self.progress = fabric, progress
        self.clock = SkippingClock(clock or MonotonicClock())
        self._background = background or ThreadPoolExecutor(
            max(1, len(lights)), thread_name_prefix="reconfigure"
        )
        self._moving: Moving | None = None
        self._ready_ns = self._lit_ns = 0
        self.lighting = Lighting(fabric, lights, lit, self.clock, self._background)
        self.collectives = Collectives(
            fabric, policy, agents, self.clock, paced=paced, arming_ns=arming_ns, stolen=stolen
        )

    @property
    def circuits(self) -> CircuitSet:
        """What is lit in all regions."""
        return self.lighting.circuits

    @property
    def windows(self) -> list[tuple[int, int]]:
        """When packets flew (`Collectives.windows`)."""
        return self.collectives.windows

    def iteration(self, number: int, operations: Sequence[Operation]) -> IterationRun:
        """Run one iteration; AgentError where a transfer is lost for good."""
        run, skipped = IterationRun(number, self.clock.now_ns()), self.clock.skipped_ns
        cursor = self._ready_ns = max(run.start_ns, self._awaited(run))
        for operation in operations:
            match operation:
                case Compute():
                    cursor = self._compute(run, operation, cursor)
                case Reconfigure() if self.lighting.lights:
                    self.clock.sleep_until(cursor)
                    cursor = self._reconfigure(run, operation)
                case Collective(meanwhile=None):
                    cursor = self._collective(run, operation, max(cursor, self._awaited(run)))
                case Collective():
                    cursor = self._diverted(run, operation, max(cursor, self._awaited(run)))
        cursor = max(cursor, self._awaited(run))
        self.clock.sleep_until(cursor)
        run.end_ns, run.skipped_ns = cursor, self.clock.skipped_ns - skipped
        return run

    def _compute(self, run: IterationRun, operation: Compute, start_ns: int) -> int:
        ends = [start_ns + self._wall_ns(seconds) for seconds in operation.seconds]
        run.spans += [
            Span(server, operation.kind, operation.direction, operation.layer, start_ns, end)
            for server, end in zip(works_for(self.fabric, self.collectives.groups), ends, strict=True)
        ]
        run.compute_ns += max(ends) - start_ns
        self._ready_ns = max(ends)
        if operation.meanwhile is None or not self.lighting.lights:
            return max(ends)
        return max(self._reconfigure(run, operation.meanwhile), *ends)

    def _reconfigure(self, run: IterationRun, operation: Reconfigure) -> int:
        """When the last region's light may be used."""
        now = max(self.clock.now_ns(), self._awaited(run))
        return max(now, self._lit(run, self.lighting.begin(run.number, operation)))

    def _awaited(self, run: IterationRun) -> int:
        """When light that was still moving, if any, may be used in all regions."""
        moving, self._moving = self._moving, None
        return 0 if moving is None else self._lit(run, moving)

    def _lit(self, run: IterationRun, moving: Moving) -> int:
        """When what is moving may be used in all regions, once it may; 0 where there are none."""
        moved = self.lighting.done(moving)
        run.reconfigurations += moved
        run.spans += moving_spans(self.fabric, moved)
        due_s = light_after_s(self.fabric)  # what it took would be held against itself
        changed = [due_s[each.region] for each in moved if each.moved.before != each.moved.after]
        if changed:
            begun = min(each.start_ns for each in moved)
            self._lit_ns = max(self._lit_ns, begun + self._wall_ns(max(changed)))
        return max((each.end_ns for each in moved), default=0)

    def _collective(self, run: IterationRun, operation: Collective, cursor: int) -> int:
        flying = self.collectives.begin(run.number, operation, self.circuits, cursor)
        if flying is None:
            return cursor
        made = self.collectives.end(flying, self.lighting.dark_ns, waits=self._waits())
        return self._over(run, operation, made)

    def _diverted(self, run: IterationRun, operation: Collective, cursor: int) -> int:
        """An all-to-all that doesn't wait for its light; where moving it now wouldn't pay, it moves afterwards."""
        light, wanted = self.lighting, operation.meanwhile
        assert wanted is not None
        plan = self.collectives.diverted(operation, light.circuits, light.after_s(self.collectives.arming(0)))
        flying = self.collectives.begin_diverted(run.number, operation, plan, cursor)
        if flying is None:
            return cursor
        late, waits = None, self._waits(plan.moving)
        if plan.moving:
            self.clock.sleep_until(flying.start_ns)
            self._lit(run, light.begin(run.number, wanted, plan.moving))
            late = self.collectives.begin_late(flying, plan, light.circuits)
        end = self._over(run, operation, self.collectives.end(flying, light.dark_ns, late, waits))
        self._moving = light.begin(run.number, wanted, light.lights.keys() - set(plan.moving))
        return end

    def _waits(self, moved_now: Collection[str] = ()) -> Waits:
        expected_s = max(0, self._lit_ns - self._ready_ns) / NS_PER_S / self.fabric.scale.dilation
        return Waits(self._ready_ns, expected_s, frozenset(moved_now))

    def _over(self, run: IterationRun, operation: Collective, made: Sequence[CollectiveRun]) -> int:
        """When the last byte of a collective was received."""
        run.collectives += made
        run.spans += [span for part in made for span in sending_spans(self.fabric, part)]
        self.progress(in_words(operation))
        self._ready_ns = max(part.end_ns for part in made)
        return self._ready_ns

    def _wall_ns(self, model_s: float) -> int:
        return self.fabric.scale.wall_ns(model_s * NS_PER_S)

    def close(self) -> None:
        """End the background threads."""
        self._background.shutdown()
