"""Controllers as processes: started, watched, started again and stopped."""

import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final

from moefabric.controller.client import ControllerClient
from moefabric.core.errors import ControlError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import FailurePhase
from moefabric.core.topology import Region
from moefabric.core.units import NS_PER_S
from moefabric.runtime.failure_log import append_failure_event
from moefabric.runtime.forking import fork
from moefabric.runtime.processes import STOP_SIGNALS, Process, Supervisor, end_processes, end_text
from moefabric.runtime.run_directory import FabricWiring, RunDirectory, shared_name

log = logging.getLogger(__name__)

_HEALTH_TIMEOUT_S: Final = 0.1
_STOP_S: Final = 5.0
PROCESS: Final = "controllers"
"""Name of the process that forks controllers."""

Beat = Callable[[], None]
Regions = tuple[Region | None, ...]
"""Regions whose controllers share a process; None is the EPS."""
RunControllers = Callable[[RunDirectory, FabricWiring, Regions, Beat], int]
"""Runs controllers in a forked process, calls `Beat` while they work, returns the exit status."""
Key = tuple[RunDirectory, str]
"""Run directory, and name of the process: of its region, of its first and last one, or `eps`."""
BEAT_S: Final = 1.0
"""Interval of beats."""
HUNG_S: Final = 60.0
"""Time without a beat, besides that of waiting for a processor, after which a controller hangs.
Planning keeps a controller from beating for 55 s at most: a policy of others has 15 s to load, and
20 s for its circuits and for its split. Where controllers share a process, these take turns, and a
question and its answer may have to wait for one each: such a process has twice the time."""


@dataclass
class Heartbeat:
    """The last sign of life of a process, whose controllers ask themselves for `/health`.

    What keeps it from beating counts, unless it is that other processes have the processors: the
    time for which the kernel lets a runnable process wait (field 2 of /proc/PID/schedstat) is left
    out, so that a controller on a busy machine isn't taken for one that hangs. One that is stopped
    by a signal does count, and one that a debugger traces doesn't.

    Attributes:
        at_s: When it beat, on a monotonic clock.
        hung_s: Time without a beat after which it hangs.
        waited_s: How long it had waited for a processor by then.
    """

    pid: int
    at_s: float
    hung_s: float = HUNG_S
    waited_s: float = 0.0

    def beat(self, now_s: float) -> None:
        """Begin to count the time without a beat."""
        self.at_s, self.waited_s = now_s, processor_wait_s(self.pid)

    def is_hung(self, now_s: float) -> bool:
        """Return whether the process hangs, and isn't just slow."""
        if now_s - self.at_s < self.hung_s:
            return False
        if is_traced(self.pid):
            self.beat(now_s)
            return False
        return now_s - self.at_s - (processor_wait_s(self.pid) - self.waited_s) >= self.hung_s


class Beats:
    """Beats of a process, each after all of its controllers have answered `/health`."""

    def __init__(self, controllers: Collection[str], beat: Beat) -> None:
        self._controllers, self._beat = controllers, beat
        self._silent = set(controllers)

    def ask(
        self, controller: str, client: ControllerClient, sleep: Callable[[float], object]
    ) -> None:
        """Ask a controller for its health again and again, as any client does."""
        while True:
            try:
                client.health()
                self.answered(controller)
            except ControlError as error:
                log.warning("no answer of this controller itself: %s", error)
            sleep(BEAT_S)

    def answered(self, controller: str) -> None:
        """Note that a controller has answered."""
        self._silent.discard(controller)
        if not self._silent:
            self._silent.update(self._controllers)
            self._beat()


def processor_wait_s(pid: int) -> float:
    """Return how long a process has been runnable without a processor; 0 if nothing is known."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / NS_PER_S
    except (OSError, ValueError, IndexError):
        return 0.0


def is_traced(pid: int) -> bool:
    """Return whether a debugger traces a process."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return not any(line.split() == ["TracerPid:", "0"] for line in status.splitlines())


def controller_name(region: Region | None) -> str:
    """Return the name of a controller: its region's, or `eps`."""
    return region.name if region else "eps"


def process_name(regions: Regions) -> str:
    """Return the name of the process of the controllers of these regions."""
    return shared_name([*map(controller_name, regions)])


@dataclass(frozen=True)
class _Controllers(Process):
    """Controllers that run in one process.

    Attributes:
        beats: Non-blocking pipe to which it writes a byte at each beat.
        generation: Return value of `fabric_generation` at its start.
    """

    regions: Regions
    beats: int
    generation: int
    heartbeat: Heartbeat

    def reap(self) -> None:
        """Release the process and its pipe."""
        super().reap()
        os.close(self.beats)


class ControllerProcesses(Supervisor[Key, _Controllers]):
    """Controller processes. Each ends when this process ends, for any reason.

    Args:
        run_controllers: What a process does.
        reports_failed_start: Whether `reap` returns the status of a controller that fails before it
            has worked; otherwise it is started again.

    Attributes:
        inherited: Fabrics some of whose controllers ended with an earlier process like this one.
        ended: Controllers that have ended and have not been ready again since, by process.
        proven: Processes whose controllers have worked.
    """

    def __init__(
        self, run_controllers: RunControllers, *, reports_failed_start: bool = True
    ) -> None:
        super().__init__()
        self._run_controllers, self.reports_failed_start = run_controllers, reports_failed_start
        self.ended, self.proven = dict[Key, list[Region | None]](), set[Key]()
        self.inherited = set[RunDirectory]()

    def start_missing(self, run: RunDirectory, wiring: FabricWiring) -> None:
        """Start the controllers of a fabric that don't run and need not wait."""
        groups: tuple[Regions, ...] = (*wiring.region_groups, (None,))
        for regions in [group for group in groups if group[0] in wiring.controlled]:
            key = run, process_name(regions)
            start = partial(self._start, run, wiring, regions)
            self.start_due(key, f"controller of {key[1]}", start)

    def _start(self, run: RunDirectory, wiring: FabricWiring, regions: Regions) -> _Controllers:
        name = process_name(regions)
        reader, writer = os.pipe()
        try:
            os.set_blocking(reader, False)
            os.set_blocking(writer, False)
            work = partial(self._work, run, wiring, regions, writer)
            pid = fork(f"controller-{name}", work, ends_with_parent=True)
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        files = [*map(run.controller_pid_file, regions)]
        key = run, name
        if key not in self.ended and any(file.exists() for file in files):
            self._note(run, regions, "detected", f"the process {PROCESS} ended")
            self.ended[key] = [*regions]
            self.inherited.add(run)
        for file in files:
            with _noting(run, "process id"):
                file.parent.mkdir(exist_ok=True)
                file.write_text(f"{pid}\n")
        heartbeat = Heartbeat(pid, time.monotonic(), HUNG_S if len(regions) == 1 else 2 * HUNG_S)
        return _Controllers(
            name, pid, os.pidfd_open(pid), regions, reader, fabric_generation(run), heartbeat
        )

    def _work(self, run: RunDirectory, wiring: FabricWiring, regions: Regions, writer: int) -> int:
        for process in self.running.values():
            os.close(process.beats)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

        def beat() -> None:
            with suppress(BlockingIOError):  # the supervisor has not read earlier beats yet
                os.write(writer, b".")

        return self._run_controllers(run, wiring, regions, beat)

    def reap(self) -> int:
        """Remove ended processes, and kill those that hang.

        Returns:
            The exit status of controllers that have failed and never worked, else 0.
        """
        for key, process in list(self.running.items()):
            now_s = time.monotonic()
            with suppress(BlockingIOError):
                if os.read(process.beats, 4096):
                    process.heartbeat.beat(now_s)
                    self.proven.add(key)
            if process.heartbeat.is_hung(now_s):
                why = f"it has not answered /health for {now_s - process.heartbeat.at_s:.0f} s"
                self._note(key[0], process.regions, "detected", why)
                process.heartbeat.beat(now_s)
                process.signal(signal.SIGKILL)
            if (code := process.exit_status) is None:
                continue
            delay_s = self.note_end(key)
            process.reap()
            if code > 0 and self.reports_failed_start and key not in self.proven:
                return code  # its own error message shall be the last line
            self._note_end(key, process, code, delay_s)
        return 0

    def _note_end(self, key: Key, process: _Controllers, code: int, delay_s: float) -> None:
        how = end_text(code)
        log.warning("controller of %s ended by %s, starts again in %g s", key[1], how, delay_s)
        for file in map(key[0].controller_pid_file, process.regions):
            with _noting(key[0], "process id"):
                file.unlink(missing_ok=True)
        self._note(key[0], process.regions, "detected", f"its process ended ({code})")
        self.ended[key] = [*process.regions]

    def check_restarted(self, run: RunDirectory, wiring: FabricWiring) -> None:
        """Log the recovery of restarted controllers that are ready."""
        for key in [key for key in self.ended if key[0] == run and key in self.running]:
            ready = list(takewhile(partial(_is_ready, run, wiring), self.ended[key]))
            if ready:
                self._note(run, ready, "recovered", "started again, lit circuits adopted")
            rest = self.ended.pop(key)[len(ready) :]
            if rest:
                self.ended[key] = [*rest[1:], rest[0]]  # asks another one first, next time
        if run in self.inherited and run not in {ended for ended, _ in self.ended}:
            self.inherited.remove(run)
            with _noting(run, "failure log"):
                kind, why = FailureKind.PROCESS, "started again"
                append_failure_event(run, "clear", kind, [PROCESS], why)

    def stop_replaced(self, run: RunDirectory) -> None:
        """End the processes of a fabric that is gone, or has been replaced by another."""
        generation = fabric_generation(run)
        processes = [process for key, process in self.running.items() if key[0] == run]
        if any(process.generation != generation for process in processes):
            self.stop(run)

    def stop(self, run: RunDirectory | None = None) -> None:
        """End the processes of one fabric, or all, and wait for their end, but not for long."""
        stopping = [item for item in self.running.items() if run in (None, item[0][0])]
        killed = end_processes([process.pidfd for _, process in stopping], _STOP_S)
        for key, process in stopping:
            if process.pidfd in killed:
                log.warning("controller of %s ignores SIGTERM: it is killed", key[1])
            process.reap()
            del self.running[key]
        for key in {*self.ended, *self.restarts, *self.proven}:
            if run in (None, key[0]):
                self.ended.pop(key, None)
                self.restarts.pop(key, None)
                self.proven.discard(key)

    @staticmethod
    def _note(
        run: RunDirectory, regions: Sequence[Region | None], phase: FailurePhase, why: str
    ) -> None:
        with _noting(run, "failure log"):
            names = [*map(controller_name, regions)]
            append_failure_event(run, phase, "controller", names, why)


def _is_ready(run: RunDirectory, wiring: FabricWiring, region: Region | None) -> bool:
    """Return whether a controller answers, and is ready."""
    with (
        suppress(ControlError),
        ControllerClient.of_region(wiring, region, _HEALTH_TIMEOUT_S, run_dir=run) as client,
    ):
        return bool(client.health()["ready"])
    return False


@contextmanager
def _noting(run: RunDirectory, what: str) -> Iterator[None]:
    """Go on without a note in a run directory that is being removed, or on a full file system."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s of %s not written: %s", what, run.name, error.strerror)


def fabric_generation(run: RunDirectory) -> int:
    """Return a number that differs between fabrics of one name; 0 if the fabric is gone or dead.

    It is when the token was written, since `up` writes the wiring more than once.
    """
    if run.has_died():
        return 0
    try:
        run.wiring_file.stat()
        return run.token_file.stat().st_mtime_ns
    except OSError:
        return 0
