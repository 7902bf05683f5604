"""The replay of one fabric: iterations of computing, moving light and sending, one operation after the other, every one timed."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol

from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import AgentError
from moefabric.experiment.cpu import stolen_and_total
from moefabric.flows import Flow, Split, flows
from moefabric.fluid import Prediction, predict
from moefabric.iteration import Collective, Compute, Operation, Reconfigure
from moefabric.records import FlowRecord, Phases
from moefabric.seams import Agents
from moefabric.topology import Fabric
from moefabric.units import NS_PER_S

PACING_HEADROOM: Final = 1.03
"""A flow is paced this much above its planned rate: what it loses to starting it makes good."""
ARMING_NS: Final = 20_000_000
"""How far ahead agents are told of a collective, so that all start at the same instant."""
_SLACK_S: Final = 20.0


class Policy(Protocol):
    """How a demand is parted over light and EPS."""

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split: ...


@dataclass(frozen=True)
class Moved:
    """A reconfiguration as the controller tells it."""

    before: CircuitSet
    after: CircuitSet
    phases: Phases


class Light(Protocol):
    """A region's controller, as the experiment sees it."""

    def reconfigure(self, demand: DemandMatrix) -> Moved:
        """Light what the demand deserves; returns when traffic may use it."""


@dataclass(frozen=True)
class PacedFlow:
    """What an agent has to send."""

    src: str
    dst: str
    path: str
    bytes: int
    rate_bps: float | None


@dataclass(frozen=True)
class CollectiveRun:
    """A collective as it went. Times in wall nanoseconds, from the first byte sent to the last one received; prediction in model seconds.

    `stolen` is the share of the machine's CPU that a hypervisor gave to others meanwhile.
    """

    iteration: int
    operation: Collective
    prediction: Prediction
    planned: tuple[Flow, ...]
    records: tuple[FlowRecord, ...]
    dark_ns: int
    stolen: float = 0.0

    @property
    def start_ns(self) -> int:
        """When the first byte was sent."""
        return min(record.first_sent_ns for record in self.records)

    @property
    def end_ns(self) -> int:
        """When the last byte was received."""
        return max(record.last_received_ns for record in self.records)


@dataclass(frozen=True)
class ReconfigurationRun:
    """A reconfiguration as it went."""

    iteration: int
    operation: Reconfigure
    moved: Moved
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Span:
    """A stretch of one server's time, for the picture."""

    server: str
    kind: str
    direction: str
    layer: int
    start_ns: int
    end_ns: int


@dataclass
class IterationRun:
    """One iteration as it went."""

    number: int
    start_ns: int
    end_ns: int = 0
    compute_ns: int = 0
    collectives: list[CollectiveRun] = field(default_factory=list)
    reconfigurations: list[ReconfigurationRun] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


class Clock(Protocol):
    """Time, and waiting for it."""

    def now_ns(self) -> int: ...
    def sleep_until(self, instant_ns: int) -> None: ...


class MonotonicClock:
    """This machine's CLOCK_MONOTONIC, which the agents and the kernel's dark time use too."""

    def now_ns(self) -> int:
        """Nanoseconds."""
        return time.monotonic_ns()

    def sleep_until(self, instant_ns: int) -> None:
        """Return at `instant_ns`, or at once where it has passed."""
        if (left := instant_ns - time.monotonic_ns()) > 0:
            time.sleep(left / NS_PER_S)


class Replay:
    """Runs iterations of one fabric under one policy. Without a `light` to move, what is `lit` stays lit."""

    def __init__(
        self,
        fabric: Fabric,
        policy: Policy,
        agents: Agents,
        light: Light | None,
        lit: CircuitSet,
        *,
        paced: bool = True,
        clock: Clock | None = None,
        background: Executor | None = None,
        arming_ns: int = ARMING_NS,
        stolen: Callable[[], tuple[int, int]] = stolen_and_total,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.fabric, self.policy, self.agents, self.light, self.circuits = fabric, policy, agents, light, lit
        self.paced, self.clock, self.progress = paced, clock or MonotonicClock(), progress
        self.arming_ns, self._stolen = arming_ns, stolen
        self._collectives = 0
        self._dark_ns = 0
        self._background = background or ThreadPoolExecutor(1, thread_name_prefix="reconfigure")

    def iteration(self, number: int, operations: Sequence[Operation]) -> IterationRun:
        """Run one iteration; AgentError where a transfer is lost for good."""
        run = IterationRun(number, self.clock.now_ns())
        cursor = run.start_ns
        for operation in operations:
            match operation:
                case Compute():
                    cursor = self._compute(run, operation, cursor)
                case Reconfigure() if self.light is not None:
                    self.clock.sleep_until(cursor)
                    cursor = self._reconfigure(run, operation, self.light)
                case Collective():
                    cursor = self._collective(run, operation, cursor)
        self.clock.sleep_until(cursor)
        run.end_ns = cursor
        return run

    def _compute(self, run: IterationRun, operation: Compute, start_ns: int) -> int:
        ends = [start_ns + self._wall_ns(seconds) for seconds in operation.seconds]
        run.spans += [
            Span(server, operation.kind, operation.direction, operation.layer, start_ns, end)
            for server, end in zip(self.fabric.servers, ends, strict=True)
        ]
        run.compute_ns += max(ends) - start_ns
        if operation.meanwhile is None or self.light is None:
            return max(ends)
        moving: Future[int] = self._background.submit(self._reconfigure, run, operation.meanwhile, self.light)
        return max(moving.result(), *ends)

    def _reconfigure(self, run: IterationRun, operation: Reconfigure, light: Light) -> int:
        start = self.clock.now_ns()
        moved = light.reconfigure(operation.demand)
        end = self.clock.now_ns()
        self.circuits = moved.after
        run.reconfigurations.append(ReconfigurationRun(run.number, operation, moved, start, end))
        if moved.before != moved.after:
            self._dark_ns += round(moved.phases.settle_s * NS_PER_S)
            run.spans += self._dark_spans(operation, moved, start, end)
        return end

    def _dark_spans(self, operation: Reconfigure, moved: Moved, start: int, end: int) -> list[Span]:
        change = moved.before.towards(moved.after)
        moving = {server for each in (change.teardown, change.setup) for c in each for server in c.pair}
        before = round((moved.phases.demand_s + moved.phases.plan_s + moved.phases.divert_s) * NS_PER_S)
        dark = start + before, min(end, start + before + round(moved.phases.settle_s * NS_PER_S))
        spans = []
        for server in sorted(moving, key=self.fabric.index.__getitem__):
            spans.append(Span(server, "reconfiguration", operation.direction, operation.layer, start, end))
            spans.append(Span(server, "dark", operation.direction, operation.layer, *dark))
        return spans

    def _collective(self, run: IterationRun, operation: Collective, cursor: int) -> int:
        split = self.policy.split(self.fabric, operation.demand, self.circuits)
        planned = flows(self.fabric, self.circuits, split)
        if not planned:
            return cursor
        prediction = predict(self.fabric, self.circuits, planned)
        start = max(cursor, self.clock.now_ns() + self.arming_ns)
        self._collectives += 1
        wall_s = prediction.seconds * self.fabric.scale.dilation
        before = self._stolen()
        records = self.agents.run(
            self._collectives, self._paced(planned, wall_s), start, deadline_s=10 * wall_s + _SLACK_S
        )
        if lost := [record for record in records if not record.ok]:
            raise AgentError(_loss(operation, lost))
        dark, self._dark_ns = self._dark_ns, 0
        stolen, total = (now - then for now, then in zip(self._stolen(), before, strict=True))
        share = stolen / total if total else 0.0
        made = CollectiveRun(run.number, operation, prediction, planned, tuple(records), dark, share)
        run.collectives.append(made)
        run.spans += self._sending_spans(made)
        self.progress(f"{operation.direction} {operation.kind} of layer {operation.layer}")
        return made.end_ns

    def _paced(self, planned: Sequence[Flow], wall_s: float) -> list[PacedFlow]:
        scale = self.fabric.scale
        made = []
        # The largest first: the fullest link must not wait while an agent starts the others.
        for flow in sorted(planned, key=lambda flow: -flow.bytes):
            size = scale.size_bytes(flow.bytes)
            rate = PACING_HEADROOM * 8 * size / wall_s if self.paced else None
            made.append(PacedFlow(flow.src, flow.dst, flow.path, size, rate))
        return made

    def _sending_spans(self, made: CollectiveRun) -> list[Span]:
        spans = []
        for server in self.fabric.servers:
            mine = [r for r in made.records if server in (r.src, r.dst)]
            if mine:
                start, end = min(r.first_sent_ns for r in mine), max(r.last_received_ns for r in mine)
                what = made.operation
                spans.append(Span(server, what.kind, what.direction, what.layer, start, end))
        return spans

    def _wall_ns(self, model_s: float) -> int:
        return self.fabric.scale.wall_ns(model_s * NS_PER_S)

    def close(self) -> None:
        """End the background thread."""
        self._background.shutdown()


def _loss(operation: Collective, lost: Sequence[FlowRecord]) -> str:
    first = lost[0]
    where = f"{operation.direction} {operation.kind} of layer {operation.layer}"
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    return f"{where}: {first.src} to {first.dst} by {first.path}: {first.why}{more}"
