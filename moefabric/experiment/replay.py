"""The replay of one fabric: iterations of computing, moving light and sending, one operation after the other, every one timed.

All regions go through an iteration side by side: an all-to-all starts in all of them at the same instant, once the last one is ready, and each is
timed by itself. That is the most that their shared EPS can be asked for; in a job they would drift apart.

Computing is waiting, and nothing moves meanwhile: of a long wait, all but `LONGEST_WAIT_NS` is skipped, and the times that are told go on as if it
had passed. Light, bytes and rules never have their time cut.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Protocol

from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import AgentError
from moefabric.experiment.clock import Clock, MonotonicClock
from moefabric.experiment.cpu import stolen_and_total
from moefabric.experiment.runs import CollectiveRun, IterationRun, Moved, ReconfigurationRun, Span
from moefabric.experiment.sending import Policy, lit_together, paced, planned_flows
from moefabric.flows import Flow
from moefabric.fluid import Prediction, predict_regions
from moefabric.iteration import Collective, Compute, Operation, Reconfigure
from moefabric.records import FlowRecord
from moefabric.seams import Agents
from moefabric.topology import Fabric, Region
from moefabric.units import NS_PER_S

ARMING_NS: Final = 20_000_000
"""How far ahead agents are told of a collective, so that all start at the same instant."""
ARMING_FLOW_NS: Final = 100_000
ARMING_SERVER_NS: Final = 1_000_000
"""And how far for each of its flows and servers, where there are many: what telling them takes."""
LONGEST_WAIT_NS: Final = 250_000_000
"""So long connections rest, and control planes end what they have begun, before the next operation."""
_SLACK_S: Final = 20.0


class Light(Protocol):
    """A region's controller, as the experiment sees it."""

    def reconfigure(self, demand: DemandMatrix) -> Moved:
        """Light what the demand deserves; returns when traffic may use it."""


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
        self.fabric, self.policy, self.agents, self.lights = fabric, policy, agents, lights
        self.paced, self.clock, self.progress = paced, clock or MonotonicClock(), progress
        self.arming_ns, self._stolen = arming_ns, stolen
        self._lit = {
            region.name: CircuitSet(frozenset(c for c in lit if c.a.server in region.servers))
            for region in fabric.regions
        }
        self._collectives = self._skipped_ns = 0
        self.windows: list[tuple[int, int]] = []
        """When packets flew, from the first byte to the last of each collective, on the wall's clock with nothing left out."""
        self._dark_ns = dict.fromkeys(self._lit, 0)
        self._background = background or ThreadPoolExecutor(
            max(1, len(lights)), thread_name_prefix="reconfigure"
        )

    @property
    def circuits(self) -> CircuitSet:
        """What is lit in all regions."""
        return lit_together(self._lit.values())

    def iteration(self, number: int, operations: Sequence[Operation]) -> IterationRun:
        """Run one iteration; AgentError where a transfer is lost for good."""
        run, skipped = IterationRun(number, self._now_ns()), self._skipped_ns
        cursor = run.start_ns
        for operation in operations:
            match operation:
                case Compute():
                    cursor = self._compute(run, operation, cursor)
                case Reconfigure() if self.lights:
                    self._wait_until(cursor)
                    cursor = self._reconfigure(run, operation)
                case Collective():
                    cursor = self._collective(run, operation, cursor)
        self._wait_until(cursor)
        run.end_ns, run.skipped_ns = cursor, self._skipped_ns - skipped
        return run

    def _now_ns(self) -> int:
        return self.clock.now_ns() + self._skipped_ns

    def _wait_until(self, instant_ns: int) -> None:
        self._skip_towards(instant_ns)
        self.clock.sleep_until(instant_ns - self._skipped_ns)

    def _skip_towards(self, instant_ns: int) -> None:
        self._skipped_ns += max(0, instant_ns - self._now_ns() - LONGEST_WAIT_NS)

    def _compute(self, run: IterationRun, operation: Compute, start_ns: int) -> int:
        ends = [start_ns + self._wall_ns(seconds) for seconds in operation.seconds]
        run.spans += [
            Span(server, operation.kind, operation.direction, operation.layer, start_ns, end)
            for server, end in zip(self.fabric.servers, ends, strict=True)
        ]
        run.compute_ns += max(ends) - start_ns
        if operation.meanwhile is None or not self.lights:
            return max(ends)
        return max(self._reconfigure(run, operation.meanwhile), *ends)

    def _reconfigure(self, run: IterationRun, operation: Reconfigure) -> int:
        """All regions told at once, each by a thread of its own; when the last one's light may be used."""
        moving: list[tuple[Region, Future[tuple[Moved, int, int]]]] = [
            (region, self._background.submit(self._moved, region, operation.demand.of(region.servers)))
            for region in self.fabric.regions
            if region.name in self.lights
        ]
        last = self._now_ns()
        for region, told in moving:
            moved, start, end = told.result()
            last = max(last, end)
            self._lit[region.name] = moved.after
            run.reconfigurations.append(
                ReconfigurationRun(run.number, operation, moved, start, end, region.name)
            )
            if moved.before != moved.after:
                self._dark_ns[region.name] += round(moved.phases.settle_s * NS_PER_S)
                run.spans += self._dark_spans(operation, moved, start, end)
        return last

    def _moved(self, region: Region, demand: DemandMatrix) -> tuple[Moved, int, int]:
        start = self._now_ns()
        moved = self.lights[region.name].reconfigure(demand)
        return moved, start, self._now_ns()

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
        circuits = self.circuits
        planned = planned_flows(self.fabric, self.policy, operation.demand, circuits)
        if not planned:
            return cursor
        predictions = predict_regions(self.fabric, circuits, planned)
        told = paced(self.fabric, planned, predictions, greedily=not self.paced)
        servers = len(self.fabric.servers)
        arming = max(self.arming_ns, ARMING_FLOW_NS * len(told) + ARMING_SERVER_NS * servers)
        start = max(cursor, self._now_ns() + arming)
        self._skip_towards(start - arming)
        self._collectives += 1
        longest_s = max(p.seconds for p in predictions.values()) * self.fabric.scale.dilation
        before = self._stolen()
        records = [
            self._shifted(record)
            for record in self.agents.run(
                self._collectives, told, start - self._skipped_ns, deadline_s=10 * longest_s + _SLACK_S
            )
        ]
        if lost := [record for record in records if not record.ok]:
            raise AgentError(_loss(operation, lost))
        stolen, total = (now - then for now, then in zip(self._stolen(), before, strict=True))
        made = self._parted(
            run.number, operation, predictions, planned, records, stolen / total if total else 0.0
        )
        run.collectives += made
        end = max(part.end_ns for part in made)
        self.windows.append((start - self._skipped_ns, end - self._skipped_ns))
        run.spans += [span for part in made for span in self._sending_spans(part)]
        self.progress(f"{operation.direction} {operation.kind} of layer {operation.layer}")
        return end

    def _shifted(self, record: FlowRecord) -> FlowRecord:
        """The record on the clock on which nothing was skipped."""
        return replace(
            record,
            first_sent_ns=record.first_sent_ns + self._skipped_ns,
            last_sent_ns=record.last_sent_ns + self._skipped_ns,
            first_received_ns=record.first_received_ns + self._skipped_ns,
            last_received_ns=record.last_received_ns + self._skipped_ns,
        )

    def _parted(
        self,
        number: int,
        operation: Collective,
        predictions: Mapping[str, Prediction],
        planned: Sequence[Flow],
        records: Sequence[FlowRecord],
        stolen: float,
    ) -> list[CollectiveRun]:
        """Each region's part of what went."""
        sent: dict[str, list[Flow]] = {name: [] for name in predictions}
        seen: dict[str, list[FlowRecord]] = {name: [] for name in predictions}
        for flow in planned:
            sent[self.fabric.region_of[flow.src].name].append(flow)
        for record in records:
            seen[self.fabric.region_of[record.src].name].append(record)
        made = []
        for name, prediction in predictions.items():
            dark, self._dark_ns[name] = self._dark_ns[name], 0
            made.append(
                CollectiveRun(
                    number, operation, prediction, tuple(sent[name]), tuple(seen[name]), dark, stolen, name
                )
            )
        return made

    def _sending_spans(self, made: CollectiveRun) -> list[Span]:
        what, mine = made.operation, defaultdict[str, list[FlowRecord]](list)
        for record in made.records:
            mine[record.src].append(record)
            mine[record.dst].append(record)
        return [
            Span(
                server,
                what.kind,
                what.direction,
                what.layer,
                min(r.first_sent_ns for r in mine[server]),
                max(r.last_received_ns for r in mine[server]),
            )
            for server in sorted(mine, key=self.fabric.index.__getitem__)
        ]

    def _wall_ns(self, model_s: float) -> int:
        return self.fabric.scale.wall_ns(model_s * NS_PER_S)

    def close(self) -> None:
        """End the background threads."""
        self._background.shutdown()


def _loss(operation: Collective, lost: Sequence[FlowRecord]) -> str:
    first = lost[0]
    where = f"{operation.direction} {operation.kind} of layer {operation.layer}"
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    return f"{where}: {first.src} to {first.dst} by {first.path}: {first.why}{more}"
