"""Records a fabric's replay while it runs: outcomes in the journal, the state of the run.

Dashboard and metrics read the state, which is written a few times a second at most.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import OutputError
from moefabric.core.port_counts import SENT, counted_nics
from moefabric.core.topology import Fabric
from moefabric.execution.executor import Executor
from moefabric.execution.failure_monitor import FailureMonitor
from moefabric.execution.observer import RunObserver
from moefabric.prediction.first_all_to_all import first_dispatches
from moefabric.results.journal import IterationLine, Journal
from moefabric.results.model import FidelityResult
from moefabric.results.records.records import IterationRun, RunFailures
from moefabric.results.verdict.fabric_result import FabricTotals
from moefabric.results.verdict.iteration_outcome import IterationOutcome, outcomes_of
from moefabric.runtime import run_status
from moefabric.runtime.cpu_monitor import CpuSampler
from moefabric.workload.gating.copilot import GatingPrediction
from moefabric.workload.iterations.iteration import Collective
from moefabric.workload.iterations.tasks import Sent, Task

_EVERY_S: Final = 0.2
"""Least time between two writes."""
_BUSIEST_SHARE: Final = 0.004
"""Share of a core that writes may take; more costly ones come less often."""
_VERDICT_SHARE: Final = 0.002
"""Share of the time that verdicts during the run may take."""
MOST_SHOWN: Final = 100
"""Iterations with failures whose activity is kept for the report, so that memory stays flat."""


class RunStatusWriter(RunObserver):
    """Context in which a thread writes the state of a run to a file, and removes it at the end.

    The run only takes note of what changed. A state that can't be written is lost: the run goes on.

    Args:
        file: The file.
        status: The state before the first iteration.
    """

    def __init__(self, file: Path, status: run_status.RunStatus) -> None:
        self._file, self._status = file, status
        self._task: Task | None = None
        self._demand: DemandMatrix | None = None
        self._changed, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._write, name="run-status", daemon=True)

    def __enter__(self) -> Self:
        self._changed.set()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._changed.set()
        self._thread.join()
        with suppress(OSError):
            self._file.unlink()

    def transfer_ordered(self, task: Task) -> None:
        """Show a collective or transfer whose flows were ordered."""
        self._task = task
        if isinstance(task.work, Collective):
            self._demand = task.work.demand
        self._changed.set()

    def iteration_began(self, number: int) -> None:
        """Show the number of the iteration."""
        self._update(iteration=number)

    def add_outcome(
        self,
        outcome: IterationOutcome,
        fidelity: FidelityResult | None,
        nic_bytes: dict[str, int] | None,
    ) -> None:
        """Show an iteration's outcome.

        Args:
            fidelity: The verdict on all iterations so far; None for the last known one.
            nic_bytes: Bytes that each NIC has sent; None if nobody counts.
        """
        result, totals, sent = outcome.result, self._status.totals, outcome.collectives
        counts = {
            "bytes": sum(collective.bytes for collective in sent),
            "bytes_by_light": sum(collective.bytes_by_light or 0 for collective in sent),
            "bytes_by_eps": sum(collective.bytes_by_eps or 0 for collective in sent),
        }
        status = run_status.IterationStatus(
            iteration=result.iteration,
            measured_s=result.measured_s or 0.0,
            predicted_s=result.predicted_s or 0.0,
            exposed_comm_s=result.exposed_comm_s or 0.0,
            **counts,
        )
        integrity, verdict = outcome.measured.integrity, dict[str, Any]()
        counts |= {
            "iterations": 1,
            "collectives": len(sent),
            "reconfigurations": len(outcome.reconfigurations),
            "lost_transfers": integrity.lost_transfers or 0,
            "corrupt": integrity.corrupt or 0,
        }
        if fidelity is not None:
            verdict = {"verdict": str(fidelity.verdict), "reasons": fidelity.reasons}
        self._update(
            done=[*self._status.done, status][-run_status.LAST_ITERATIONS :],
            totals=run_status.RunTotals(**{name: n + counts[name] for name, n in totals}),
            timeline=[
                run_status.IntervalStatus.model_validate(interval, from_attributes=True)
                for interval in outcome.timeline
            ],
            nic_bytes=nic_bytes,
            **verdict,
        )

    def _update(self, **changes: Any) -> None:
        self._status = self._status.model_copy(update=changes)
        self._changed.set()

    def _write(self) -> None:
        pause_s = _EVERY_S
        while not self._closing.is_set():
            self._changed.wait()
            self._changed.clear()
            began_s = time.thread_time()
            with suppress(OutputError):
                run_status.write_run_status(self._file, self._present())
            pause_s = max(_EVERY_S, (time.thread_time() - began_s) / _BUSIEST_SHARE)
            self._closing.wait(pause_s)

    def _present(self) -> run_status.RunStatus:
        update: dict[str, Any] = {}
        if (task := self._task) is not None:
            work = task.work
            assert isinstance(work, Sent)
            update["operation"] = run_status.OperationStatus(
                kind=work.kind,
                direction=work.direction,
                layer=work.layer,
                region=task.regions[0] if len(task.regions) == 1 else "all",
                micro_batch=task.micro_batch,
            )
        if (demand := self._demand) is not None:
            sizes = demand.array.round().astype(int).tolist()
            update["demand"] = run_status.DemandStatus(servers=list(demand.servers), bytes=sizes)
        return self._status.model_copy(update=update)


@dataclass
class FabricRecorder(RunObserver):
    """Reduces iterations to their outcomes when they have ended.

    Records of iterations are kept only while a failure lasts: what it disturbed is known when it is
    over.

    Attributes:
        name: Name of the fabric in the experiment.
        policy: Name of the fabric's policy.
        journal: Receives the outcomes.
        status: Receives the state of the run; None if nobody can watch it.
        flows: Whether outcomes hold every flow.
        paced: Whether flows are paced.
        predictions: Returns the predictions of an iteration's gating; None without a predictor.
        executor: The executor that is observed.
        cpu: Samples of the CPU; None if nobody takes them.
        monitor: Collects failures; None where none can be injected.
        failed: Records of the iterations during the failures that aren't over.
        shown: Activities in the first iterations in which other failures were injected.
    """

    fabric: Fabric
    name: str
    policy: str
    journal: Journal
    status: RunStatusWriter | None = None
    flows: bool = False
    paced: bool = True
    predictions: Callable[[int], Sequence[GatingPrediction | None]] | None = None
    executor: Executor = field(init=False)
    cpu: CpuSampler | None = field(default=None, init=False)
    monitor: FailureMonitor | None = field(default=None, init=False)
    failed: list[IterationRun] = field(default_factory=list)
    shown: list[IterationRun] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._totals = FabricTotals(self.fabric.mtu, paced=self.paced, scale=self.fabric.scale)
        self._next_verdict_s = 0.0
        self._known = RunFailures()
        """When circuits were planned and requested since the last failure began, and connections
        reopened."""
        self._gating: dict[int, Sequence[GatingPrediction | None]] = {}

    def iterations_recorded(self, runs: Sequence[IterationRun]) -> None:
        """Append the outcomes of iterations that have ended."""
        has_failures = self.monitor is not None and self.monitor.has_failures()
        failures = self.failures() if has_failures else RunFailures()
        if failures.failures:
            self._known = failures = failures.with_plans_of(runs)
            self.failed += runs
        else:
            self.executor.clock.forget_skips()
        outcomes = self._outcomes(runs, failures, self._idle_shares())
        self._append(outcomes)
        for outcome in outcomes:
            self.add(outcome, _nic_bytes(self.fabric, runs))
        if failures.failures and failures.are_over:
            self._forget(failures)

    def _forget(self, failures: RunFailures) -> None:
        """Replace the outcomes during failures that are over, and forget the records."""
        if len(self.failed) > 1:
            self._append(self._outcomes(self.failed, failures, []))
        windows = (failures.iteration_of(failure) for failure in failures.failures)
        numbers = {window.number for window in windows if window is not None}
        shown = (run.without_rows(run.spans) for run in self.failed if run.number in numbers)
        self.shown += islice(shown, MOST_SHOWN - len(self.shown))
        self._known = failures.of_later_iterations()
        self.failed.clear()
        self._gating.clear()

    def finish(self, failures: RunFailures) -> list[float]:
        """Replace the outcomes of the iterations with failures, which are over.

        Returns:
            Idle shares of the machine since the last iteration.
        """
        if self.failed and failures.failures:
            self._append(self._outcomes(self.failed, failures, []))
        return self._idle_shares(last=True)

    def failures(self) -> RunFailures:
        """Return the failures so far."""
        executor = self.executor
        if self.monitor is None:
            return RunFailures()
        failures = self.monitor.failures_during(executor.iteration_windows, executor.clock)
        replanned_ns = map(failures.wall_ns, executor.reconfigurator.replanned_ns)
        return replace(
            failures,
            planned_ns=tuple(sorted({*self._known.planned_ns, *replanned_ns})),
            reopened_ns=self._known.reopened_ns,
            requests=self._known.requests,
        )

    def _idle_shares(self, *, last: bool = False) -> list[float]:
        if self.cpu is None:
            return []
        return self.cpu.idle_shares(self.executor.transfers.take_windows(), last=last)

    def _outcomes(
        self, runs: Sequence[IterationRun], failures: RunFailures, idle: list[float]
    ) -> list[IterationOutcome]:
        for run in runs:
            if self.predictions is not None and run.number not in self._gating:
                self._gating[run.number] = self.predictions(run.number)
        outcomes = outcomes_of(
            self.fabric,
            runs,
            failures,
            flows=self.flows,
            circuits=self.executor.circuits,
            cpu_idle=idle,
            first_dispatches=partial(
                first_dispatches, self.fabric, self.policy, gating=self._gating
            ),
        )
        if not self.failed:
            self._gating.clear()
        return outcomes

    def _append(self, outcomes: Sequence[IterationOutcome]) -> None:
        lines = [
            IterationLine.model_construct(
                {*outcome.model_fields_set, "fabric"}, **dict(outcome), fabric=self.name
            )
            for outcome in outcomes
        ]
        self.journal.append(*lines)

    def add(self, outcome: IterationOutcome, nic_bytes: dict[str, int] | None = None) -> None:
        """Add the outcome of an iteration to the verdict and the state of the run."""
        self._totals.add(outcome)
        if self.status is not None:
            self.status.add_outcome(outcome, self._verdict(), nic_bytes)

    def _verdict(self) -> FidelityResult | None:
        """Return the verdict so far; None if it was asked for shortly before."""
        began_s = time.monotonic()
        if began_s < self._next_verdict_s:
            return None
        verdict = self._totals.fidelity()
        ended_s = time.monotonic()
        self._next_verdict_s = ended_s + (ended_s - began_s) / _VERDICT_SHARE
        return verdict


def _nic_bytes(fabric: Fabric, runs: Sequence[IterationRun]) -> dict[str, int] | None:
    """Return the bytes that each NIC had sent when the last transfer ended."""
    counts = [c.count for run in runs for c in run.collectives if c.count is not None]
    readings = [window.after for window in counts[-1].windows] if counts else []
    if not readings or readings[-1] is None:
        return None
    nics = counted_nics(fabric)
    sent = readings[-1].bytes[: len(nics), SENT].tolist()
    return dict(zip(map(str, nics), sent, strict=True))
