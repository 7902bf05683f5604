"""Controllers as processes: started, watched, started again and stopped."""

import logging
import os
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from moefabric.config.failure_log import append_failure_event
from moefabric.config.forking import fork
from moefabric.config.run_directory import FabricWiring, RunDirectory
from moefabric.controller.client import ControllerClient
from moefabric.controller.service.liveness import Heartbeat
from moefabric.core.errors import ControlError
from moefabric.core.failures import FailurePhase
from moefabric.core.restarts import Restarts
from moefabric.core.topology import Region

log = logging.getLogger(__name__)

_HEALTH_TIMEOUT_S: Final = 0.1
_STOP_S: Final = 5.0
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

Beat = Callable[[], None]
RunController = Callable[[RunDirectory, FabricWiring, Region | None, Beat], int]
"""Runs a controller in a forked process, calls `Beat` while it works, returns the exit status."""
Key = tuple[RunDirectory, str]
"""Run directory, and name of the region or `eps`."""


def controller_name(region: Region | None) -> str:
    """Return the name of a controller: its region's, or `eps`."""
    return region.name if region else "eps"


@dataclass
class _Process:
    """A running controller.

    Attributes:
        pid: Its process.
        beats: Non-blocking pipe to which it writes a byte at each beat.
        started_s: When it was started.
        generation: What `fabric_generation` returned then.
    """

    pid: int
    region: Region | None
    beats: int
    started_s: float
    generation: int
    heartbeat: Heartbeat


@dataclass
class ControllerProcesses:
    """Controller processes. Each ends when this process ends, for any reason.

    Attributes:
        run_controller: What a process does.
        reports_failed_start: Whether `reap` returns the status of a controller that fails before it
            has worked; otherwise it is started again.
        running: The processes.
        ended: Controllers that have ended and have not been ready again since.
        restarts: How often each controller has ended lately.
        proven: Controllers that have worked.
    """

    run_controller: RunController
    reports_failed_start: bool = True
    running: dict[Key, _Process] = field(default_factory=dict)
    ended: dict[Key, Region | None] = field(default_factory=dict)
    restarts: dict[Key, Restarts] = field(default_factory=dict)
    proven: set[Key] = field(default_factory=set)

    def start_missing(self, run: RunDirectory, wiring: FabricWiring) -> None:
        """Start the controllers of a fabric that don't run and need not wait."""
        for region in controlled_parts(wiring):
            key, now_s = (run, controller_name(region)), time.monotonic()
            if key not in self.running and now_s >= self._restarts(key).not_before_s:
                try:
                    self._start(key, wiring, region)
                except OSError as error:
                    delay_s = self._restarts(key).note_end(now_s, now_s)
                    log.warning("%s can't start, %g s to wait: %s", key[1], delay_s, error)

    def _start(self, key: Key, wiring: FabricWiring, region: Region | None) -> None:
        run, name = key
        reader, writer = os.pipe()
        try:
            os.set_blocking(reader, False)
            os.set_blocking(writer, False)
            with warnings.catch_warnings():
                # Eventlet warns about forks; the child makes a hub of its own.
                warnings.simplefilter("ignore", DeprecationWarning)
                work = partial(self._work, run, wiring, region, writer)
                pid = fork(f"controller-{name}", work, ends_with_parent=True)
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        now_s = time.monotonic()
        self.running[key] = _Process(
            pid, region, reader, now_s, fabric_generation(run), Heartbeat(pid, now_s)
        )
        file = run.controller_pid_file(region)
        with _noting(run, "process id"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{pid}\n")

    def _work(
        self, run: RunDirectory, wiring: FabricWiring, region: Region | None, writer: int
    ) -> int:
        for process in self.running.values():
            os.close(process.beats)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

        def beat() -> None:
            with suppress(BlockingIOError):  # the supervisor has not read earlier beats yet
                os.write(writer, b".")

        return self.run_controller(run, wiring, region, beat)

    def reap(self) -> int:
        """Remove ended processes, and kill those that hang.

        Returns:
            The exit status of a controller that has failed and never worked, else 0.
        """
        for key, process in list(self.running.items()):
            self._read_beats(key, process)
            now_s = time.monotonic()
            if process.heartbeat.is_hung(now_s):
                why = f"it has not answered /health for {now_s - process.heartbeat.at_s:.0f} s"
                self._note(key, "detected", why)
                process.heartbeat.restart_period(now_s)
                os.kill(process.pid, signal.SIGKILL)
            ended, status = os.waitpid(process.pid, os.WNOHANG)
            if not ended:
                continue
            self._forget(key)
            code = os.waitstatus_to_exitcode(status)
            if code > 0 and self.reports_failed_start and key not in self.proven:
                return code  # its own error message shall be the last line
            self._end(key, process, code)
        return 0

    def _read_beats(self, key: Key, process: _Process) -> None:
        with suppress(BlockingIOError):
            if os.read(process.beats, 4096):
                process.heartbeat.beat(time.monotonic())
                self.proven.add(key)

    def _end(self, key: Key, process: _Process, code: int) -> None:
        delay_s = self._restarts(key).note_end(process.started_s, time.monotonic())
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        log.warning("controller of %s ended by %s, starts again in %g s", key[1], how, delay_s)
        with _noting(key[0], "process id"):
            key[0].controller_pid_file(process.region).unlink(missing_ok=True)
        self._note(key, "detected", f"its process ended ({code})")
        self.ended[key] = process.region

    def check_restarted(self, run: RunDirectory, wiring: FabricWiring) -> None:
        """Log the recovery of restarted controllers that are ready."""
        for key in [key for key in self.ended if key[0] == run and key in self.running]:
            with (
                suppress(ControlError),
                ControllerClient.of_region(
                    wiring, self.ended[key], _HEALTH_TIMEOUT_S, run_dir=run
                ) as client,
            ):
                if client.health()["ready"]:
                    del self.ended[key]
                    self._note(key, "recovered", "started again, lit circuits adopted")

    def stop_replaced(self, run: RunDirectory) -> None:
        """End the processes of a fabric that is gone, or has been replaced by another."""
        generation = fabric_generation(run)
        processes = [process for key, process in self.running.items() if key[0] == run]
        if any(process.generation != generation for process in processes):
            self.stop(run)

    def stop(self, run: RunDirectory | None = None) -> None:
        """End the processes of one fabric, or all, and wait for their end, but not for long."""
        stopping = {key: one.pid for key, one in self.running.items() if run in (None, key[0])}
        for pid in stopping.values():
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)  # a stopped process handles no other signal
        deadline_s = time.monotonic() + _STOP_S
        for key, pid in stopping.items():
            if not _wait_end(pid, deadline_s):
                log.warning("controller of %s ignores SIGTERM: it is killed", key[1])
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._forget(key)
        for known in (self.ended, self.restarts):
            for key in [key for key in known if run in (None, key[0])]:
                del known[key]
        self.proven = {key for key in self.proven if run not in (None, key[0])}

    def _forget(self, key: Key) -> None:
        os.close(self.running.pop(key).beats)

    def _restarts(self, key: Key) -> Restarts:
        return self.restarts.setdefault(key, Restarts())

    def _note(self, key: Key, phase: FailurePhase, why: str) -> None:
        with _noting(key[0], "failure log"):
            append_failure_event(key[0], phase, "controller", [key[1]], why)


@contextmanager
def _noting(run: RunDirectory, what: str) -> Iterator[None]:
    """Go on without a note in a run directory that is being removed, or on a full file system."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s of %s not written: %s", what, run.name, error.strerror)


def controlled_parts(wiring: FabricWiring) -> tuple[Region | None, ...]:
    """Return the parts that need a controller: all regions, and the EPS (None) if there is one."""
    return (*wiring.fabric.regions, *([None] if wiring.fabric.leaves else []))


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


def _wait_end(pid: int, deadline_s: float) -> bool:
    """Wait until a child has ended; return whether it has."""
    descriptor = os.pidfd_open(pid)
    try:
        left_s = max(0.0, deadline_s - time.monotonic())
        return bool(select.select([descriptor], [], [], left_s)[0])
    finally:
        os.close(descriptor)
