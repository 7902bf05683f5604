"""The executor: runs the tasks of jobs on agents and controllers as their dependencies allow.

One loop orders transfers from the agents, requests circuits from the controllers, and wakes when
one of them has ended. Regions in lockstep are a chain of tasks that cover all regions; independent
regions have tasks of their own.

GPU computation is emulated by waiting. While no transfer and no request is under way, all but the
end of a wait is skipped (`SkippingClock`).

A lost server or GPU ends the iteration of the jobs that use it. Once a backup works in its place,
these jobs start the iteration again; other jobs go on. Detection and substitution cost model time
one to one.
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import AgentError, RanksLostError, ServerLossError
from moefabric.core.failures import IterationWindow
from moefabric.core.protocols import Agents
from moefabric.core.topology import Fabric
from moefabric.core.units import NS_PER_S
from moefabric.execution.circuit_choices import CircuitChoices
from moefabric.execution.clock import MonotonicClock, RunTimers, SkippingClock
from moefabric.execution.iteration_state import IterationState
from moefabric.execution.observer import Observers, RunObserver
from moefabric.execution.rank_calls import Calls
from moefabric.execution.reconfiguration import Reconfigurator
from moefabric.execution.recovery import Recovery, lost_components
from moefabric.execution.region_controllers import (
    ControllerSplits,
    RegionController,
    RetriedController,
)
from moefabric.execution.run_prediction import add_predictions
from moefabric.execution.task_runner import TaskRunner
from moefabric.execution.transfers import ControlSettings, Instruments, RunSettings, Transfers
from moefabric.planner.sending.flow_pacing import SplitPolicy
from moefabric.prediction.jobs import Programme
from moefabric.results.records.records import IterationRun, Span
from moefabric.workload.iterations.iteration import Operation
from moefabric.workload.iterations.job import Job, JobShape
from moefabric.workload.iterations.pipeline import lockstep_tasks
from moefabric.workload.iterations.substitution import Losses

__all__ = ["ControlSettings", "Executor", "Instruments", "RunSettings"]

log = logging.getLogger(__name__)

MOST_ATTEMPTS = 5
"""Attempts at an iteration before the run gives up."""


@dataclass(eq=False)
class _JobRun:
    """Job under way: its present iteration, and the attempts that losses ended."""

    job: Job
    programme: Programme
    iterations: int
    state: IterationState | None = None
    start_ns: int = 0
    window_start_ns: int = 0
    retried: int = 0
    void: list[tuple[int, int]] = field(default_factory=list)
    finished: bool = False

    @property
    def regions(self) -> frozenset[str]:
        """The names of the job's regions."""
        return frozenset(region.name for region in self.job.regions)

    @property
    def running(self) -> bool:
        """True if an iteration is under way that no loss has ended."""
        return not self.finished and self.state is not None and not self.state.cancelled

    def uses(self, lost: Losses) -> bool:
        """Return whether a lost server, or the server of a lost GPU, works in the iteration."""
        names = lost.servers | {gpu.server for gpu in lost.gpus}
        groups = self.state.groups if self.state is not None else {}
        return any(names & set(groups[region]) for region in self.regions)


class Executor:
    """Runs jobs side by side on one fabric under one policy.

    Regions without a controller keep the circuits that are lit.
    """

    def __init__(
        self,
        fabric: Fabric,
        policy: SplitPolicy,
        agents: Agents,
        controllers: Mapping[str, RegionController],
        circuits: CircuitSet,
        *,
        settings: RunSettings | None = None,
        instruments: Instruments | None = None,
        observer: RunObserver | None = None,
        calls: Calls | None = None,
    ) -> None:
        """Start with `circuits` lit.

        Args:
            policy: Chooses circuits and splits demands.
            controllers: Controllers of the regions whose circuits change.
            circuits: All circuits that traffic may use.
            calls: Calls of the ranks whose bytes collectives carry; None if agents send bytes of
                their own.
        """
        instruments = instruments or Instruments()
        self.fabric, self.agents, self._calls = fabric, agents, calls
        self._settings, self._observer = settings or RunSettings(), observer or Observers()
        self.clock, self._timers = SkippingClock(instruments.clock or MonotonicClock()), RunTimers()
        self.policy, self._choices = ControllerSplits(policy), CircuitChoices(fabric, policy)
        self.transfers = Transfers(fabric, agents, self.clock, self._settings, instruments)
        self.recovery = Recovery(fabric, agents, self._observer)
        self._background = instruments.background or ThreadPoolExecutor(
            max(1, len(controllers)), thread_name_prefix="reconfigure"
        )
        self.reconfigurator = self._reconfigurator(controllers, circuits)
        self._tasks = TaskRunner(
            self.policy,
            self.transfers,
            self.reconfigurator,
            self._timers,
            self._observer,
            calls or Calls(),
        )
        self._reported_circuits = instruments.reported_circuits
        self._kept: list[IterationRun] = []
        self._jobs: list[_JobRun] = []
        self._states: dict[tuple[int, int], IterationState] = {}
        """Each iteration's last attempt, in the order in which the iterations began; without those
        that were settled."""
        self._cancelled: list[_JobRun] = []
        self._restarts: list[tuple[_JobRun, Losses]] = []
        """Jobs that start their iteration again once their controllers have replied."""
        self.iteration_windows: list[IterationWindow] = []
        """The iterations of the first job, on the wall clock."""

    def _reconfigurator(
        self, controllers: Mapping[str, RegionController], circuits: CircuitSet
    ) -> Reconfigurator:
        control = self._settings.control
        retried = {
            region: RetriedController(controller, self.clock, control.timeout_s, self.policy)
            for region, controller in controllers.items()
        }
        return Reconfigurator(
            self.fabric,
            retried,
            circuits,
            self.clock,
            self._background,
            wake=self.agents.wake,
            schedule=self._timers.add,
            settings=control,
            observer=self._observer,
        )

    @property
    def circuits(self) -> CircuitSet:
        """The circuits that traffic may use."""
        return self.reconfigurator.circuits()

    def iteration(self, number: int, operations: Sequence[Operation]) -> IterationRun:
        """Run operations of all regions in lockstep, once, as iteration `number`.

        Raises:
            LostBytesError: Bytes are lost for good.
        """
        regions = tuple(region for region in self.fabric.regions if not region.backup)
        tasks = lockstep_tasks(operations, [region.name for region in regions])
        [run] = self.run(
            {Job(0, JobShape(), regions): lambda _number, _substitutions: tasks}, 1, first=number
        )
        return run

    def run(
        self, programmes: Mapping[Job, Programme], iterations: int, *, first: int = 0
    ) -> list[IterationRun]:
        """Run iterations of each job and return them in the order in which they began.

        Args:
            programmes: For each job, the function that returns the tasks of its iterations.
            iterations: How many iterations each job runs.
            first: The number of the first iteration.

        Raises:
            LostBytesError: Bytes are lost for good; `finished_runs` has the iterations before.
            AgentError: A lost server has no backup.
        """
        self._states, self._kept = {}, []
        self._jobs = [
            _JobRun(job, programme, first + iterations) for job, programme in programmes.items()
        ]
        for job in self._jobs:
            self._begin(job, first)
        while not all(job.finished for job in self._jobs):
            self._turn()
        self._timers.clear()
        return self.finished_runs()

    def finished_runs(self) -> list[IterationRun]:
        """Return the iterations that have ended, in the order in which they began."""
        self._settle()
        return list(self._kept)

    def _settle(self) -> None:
        """Add predictions and chosen circuits to ended iterations; pass these to observers."""
        states = [state for state in self._states.values() if state.run.end_ns]
        if not states:
            return
        add_predictions(self.fabric, states)
        self._choices.add([state.run for state in states])
        for state in states:
            del self._states[state.job.number, state.run.number]
        runs = [state.run for state in states]
        self._observer.iterations_recorded(runs)
        if not self._settings.keep_records:
            runs = [run.without_rows() for run in runs]
        self._kept += runs

    def give_up(self) -> tuple[list[IterationRun], int]:
        """End the iterations under way.

        Returns:
            The iterations that have ended since the last `run`, and the nanoseconds of the present
            one of the first job.
        """
        lost_ns = self.clock.now_ns() - self._jobs[0].start_ns
        for job in self._jobs:
            if job.state is not None and not job.finished:
                job.state.cancelled = True
                self.transfers.abandon(job.state)
        self._timers.clear()
        self._tasks.losses.clear()
        return self.finished_runs(), lost_ns

    def close(self) -> None:
        """End the background threads; wait for them unless a controller owes a reply."""
        self._background.shutdown(wait=not self.reconfigurator.pending)

    def _turn(self) -> None:
        """Take the actions that are due, then wait for the next event."""
        for region, circuits in self._reported_circuits().items():
            self.reconfigurator.adopt(region, circuits)
        self._timers.fire(self.clock.now_ns())
        for job, lost in list(self._restarts):
            if not self.reconfigurator.waiting_for(job.regions):
                self._restarts.remove((job, lost))
                self._restart(job, lost)
        if not self._tasks.losses and not all(job.finished for job in self._jobs):
            self._wait()
        while self._tasks.losses:
            self._refuse_rank_losses()
            self._recover(self._tasks.losses.pop(0))

    def _wait(self) -> None:
        until = self._timers.next_ns
        ranks_compute = self._calls is not None and self._calls.pending
        if not self._tasks.busy and not ranks_compute:
            if until is None:
                raise AssertionError("every task waits for another one")
            self.clock.skip_towards(until)
        waiting_ns = self.clock.wall_ns(self.clock.now_ns())
        try:
            reports = self.agents.wait_ended(None if until is None else self.clock.wall_ns(until))
        except ServerLossError as loss:
            self._tasks.losses.append(loss)
            self._refuse_rank_losses()
            return
        waited_ns = waiting_ns, self.clock.wall_ns(self.clock.now_ns())
        for number, records in reports.items():
            self._tasks.receive(number, records, waited_ns)
        self.reconfigurator.process_replies()
        if self._calls is not None:
            for exchange in self.agents.take_exchanges():
                self._calls.receive(exchange)
            self._refuse_rank_losses()

    def _refuse_rank_losses(self) -> None:
        """Raise RanksLostError if ranks of a program have ended, or the GPUs of ranks are lost.

        No backup can replace them: what they computed is lost.
        """
        if self._calls is None:
            return
        for loss in self._tasks.losses:
            if loss.servers:
                raise loss
            raise RanksLostError(str(loss), gpus=loss.gpus) from loss
        self._calls.check()
        if lost := self.agents.lost_ranks():
            raise RanksLostError("; ".join(lost[rank] for rank in sorted(lost)), sorted(lost))

    # --- iterations ------------------------------------------------------------------------------

    def _begin(self, job: _JobRun, number: int) -> None:
        if number == job.iterations:
            job.finished = True
            return
        job.state = None
        job.window_start_ns = self.clock.wall_ns(self.clock.now_ns())
        if job is self._jobs[0]:
            self._observer.iteration_began(number)
        known = self.recovery.lost
        self.recovery.update(self._busy_regions(job))
        new_losses = Losses(
            self.recovery.lost.gpus - known.gpus, self.recovery.lost.servers - known.servers
        )
        if new_losses:
            self.recovery.log("detected", new_losses, "before the iteration began")
            self._cancel(new_losses)
            if not self._cancelled:
                self.recovery.log("recovered", new_losses, str(self.recovery.substitutions))
            self._schedule_restarts(new_losses)
        job.retried, job.void = 0, []
        job.start_ns = self._attempt(job, number)

    def _busy_regions(self, *idle: _JobRun) -> frozenset[str]:
        running = [job for job in self._jobs if job.running and job not in idle]
        return frozenset(region for job in running for region in job.regions)

    def _attempt(self, job: _JobRun, number: int) -> int:
        """Start an iteration, and return when it began."""
        tasks = job.programme(number, self.recovery.substitutions)
        run = IterationRun(number, 0, job=job.job.number, skipped_ns=-self.clock.skipped_ns)
        state = IterationState(job.job, tasks, self.recovery.groups, run)
        log.info("iteration begins", extra={"iteration": number})
        state.observed = job is self._jobs[0]
        state.later_iterations = job.iterations - number - 1
        state.on_end = lambda: self._tasks.at(run.end_ns, state, lambda: self._finish(job, state))
        job.state = self._states[job.job.number, number] = state
        run.start_ns = self.clock.now_ns()  # now that all is prepared
        self._tasks.start(state)
        return run.start_ns

    def _finish(self, job: _JobRun, state: IterationState) -> None:
        run, clock = state.run, self.clock
        run.skipped_ns += clock.skipped_ns
        run.spans[:0] = [
            Span(server, "void", "forward", None, start, end)
            for start, end in job.void
            for region in job.job.regions
            for server in region.servers
        ]
        run.start_ns, run.retried = job.start_ns, job.retried
        run.lost_ns = sum(end - start for start, end in job.void)
        run.substituted = self.recovery.substitutes(job.regions)
        log.info("iteration ends", extra={"iteration": run.number})
        if job is self._jobs[0]:
            seconds = (run.end_ns - run.start_ns) / NS_PER_S / self.fabric.scale.dilation
            end_ns = clock.wall_ns(clock.now_ns())
            window = IterationWindow(run.number, job.window_start_ns, end_ns, seconds)
            self.iteration_windows.append(window)
            self._observer.iteration_ended()
        if all(other.finished or other.state is state for other in self._jobs):
            self._settle()
        self._begin(job, run.number + 1)

    # --- losses ----------------------------------------------------------------------------------

    def _recover(self, loss: ServerLossError) -> None:
        """Let backups take the places of lost servers and GPUs.

        Jobs that used these start their iteration again.
        """
        noticed_ns, dilation = self.clock.now_ns(), self.fabric.scale.dilation
        longer_ns = round((dilation - 1) * loss.silent_s * NS_PER_S)
        detected = partial(self.recovery.log, "detected", lost_components(loss), str(loss))
        if longer_ns:
            self._timers.add(noticed_ns + longer_ns, detected)
        else:
            detected()
        lost = self.recovery.drop(loss, self._cancel)
        self.recovery.update(self._busy_regions())
        longer_ns += round((dilation - 1) * (self.clock.now_ns() - noticed_ns))
        self._schedule_restarts(lost, longer_ns)

    def _cancel(self, lost: Losses) -> None:
        """End the iterations in which lost servers or GPUs work."""
        for job in self._jobs:
            if job.running and job.uses(lost):
                state = job.state
                assert state is not None
                state.cancelled = True
                job.retried += self.transfers.abandon(state)
                self._cancelled.append(job)

    def _schedule_restarts(self, lost: Losses, longer_ns: int = 0) -> None:
        """Restart the cancelled iterations after the time to load a checkpoint.

        `longer_ns` is what detection and substitution take longer than they did in wall time.
        """
        restore_ns = self.fabric.scale.wall_ns(self._settings.restore_s * NS_PER_S)
        restart_ns = self.clock.now_ns() + longer_ns + restore_ns
        for job in self._cancelled:
            restart = partial(self._restarts.append, (job, lost))
            self._timers.add(restart_ns, restart)
            lost = Losses()  # one log entry for all jobs
        self._cancelled = []

    def _restart(self, job: _JobRun, lost: Losses) -> None:
        state = job.state
        assert state is not None
        number = state.run.number
        restore_s = self._settings.restore_s
        loading = f" after {restore_s:g} s of loading a checkpoint" if restore_s else ""
        action = f"{self.recovery.substitutions}; the iteration starts anew{loading}"
        self.recovery.log("recovered", lost, action)
        job.void.append((state.run.start_ns, self.clock.now_ns()))
        if len(job.void) == MOST_ATTEMPTS:
            raise AgentError(f"iteration {number} was lost {MOST_ATTEMPTS} times: giving up")
        self._attempt(job, number)
