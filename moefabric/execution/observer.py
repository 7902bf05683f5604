"""Observers of a run: they receive the events of an executor."""

from collections.abc import Sequence

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
        """Learn that an iteration has ended."""

    def iterations_recorded(self, runs: Sequence[IterationRun]) -> None:
        """Receive iterations of all jobs that have ended, each once, when none is under way."""

    def failure_logged(
        self, phase: FailurePhase, kind: str, components: Sequence[str], reason: str
    ) -> None:
        """Receive a phase of a failure: what failed, and the evidence or the action taken."""


class Observers(RunObserver):
    """Several observers, each of which receives every event in turn."""

    def __init__(self, *observers: RunObserver) -> None:
        self._observers = observers

    def iteration_began(self, number: int) -> None:
        """Tell each observer that an iteration begins."""
        for observer in self._observers:
            observer.iteration_began(number)

    def collective_began(self, start_ns: int) -> None:
        """Tell each observer when a collective starts."""
        for observer in self._observers:
            observer.collective_began(start_ns)

    def transfer_ordered(self, task: Task) -> None:
        """Tell each observer which flows were ordered."""
        for observer in self._observers:
            observer.transfer_ordered(task)

    def collective_ended(self, description: str) -> None:
        """Tell each observer which collective has ended."""
        for observer in self._observers:
            observer.collective_ended(description)

    def iteration_ended(self) -> None:
        """Tell each observer that an iteration has ended."""
        for observer in self._observers:
            observer.iteration_ended()

    def iterations_recorded(self, runs: Sequence[IterationRun]) -> None:
        """Hand the records of iterations to each observer."""
        for observer in self._observers:
            observer.iterations_recorded(runs)

    def failure_logged(
        self, phase: FailurePhase, kind: str, components: Sequence[str], reason: str
    ) -> None:
        """Tell each observer a phase of a failure."""
        for observer in self._observers:
            observer.failure_logged(phase, kind, components, reason)
