"""Flights: what tasks send, from when the agents are told until all has arrived; many at once."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from moefabric.circuits import CircuitSet
from moefabric.errors import AgentError
from moefabric.experiment.clock import SkippingClock
from moefabric.experiment.collective import ARMING_FLOW_NS, ARMING_NS, ARMING_SERVER_NS
from moefabric.experiment.cpu import stolen_and_total
from moefabric.experiment.diverting import late_paced
from moefabric.experiment.forecast import Parting, Sending, sending
from moefabric.experiment.runs import CollectiveRun, Span
from moefabric.experiment.sending import Policy, paced
from moefabric.iteration import Collective, Reconfigure
from moefabric.records import FlowRecord
from moefabric.schedule.simulate import Stream
from moefabric.schedule.tasks import AllReduce, Task, Transfer
from moefabric.seams import PacedFlow
from moefabric.topology import Fabric
from moefabric.units import NS_PER_S

SLACK_S: Final = 20.0
"""How much longer than ten times its prediction a flight may last before it is lost."""

Launch = Callable[[Sequence[PacedFlow], int | None, float], int]
"""Tells the agents: flows, when they start (CLOCK_MONOTONIC; None is at once), and within how many seconds they must have arrived; a number."""


@dataclass(frozen=True)
class Flight:
    """A task's bytes on their way; `moved` is whether its region's light moves meanwhile."""

    iteration: int
    task: Task
    sending: Sending
    streams: tuple[Stream, ...]
    start_ns: int
    could_ns: int
    expected_s: float
    stolen: tuple[int, int]
    skipped_ns: int
    moved: bool = False


class Flights:
    """All that flies on one fabric under one policy, and what has flown."""

    def __init__(
        self,
        fabric: Fabric,
        policy: Policy,
        launch: Launch,
        clock: SkippingClock,
        *,
        paced: bool = True,
        arming_ns: int = ARMING_NS,
        stolen: Callable[[], tuple[int, int]] = stolen_and_total,
    ) -> None:
        self.fabric, self.policy, self.clock = fabric, policy, clock
        self.paced, self.arming_ns = paced, arming_ns
        self._launch, self._stolen = launch, stolen
        self.flying: dict[int, Flight] = {}
        self.landed: list[tuple[CollectiveRun, tuple[Stream, ...]]] = []
        self.windows: list[tuple[int, int]] = []
        """When packets flew, on the wall's clock with nothing left out."""

    def arming(self, task: Task) -> int:
        """How far ahead the agents are told of a task, in nanoseconds."""
        servers = sum(len(self.fabric.groups[region]) for region in task.regions)
        flows = servers * (servers - 1) if isinstance(task.work, Collective) else servers
        return max(self.arming_ns, ARMING_FLOW_NS * flows + ARMING_SERVER_NS * servers)

    def start(
        self,
        iteration: int,
        task: Task,
        circuits: CircuitSet,
        ready_ns: int,
        could_ns: int = 0,
        expected_s: float = 0.0,
    ) -> int | None:
        """Tell the agents to send at `ready_ns`, or as soon as they can; the flight's number. None where nobody owes anything.

        It `could` have started before, but for its light, which was expected to need so many model seconds after that.

        An all-to-all starts everywhere at one instant. What goes from one server to one other needs none: each sends when it hears of it.
        """
        sent = sending(self.fabric, self.policy, task, circuits)
        return None if sent is None else self._started(iteration, task, sent, ready_ns, could_ns, expected_s)

    def start_parted(
        self,
        iteration: int,
        task: Task,
        parting: Parting,
        ready_ns: int,
        could_ns: int = 0,
        expected_s: float = 0.0,
    ) -> int:
        """As `start`, of what a collective sends before it has new light; it has landed once what `follow` sends has, too."""
        number = self._started(iteration, task, parting.now, ready_ns, could_ns, expected_s)
        self.flying[number] = replace(self.flying[number], moved=parting.moves)
        return number

    def follow(self, number: int, parting: Parting, circuits: CircuitSet) -> int | None:
        """Send the rest of a flight, now that these circuits are lit, to end when all was to end if it still can; its own number. None is no rest."""
        flight, dilation = self.flying[number], self.fabric.scale.dilation
        rest = parting.rest(self.fabric, circuits)
        if rest is None:
            return None
        whole = flight.sending.followed_by(rest, parting.after_s)
        streams = whole.streams(greedily=not self.paced)
        self.flying[number] = replace(flight, sending=whole, streams=streams)
        start = self.clock.now_ns() + self.arming(flight.task)
        left_s = parting.seconds - (start - flight.start_ns) / NS_PER_S / dilation
        told = late_paced(self.fabric, rest.flows, {parting.region: left_s}, greedily=not self.paced)
        deadline_s = 10 * max(parting.seconds, rest.alone.seconds) * dilation + SLACK_S
        return self._launch(told, self.clock.wall_ns(start), deadline_s)

    def _started(
        self, iteration: int, task: Task, sent: Sending, ready_ns: int, could_ns: int, expected_s: float
    ) -> int:
        told = paced(
            self.fabric, sent.flows, dict.fromkeys(task.regions, sent.alone), greedily=not self.paced
        )
        now = self.clock.now_ns()
        start: int | None = max(ready_ns, now + self.arming(task))
        if ready_ns <= now and not isinstance(task.work, Collective):
            start = None
        deadline_s = 10 * sent.alone.seconds * self.fabric.scale.dilation + SLACK_S
        stolen = self._stolen()
        number = self._launch(told, None if start is None else self.clock.wall_ns(start), deadline_s)
        streams = sent.streams(greedily=not self.paced)
        self.flying[number] = Flight(
            iteration, task, sent, streams, now if start is None else start, could_ns or ready_ns, expected_s,
            stolen, self.clock.skipped_ns,
        )  # fmt: skip
        return number

    def land(self, number: int, records: Sequence[FlowRecord], dark_ns: int) -> CollectiveRun:
        """What has flown; `dark_ns` says for how long its region's light was dark before. AgentError where a transfer is lost."""
        flight = self.flying.pop(number)
        if lost := [record for record in records if not record.ok]:
            raise AgentError(_loss(flight.task, lost))
        taken, total = (now - then for now, then in zip(self._stolen(), flight.stolen, strict=True))
        work = flight.task.work
        assert isinstance(work, (Collective, Transfer, AllReduce))
        run = CollectiveRun(
            flight.iteration, work, flight.sending.alone, flight.sending.flows,
            tuple(_shifted(record, flight.skipped_ns) for record in records),
            dark_ns, taken / total if total else 0.0, flight.task.region, flight.task.micro_batch,
            flight.could_ns, flight.expected_s, flight.moved,
        )  # fmt: skip
        self.landed.append((run, flight.streams))
        self.windows.append((run.start_ns - flight.skipped_ns, run.end_ns - flight.skipped_ns))
        return run


def sending_spans(fabric: Fabric, run: CollectiveRun) -> list[Span]:
    """For the picture: from when to when each server sent or received."""
    mine = defaultdict[str, list[FlowRecord]](list)
    for record in run.records:
        mine[record.src].append(record)
        mine[record.dst].append(record)
    what = run.operation
    return [
        Span(
            server, what.kind, what.direction, what.layer,
            min(r.first_sent_ns for r in mine[server]), max(r.last_received_ns for r in mine[server]), run.micro_batch,
        )
        for server in sorted(mine, key=fabric.index.__getitem__)
    ]  # fmt: skip


def told(task: Task) -> str:
    """A task in words."""
    match task.work:
        case Transfer(kind=kind, direction=direction):
            what = f"{direction} {kind} transfer"
        case work:
            kind = "light" if isinstance(work, Reconfigure) else work.kind
            what = f"{work.direction} {kind} of layer {work.layer}"
    return f"{task.region}: {what}, micro-batch {task.micro_batch}"


def _loss(task: Task, lost: Sequence[FlowRecord]) -> str:
    first = lost[0]
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    return f"{told(task)}: {first.src} to {first.dst} by {first.path}: {first.why}{more}"


def _shifted(record: FlowRecord, skipped_ns: int) -> FlowRecord:
    """The record on the clock on which long waits are skipped."""
    return replace(
        record,
        first_sent_ns=record.first_sent_ns + skipped_ns,
        last_sent_ns=record.last_sent_ns + skipped_ns,
        first_received_ns=record.first_received_ns + skipped_ns,
        last_received_ns=record.last_received_ns + skipped_ns,
    )
