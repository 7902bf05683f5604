"""Carries out a sweep: results as they end, further attempts, progress, and the summary."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final

from moefabric.api.sweeps.columns import result_figures
from moefabric.api.sweeps.engine import Engine, RunEnded, RunStarted
from moefabric.api.sweeps.folder import SweepFolder, sweep_folder
from moefabric.api.sweeps.page import sweep_page
from moefabric.api.sweeps.plan import PlannedRun, SweepPlan, plan_sweep
from moefabric.api.sweeps.ray_engine import RayEngine
from moefabric.api.sweeps.results import Attempt, RunRecord
from moefabric.api.sweeps.spec import SweepSpec
from moefabric.api.sweeps.summary import SweepSummary
from moefabric.results.progress import ProgressReporter
from moefabric.runtime.atomic_file import write_whole
from moefabric.testbed.cluster.ray_client import connected, local_cluster

_NOT_STARTED: Final = RunStarted("", "", "")
_QUIET_S: Final = 5.0
"""Least time between two lines of progress."""


def run_sweep(
    spec: SweepSpec,
    folder: Path,
    out: Path,
    reporter: ProgressReporter,
    *,
    cluster: str | None = None,
    resume: bool = False,
) -> SweepSummary:
    """Carry out the runs of a sweep that its folder of results doesn't have.

    After an exception, the folder keeps the results of runs that have ended, and the other runs are
    stopped.

    Args:
        spec: The sweep.
        folder: Folder of its file; relative paths start there.
        out: Folder of the results.
        reporter: Shows progress, a step for each run.
        cluster: Address of a Ray cluster, or `auto`. Default: one of this machine, for the time of
            the sweep.
        resume: Whether `out` may have results, which are kept.

    Raises:
        SpecError: With all faults of all experiments, before anything runs.
        MoefabricError: If there is no cluster, no machine is large enough, or results can't be
            written.
    """
    plan = plan_sweep(spec, folder)
    with sweep_folder(out, plan, resume=resume) as results:
        try:
            if len(results.records) < len(plan.runs):
                with _engine(cluster, plan) as engine:
                    carry_out(plan, engine, results, reporter)
        finally:
            summary = SweepSummary(spec, version("moefabric"), len(plan.runs), results.ordered())
            _write(summary, results)
    return summary


@contextmanager
def _engine(cluster: str | None, plan: SweepPlan) -> Iterator[Engine]:
    with connected(cluster) if cluster else local_cluster() as ray:
        engine = RayEngine(ray, plan.archives)
        try:
            yield engine
        finally:
            engine.close()


def _write(summary: SweepSummary, results: SweepFolder) -> None:
    """Write the files that summarise all results."""
    text = json.dumps(summary.to_json(), indent=1, ensure_ascii=False)
    write_whole(results.path / "sweep.json", f"{text}\n")
    write_whole(results.path / "report.html", sweep_page(summary))
    results.write_parquet()


@dataclass
class _Pending:
    """A run that has not ended, and the attempts at it."""

    run: PlannedRun
    attempts: list[Attempt] = field(default_factory=list)
    started: RunStarted = _NOT_STARTED


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
        node, host = pending.started.node, pending.started.host
        wall_s = round(ended.wall_s, 3)
        attempt = Attempt(node=node, host=host, wall_s=wall_s, error=ended.error)
        pending.attempts.append(attempt)
        pending.started = _NOT_STARTED
        record = self._record(pending, ended.result)
        spec, title = self._plan.spec, pending.run.task.title
        is_retried = record.failed or (spec.retry_invalid and record.is_invalid)
        if is_retried and len(pending.attempts) <= spec.retries:
            reason = attempt.error or "the verdict is invalid"
            self._progress.retry(f"{title}: {reason} (on {attempt.host or 'no machine'})")
            nodes = frozenset(attempt.node for attempt in pending.attempts if attempt.node)
            self._engine.submit(pending.run.task, nodes)
            return
        del self._pending[ended.id]
        self._folder.add(record, ended.result)
        self._progress.end(title, record)

    def _record(self, pending: _Pending, result: str) -> RunRecord:
        run, figures = pending.run, self._plan.spec.figures
        return RunRecord(
            run=run.task.id,
            point=run.point.number,
            values=dict(run.point.values),
            seed=run.seed,
            repetition=run.repetition,
            attempts=list(pending.attempts),
            fabrics=result_figures(run.task.mode, result, figures) if result else [],
        )


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
