"""Carries out the runs of a sweep: results as they end, further attempts, and progress."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from moefabric.api.sweeps.engine import Engine, RunEnded, RunStarted
from moefabric.api.sweeps.folder import SweepFolder
from moefabric.api.sweeps.plan import PlannedRun, SweepPlan
from moefabric.api.sweeps.results import Attempt, RunRecord, result_figures
from moefabric.api.sweeps.spec import SweepSpec
from moefabric.results.progress import ProgressReporter

_NOT_STARTED: Final = RunStarted("", "", "")
_QUIET_S: Final = 5.0
"""Least time between two lines of progress."""


@dataclass
class _Pending:
    """A run that has not ended, and the attempts at it."""

    run: PlannedRun
    attempts: list[Attempt] = field(default_factory=list)
    started: RunStarted = _NOT_STARTED

    def end_attempt(self, ended: RunEnded, spec: SweepSpec) -> tuple[RunRecord, bool]:
        """Return the record of the run after an attempt, and whether to try again."""
        node, host = self.started.node, self.started.host
        wall_s, self.started = round(ended.wall_s, 3), _NOT_STARTED
        self.attempts.append(Attempt(node=node, host=host, wall_s=wall_s, error=ended.error))
        mode, result = self.run.task.mode, ended.result
        record = RunRecord(
            version=self.run.task.version,
            run=self.run.task.id,
            point=self.run.point.number,
            values=dict(self.run.point.values),
            seed=self.run.seed,
            repetition=self.run.repetition,
            attempts=list(self.attempts),
            fabrics=result_figures(mode, result, spec.figures) if result else [],
        )
        is_wrong = record.failed or (spec.retry_invalid and record.is_invalid)
        return record, is_wrong and len(self.attempts) <= spec.retries


def carry_out(
    plan: SweepPlan, engine: Engine, folder: SweepFolder, reporter: ProgressReporter
) -> None:
    """Carry out the runs that the folder doesn't have, and write each result when it arrives.

    Args:
        engine: Carries runs out.
        folder: Where results go.
        reporter: Shows progress, a step for each run.

    Raises:
        UnsupportedError: If no machine is large enough for one of the runs.
        OutputError: If a result can't be written.
    """
    pending = {id_: _Pending(run) for id_, run in plan.runs.items() if id_ not in folder.records}
    tasks = [missing.run.task for missing in pending.values()]
    for needs in dict.fromkeys(task.needs for task in tasks):
        engine.check(needs)
    for file in folder.damaged:
        reporter.show_message(f"warning: {file} is gone or damaged: its run is repeated")
    progress = SweepProgress(reporter, len(plan.runs))
    progress.begin(len(plan.runs) - len(tasks))
    for task in tasks:
        engine.submit(task)
    while pending:
        event = engine.next_event()
        run = pending[event.id]
        if isinstance(event, RunStarted):
            run.started = event
            progress.start()
            continue
        task, (record, is_retried) = run.run.task, run.end_attempt(event, plan.spec)
        if is_retried:
            progress.retry(task.title, run.attempts[-1])
            engine.submit(task, frozenset(attempt.node for attempt in run.attempts if attempt.node))
        else:
            del pending[event.id]
            folder.add(record, event.result)
            progress.end(task.title, record)


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

    def retry(self, title: str, attempt: Attempt) -> None:
        """Show why a run is tried again."""
        self._running = max(0, self._running - 1)
        reason = attempt.error or "the verdict is invalid"
        place = attempt.host or "no machine"
        self._reporter.show_message(f"trying again: {title}: {reason} (on {place})")

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
