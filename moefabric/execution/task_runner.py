"""Runs the tasks of iterations on agents and controllers as their dependencies allow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from moefabric.core.errors import ServerLossError
from moefabric.core.flows import FlowRecord
from moefabric.core.units import NS_PER_S
from moefabric.execution.clock import RunTimers
from moefabric.execution.iteration_state import IterationState
from moefabric.execution.observer import RunObserver
from moefabric.execution.rank_calls import Calls
from moefabric.execution.reconfiguration import Reconfigurator, Reply
from moefabric.execution.region_controllers import ControllerSplits
from moefabric.execution.transfers import TaskTransfer, Transfers, description
from moefabric.planner.plan import with_horizon
from moefabric.planner.sending.partial_offload import PartialOffload, plan_partial_offload
from moefabric.planner.sending.task_flows import task_flows
from moefabric.results.records import records as run_records
from moefabric.workload.iterations.iteration import Collective, Compute, Reconfigure
from moefabric.workload.iterations.tasks import Elsewhere


@dataclass(eq=False)
class TaskRunner:
    """Starts tasks when those before them have ended, or end at a known instant.

    Attributes:
        policy: Chooses circuits and splits demands.
        transfers: Orders transfers from the agents, on the fabric and the clock of the run.
        reconfigurator: Requests circuits from the controllers.
        timers: The actions that are due on the clock.
        observer: Receives the transfers that were ordered, and the collectives.
        calls: The calls of the ranks whose bytes collectives carry.
        losses: Losses of servers during orders, to be handled by the caller.
    """

    policy: ControllerSplits
    transfers: Transfers
    reconfigurator: Reconfigurator
    timers: RunTimers
    observer: RunObserver
    calls: Calls
    losses: list[ServerLossError] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Work on the fabric and the clock of the transfers."""
        self.fabric, self.clock = self.transfers.fabric, self.transfers.clock

    @property
    def busy(self) -> bool:
        """True if packets or changes of circuits may be under way."""
        return bool(self.transfers.orders) or self.reconfigurator.pending

    def start(self, state: IterationState) -> None:
        """Start an iteration."""
        for task in state.free():
            self._ready(state, task)

    def receive(
        self, number: int, records: Sequence[FlowRecord], waited_ns: tuple[int, int]
    ) -> None:
        """Process the agents' report of an order (`Transfers.receive`)."""
        self._complete_if_done(self.transfers.receive(number, records, waited_ns))

    def at(self, instant_ns: int, state: IterationState, action: Callable[[], None]) -> None:
        """Take an action at an instant, unless a loss has ended the iteration by then."""
        self.timers.add(instant_ns, lambda: None if state.cancelled else action())

    def _ready(self, state: IterationState, number: int) -> None:
        """Schedule a task once all tasks that it waits for have ended, or have a known end."""
        if self.calls.waits(state, number, lambda: self._called(state, number)):
            return
        at, task = state.ready_ns(number), state.tasks[number]
        match task.work:
            case Compute():
                measured = self.calls.measured(state, number)
                if measured is not task.work:
                    state.replace_work(number, measured)
                self._compute(state, number, measured, at)
            case Elsewhere(seconds=seconds):
                state.set_step(number, seconds)
                self._end(state, number, at + self.fabric.scale.wall_ns(seconds * NS_PER_S))
            case Reconfigure():
                regions = self.reconfigurator.controlled(state.unlit_regions(number))
                if regions:
                    self.at(at, state, lambda: self._reconfigure(state, number, regions, at))
                else:
                    self._end(state, number, at)
            case _:
                # A barrier is planned while GPUs compute: nothing else can change until it starts.
                launch_ns = 0 if task.barrier else at - self.transfers.arming_ns(task)
                self.at(launch_ns, state, lambda: self._launch(state, number, at))

    def _called(self, state: IterationState, number: int) -> None:
        """Schedule a task whose call was made; processes that were late cost no time.

        If computation takes as long as the processes, it waits for the call itself.
        """
        if not self.busy and not isinstance(state.tasks[number].work, Compute):
            self.clock.go_back(state.ready_ns(number))
        self._ready(state, number)

    def _end(self, state: IterationState, number: int, instant_ns: int) -> None:
        for follower in state.end(number, instant_ns):
            self._ready(state, follower)
        if None not in state.ends and not state.run.end_ns:
            state.run.end_ns = max(end for end in state.ends if end is not None)
            state.on_end()

    def _compute(self, state: IterationState, number: int, work: Compute, start_ns: int) -> None:
        wall_ns = self.fabric.scale.wall_ns
        ends = [start_ns + wall_ns(seconds * NS_PER_S) for seconds in work.seconds]
        place, micro_batch = (work.direction, work.layer), state.tasks[number].micro_batch
        state.run.spans += [
            run_records.Span(server, work.kind, *place, start_ns, end, micro_batch)
            for server, end in zip(state.servers(number), ends, strict=True)
        ]
        state.set_step(number, work.slowest_s)
        self._end(state, number, max(ends))

    def _launch(self, state: IterationState, number: int, ready_ns: int) -> None:
        """Plan a task's flows over the lit circuits, and order them from the agents."""
        task = state.tasks[number]
        offload, collective = None, task.work if isinstance(task.work, Collective) else None
        starts_early = collective is not None and collective.concurrent is not None
        if collective and starts_early and self.reconfigurator.controlled(task.regions):
            offload = self._plan_offload(state, number, collective, ready_ns)
            flows = offload.early if offload is not None else None
        else:
            circuits = self.reconfigurator.circuits(task.regions, ready_ns)
            if collective:
                self.reconfigurator.note_plan(task.regions, ready_ns)
            flows = task_flows(
                self.fabric, self.policy, task, circuits, state.groups, greedy=self.transfers.greedy
            )
        if flows is None:
            self._end(state, number, ready_ns)
            return
        ready_ns += self.fabric.scale.wall_ns(flows.server.before_s * NS_PER_S)
        if not self.busy:
            self.clock.skip_towards(ready_ns - self.transfers.arming_ns(task, len(flows.flows)))
        exchange = self.calls.exchange(state, collective) if collective else None
        try:
            transfer = self.transfers.start(state, number, flows, ready_ns, offload, exchange)
        except ServerLossError as loss:
            self.losses.append(loss)
            return
        self.observer.transfer_ordered(task)
        state.set_step(number, streams=transfer.streams)
        if collective and state.observed:
            self.observer.collective_began(self.clock.wall_ns(transfer.start_ns))
        if offload is not None and offload.reconfigured_regions:
            transfer.orders += len(offload.reconfigured_regions)
            self.at(transfer.start_ns, state, lambda: self._reconfigure_meanwhile(transfer))

    def _plan_offload(
        self, state: IterationState, number: int, work: Collective, ready_ns: int
    ) -> PartialOffload | None:
        """Plan a collective that starts before its circuits are lit."""
        task = state.tasks[number]
        arming_ns = self.transfers.arming_ns(task)
        expected = {
            region: self.reconfigurator.expected_s(region, ready_ns, arming_ns)
            for region in task.regions
        }
        lit, horizon = self.reconfigurator.circuits(task.regions, ready_ns), state.horizon(number)
        return plan_partial_offload(
            self.fabric,
            with_horizon(self.policy.policy, horizon),
            work.demand,
            lit,
            {region: seconds for region, seconds in expected.items() if seconds is not None},
            {region: state.groups[region] for region in task.regions},
            greedy=self.transfers.greedy,
            counts=work.counts,
        )

    def _complete_if_done(self, transfer: TaskTransfer) -> None:
        if transfer.orders:
            return
        state, number = transfer.state, transfer.number
        runs = self.transfers.finish(transfer, self.reconfigurator.take_dark_ns)
        if transfer.exchange is not None:
            self.calls.released(self.clock.wall_ns(self.clock.now_ns()))
        for run in runs:
            state.run.spans += run_records.sending_spans(self.fabric, run)
        if isinstance(transfer.task.work, Collective):
            state.run.collectives += runs
            self.observer.collective_ended(description(transfer.task))
        else:
            state.run.transfers += runs
        after_ns = self.fabric.scale.wall_ns(transfer.flows.server.after_s * NS_PER_S)
        self._end(state, number, max(run.end_ns for run in runs) + after_ns)

    # --- circuits --------------------------------------------------------------------------------

    def _reconfigure(
        self, state: IterationState, number: int, regions: Sequence[str], ready_ns: int
    ) -> None:
        """Request the circuits of these regions.

        The task ends when the outcome of every region's request holds.
        """
        work = state.tasks[number].work
        assert isinstance(work, Reconfigure)
        replies: dict[str, Reply] = {}

        def take(region: str, reply: Reply) -> None:
            replies[region] = reply
            if state.cancelled or len(replies) < len(regions):
                return
            for name in regions:
                self._record_change(state, number, work, name, replies[name])
            # A prediction from the measured time would hide any delay of the reconfiguration.
            state.set_step(number, max(reply.expected_s for reply in replies.values()))
            self._end(state, number, max(reply.end_ns for reply in replies.values()))

        horizon = state.horizon(number)
        for region in regions:
            self.reconfigurator.request(
                region, work.demand, partial(take, region), ready_ns, horizon
            )

    def _reconfigure_meanwhile(self, transfer: TaskTransfer) -> None:
        """Request circuits when a partially offloaded collective starts.

        Each region's late flows start when its controller has replied.
        """
        state, number = transfer.state, transfer.number
        offload, work = transfer.offload, transfer.task.work
        assert isinstance(work, Collective)
        assert offload is not None
        assert work.concurrent is not None
        meanwhile = work.concurrent

        def take(region: str, reply: Reply) -> None:
            if state.cancelled:
                return
            if not reply.change.error:
                state.reconfigured[number].append(region)
            self._record_change(state, number, meanwhile, region, reply)
            late = offload.late_flows(region, reply.change.after)
            if late is None:
                transfer.orders -= 1
                self._complete_if_done(transfer)
                return
            try:
                self.transfers.start_late(transfer, region, late, reply.end_ns)
            except ServerLossError as loss:
                self.losses.append(loss)
                return
            state.set_step(number, streams=transfer.streams)

        start_ns, horizon = transfer.start_ns, state.horizon(number)
        for region in offload.reconfigured_regions:
            on_reply = partial(take, region)
            self.reconfigurator.request(region, meanwhile.demand, on_reply, start_ns, horizon)

    def _record_change(
        self, state: IterationState, number: int, work: Reconfigure, region: str, reply: Reply
    ) -> None:
        run, micro_batch = state.run, state.tasks[number].micro_batch
        record = run_records.ReconfigurationRun(
            run.number,
            work,
            reply.change,
            reply.start_ns,
            reply.end_ns,
            region,
            micro_batch,
            reply.demand,
            reply.horizon,
            reply.expected_control_s,
        )
        run.reconfigurations.append(record)
        if not reply.change.error:
            run.spans += run_records.reconfiguration_spans(self.fabric, record)
