"""Injecting: failures that an experiment's file asks for, each at its instant of the replay."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack

from moefabric.experiment.clock import Clock
from moefabric.failures import Failure, Planned
from moefabric.topology import Scale


class Injector:
    """Breaks and mends what is planned, by `break_` and `mend`, while the replay goes on. Instants are those of the wall's clock."""

    def __init__(
        self,
        planned: Sequence[Planned],
        break_: Callable[[Failure], None],
        mend: Callable[[Failure], None],
        clock: Clock,
        scale: Scale,
        background: Executor,
    ) -> None:
        self._planned = tuple(planned)
        self._broken: list[Planned] = []
        self._break, self._mend = break_, mend
        self._clock, self._scale, self._background = clock, scale, background
        self._under_way: list[Future[None]] = []
        self._iteration = self._collectives = 0

    def iteration(self, number: int) -> None:
        """An iteration begins. What is to be mended by now is; what is to break at its very start breaks before this returns.

        Errors of what was to break in the last one come here.
        """
        self.settle()
        for planned in [each for each in self._broken if each.clear is not None and each.clear <= number]:
            self._broken.remove(planned)
            self._mend(planned.failure)
        self._iteration, self._collectives = number, 0
        for planned in self._due(None):
            if planned.after_ns:
                self._later(planned, self._clock.now_ns())
            else:
                self._break(planned.failure)

    def collective(self, start_ns: int) -> None:
        """The next collective of the iteration will start at that instant."""
        for planned in self._due(self._collectives):
            self._later(planned, start_ns)
        self._collectives += 1

    def settle(self) -> None:
        """Wait until all that is under way has been done. Errors of that come here."""
        under_way, self._under_way = self._under_way, []
        for each in under_way:
            each.result()

    def close(self) -> None:
        """Mend what the experiment never mends: the fabric may be used by another one. All of it is tried, whatever goes wrong, and what did comes here."""
        broken, self._broken = self._broken, []
        with ExitStack() as mending:
            for planned in reversed(broken):
                mending.callback(self._mend, planned.failure)
            self.settle()

    def _due(self, collective: int | None) -> list[Planned]:
        """What is to break in this collective; those of an iteration that starts anew are counted on."""
        due = [p for p in self._planned if (p.iteration, p.collective) == (self._iteration, collective)]
        self._broken += due
        return due

    def _later(self, planned: Planned, start_ns: int) -> None:
        instant = start_ns + self._scale.wall_ns(planned.after_ns)
        self._under_way.append(self._background.submit(self._at, planned.failure, instant))

    def _at(self, failure: Failure, instant_ns: int) -> None:
        self._clock.sleep_until(instant_ns)
        self._break(failure)
