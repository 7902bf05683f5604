"""Enduring: a job that goes on when servers and GPUs are lost: others take their places, and the iteration starts anew.

What the network loses it recovers by itself, below the job: connections go on, and a collective ends later.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from moefabric.errors import AgentError, LostError
from moefabric.experiment.collective import InFlight
from moefabric.experiment.injecting import Injector
from moefabric.experiment.replay import Replay
from moefabric.experiment.runs import IterationRun, Span
from moefabric.experiment.workload import Workload
from moefabric.failure_log import Do, Note
from moefabric.failures import Window
from moefabric.health import Gpu, Lost, Seats, seated
from moefabric.iteration import Operation
from moefabric.seating import Seating, exchange, exchanging, seating
from moefabric.units import NS_PER_S

MOST_ATTEMPTS = 5
"""An iteration that starts anew more often than this will never end."""


class Crew(Protocol):
    """The agents, as a job that loses some of them needs them."""

    def lost(self) -> tuple[frozenset[str], frozenset[str]]:
        """Servers and GPUs (`s1/3`) that are lost now."""

    def heed(self, unreachable: Callable[[str], bool]) -> None:
        """Hold a server to be lost, and not to be back, while this says that it is cut off."""

    def leave(self, servers: Iterable[str]) -> None:
        """Go on without these servers."""

    def abandon(self, collective: int) -> None:
        """End a collective as it is."""

    def mend(self) -> None:
        """Open again the connections that were lost between those that are left."""

    def returned(self) -> frozenset[str]:
        """Servers that have come back, and are wired again."""


class Found(Protocol):
    """What others know of failures."""

    def look(self) -> None:
        """See what is new."""

    def notes(self) -> list[Note]:
        """All of it."""


class Enduring:
    """Runs a workload's iterations through losses. `seen` is told what was detected, and when and how the job went on."""

    def __init__(
        self,
        replay: Replay,
        work: Workload,
        crew: Crew,
        injector: Injector | None = None,
        restore_s: float = 0.0,
        seen: Callable[[Do, str, Sequence[str], str], object] = lambda _do, _kind, _what, _why: None,
    ) -> None:
        self.replay, self.work, self.crew = replay, work, crew
        self._injector, self._restore_s, self._seen = injector, restore_s, seen
        self.lost, self.seats = Lost(), Seats()
        self.windows: list[Window] = []
        self.found: Found | None = None
        """What else is known of failures, looked at after each iteration."""
        if injector is not None:
            replay.collectives.begun = injector.collective

    def iteration(self, number: int) -> IterationRun:
        """Run one iteration to its end, however often it starts anew. AgentError where nobody is left to take a lost place."""
        wall = self._wall_ns()
        if self._injector is not None:
            self._injector.iteration(number)
        before = self.lost
        self._look()
        if found := Lost(self.lost.gpus - before.gpus, self.lost.servers - before.servers):
            self._told("detected", found, "before the iteration began")
            self._told("recovered", found, str(self.seats))
        started = self.replay.clock.now_ns()
        run = self._endured(number)
        run = replace(run, start_ns=started)
        fabric = self.replay.fabric
        seconds = (run.end_ns - started) / NS_PER_S / fabric.scale.dilation
        self.windows.append(Window(number, wall, self._wall_ns(), seconds))
        if self.found is not None:
            self.found.look()
        return run

    def warm_up(self) -> None:
        """Let connections and caches be used once. Who is lost by then is replaced when the first iteration begins."""
        self._look()
        try:
            self.replay.iteration(0, self._seated().warm_up())
        except LostError as loss:
            self._drop(loss)

    def close(self) -> None:
        """Mend what is broken by plan."""
        if self._injector is not None:
            self._injector.close()

    def _endured(self, number: int) -> IterationRun:
        retried, spent = 0, list[tuple[int, int]]()
        for _ in range(MOST_ATTEMPTS):
            began = self.replay.clock.now_ns()
            try:
                run = self.replay.iteration(number, self._operations(number))
            except LostError as loss:
                retried += self._recover(loss)
                spent.append((began, self.replay.clock.now_ns()))
            else:
                voids = [
                    Span(server, "void", "forward", None, *each) for each in spent for server in self._servers
                ]
                lost_ns = sum(end - start for start, end in spent)
                return replace(
                    run,
                    retried=retried,
                    lost_ns=lost_ns,
                    spans=voids + run.spans,
                    stood_in=bool(self.seats.servers or self.seats.gpus),
                )
        raise AgentError(
            f"iteration {number} was lost {MOST_ATTEMPTS} times: nobody is left who could end it"
        )

    def _seated(self) -> Workload:
        """The work, everyone in his present place, and so for the replay."""
        sat = self._seating
        self.replay.collectives.groups = sat.groups
        return replace(self.work, placements=sat.placements)

    def _operations(self, number: int) -> Sequence[Operation]:
        work = self._seated()
        owed = exchange(self._seating, work.training.rank_tokens * work.model.token_bytes)
        return tuple(exchanging(work.operations(number), owed))

    @property
    def _servers(self) -> Sequence[str]:
        return self.replay.fabric.working

    @property
    def _seating(self) -> Seating:
        fabric = self.replay.fabric
        return seating(fabric, self.work.placements, self.work.training.tp, self.seats)

    def _recover(self, loss: LostError) -> int:
        """Let others take the places of the lost; how many transfers were under way and have to be done again."""
        self._told("detected", _lost(loss), str(loss))
        dropped, lost = self._drop(loss)
        self._look()
        clock = self.replay.clock
        clock.sleep_until(clock.now_ns() + self.replay.fabric.scale.wall_ns(self._restore_s * NS_PER_S))
        self._told("recovered", lost, self._action())
        return sum(len(flying.told) for flying in dropped)

    def _drop(self, loss: LostError) -> tuple[list[InFlight], Lost]:
        """End what is under way, and join those that are left to each other again; what that was, and all who were lost by the end of it."""
        dropped, lost = self.replay.collectives.drop(), _lost(loss)
        self.crew.leave(lost.servers)
        for flying in dropped:
            self.crew.abandon(flying.number)
        while True:
            try:
                self.crew.mend()
            except LostError as more:
                if not _lost(more).servers - lost.servers:
                    raise
                self._told("detected", _lost(more), str(more))
                self.crew.leave(more.servers)
                lost |= _lost(more)
            else:
                return dropped, lost

    def _look(self) -> None:
        """Who is lost and who is back, and who sits where from now on."""
        try:
            self.crew.returned()
        except LostError as loss:  # back, and gone again before it was wired
            self._drop(loss)
        servers, gpus = self.crew.lost()
        self.lost = Lost(_gpus(gpus), servers)
        self.seats = seated(self.replay.fabric, self.lost, self.seats)

    def _action(self) -> str:
        waited = f" after {self._restore_s:g} s of loading a checkpoint" if self._restore_s else ""
        return f"{self.seats}; the iteration starts anew{waited}"

    def _told(self, do: Do, lost: Lost, why: str) -> None:
        if lost.servers:
            self._seen(do, "server", sorted(lost.servers), why)
        if lost.gpus:
            self._seen(do, "gpu", [str(gpu) for gpu in sorted(lost.gpus)], why)

    def _wall_ns(self) -> int:
        return self.replay.clock.wall_ns(self.replay.clock.now_ns())


def _lost(loss: LostError) -> Lost:
    return Lost(_gpus(loss.gpus), loss.servers)


def _gpus(names: Iterable[str]) -> frozenset[Gpu]:
    return frozenset(map(Gpu.parse, names))
