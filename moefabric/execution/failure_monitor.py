"""Failures during a run: their injection, observation and collection."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, Self

from moefabric.agents.fleet.fleet import Fleet
from moefabric.config.experiment import ExperimentSpec, FabricChoice
from moefabric.controller.client import ControllerClient
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import ControlError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import (
    Failure,
    FailureEvent,
    FailurePhase,
    IterationWindow,
    PlannedFailure,
    failure_records,
)
from moefabric.core.topology import Fabric
from moefabric.core.units import Scale
from moefabric.execution.clock import Clock, MonotonicClock, SkippingClock
from moefabric.execution.observer import RunObserver
from moefabric.results.records.records import RunFailures
from moefabric.runtime.failure_log import append_failure_event, read_failure_log
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.testbed import failure_injection
from moefabric.testbed.fabric_reader import FabricReader

LONG_POLL_S: Final = 10.0
"""Longest time for which a controller without new failures may delay its reply."""
_RETRY_S: Final = 0.2
_THREADS: Final = 8
"""Number of scheduled failures whose instants can be awaited at once."""
_REPLY_S: Final = 0.5
_RETURN_S: Final = 5.0
_RETURN_POLL_S: Final = 0.05


class FailureInjector(RunObserver):
    """Injects and clears the planned failures of a run; instants are of the wall clock.

    With several jobs, iterations and collectives are those of the first job, counted as they start.
    """

    def __init__(
        self,
        planned: Sequence[PlannedFailure],
        inject: Callable[[Failure], object],
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
        """Return the failures due at a collective, or without one at the iteration's start.

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


class FailureReporter(Protocol):
    """Client of a controller for its failures."""

    def failures(self, after: int | None = None, wait_s: float = 30.0) -> dict[str, Any]:
        """Return `version`, all `failures` and the `circuits` that carry traffic.

        With `after`, the reply comes once the version is later, or after `wait_s`.
        """

    def hang_up(self) -> None:
        """Make a waiting call of `failures` raise ControlError. Any thread may hang up."""


class FailureWatch:
    """Learns the consequences of failures from the controllers by long polls.

    These are the servers that have lost all of their NICs, and the circuits that are left. While a
    controller is away, its last reply stays valid.

    Args:
        controllers: The controller of each region.
        wake: Called by any thread when a controller has reported its circuits.
    """

    def __init__(
        self, controllers: Mapping[str, FailureReporter], wake: Callable[[], object] = lambda: None
    ) -> None:
        self._clients, self._wake = controllers, wake
        self._cut_off: dict[str, frozenset[str]] = dict.fromkeys(controllers, frozenset())
        self._circuits: dict[str, CircuitSet] = {}
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._watch, args=(region,), name=f"failures-{region}", daemon=True
            )
            for region in controllers
        ]

    def unreachable(self, server: str) -> bool:
        """Return whether a server is cut off."""
        return any(server in servers for servers in self._cut_off.values())

    def take_circuits(self) -> dict[str, CircuitSet]:
        """Return the circuits that controllers use, as far as reported since the last call."""
        return {region: self._circuits.pop(region) for region in list(self._circuits)}

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        for client, thread in zip(self._clients.values(), self._threads, strict=True):
            while thread.is_alive():  # the thread may start another call after a hang-up
                client.hang_up()
                thread.join(_RETRY_S)

    def _watch(self, region: str) -> None:
        version: int | None = None
        while not self._closing.is_set():
            try:
                reply = self._clients[region].failures(version, LONG_POLL_S)
            except ControlError:
                version = None  # a restarted controller has versions of its own
                self._closing.wait(_RETRY_S)
                continue
            version = int(reply["version"])
            if (circuits := reply.get("circuits")) is not None:
                self._circuits[region] = CircuitSet.of(circuits)
                self._wake()
            self._cut_off[region] = cut_off_servers(reply)


def cut_off_servers(reply: Mapping[str, Any]) -> frozenset[str]:
    """Return the servers that have lost all NICs, given a controller's reply to `failures`."""
    present = (failure for failure in reply["failures"] if failure["cleared_ns"] is None)
    return frozenset(
        failure["what"] for failure in present if failure["kind"] == FailureKind.SERVER
    )


class FailureMonitor(RunObserver):
    """Collects the failures of a running fabric from its failure log and its controllers.

    A controller on another machine has another log, and forgets its failures when it dies. They are
    therefore collected in the background after each iteration.
    """

    def __init__(self, run_dir: RunDirectory) -> None:
        self._run_dir = run_dir
        wiring = FabricWiring.from_json(run_dir.wiring_file.read_bytes())
        self._reader = FabricReader(run_dir.name, wiring, _REPLY_S)
        self._reported: dict[FailureEvent, None] = {}
        self._background = ThreadPoolExecutor(1, thread_name_prefix="failures")
        self._collections: list[Future[None]] = []

    def close(self) -> None:
        """End the background thread."""
        self._background.shutdown()

    def failure_logged(
        self, phase: FailurePhase, kind: str, components: Sequence[str], reason: str
    ) -> None:
        """Append an event to the failure log."""
        append_failure_event(self._run_dir, phase, kind, components, reason)

    def has_failures(self) -> bool:
        """Return whether failures were injected, or light was lost."""
        return any(event.begins for event in read_failure_log(self._run_dir))

    def iteration_ended(self) -> None:
        """Collect the controllers' state in the background."""
        for collection in self._collections:
            if collection.done():
                collection.result()
        under_way = [collection for collection in self._collections if not collection.done()]
        self._collections = [*under_way, self._background.submit(self._collect)]

    def _collect(self) -> None:
        """Ask the controllers for failures, if there are any.

        A controller that doesn't reply at once is left out.
        """
        if not self.has_failures():
            return
        for region in self._reader.controllers:
            try:
                failures = self._reader.ask(region, lambda client: client.failures()["failures"])
            except ControlError:
                continue
            self._reported |= dict.fromkeys(
                event for failure in failures for event in _events(failure)
            )

    def failures_during(
        self, windows: Sequence[IterationWindow], clock: SkippingClock
    ) -> RunFailures:
        """Return the failures during these iterations."""
        self.iteration_ended()
        for collection in self._collections:
            collection.result()
        self._collections = []
        if not windows:
            return RunFailures()
        logged = read_failure_log(self._run_dir)
        known = {replace(event, why="") for event in logged}
        reported = (event for event in self._reported if replace(event, why="") not in known)
        events = sorted([*logged, *reported], key=lambda event: event.at_ns)
        start_ns, end_ns = windows[0].start_ns, windows[-1].end_ns
        during = (record for record in failure_records(events) if record.overlaps(start_ns, end_ns))
        return RunFailures(tuple(during), tuple(windows), clock.past_wall_ns, clock.past_run_ns)


def _events(failure: Mapping[str, Any]) -> list[FailureEvent]:
    """Return a controller's failure as events.

    The job, not the controller, recovers from the loss of a server.
    """
    names, kind = failure["what"], FailureKind(failure["kind"])
    what = (names,) if isinstance(names, str) else tuple(names)
    phases: list[tuple[FailurePhase, Any, str]] = [
        ("detected", failure.get("detected_ns"), "its region's controller"),
        ("recovered", failure.get("recovered_ns"), str(failure.get("action") or "")),
    ]
    if kind is FailureKind.SERVER:
        del phases[1]
    return [FailureEvent(int(at), phase, kind, what, why) for phase, at, why in phases if at]


@contextmanager
def scheduled_failures(
    spec: ExperimentSpec, choice: FabricChoice, fabric: Fabric, run_dir: RunDirectory, fleet: Fleet
) -> Iterator[FailureInjector]:
    """Inject the failures that an experiment schedules for a fabric, and clear them at the end.

    Where there are backup servers, the fleet learns from the controllers which servers are cut off.
    """
    with ExitStack() as undo:
        if fabric.backup_servers:
            watch = undo.enter_context(failure_watch(run_dir))
            fleet.liveness.unreachable = watch.unreachable
            undo.callback(setattr, fleet.liveness, "unreachable", lambda _: False)
        with (
            ThreadPoolExecutor(_THREADS, thread_name_prefix="failures") as background,
            closing(
                FailureInjector(
                    planned_failures(spec, choice, fabric),
                    partial(failure_injection.inject, run_dir),
                    partial(failure_injection.clear, run_dir),
                    MonotonicClock(),
                    fabric.scale,
                    background,
                )
            ) as schedule,
        ):
            yield schedule
        _await_servers(fleet)


def planned_failures(
    spec: ExperimentSpec, choice: FabricChoice, fabric: Fabric
) -> list[PlannedFailure]:
    """Return the scheduled failures of components that the fabric has."""
    return [
        planned
        for failure in spec.failures
        for planned in [failure.build()]
        if choice.name in (failure.fabrics or [choice.name])
        and all(planned.failure.kind.traits.has(fabric, name) for name in planned.failure.what)
    ]


def failure_watch(run_dir: RunDirectory, wake: Callable[[], object] = lambda: None) -> FailureWatch:
    """Return a watch of the controllers of all regions, by long polls of a running fabric."""
    wiring = FabricWiring.from_json(run_dir.wiring_file.read_bytes())
    clients = {
        region.name: ControllerClient.of_region(wiring, region, LONG_POLL_S + _REPLY_S)
        for region in wiring.fabric.regions
        if not (region.backup or region.modelled)
    }
    return FailureWatch(clients, wake)


def _await_servers(fleet: Fleet) -> None:
    """Wait for all servers to be back, so that the next run has them; give up after a while."""
    ends = time.monotonic() + _RETURN_S
    fleet.readmit()
    while fleet.losses()[0] and time.monotonic() < ends:
        threading.Event().wait(_RETURN_POLL_S)  # an agent that resumes sends no event
        fleet.readmit()
