"""A training program whose ranks fail: what is reported, and when all start again."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moefabric.config.loader import load_experiment
from moefabric.core.errors import RanksLostError
from moefabric.core.units import Scale
from moefabric.execution.programs.rank_jobs import RankPlace
from moefabric.execution.programs.training import TrainingRun
from moefabric.prediction.jobs import Jobs
from moefabric.prediction.workload_loader import training_workload, workload_of, workload_on
from moefabric.results.records.records import IterationRun
from moefabric.workload.gating.job_gating import RecordedGating
from tests.support.paths import EXAMPLES

WAIT_S = 30.0
FILE = EXAMPLES / "train/prototype.yaml"
FAILS = """
import os, signal
if os.environ["RANK"] == "4":
    raise ValueError("boom")
signal.pause()
"""


class Runs:
    """Executor of a program whose ranks make no calls: it finishes given iterations, then waits.

    Attributes:
        done: How many iterations end after each start of the ranks.
        missed: The rank that the agents miss at once; None: its process is waited for.
        starts: The iterations from which the ranks were started.
    """

    def __init__(self, done: Sequence[int], missed: int | None = None) -> None:
        self.done, self.missed = done, missed
        self.starts = list[int]()
        self.check: Callable[[], None] = lambda: None
        self.woken = threading.Event()
        self.recovery = SimpleNamespace(log=lambda *_: None)

    def run(self, _programmes: object, _count: int, *, first: int) -> list[IterationRun]:
        self.starts.append(first)
        if self.missed is not None:
            raise RanksLostError(f"rank {self.missed} on s2 has ended", [self.missed])
        while True:
            assert self.woken.wait(WAIT_S)
            self.woken.clear()
            self.check()

    def give_up(self) -> tuple[list[IterationRun], int]:
        first, count = self.starts[-1], self.done[len(self.starts) - 1]
        return [IterationRun(number, 0) for number in range(first, first + count)], 0


def train(runs: Runs, folder: Path, program: str, *settings: str) -> list[str]:
    """Train with a program and return what was shown."""
    (folder / "fails.py").write_text(program)
    spec = load_experiment(FILE, [f"train.program={folder / 'fails.py'}", *settings])
    choice = spec.fabrics[0]
    fabric = spec.build_fabric(choice, "test", Scale())
    gating = RecordedGating(spec.training.ep, spec.known_model.experts)
    even = workload_on(spec, fabric, FILE.parent)
    work = workload_of(choice, training_workload(even, gating))
    servers = work.placements[0].servers
    place = RankPlace(lambda _server, command: command, servers, "127.0.0.1")
    ranks = SimpleNamespace(start=lambda: None, stop=lambda: None)
    fleet: Any = SimpleNamespace(ranks=ranks, wake=runs.woken.set)
    shown = list[str]()
    jobs = Jobs.of(spec, fabric, work)
    training = TrainingRun(spec, folder, jobs, gating, place, fleet, shown.append)
    runs.check = training.check
    executor: Any = runs
    training.run(executor)
    return shown


def test_a_rank_that_agents_miss_is_named_with_what_it_said(tmp_path: Path) -> None:
    runs = Runs([0], missed=4)
    with pytest.raises(RanksLostError, match=r"^rank 4 on s2 exited 1, saying: ValueError: boom$"):
        train(runs, tmp_path, FAILS, "train.restarts=0")
    assert runs.starts == [0]


def test_an_error_that_comes_back_without_progress_ends_the_training(tmp_path: Path) -> None:
    runs = Runs([9, 1])  # in iteration 9, and there again after a restart from that of 8
    with pytest.raises(RanksLostError, match=r"ValueError: boom; so it did .* train\.restarts"):
        train(runs, tmp_path, FAILS, "train.checkpoint_every=8")
    assert runs.starts == [0, 8]


def test_restarts_go_on_while_a_program_gets_further(tmp_path: Path) -> None:
    runs = Runs([9, 2, 8, 0])
    with pytest.raises(RanksLostError, match=r"ValueError: boom$"):
        train(runs, tmp_path, FAILS, "train.checkpoint_every=8", "train.restarts=3")
    assert runs.starts == [0, 8, 8, 16]


def test_a_killed_rank_is_no_error_of_the_program(tmp_path: Path) -> None:
    runs = Runs([9, 1, 1, 1])
    killed = FAILS.replace('raise ValueError("boom")', "os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(RanksLostError, match="signal 9"):
        train(runs, tmp_path, killed, "train.checkpoint_every=8", "train.restarts=3")
    assert runs.starts == [0, 8, 8, 8]
