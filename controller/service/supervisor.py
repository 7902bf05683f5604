"""Runs the controllers of one fabric, or of all fabrics in a folder, as processes.

Those of several regions share a process if the fabric's wiring says so. All processes are forked
from one that has loaded Ryu. One that ends or hangs is started again.
"""

import signal
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from moefabric.controller.service.controller_processes import (
    Beat,
    ControllerProcesses,
    Regions,
    controller_name,
    process_name,
)
from moefabric.controller.service.process import serve
from moefabric.core.errors import SpecError
from moefabric.core.topology import Region
from moefabric.runtime import structured_log
from moefabric.runtime.processes import STOP_SIGNALS
from moefabric.runtime.run_directory import FabricWiring, RunDirectory

_POLL_S: Final = 0.05


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


def _run_controllers(run: RunDirectory, wiring: FabricWiring, regions: Regions, beat: Beat) -> int:
    """Run controllers in a forked process."""
    run.log_folder.mkdir(parents=True, exist_ok=True)
    start_log(run, regions)
    serve(run, wiring, regions, beat)
    return 0


def start_log(run: RunDirectory, regions: Regions) -> None:
    """Log the controllers of regions, or of the EPS, in their fabric's folder."""
    ids = {"region": controller_name(regions[0])} if len(regions) == 1 else {}
    structured_log.start(f"controller-{process_name(regions)}", run.log_folder, **ids)


def supervise(run: RunDirectory) -> int:
    """Run all controllers of a fabric, once its wiring is there, until SIGTERM.

    Returns:
        0, or the exit status of a controller that failed and never worked; then all are stopped.
    """
    return _supervise(lambda: [run], watches=False)


def watch(root: Path) -> int:
    """Run the controllers of every fabric in a folder while its wiring is there, until SIGTERM."""

    def runs() -> Iterator[RunDirectory]:
        directories = (RunDirectory(file.parent) for file in sorted(root.glob("*/fabric.json")))
        return (run for run in directories if not run.has_died())

    return _supervise(runs, watches=True)


def _supervise(runs: Callable[[], Iterable[RunDirectory]], *, watches: bool) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # pending until `sigtimedwait`
    processes = ControllerProcesses(_run_controllers, reports_failed_start=not watches)
    try:
        # Polls, because no single event covers folders, processes and controllers' health.
        while signal.sigtimedwait(STOP_SIGNALS, _POLL_S) is None:
            if status := processes.reap():
                return status
            for run in {run for run, _ in processes.running if watches}:
                processes.stop_replaced(run)
            for run in runs():
                if wiring := read_wiring(run):
                    processes.start_missing(run, wiring)
                    processes.check_restarted(run, wiring)
        return 0
    finally:
        processes.stop()
