"""Schedule of an experiment's failures, each injected at its instant of the run."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack

from moefabric.core.failures import Failure, PlannedFailure
from moefabric.core.units import Scale
from moefabric.execution.observer import RunObserver
from moefabric.testbed.clock import Clock


class FailureInjector(RunObserver):
    """Injects and clears the planned failures of a run; instants are of the wall clock.

    With several jobs, iterations and collectives are those of the first job, counted as they start.
    """

    def __init__(
        self,
        planned: Sequence[PlannedFailure],
        inject: Callable[[Failure], None],
        clear: Callable[[Failure], None],
        clock: Clock,
        scale: Scale,
        background: Executor,
    ) -> None:
        self._planned = list(planned)
        self._injected: list[PlannedFailure] = []
        self._inject, self._clear = inject, clear
        self._clock, self._scale, self._background = clock, scale, background
        self._under_way: list[Future[None]] = []
        self._iteration = self._collectives = 0

    def iteration_began(self, number: int) -> None:
        """Clear the failures that end by this iteration, and inject those at its very start.

        Errors of injections in the iteration before are raised here.
        """
        self._settle()
        for planned in [p for p in self._injected if p.clear is not None and p.clear <= number]:
            self._injected.remove(planned)
            self._clear(planned.failure)
        self._iteration, self._collectives = number, 0
        for planned in self._due(None):
            if planned.after_ns:
                self._schedule(planned, self._clock.now_ns())
            else:
                self._inject(planned.failure)

    def collective_began(self, start_ns: int) -> None:
        """Schedule the failures of the iteration's next collective, given its start."""
        for planned in self._due(self._collectives):
            self._schedule(planned, start_ns)
        self._collectives += 1

    def close(self) -> None:
        """Clear the failures that are left, so that another experiment can use the fabric.

        Errors are raised once all failures are cleared.
        """
        injected, self._injected = self._injected, []
        with ExitStack() as clearing:
            for planned in reversed(injected):
                clearing.callback(self._clear, planned.failure)
            self._settle()

    def _settle(self) -> None:
        """Wait until all injections under way are done."""
        under_way, self._under_way = self._under_way, []
        for injection in under_way:
            injection.result()

    def _due(self, collective: int | None) -> list[PlannedFailure]:
        """Return the failures of this collective, or without one those of the iteration's start.

        A restarted iteration continues the count of collectives. An iteration that runs again, from
        a checkpoint, has no failures again.
        """
        place = self._iteration, collective
        due = [p for p in self._planned if (p.iteration, p.collective) == place]
        self._planned = [p for p in self._planned if p not in due]
        self._injected += due
        return due

    def _schedule(self, planned: PlannedFailure, start_ns: int) -> None:
        instant = start_ns + self._scale.wall_ns(planned.after_ns)
        self._under_way.append(self._background.submit(self._inject_at, planned.failure, instant))

    def _inject_at(self, failure: Failure, instant_ns: int) -> None:
        self._clock.sleep_until(instant_ns)
        self._inject(failure)
