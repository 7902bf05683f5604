"""Carries the runs of a sweep out: results as they end, further attempts, progress."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from moefabric.api.sweeps.engine import Engine
from moefabric.api.sweeps.folder import SweepFolder
from moefabric.api.sweeps.plan import PlannedRun, SweepPlan
from moefabric.api.sweeps.results import Attempt, RunRecord, is_invalid, run_record
from moefabric.api.sweeps.task import RunEnded, RunStarted
from moefabric.results.progress import ProgressReporter

_QUIET_S: Final = 5.0
"""Least time between two lines of progress."""


@dataclass
class _Pending:
    """A run that has not ended, and the attempts at it."""

    run: PlannedRun
    attempts: list[Attempt] = field(default_factory=list)
    started: RunStarted | None = None


def carry_out(
    plan: SweepPlan, engine: Engine, folder: SweepFolder, reporter: ProgressReporter
) -> None:
    """Carry out the runs that the folder doesn't have, and write each result when it arrives.

    Args:
        plan: The sweep.
        engine: Carries runs out.
        folder: Where results go.
        reporter: Shows progress, a step for each run.

    Raises:
        UnsupportedError: If no machine is large enough for one of the runs.
        OutputError: If a result can't be written.
    """
    missing = [run for id_, run in plan.runs.items() if id_ not in folder.records]
    for needs in dict.fromkeys(run.task.needs for run in missing):
        engine.check(needs)
    _Campaign(plan, engine, folder, reporter).carry_out(missing)


class _Campaign:
    def __init__(
        self, plan: SweepPlan, engine: Engine, folder: SweepFolder, reporter: ProgressReporter
    ) -> None:
        self._plan, self._engine, self._folder = plan, engine, folder
        self._progress = SweepProgress(reporter, len(plan.runs))
        self._pending: dict[str, _Pending] = {}

    def carry_out(self, missing: Sequence[PlannedRun]) -> None:
        """Carry runs out until none is pending."""
        earlier = len(self._plan.runs) - len(missing)
        self._progress.begin(earlier)
        for run in missing:
            self._pending[run.task.id] = _Pending(run)
            self._engine.submit(run.task)
        while self._pending:
            match self._engine.next_event():
                case RunStarted() as started:
                    self._pending[started.id].started = started
                    self._progress.start()
                case RunEnded() as ended:
                    self._end_attempt(ended)

    def _end_attempt(self, ended: RunEnded) -> None:
        """Write the result of an attempt, or try again."""
        pending = self._pending[ended.id]
        attempt = Attempt.of(pending.started, ended)
        pending.attempts.append(attempt)
        pending.started = None
        record = run_record(pending.run, pending.attempts, ended, self._plan.spec.figures)
        spec, title = self._plan.spec, pending.run.task.title
        is_retried = record.failed or (spec.retry_invalid and is_invalid(record))
        if is_retried and len(pending.attempts) <= spec.retries:
            reason = attempt.error or "the verdict is invalid"
            self._progress.retry(f"{title}: {reason} (on {attempt.host or 'no machine'})")
            self._engine.submit(pending.run.task, _nodes(pending.attempts))
            return
        del self._pending[ended.id]
        self._folder.add(record, ended.result)
        self._progress.end(title, record)


def _nodes(attempts: Collection[Attempt]) -> frozenset[str]:
    return frozenset(attempt.node for attempt in attempts if attempt.node)


class SweepProgress:
    """Lines and steps of a sweep's progress, with the remaining time.

    Args:
        reporter: Shows them.
        total: Number of runs.
        clock: Seconds.
    """

    def __init__(
        self, reporter: ProgressReporter, total: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reporter, self._total, self._clock = reporter, total, clock
        self._began = self._last = clock()
        self._ended = self._earlier = self._running = 0

    def begin(self, earlier: int) -> None:
        """Show the number of runs, and of those that an earlier sweep has ended."""
        self._earlier = earlier
        skipped = f", {earlier} of them are there already" if earlier else ""
        self._reporter.show_message(f"{self._total} runs{skipped}")
        for _ in range(earlier):
            self._reporter.advance(self._text())

    def start(self) -> None:
        """Count an attempt that runs."""
        self._running += 1

    def retry(self, text: str) -> None:
        """Show why a run is tried again."""
        self._running = max(0, self._running - 1)
        self._reporter.show_message(f"trying again: {text}")

    def end(self, title: str, record: RunRecord) -> None:
        """Count a run that has ended; show it if it has failed, or after a while without a line."""
        self._running = max(0, self._running - 1)
        self._ended += 1
        now = self._clock()
        outcome = f"failed: {record.error}" if record.failed else record.summary
        if record.failed or now - self._last >= _QUIET_S or self._is_over:
            self._last = now
            self._reporter.show_message(f"{self._text()}; {title}: {outcome}")
        self._reporter.advance(self._text())

    @property
    def _is_over(self) -> bool:
        return self._earlier + self._ended == self._total

    def _text(self) -> str:
        """Return the progress, such as `12 of 40 runs, 2 running, about 4 min left`."""
        text = f"{self._earlier + self._ended} of {self._total} runs"
        if self._running:
            text += f", {self._running} running"
        if self._ended and not self._is_over:
            per_run_s = (self._clock() - self._began) / self._ended
            remaining_s = per_run_s * (self._total - self._earlier - self._ended)
            text += f", about {duration_text(remaining_s)} left"
        return text


def duration_text(seconds: float) -> str:
    """Return a rough duration: `40 s`, `4 min`, `3 h`."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
