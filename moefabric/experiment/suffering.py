"""Suffering: a replay in a running fabric that people and plans break while it goes on, and what is known of that in the end."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from controller.client import ControllerClient
from moefabric.errors import ControlError
from moefabric.experiment import breaking
from moefabric.experiment.clock import MonotonicClock, SkippingClock
from moefabric.experiment.enduring import Crew, Enduring
from moefabric.experiment.enduring import Found as SomeFound
from moefabric.experiment.injecting import Injector
from moefabric.experiment.lookout import WAIT_S, Lookout
from moefabric.experiment.replay import Replay
from moefabric.experiment.runs import Suffered
from moefabric.experiment.workload import Workload
from moefabric.failure_log import Do, Note, note, read
from moefabric.failures import Planned, Window, has, told
from moefabric.management import RunDir, Wiring
from moefabric.spec.experiment import ExperimentSpec, FabricChoice
from moefabric.topology import Fabric
from moefabric.units import NS_PER_S

_THREADS = 8
"""Failures that may be waited for at once."""
_ASKING_S = 0.5
_RETURNING_S = 5.0
_LOOK_AGAIN_S = 0.05


@contextmanager
def enduring(
    spec: ExperimentSpec,
    choice: FabricChoice,
    fabric: Fabric,
    replay: Replay,
    work: Workload,
    crew: Crew,
    run_dir: RunDir | None,
) -> Iterator[Enduring]:
    """The job, through the failures that the experiment plans for this fabric; what is still broken in the end is mended."""
    restore_s = spec.training.restore / NS_PER_S
    if run_dir is None:
        yield Enduring(replay, work, crew, restore_s=restore_s)
        return
    with _looking_out(fabric, crew, run_dir):
        with injecting(spec, choice, fabric, run_dir) as injector:
            job = Enduring(replay, work, crew, injector, restore_s, partial(_noted, run_dir))
            job.found = Found(run_dir)
            yield job
        _await_the_mended(crew)


def _await_the_mended(crew: Crew) -> None:
    """Return when all servers are back, or those that are lost by somebody else's hand have had their time: the next job begins with all there are."""
    ends = time.monotonic() + _RETURNING_S
    crew.returned()
    while crew.lost()[0] and time.monotonic() < ends:
        threading.Event().wait(_LOOK_AGAIN_S)  # an agent that goes on has nobody to tell
        crew.returned()


@contextmanager
def _looking_out(fabric: Fabric, crew: Crew, run_dir: RunDir) -> Iterator[None]:
    """Let the crew know of servers that are cut off as soon as controllers do, where there is somebody to replace them."""
    if not fabric.backups:
        yield
        return
    management = Wiring.from_json(run_dir.wiring.read_bytes()).management
    asked = {
        region.name: partial(ControllerClient, management.northbound(region), WAIT_S + _ASKING_S)
        for region in fabric.regions
        if not region.backup
    }
    with Lookout(asked) as lookout:
        crew.heed(lookout.unreachable)
        try:
            yield
        finally:
            crew.heed(lambda _: False)


@contextmanager
def injecting(
    spec: ExperimentSpec, choice: FabricChoice, fabric: Fabric, run_dir: RunDir
) -> Iterator[Injector]:
    """What breaks a running fabric as planned, and mends in the end what is still broken."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="failures") as background:
        injector = Injector(
            planned(spec, choice, fabric), partial(breaking.break_, run_dir), partial(breaking.mend, run_dir),
            MonotonicClock(), fabric.scale, background,
        )  # fmt: skip
        try:
            yield injector
        finally:
            injector.close()


def planned(spec: ExperimentSpec, choice: FabricChoice, fabric: Fabric) -> list[Planned]:
    """The failures that are planned for a fabric: those of what it has."""
    made = []
    for failure in spec.failures:
        one = failure.planned()
        if choice.name in (failure.fabrics or [choice.name]) and all(
            has(fabric, one.failure.kind, name) for name in one.failure.what
        ):
            made.append(one)
    return made


def _noted(run_dir: RunDir, do: Do, kind: str, what: Sequence[str], why: str) -> None:
    note(run_dir, do, kind, what, why)


def noted_of_controller(run_dir: RunDir, region: str, do: Do, why: str) -> None:
    """A region's controller was missed, or isn't any more."""
    note(run_dir, do, "controller", [region], why)


class Found:
    """What is known of failures in a running fabric: all that was noted, and what controllers found and did by themselves, who forget it when they die."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._wiring = Wiring.from_json(run_dir.wiring.read_bytes())
        self._by_controllers: dict[Note, None] = {}

    def look(self) -> None:
        """Ask the controllers, if anything was ever broken; one that doesn't answer at once says nothing."""
        if not any(each.do == "inject" for each in read(self._run_dir)):
            return
        for region in (*self._wiring.fabric.regions, *([None] if self._wiring.fabric.leaves else [])):
            with ControllerClient(self._wiring.management.northbound(region), _ASKING_S) as asked:
                try:
                    found = asked.failures()["failures"]
                except ControlError:
                    continue
            self._by_controllers |= dict.fromkeys(each for failure in found for each in _notes(failure))

    def notes(self) -> list[Note]:
        """All of it, in order."""
        return sorted([*read(self._run_dir), *self._by_controllers], key=lambda each: each.at_ns)


def suffered(job: Enduring) -> Suffered:
    """All that is known of the failures that the job went through."""
    return felt(job.found, job.windows, job.replay.clock)


def felt(found: SomeFound | None, windows: Sequence[Window], clock: SkippingClock) -> Suffered:
    """All that was `found` of the failures during these iterations."""
    if found is None or not windows:
        return Suffered()
    begun, ended = windows[0].start_ns, windows[-1].end_ns
    lasting = tuple(each for each in told(found.notes()) if each.lasts(begun, ended))
    return Suffered(lasting, tuple(windows), clock.wall_was_ns, clock.was_ns)


def _notes(failure: Mapping[str, Any]) -> list[Note]:
    names = failure["what"]
    what = (names,) if isinstance(names, str) else tuple(names)
    pairs: list[tuple[Do, Any, str]] = [
        ("detected", failure.get("detected_ns"), "its region's controller"),
        ("recovered", failure.get("recovered_ns"), str(failure.get("action") or "")),
    ]
    if failure["kind"] == "server":  # it is the job that replaces servers
        del pairs[1]
    return [Note(int(at), do, failure["kind"], what, why) for do, at, why in pairs if at]
