"""The transfers of tasks, from the order to the agents until the last byte has arrived.

Many transfers go on at once.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Final

from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import LostBytesError, ServerLossError
from moefabric.core.exchange import Exchange, Pair, assigned_parts
from moefabric.core.flows import Flow, FlowRecord, PacedFlow, loss_text
from moefabric.core.protocols import Agents, PortCounters
from moefabric.core.topology import Fabric
from moefabric.core.units import NS_PER_S
from moefabric.execution.clock import Clock, SkippingClock
from moefabric.execution.iteration_state import IterationState, SentTask
from moefabric.execution.run_prediction import ordered_streams
from moefabric.planner.sending.partial_offload import PartialOffload, pace_late_flows
from moefabric.planner.sending.task_flows import TaskFlows
from moefabric.results.records.port_windows import PortGroup, PortWindows, TransferCount
from moefabric.results.records.records import CollectiveRun
from moefabric.runtime.cpu_monitor import cpu_steal_and_total
from moefabric.simulator.fair_sharing import Stream
from moefabric.workload.iterations.iteration import Collective, Reconfigure, Transfer
from moefabric.workload.iterations.tasks import Elsewhere, Sent, Task

log = logging.getLogger(__name__)

CONTROL_TIMEOUT_S: Final = 1.0
"""Model seconds that a controller may take to reply, plus twice the settling of its circuits."""
ARMING_NS: Final = 20_000_000
"""Least time between a collective's order and its start, so that all agents start together."""
ARMING_FLOW_NS: Final = 150_000
ARMING_SERVER_NS: Final = 1_000_000
"""Time for each flow and for each server, if their sum exceeds `ARMING_NS`."""
_INSTANTS: Final = ("first_sent_ns", "last_sent_ns", "first_received_ns", "last_received_ns")
_PLANNED_SHARE: Final = 1e-6
"""Part of a pair's bytes that planned flows may miss by rounding."""
_SLACK_S: Final = 20.0
"""Timeout of a transfer in addition to ten times its predicted duration."""


@dataclass(frozen=True)
class ControlSettings:
    """Times of requests to controllers, in model seconds.

    Attributes:
        timeout_s: Time that a controller may take, plus twice the settling of its circuits.
        control_s: Time that a request takes besides settling; None for as many seconds as its
            controller needs on the wall clock.
        earlier: Earlier requests: region, whether circuits changed, and time besides settling.
    """

    timeout_s: float = CONTROL_TIMEOUT_S
    control_s: float | None = None
    earlier: Sequence[tuple[str, bool, float]] = ()


@dataclass(frozen=True)
class RunSettings:
    """Times and paces of a run.

    Attributes:
        paced: Whether flows are paced at their planned rate.
        arming_ns: Least time between the order of a collective and its start.
        restore_s: Model seconds to load a checkpoint after a loss.
        keep_records: Whether `run` returns iterations with all their records. Without them, it
            returns their times, and observers have the records.
        control: Times of the requests to controllers.
    """

    paced: bool = True
    arming_ns: int = ARMING_NS
    restore_s: float = 0.0
    keep_records: bool = True
    control: ControlSettings = field(default_factory=ControlSettings)


@dataclass(frozen=True)
class Instruments:
    """The clock, the threads and the counters of a run.

    Attributes:
        clock: The wall clock; None for the machine's.
        background: Runs requests to controllers; None for threads of the executor's own.
        cpu_steal: Returns the CPU ticks that a hypervisor gave to others so far, and all ticks.
        counters: Counts the bytes of each transfer at the ports; None if nobody counts.
        reported_circuits: Returns the circuits that regions without a controller use, as far as
            they were reported since the last call.
    """

    clock: Clock | None = None
    background: Executor | None = None
    cpu_steal: Callable[[], tuple[int, int]] = cpu_steal_and_total
    counters: PortCounters | None = None
    reported_circuits: Callable[[], Mapping[str, CircuitSet]] = dict


@dataclass(eq=False)
class TaskTransfer:
    """The transfers of a task under way: one order, and one for the late flows of each region.

    Attributes:
        number: The task's position among the tasks of its iteration.
        ready_ns: When the task may start.
        orders: How many orders are under way or still to come.
        ordered_ns: The start that each order named, on the wall clock.
        report_ns: How long after an order's last byte its report came, at most.
        exchange: The exchange whose bytes are sent; None if they are the agents' own.
        taken: Bytes of the exchange that were ordered, by pair of servers.
    """

    state: IterationState
    number: int
    flows: TaskFlows
    ready_ns: int
    start_ns: int
    cpu_steal: tuple[int, int]
    skipped_ns: int
    streams: tuple[Stream, ...] = ()
    offload: PartialOffload | None = None
    count: TransferCount | None = None
    orders: int = 1
    ordered_ns: dict[int, int] = field(default_factory=dict)
    report_ns: int = 0
    exchange: Exchange | None = None
    taken: dict[Pair, int] = field(default_factory=dict)
    planned: list[Flow] = field(default_factory=list)
    records: list[FlowRecord] = field(default_factory=list)

    @property
    def task(self) -> Task:
        """The task that sends."""
        return self.state.tasks[self.number]

    def region(self, src: str) -> str:
        """Return the region to which a flow of a server belongs."""
        collective = isinstance(self.task.work, Collective)
        return self.flows.region_of[src] if collective else self.task.region


class Transfers:
    """Orders transfers from the agents of one fabric, and turns their reports into records."""

    def __init__(
        self,
        fabric: Fabric,
        agents: Agents,
        clock: SkippingClock,
        settings: RunSettings,
        instruments: Instruments,
    ) -> None:
        counters = instruments.counters
        self._windows = None if counters is None else PortWindows(counters)
        self._counted: list[TaskTransfer] = []
        """Transfers under way whose bytes are counted."""
        self.fabric, self.agents, self.clock = fabric, agents, clock
        self._arming_ns, self._cpu_steal = settings.arming_ns, instruments.cpu_steal
        self.greedy = not settings.paced
        """Whether congestion control alone sets the rates of flows."""
        self.orders: dict[int, tuple[TaskTransfer, int]] = {}
        """Orders under way by the agents' number, each with its number of flows."""
        self.windows: list[tuple[int, int]] = []
        """Intervals in which packets were under way, on the wall clock."""

    def arming_ns(self, task: Task, flows: int = 0) -> int:
        """Return the time that agents need between the order of a task and its start.

        Only a barrier's `flows` are used; for other tasks, their number is estimated.
        """
        if task.barrier:
            servers = len(self.fabric.servers)
        else:
            servers = sum(len(self.fabric.ep_groups[region]) for region in task.regions)
            collective = isinstance(task.work, Collective)
            paths = max(1, self.fabric.electrical)
            flows = paths * servers * (servers - 1 if collective else 1)
        return max(self._arming_ns, ARMING_FLOW_NS * flows + ARMING_SERVER_NS * servers)

    def start(
        self,
        state: IterationState,
        number: int,
        flows: TaskFlows,
        ready_ns: int,
        offload: PartialOffload | None = None,
        exchange: Exchange | None = None,
    ) -> TaskTransfer:
        """Order a task's flows for `ready_ns`, or for as soon as the agents can all start.

        The flows carry the bytes of `exchange`, if there is one.
        """
        task = state.tasks[number]
        paced = flows.paced(greedy=self.greedy)
        now = self.clock.now_ns()
        start = max(ready_ns, now + self.arming_ns(task, len(paced)))
        transfer = TaskTransfer(
            state,
            number,
            flows,
            ready_ns,
            start,
            self._cpu_steal(),
            self.clock.skipped_ns,
            self._streams(flows, paced),
            offload,
            exchange=exchange,
        )
        if self._windows is not None:
            transfer.count = self._windows.begin(self._port_groups(transfer))
            self._counted.append(transfer)
        try:
            self._order(transfer, flows, paced, start, flows.seconds)
        except ServerLossError:
            self._end_count(transfer, complete=False)
            raise
        return transfer

    def _end_count(self, transfer: TaskTransfer, *, complete: bool) -> None:
        if self._windows is not None and transfer.count is not None:
            self._counted.remove(transfer)
            self._windows.end(transfer.count, transfer.records, complete=complete)

    def _port_groups(self, transfer: TaskTransfer) -> list[PortGroup]:
        """Return the ports that a transfer's bytes may cross, those of leaves first."""
        collective = isinstance(transfer.task.work, Collective)
        servers = dict.fromkeys(end for f in transfer.flows.flows for end in (f.src, f.dst))
        if collective:
            servers |= dict.fromkeys(transfer.state.servers(transfer.number))
        leaves = self.fabric.eps_wiring.leaves_of(servers) if self.fabric.spines else ()
        of_servers = [(server, optical) for server in servers for optical in {False, collective}]
        return [*((leaf, False) for leaf in leaves), *of_servers]

    def start_late(
        self, transfer: TaskTransfer, region: str, late: TaskFlows, ready_ns: int
    ) -> None:
        """Order the flows that a region left for new circuits, to end with all others."""
        assert transfer.offload is not None
        paths = len(late.flows)
        start = max(ready_ns, self.clock.now_ns() + self.arming_ns(transfer.task, paths))
        elapsed_s = (start - transfer.start_ns) / NS_PER_S / self.fabric.scale.dilation
        seconds = transfer.flows.predictions[region].seconds
        paced = pace_late_flows(self.fabric, late, seconds - elapsed_s, greedy=self.greedy)
        after_s = transfer.offload.parts[region].after_s
        expected = pace_late_flows(self.fabric, late, seconds - after_s, greedy=self.greedy)
        transfer.streams += self._streams(late, expected, after_s)
        self._order(transfer, late, paced, start, max(seconds, late.seconds))

    def _streams(
        self, flows: TaskFlows, ordered: Sequence[PacedFlow], after_s: float = 0.0
    ) -> tuple[Stream, ...]:
        """Return an order for the simulation, with the times inside servers around its flows."""
        server = flows.server
        around_s = server.before_s + after_s, server.after_s
        return ordered_streams(self.fabric, flows.circuits, ordered, *around_s)

    def _order(
        self,
        transfer: TaskTransfer,
        flows: TaskFlows,
        paced: Sequence[PacedFlow],
        start_ns: int,
        seconds: float,
    ) -> None:
        deadline_s = 10 * seconds * self.fabric.scale.dilation + _SLACK_S
        wall_ns = self.clock.wall_ns(start_ns)
        if transfer.exchange is not None:
            complete = _complete_pairs(transfer, flows.flows)
            paced = assigned_parts(paced, transfer.exchange, transfer.taken, complete)
        # An agent starts the largest first, so that the fullest link isn't idle meanwhile.
        largest_first = sorted(paced, key=lambda flow: -flow.bytes)
        number = self.agents.launch(largest_first, wall_ns, deadline_s, transfer.exchange)
        self.orders[number] = transfer, len(paced)
        transfer.ordered_ns[number] = wall_ns
        ids = {"collective": number, "iteration": transfer.state.run.number}
        log.debug("%s ordered: %d flows", description(transfer.task), len(paced), extra=ids)
        transfer.planned += flows.flows
        if transfer.count is not None:
            transfer.count.orders.append(flows)

    def receive(
        self, number: int, records: Sequence[FlowRecord], waited_ns: tuple[int, int]
    ) -> TaskTransfer:
        """Process the report of an order.

        Args:
            number: The order.
            waited_ns: When the run began to wait for reports, and when this one was there, on the
                wall clock. A run that was busy before can't say when a report came.

        Returns:
            The order's transfer, which is done when it has no more `orders`.
        """
        transfer, _ = self.orders.pop(number)
        transfer.records += records
        waiting_ns, there_ns = waited_ns
        last_ns = max(record.last_received_ns for record in records)
        transfer.report_ns = max(transfer.report_ns, there_ns - max(last_ns, waiting_ns))
        transfer.orders -= 1
        return transfer

    def take_windows(self) -> list[tuple[int, int]]:
        """Return the intervals in which packets were under way since the last call."""
        taken, self.windows = self.windows, []
        return taken

    def abandon(self, state: IterationState) -> int:
        """End the transfers of an iteration, and return how many flows were under way."""
        numbers = [n for n, (transfer, _) in self.orders.items() if transfer.state is state]
        cut_off = 0
        for number in numbers:
            cut_off += self.orders.pop(number)[1]
            self.agents.abandon(number)
        for transfer in [transfer for transfer in self._counted if transfer.state is state]:
            self._end_count(transfer, complete=False)
        return cut_off

    def _give_up(self, transfer: TaskTransfer, why: str) -> str:
        """End the exchange of a transfer with an error, if it has one; return the error."""
        if transfer.exchange is not None:
            self.agents.finish(transfer.exchange, why)
        return why

    def _release_ranks(self, transfer: TaskTransfer) -> None:
        """Let the ranks of an exchange go on; raises LostBytesError unless they have its bytes."""
        exchange = transfer.exchange
        assert exchange is not None
        where = description(transfer.task)
        if corrupt := [record for record in transfer.records if record.corrupt]:
            raise LostBytesError(self._give_up(transfer, f"{where}: {loss_text(corrupt)}"))
        unsent = sum(exchange.owed.values()) - sum(transfer.taken.values())
        if unsent:
            why = f"{where}: the policy sends {unsent:,} bytes of the ranks too few"
            raise LostBytesError(self._give_up(transfer, why))
        self.agents.finish(exchange)

    def finish(self, transfer: TaskTransfer, dark_ns: Callable[[str], int]) -> list[CollectiveRun]:
        """Return the runs of a done transfer, by region for a collective.

        Args:
            transfer: A transfer of which all orders were received.
            dark_ns: Returns for how long a region's circuits were dark before the transfer.
        """
        self._end_count(transfer, complete=True)
        if lost := [record for record in transfer.records if not (record.ok or record.corrupt)]:
            why = f"{description(transfer.task)}: {loss_text(lost)}"
            raise LostBytesError(self._give_up(transfer, why))
        if transfer.exchange is not None:
            self._release_ranks(transfer)
        first_ns = min(record.first_sent_ns for record in transfer.records)
        harness_ns = first_ns + transfer.skipped_ns - transfer.ready_ns
        runs = self._runs(transfer, harness_ns, dark_ns)
        transfer.state.sent.append(SentTask(transfer.number, runs))
        end_ns = max(run.end_ns for run, _ in runs) + harness_ns
        self.windows.append((transfer.start_ns - transfer.skipped_ns, end_ns - transfer.skipped_ns))
        return [run for run, _ in runs]

    def _runs(
        self, transfer: TaskTransfer, harness_ns: int, dark_ns: Callable[[str], int]
    ) -> tuple[tuple[CollectiveRun, tuple[int, ...]], ...]:
        """Return the runs of a transfer, each with the positions of its planned flows.

        Args:
            transfer: A transfer whose bytes have arrived.
            harness_ns: Time from the transfer's planned start to its first byte.
            dark_ns: As in `finish`.
        """
        state, task, work = transfer.state, transfer.task, transfer.task.work
        assert isinstance(work, Sent)
        steal, total = (
            now - before for now, before in zip(self._cpu_steal(), transfer.cpu_steal, strict=True)
        )
        reconfigured = transfer.offload.reconfigured_regions if transfer.offload else ()
        ahead_ns = transfer.skipped_ns - harness_ns
        before_ns = transfer.flows.server.before_s * NS_PER_S
        ordered_ns = {number: at + ahead_ns for number, at in transfer.ordered_ns.items()}
        planned = defaultdict[str, list[int]](list)
        for position, flow in enumerate(transfer.planned):
            planned[transfer.region(flow.src)].append(position)
        records = defaultdict[str, list[FlowRecord]](list)
        for record in transfer.records:
            records[transfer.region(record.src)].append(_shifted(record, ahead_ns))
        runs = [
            CollectiveRun(
                state.run.number,
                work,
                transfer.flows.predictions[region],
                tuple(transfer.planned[position] for position in positions),
                tuple(records[region]),
                dark_ns(region) if isinstance(work, Collective) else 0,
                steal / total if total else 0.0,
                region,
                task.micro_batch,
                state.unlit_ns(transfer.number) + self.fabric.scale.wall_ns(before_ns),
                state.predicted_wait_s(transfer.number, self.fabric.scale.dilation),
                region in reconfigured,
                harness_ns,
                count=transfer.count,
                circuits=transfer.flows.circuits,
                ordered_ns=ordered_ns,
                report_ns=transfer.report_ns,
                server=transfer.flows.server,
            )
            for region, positions in planned.items()
        ]
        return tuple(zip(runs, map(tuple, planned.values()), strict=True))


def _complete_pairs(transfer: TaskTransfer, flows: Sequence[Flow]) -> set[Pair]:
    """Return the pairs of an exchange of which no flow is planned after these."""
    work = transfer.task.work
    assert isinstance(work, Collective)
    sizes: defaultdict[Pair, float] = defaultdict(float)
    for flow in (*transfer.planned, *flows):
        sizes[flow.src, flow.dst] += flow.bytes
    index = work.demand.index
    return {
        (src, dst)
        for (src, dst), size in sizes.items()
        if size >= work.demand.array[index[src], index[dst]] * (1 - _PLANNED_SHARE)
    }


def description(task: Task) -> str:
    """Return a task in words: `r0: forward dispatch of layer 0, micro-batch 1`.

    A barrier has no region.
    """
    match task.work:
        case Transfer(kind=kind, direction=direction):
            words = f"{direction} {kind} transfer"
        case Elsewhere():
            words = "work of modelled regions"
        case work:
            kind = "light" if isinstance(work, Reconfigure) else work.kind
            words = f"{work.direction} {kind} of layer {work.layer}"
    return words if task.barrier else f"{task.region}: {words}, micro-batch {task.micro_batch}"


def _shifted(record: FlowRecord, skipped_ns: int) -> FlowRecord:
    """Return a record in the time of the modelled cluster: `skipped_ns` after the wall clock."""
    known = [*_INSTANTS, *(["acknowledged_ns"] if record.acknowledged_ns else [])]
    return replace(record, **{name: getattr(record, name) + skipped_ns for name in known})
