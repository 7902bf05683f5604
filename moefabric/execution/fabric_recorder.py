"""Records a fabric's replay while it runs: outcomes in the journal, the state of the run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Final

from moefabric.core.port_counts import SENT, counted_nics
from moefabric.core.topology import Fabric
from moefabric.execution.executor import Executor
from moefabric.execution.failure_monitor import FailureMonitor
from moefabric.execution.observer import RunObserver
from moefabric.execution.status_writer import RunStatusWriter
from moefabric.prediction.first_all_to_all import first_dispatches
from moefabric.results.journal import IterationLine, Journal
from moefabric.results.model import FidelityResult
from moefabric.results.records.records import IterationRun, RunFailures
from moefabric.results.verdict.fabric_result import FabricTotals
from moefabric.results.verdict.iteration_outcome import IterationOutcome, outcomes_of
from moefabric.runtime.cpu_monitor import CpuSampler
from moefabric.workload.gating.copilot import GatingPrediction

_VERDICT_SHARE: Final = 0.002
"""Share of the time that verdicts during the run may take."""
MOST_SHOWN: Final = 100
"""Iterations with failures whose activity is kept for the report, so that memory stays flat."""


@dataclass
class FabricRecorder(RunObserver):
    """Reduces iterations to their outcomes when they have ended.

    Records of iterations are kept only while a failure lasts: what it disturbed is known when it is
    over.

    Attributes:
        fabric: The fabric.
        name: Its name in the experiment.
        policy: Name of its policy.
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
    executor: Executor | None = field(default=None, init=False)
    cpu: CpuSampler | None = field(default=None, init=False)
    monitor: FailureMonitor | None = field(default=None, init=False)
    failed: list[IterationRun] = field(default_factory=list)
    shown: list[IterationRun] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._totals = FabricTotals(self.fabric.mtu, paced=self.paced)
        self._next_verdict_s = 0.0
        self._planned_ns, self._reopened_ns = tuple[int, ...](), tuple[int, ...]()
        """When circuits were planned and connections reopened since the first failure."""
        self._gating: dict[int, Sequence[GatingPrediction | None]] = {}

    def iterations_recorded(self, runs: Sequence[IterationRun]) -> None:
        """Append the outcomes of iterations that have ended."""
        assert self.executor is not None
        injected = self.monitor is not None and self.monitor.injected()
        failures = self.failures() if injected else RunFailures()
        if failures.failures:
            failures = failures.with_plans_of(runs)
            self._planned_ns, self._reopened_ns = failures.planned_ns, failures.reopened_ns
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
        shown = (run.without_transfers() for run in self.failed if run.number in numbers)
        self.shown += islice(shown, MOST_SHOWN - len(self.shown))
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
        executor, monitor = self.executor, self.monitor
        if executor is None or monitor is None:
            return RunFailures()
        failures = monitor.failures_during(executor.iteration_windows, executor.clock)
        replanned_ns = map(failures.wall_ns, executor.replanned_ns)
        return replace(
            failures,
            planned_ns=tuple(sorted({*self._planned_ns, *replanned_ns})),
            reopened_ns=self._reopened_ns,
        )

    def _idle_shares(self, *, last: bool = False) -> list[float]:
        if self.executor is None or self.cpu is None:
            return []
        return self.cpu.idle_shares(self.executor.transfers.take_windows(), last=last)

    def _outcomes(
        self, runs: Sequence[IterationRun], failures: RunFailures, idle: list[float]
    ) -> list[IterationOutcome]:
        circuits = None if self.executor is None else self.executor.circuits
        for run in runs:
            if self.predictions is not None and run.number not in self._gating:
                self._gating[run.number] = self.predictions(run.number)
        outcomes = outcomes_of(
            self.fabric,
            runs,
            failures,
            flows=self.flows,
            circuits=circuits,
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
                {*one.model_fields_set, "fabric"}, **dict(one), fabric=self.name
            )
            for one in outcomes
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
        verdict = self._totals.fidelity(failures=bool(self.failed or self.shown))
        ended_s = time.monotonic()
        self._next_verdict_s = ended_s + (ended_s - began_s) / _VERDICT_SHARE
        return verdict


def _nic_bytes(fabric: Fabric, runs: Sequence[IterationRun]) -> dict[str, int] | None:
    """Return the bytes that each NIC had sent when the last transfer ended."""
    counts = [c.count for run in runs for c in run.collectives if c.count is not None]
    readings = [window.after for window in counts[-1].windows] if counts else []
    if not readings or readings[-1] is None:
        return None
    sent = readings[-1].bytes[:, SENT].tolist()
    return dict(zip(map(str, counted_nics(fabric)), sent, strict=True))
