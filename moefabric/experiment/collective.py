"""One collective of all regions on the wire: planned over what is lit, paced, told to the agents, and gathered from them.

It begins and ends apart, so that several may be in flight; agents are told and gathered from by one thread only.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from moefabric.circuits import CircuitSet
from moefabric.errors import AgentError
from moefabric.experiment.clock import SkippingClock
from moefabric.experiment.cpu import stolen_and_total
from moefabric.experiment.diverting import Diverted, diverted, late_flows, late_paced
from moefabric.experiment.runs import CollectiveRun, Span
from moefabric.experiment.sending import PacedFlow, Policy, paced, planned_flows
from moefabric.flows import Flow
from moefabric.fluid import Prediction, predict_regions, works_for
from moefabric.iteration import Collective
from moefabric.records import FlowRecord
from moefabric.seams import Agents
from moefabric.topology import Fabric
from moefabric.units import NS_PER_S

ARMING_NS: Final = 20_000_000
"""How far ahead agents are told of a collective, so that all start at the same instant."""
ARMING_FLOW_NS: Final = 100_000
ARMING_SERVER_NS: Final = 1_000_000
"""And how far for each of its flows and servers, where there are many: what telling them takes."""
_SLACK_S: Final = 20.0
_GRACE_S: Final = 2.0
"""How long after a collective's deadline its agents may take to tell."""


@dataclass(frozen=True)
class InFlight:
    """A collective that the agents hold, or do already. Times are those of the clock on which long waits are skipped."""

    iteration: int
    operation: Collective
    number: int
    predictions: Mapping[str, Prediction]
    planned: tuple[Flow, ...]
    told: tuple[PacedFlow, ...]
    start_ns: int
    until_ns: int
    stolen: tuple[int, int]
    skipped_ns: int


@dataclass(frozen=True)
class Waits:
    """What a collective waits for.

    When it could have started (0: it isn't known), the model seconds that its light was expected to need after that, and the regions whose light moves while it goes on.
    """

    ready_ns: int = 0
    expected_s: float = 0.0
    moved_now: frozenset[str] = frozenset()


class Collectives:
    """The collectives of one fabric under one policy."""

    def __init__(
        self,
        fabric: Fabric,
        policy: Policy,
        agents: Agents,
        clock: SkippingClock,
        *,
        paced: bool = True,
        arming_ns: int = ARMING_NS,
        stolen: Callable[[], tuple[int, int]] = stolen_and_total,
    ) -> None:
        self.fabric, self.policy, self.agents, self.clock = fabric, policy, agents, clock
        self.paced, self.arming_ns, self._stolen = paced, arming_ns, stolen
        self._count = 0
        self._flying: dict[int, InFlight] = {}
        self.begun: Callable[[int], object] = lambda _: None
        """Told of the instant, on the wall's clock, at which each collective starts; late bytes are of the same one."""
        self.groups: Mapping[str, Sequence[str]] = fabric.groups
        """The servers that work for each region; others than its own where some stand in."""
        self.windows: list[tuple[int, int]] = []
        """When packets flew, from the first byte to the last of each collective, on the wall's clock with nothing left out."""

    def begin(
        self, iteration: int, operation: Collective, circuits: CircuitSet, earliest_ns: int
    ) -> InFlight | None:
        """Tell the agents to start at `earliest_ns`, or as soon as all can hold it; None where nobody owes anything."""
        planned = planned_flows(self.fabric, self.policy, operation.demand, circuits, self.groups)
        if not planned:
            return None
        predictions = predict_regions(self.fabric, circuits, planned, self.groups)
        told = paced(self.fabric, planned, predictions, self.groups, greedily=not self.paced)
        return self._announced(self._armed(iteration, operation, predictions, planned, told, earliest_ns))

    def diverted(self, operation: Collective, lit: CircuitSet, after_s: Mapping[str, float]) -> Diverted:
        """How a collective is parted that starts over what is `lit`, while new light is expected in each region `after_s` model seconds."""
        return diverted(self.fabric, self.policy, operation.demand, lit, after_s, self.groups)

    def begin_diverted(
        self, iteration: int, operation: Collective, plan: Diverted, earliest_ns: int
    ) -> InFlight | None:
        """As `begin`, what can go before there is new light."""
        if not plan.now:
            return None
        told = paced(self.fabric, plan.now, plan.predictions, self.groups, greedily=not self.paced)
        return self._announced(
            self._armed(iteration, operation, plan.predictions, plan.now, told, earliest_ns)
        )

    def begin_late(self, flying: InFlight, plan: Diverted, lit: CircuitSet) -> InFlight | None:
        """The rest of a diverted collective, now that `lit` is: at once, and so that it ends when it was planned to, if it still can."""
        planned = late_flows(self.fabric, plan, lit)
        if not planned:
            return None
        now = self.clock.now_ns() + self.arming(len(planned))
        gone_s = (now - flying.start_ns) / NS_PER_S / self.fabric.scale.dilation
        left_s = {name: prediction.seconds - gone_s for name, prediction in plan.predictions.items()}
        told = late_paced(self.fabric, planned, left_s, greedily=not self.paced)
        return self._armed(flying.iteration, flying.operation, plan.predictions, planned, told, now)

    def _armed(
        self,
        iteration: int,
        operation: Collective,
        predictions: Mapping[str, Prediction],
        planned: tuple[Flow, ...],
        told: Sequence[PacedFlow],
        earliest_ns: int,
    ) -> InFlight:
        arming = self.arming(len(told))
        start = max(earliest_ns, self.clock.now_ns() + arming)
        self.clock.skip_towards(start - arming)
        self._count += 1
        longest_s = max(p.seconds for p in predictions.values()) * self.fabric.scale.dilation
        deadline_s, before = 10 * longest_s + _SLACK_S, self._stolen()
        until = start + round(deadline_s * NS_PER_S)
        flying = self._flying[self._count] = InFlight(
            iteration, operation, self._count, predictions, planned, tuple(told), start, until, before,
            self.clock.skipped_ns,
        )  # fmt: skip
        self.clock.held += 1
        self.agents.arm(flying.number, told, self.clock.wall_ns(start), deadline_s)
        return flying

    def _announced(self, flying: InFlight) -> InFlight:
        self.begun(self.clock.wall_ns(flying.start_ns))
        return flying

    def drop(self) -> list[InFlight]:
        """Forget the collectives that are under way, and which these were."""
        dropped = list(self._flying.values())
        self._flying.clear()
        self.clock.held -= len(dropped)
        return dropped

    def arming(self, flows: int) -> int:
        """How long telling the agents of so many flows may take, in nanoseconds."""
        return max(self.arming_ns, ARMING_FLOW_NS * flows + ARMING_SERVER_NS * len(self.fabric.servers))

    def end(
        self,
        flying: InFlight,
        dark_ns: Callable[[str], int] = lambda _: 0,
        late: InFlight | None = None,
        waits: Waits | None = None,
    ) -> list[CollectiveRun]:
        """Each region's part of it, `late` bytes included, once all has arrived; `dark_ns` says for how long a region's light was dark before.

        AgentError where a transfer is lost for good.
        """
        records = self._gathered(flying)
        if late is not None:
            records += self._gathered(late)
            flying = replace(flying, planned=flying.planned + late.planned)
        if lost := [record for record in records if not record.ok]:
            raise AgentError(_loss(flying.operation, lost))
        taken, total = (now - then for now, then in zip(self._stolen(), flying.stolen, strict=True))
        made = self._parted(flying, records, taken / total if total else 0.0, dark_ns, waits or Waits())
        end = max(part.end_ns for part in made)
        self.windows.append((flying.start_ns - flying.skipped_ns, end - flying.skipped_ns))
        return made

    def _gathered(self, flying: InFlight) -> list[FlowRecord]:
        left_s = (flying.until_ns - self.clock.now_ns()) / NS_PER_S + _GRACE_S
        told = self.agents.collect(flying.number, flying.told, left_s)
        del self._flying[flying.number]
        self.clock.held -= 1
        return [_shifted(record, flying.skipped_ns) for record in told]

    def _parted(
        self,
        flying: InFlight,
        records: Sequence[FlowRecord],
        stolen: float,
        dark_ns: Callable[[str], int],
        waits: Waits,
    ) -> list[CollectiveRun]:
        """Each region's part of what went."""
        sent: dict[str, list[Flow]] = {name: [] for name in flying.predictions}
        seen: dict[str, list[FlowRecord]] = {name: [] for name in flying.predictions}
        region_of = works_for(self.fabric, self.groups)
        for flow in flying.planned:
            sent[region_of[flow.src]].append(flow)
        for record in records:
            seen[region_of[record.src]].append(record)
        return [
            CollectiveRun(
                flying.iteration, flying.operation, prediction, tuple(sent[name]), tuple(seen[name]),
                dark_ns(name), stolen, name, ready_ns=waits.ready_ns, expected_wait_s=waits.expected_s,
                moved_now=name in waits.moved_now,
            )
            for name, prediction in flying.predictions.items()
        ]  # fmt: skip


def sending_spans(fabric: Fabric, made: CollectiveRun) -> list[Span]:
    """For the picture: from when to when each server sent or received."""
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
        for server in sorted(mine, key=fabric.index.__getitem__)
    ]


def _shifted(record: FlowRecord, skipped_ns: int) -> FlowRecord:
    """The record on the clock on which long waits are skipped."""
    return replace(
        record,
        first_sent_ns=record.first_sent_ns + skipped_ns,
        last_sent_ns=record.last_sent_ns + skipped_ns,
        first_received_ns=record.first_received_ns + skipped_ns,
        last_received_ns=record.last_received_ns + skipped_ns,
    )


def in_words(operation: Collective) -> str:
    """As a person would call it: `forward dispatch of layer 0`."""
    return f"{operation.direction} {operation.kind} of layer {operation.layer}"


def _loss(operation: Collective, lost: Sequence[FlowRecord]) -> str:
    first, where = lost[0], in_words(operation)
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    return f"{where}: {first.src} to {first.dst} by {first.path}: {first.why}{more}"
