"""A program that trains on a fabric: its ranks, their all-to-alls, and what it learns."""

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from moefabric.agents.fleet.fleet import Fleet
from moefabric.config.experiment import ExperimentSpec
from moefabric.config.training_program import TrainSpec
from moefabric.core.errors import RankFailedError, RanksLostError, TrainingProgramError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import Failure
from moefabric.core.units import NS_PER_S
from moefabric.execution.executor import Executor
from moefabric.execution.programs.rank_jobs import Rank, RankJob, RankPlace
from moefabric.execution.programs.rank_processes import GRACE_S, RankProcesses
from moefabric.execution.rank_calls import RankCalls, TrainingTasks
from moefabric.execution.recovery import Recovery
from moefabric.prediction.jobs import Jobs
from moefabric.results.model import FabricResult
from moefabric.results.parts import RankComputation, TrainingLoss, TrainingRestart, TrainingResult
from moefabric.results.records.records import IterationRun
from moefabric.runtime.run_directory import RunDirectory
from moefabric.testbed import failure_injection
from moefabric.workload.gating.job_gating import RecordedGating
from moefabric.workload.iterations.substitution import Gpu, Losses

_END_S: Final = 120.0
"""Time in which ranks must end after their last all-to-all."""


@dataclass(eq=False)
class TrainingRun:
    """A program that trains on one fabric of an experiment.

    Attributes:
        folder: Folder of the experiment's file.
        jobs: The job, whose gating is `gating`.
        gating: What the gates of the program choose.
        place: The servers.
        fleet: Their agents.
        show: Shows a line that the program printed.
    """

    spec: ExperimentSpec
    folder: Path
    jobs: Jobs
    gating: RecordedGating
    place: RankPlace
    fleet: Fleet
    show: Callable[[str], object]
    _losses: dict[int, str] = field(default_factory=dict, init=False)
    """The loss of each iteration, as rank 0 printed it."""
    _resumed: int | None = field(default=None, init=False)
    """The first iteration that rank 0 reported since the last start of the ranks."""
    _restarts: list[TrainingRestart] = field(default_factory=list, init=False)
    _error: str = field(default="", init=False)
    """What the rank said that ended the ranks last, by an error of its own."""
    _processes: RankProcesses | None = field(default=None, init=False)
    _first: int = field(default=0, init=False)
    """The iteration from which the ranks went on when they were started last."""

    def __post_init__(self) -> None:
        """Expect the calls of the experiment's program."""
        assert self.spec.train is not None
        self.program: TrainSpec = self.spec.train
        self._tasks = TrainingTasks(self.jobs, self.gating, wall=self.program.compute == "wall")
        rows = self.program.rank_tokens * self.jobs.work.model.top_k
        self.calls = RankCalls(self._tasks, self.program.token_bytes, rows, check=self.check)

    def run(self, executor: Executor) -> list[IterationRun]:
        """Start the ranks, and run all iterations; start them again after a loss.

        Raises:
            RankFailedError: If a rank ends early for good.
            TrainingProgramError: If the program doesn't train as the experiment says.
        """
        iterations, runs, first = self.spec.training.iterations, list[IterationRun](), 0
        with tempfile.TemporaryDirectory(prefix="moefabric-train-") as folder:
            while True:
                self.fleet.ranks.start()
                try:
                    with self._start(Path(folder)) as self._processes:
                        left = iterations - first
                        with self._named_cause(self._processes):
                            runs += executor.run(self._tasks.programmes, left, first=first)
                        if not self._processes.wait(_END_S):
                            raise TrainingProgramError(
                                f"the program runs on {_END_S:g} s after {iterations} iterations: "
                                "let its arguments contain {iterations}"
                            )
                except RanksLostError as loss:
                    self._check_loadable(loss)
                    self._processes = None
                    finished, lost_ns = executor.give_up()
                    first, runs = self._resume(loss, [*runs, *finished], lost_ns)
                    self._revive(loss, executor.recovery, first)
                else:
                    return runs
                finally:
                    self.fleet.ranks.stop()

    def check(self) -> None:
        """Check that the ranks still run.

        Raises:
            RanksLostError: If a process has failed.
            TrainingProgramError: If all have ended before the last iteration.
        """
        processes, resumed = self._processes, self._resumed
        if processes is None:
            return
        if resumed is not None and resumed != self._first:
            raise RanksLostError(f"the last checkpoint of all ranks is that of iteration {resumed}")
        if processes.failure is not None:
            failure = processes.failure
            raise RanksLostError(str(failure), [failure.rank]) from failure
        if processes.ended and self.calls.pending:
            raise TrainingProgramError(
                f"the program ended after {len(self._losses)} iterations of "
                f"{self.spec.training.iterations}: let its arguments contain {{iterations}}"
            )

    def result(self, result: FabricResult) -> TrainingResult:
        """Return losses over model time, loads of experts, and the ranks' computation.

        Args:
            result: The fabric's result, with the model time of iterations.
        """
        work, dilation = self.jobs.work, self.jobs.fabric.scale.dilation
        losses, elapsed_s = list[TrainingLoss](), 0.0
        restarts = {restart.resumed: restart for restart in self._restarts}
        for iteration in result.iterations:
            restart = restarts.get(iteration.iteration)
            if restart is not None:
                elapsed_s += restart.lost_s
                elapsed_s += self.spec.training.checkpoint_load / NS_PER_S
            elapsed_s += iteration.measured_s or 0.0
            text = self._losses.get(iteration.iteration)
            if text is not None:
                losses.append(
                    TrainingLoss(
                        iteration=iteration.iteration,
                        model_s=elapsed_s,
                        loss=float(text),
                        text=text,
                    )
                )
        return TrainingResult(
            program=self.program.program.name,
            compute=self.program.compute,
            byte_scale=self.jobs.fabric.scale.bytes,
            losses=losses,
            tokens=self.gating.array(len(result.iterations), work.model.layers).tolist(),
            computation=self._computation(dilation),
            restarts=self._restarts,
        )

    def _computation(self, dilation: float) -> RankComputation:
        """Compare the processes' computation with the modelled one that it stands for."""
        work = [one for one in self.calls.work if one.modelled_s]
        late = [one for one in work if one.took_s > one.modelled_s * dilation]
        if self.program.compute == "wall":
            late = []
        worst = max(late, key=lambda one: one.took_s - one.modelled_s * dilation, default=None)
        return RankComputation(
            count=len(work),
            late=len(late),
            worst_rank=None if worst is None else worst.rank,
            worst_wall_s=None if worst is None else worst.took_s,
            worst_modelled_wall_s=None if worst is None else worst.modelled_s * dilation,
        )

    # --- ranks -----------------------------------------------------------------------------------

    def _start(self, checkpoints: Path) -> RankProcesses:
        work = self.jobs.work
        values = {
            "iterations": self.spec.training.iterations,
            "layers": work.model.layers,
            "experts": work.model.experts,
            "ranks": work.training.ep,
            "seed": self.spec.seed,
            "checkpoint": checkpoints / "rank",
        }
        program = str((self.folder / self.program.program).resolve())
        job = RankJob(
            self.place,
            [sys.executable, program, *self.program.command(values)],
            self._ranks_per_server,
            self.program.environment,
            self.spec.experiment,
        )
        return RankProcesses(job, self._take_line, on_end=self.fleet.wake)

    def _take_line(self, rank: Rank, stream: str, line: str) -> None:
        loss = re.search(self.program.loss, line) if rank.number == 0 else None
        if loss is not None:
            step = int(loss["step"])
            self._losses[step] = loss["loss"]
            self._resumed = step if self._resumed is None else self._resumed
        if loss is None or stream == "stderr":
            self.show(f"{rank}: {line}")

    @staticmethod
    @contextmanager
    def _named_cause(processes: RankProcesses) -> Iterator[None]:
        """Replace the loss of ranks whose agent missed them by what the first of them said.

        A connection is gone before its process has ended, which is soon if it has failed.
        """
        try:
            yield
        except RanksLostError as loss:
            is_cause_known = not loss.ranks or isinstance(loss.__cause__, RankFailedError)
            failure = None if is_cause_known else processes.first_failure(GRACE_S)
            if failure is None:
                raise
            raise RanksLostError(str(failure), [failure.rank]) from failure

    def _check_loadable(self, loss: RanksLostError) -> None:
        """Raise the loss if a rank can't load its program: it would end so after each start."""
        failure = self._processes.failure if self._processes is not None else None
        if failure is not None and failure.is_unloadable and not self._losses:
            raise loss from failure

    def _resume(
        self, loss: RanksLostError, runs: list[IterationRun], lost_ns: int
    ) -> tuple[int, list[IterationRun]]:
        """Return the iteration from which to go on after a loss, and the iterations before it.

        Raises:
            RanksLostError: If there is no checkpoint, no restart is left, or the program failed by
                the same error before and hasn't come further.
        """
        every, error = self.program.checkpoint_every, self._error
        self._error = _own_error(loss)
        if not every or len(self._restarts) == self.program.restarts:
            raise loss
        reached = runs[-1].number + 1 if runs else self._first
        if error and self._error == error and reached <= self._restarts[-1].iteration:
            remedy = "mend the program, or set train.restarts to 0 to see its first error alone"
            raise RanksLostError(f"{loss}; so it did before all ranks started again: {remedy}")
        first, resumed = reached // every * every, self._resumed
        if resumed is not None and resumed != self._first:
            first = resumed  # a rank had ended between its last all-to-all and its checkpoint
        lost_ns += sum(run.end_ns - run.start_ns for run in runs if run.number >= first)
        lost_s = lost_ns / NS_PER_S / self.jobs.fabric.scale.dilation
        self._restarts.append(
            TrainingRestart(iteration=reached, resumed=first, reason=str(loss), lost_s=lost_s)
        )
        self.show(f"{loss}; all ranks start again from iteration {first}")
        self.calls.restart(first)
        self._first, self._resumed = first, None
        return first, [run for run in runs if run.number < first]

    def _revive(self, loss: RanksLostError, recovery: Recovery, first: int) -> None:
        """Let lost GPUs have processes again, and log the loss and the restart."""
        per_server, tp = self._ranks_per_server, self.jobs.work.training.tp
        servers = self.jobs.work.placements[0].servers
        gpus = {Gpu.parse(name) for name in loss.gpus}
        gpus |= {Gpu(servers[r // per_server], r % per_server * tp) for r in loss.ranks}
        lost = Losses(frozenset(gpus), frozenset())
        recovery.log("detected", lost, str(loss))
        recovery.log("recovered", lost, f"all ranks start again from iteration {first}")
        if loss.gpus:
            failure = Failure(FailureKind.GPU, tuple(sorted(loss.gpus)))
            failure_injection.clear(RunDirectory.of_fabric(self.jobs.fabric.name), failure)
            self.fleet.losses()  # takes the returned GPUs in

    @property
    def _ranks_per_server(self) -> int:
        work = self.jobs.work
        return work.training.ep // len(work.placements[0].servers)


def _own_error(loss: RanksLostError) -> str:
    """Return what a rank said before it exited with an error; empty for other losses."""
    failure = loss.__cause__
    return failure.saying if isinstance(failure, RankFailedError) and failure.status > 0 else ""
