"""Observers of a run: they receive the events of an executor."""

from collections.abc import Callable, Sequence
from typing import Any

from moefabric.core.failures import FailurePhase
from moefabric.results.records.records import IterationRun
from moefabric.workload.iterations.tasks import Task


class RunObserver:
    """Receives the events of a run, in the thread that runs it.

    A subclass overrides the methods that concern it; the others do nothing. Iterations and
    collectives are those of the first job. An exception ends the run.

    Example:
        An observer that counts iterations::

            class IterationCount(RunObserver):
                count = 0

                def iteration_ended(self) -> None:
                    self.count += 1
    """

    def iteration_began(self, number: int) -> None:
        """Receive the number of an iteration before its first task starts."""

    def collective_began(self, start_ns: int) -> None:
        """Receive the start of a collective on the wall clock, when its flows were ordered."""

    def transfer_ordered(self, task: Task) -> None:
        """Receive a collective or transfer of any job whose flows were ordered."""

    def collective_ended(self, description: str) -> None:
        """Receive the description of a collective of any job that has ended."""

    def iteration_ended(self) -> None:
        """Receive the end of an iteration."""

    def iterations_recorded(self, runs: Sequence[IterationRun]) -> None:
        """Receive iterations of all jobs that have ended, each once, when none is under way."""

    def failure_logged(
        self, phase: FailurePhase, kind: str, components: Sequence[str], reason: str
    ) -> None:
        """Receive a phase of a failure: what failed, and the evidence or the action taken."""


def _to_each(name: str) -> Callable[..., None]:
    """Return a method that calls the method of this name of each observer."""

    def method(self: "Observers", *event: Any) -> None:
        for observer in self.observers:
            getattr(observer, name)(*event)

    return method


class Observers(RunObserver):
    """Several observers, each of which receives every event in turn."""

    def __init__(self, *observers: RunObserver) -> None:
        self.observers = observers

    iteration_began = _to_each("iteration_began")
    collective_began = _to_each("collective_began")
    transfer_ordered = _to_each("transfer_ordered")
    collective_ended = _to_each("collective_ended")
    iteration_ended = _to_each("iteration_ended")
    iterations_recorded = _to_each("iterations_recorded")
    failure_logged = _to_each("failure_logged")
