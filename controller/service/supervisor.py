"""Runs the controllers of one fabric, or of all fabrics in a folder, as processes of their own.

All are forked from one process that has loaded Ryu. A controller that is killed is started again.
"""

import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from moefabric.config import structured_log
from moefabric.config.failure_log import append_failure_event
from moefabric.config.forking import fork
from moefabric.config.run_directory import FabricWiring, RunDirectory
from moefabric.controller.client import ControllerClient
from moefabric.controller.service.process import serve
from moefabric.core.errors import ControlError, SpecError
from moefabric.core.topology import Region

log = logging.getLogger(__name__)

_POLL_S: Final = 0.05
_HEALTH_TIMEOUT_S: Final = 0.1
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def read_wiring(run: RunDirectory) -> FabricWiring | None:
    """Return a fabric's wiring; None while its file is absent or being written.

    A file is parsed again only after it has changed, because a large file takes long.
    """
    try:
        status = run.wiring_file.stat()
    except OSError:
        return None
    return _parse_wiring(run.wiring_file, (status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=64)
def _parse_wiring(file: Path, _version: tuple[int, int]) -> FabricWiring | None:
    try:
        return FabricWiring.from_json(file.read_bytes())
    except (OSError, ValueError):
        return None


def region_named(wiring: FabricWiring, name: str) -> Region:
    """Return a region by its name; raise SpecError, with all names, if it doesn't exist."""
    regions = {region.name: region for region in wiring.fabric.regions}
    if name not in regions:
        raise SpecError([("--region", f"{name} is not one of {', '.join(regions)}")])
    return regions[name]


def controlled_parts(wiring: FabricWiring) -> tuple[Region | None, ...]:
    """Return the parts that need a controller: all regions, and the EPS (None) if there is one."""
    return (*wiring.fabric.regions, *([None] if wiring.fabric.leaves else []))


def _name(region: Region | None) -> str:
    return region.name if region else "eps"


@dataclass
class ControllerProcesses:
    """Controller processes. Each ends when this process ends, for any reason.

    Attributes:
        running: Run directory and region by process id.
        restarted: Controllers that have ended and have not been ready again since.
    """

    running: dict[int, tuple[RunDirectory, Region | None]] = field(default_factory=dict)
    restarted: list[tuple[RunDirectory, Region | None]] = field(default_factory=list)

    def start_missing(self, run: RunDirectory, wiring: FabricWiring) -> None:
        """Start the controllers of a fabric that don't run."""
        names = {_name(region) for owner, region in self.running.values() if owner == run}
        for region in controlled_parts(wiring):
            if _name(region) in names:
                continue
            with warnings.catch_warnings():
                # Eventlet warns about forks; the child makes a hub of its own.
                warnings.simplefilter("ignore", DeprecationWarning)
                run_child = partial(_run_controller, run, wiring, region)
                pid = fork(f"controller-{_name(region)}", run_child, ends_with_parent=True)
            self.running[pid] = run, region
            file = run.controller_pid_file(region)
            with suppress(FileNotFoundError):  # the fabric is being removed
                file.parent.mkdir(exist_ok=True)
                file.write_text(f"{pid}\n")

    def reap(self) -> int:
        """Remove ended processes; return the first exit status that is no signal's, else 0."""
        for pid in list(self.running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            run, region = self.running.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if code > 0:  # its own error message shall be the last line
                return code
            log.warning("controller of %s in %s ended: %d", _name(region), run.name, code)
            run.controller_pid_file(region).unlink(missing_ok=True)
            with suppress(FileNotFoundError):  # the fabric is gone as well
                why = f"its process ended ({code})"
                append_failure_event(run, "detected", "controller", [_name(region)], why)
                self.restarted.append((run, region))
        return 0

    def check_restarted(self, run: RunDirectory, wiring: FabricWiring) -> None:
        """Log the recovery of restarted controllers that are ready."""
        for region in [region for owner, region in self.restarted if owner == run]:
            with (
                suppress(ControlError),
                ControllerClient.of_region(
                    wiring, region, _HEALTH_TIMEOUT_S, run_dir=run
                ) as client,
            ):
                if client.health()["ready"]:
                    self.restarted.remove((run, region))
                    action = "started again, lit circuits adopted"
                    append_failure_event(run, "recovered", "controller", [_name(region)], action)

    def stop(self, run: RunDirectory | None = None) -> None:
        """End the processes of one fabric, or all, and wait for their end."""
        pids = [pid for pid, (owner, _) in self.running.items() if run in (None, owner)]
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)  # a stopped process handles no other signal
        for pid in pids:
            os.waitpid(pid, 0)
            del self.running[pid]


def _run_controller(run: RunDirectory, wiring: FabricWiring, region: Region | None) -> int:
    """Run a controller in a forked process."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
    run.log_folder.mkdir(parents=True, exist_ok=True)
    start_log(run, region)
    serve(run, wiring, region)
    return 0


def start_log(run: RunDirectory, region: Region | None) -> None:
    """Log the controller of a region, or of the EPS, in its fabric's folder."""
    name = _name(region)
    structured_log.start(f"controller-{name}", run.log_folder, region=name)


def supervise(run: RunDirectory) -> int:
    """Run all controllers of a fabric, once its wiring is there, until SIGTERM.

    Returns:
        0, or the exit status of the first controller that failed; then all are stopped.
    """
    processes = ControllerProcesses()
    return _supervise(processes, lambda: [run], processes.reap)


def watch(root: Path) -> int:
    """Run the controllers of every fabric in a folder while its wiring is there, until SIGTERM."""
    processes = ControllerProcesses()

    def reap() -> int:
        processes.reap()
        for run in {run for run, _ in processes.running.values()}:
            if not run.wiring_file.exists():
                processes.stop(run)
        return 0

    def runs() -> Iterator[RunDirectory]:
        return (RunDirectory(file.parent) for file in sorted(root.glob("*/fabric.json")))

    return _supervise(processes, runs, reap)


def _supervise(
    processes: ControllerProcesses,
    runs: Callable[[], Iterable[RunDirectory]],
    reap: Callable[[], int],
) -> int:
    try:
        # Polls, because no single event covers folders, processes and controllers' health.
        while signal.sigtimedwait(_STOP_SIGNALS, _POLL_S) is None:
            if status := reap():
                return status
            for run in runs():
                if wiring := read_wiring(run):
                    processes.start_missing(run, wiring)
                    processes.check_restarted(run, wiring)
        return 0
    finally:
        processes.stop()


def block_stop_signals() -> None:
    """Block stop signals, so that they stay pending until `sigtimedwait`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
