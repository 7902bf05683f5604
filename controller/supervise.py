"""The controllers of a fabric, or of every fabric in a folder: one process each, all from one that has loaded Ryu once."""

import ctypes
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from controller.client import ControllerClient
from controller.process import serve
from moefabric.errors import ControlError, MoefabricError, SpecError
from moefabric.failure_log import note
from moefabric.management import RunDir, Wiring
from moefabric.topology import Region

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.05
_GLANCE_S = 0.1
_PR_SET_PDEATHSIG = 1
_STOPPING = (signal.SIGTERM, signal.SIGINT)


def wiring_at(run: RunDir) -> Wiring | None:
    """A fabric's wiring; None while there is none, or while it is being written."""
    try:
        return Wiring.from_json(run.wiring.read_bytes())
    except (OSError, ValueError):
        return None


class Reader:
    """Reads wirings that were written since it read them: a look at a large fabric's takes long enough to matter at rest."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[tuple[int, int], Wiring | None]] = {}

    def wiring_at(self, run: RunDir) -> Wiring | None:
        """As `wiring_at`."""
        try:
            seen = run.wiring.stat()
        except OSError:
            self._read.pop(run.path, None)
            return None
        version = seen.st_mtime_ns, seen.st_size
        if self._read.get(run.path, (None, None))[0] != version:
            self._read[run.path] = version, wiring_at(run)
        return self._read[run.path][1]


def region_named(wiring: Wiring, name: str) -> Region:
    """The region of that name. SpecError, with those there are, where there is none."""
    for region in wiring.fabric.regions:
        if region.name == name:
            return region
    raise SpecError(
        [("--region", f"{name} is not one of {', '.join(r.name for r in wiring.fabric.regions)}")]
    )


def controlled(wiring: Wiring) -> tuple[Region | None, ...]:
    """Whom a fabric needs controllers for: each region, and the EPS (None) where there is one."""
    return (*wiring.fabric.regions, *([None] if wiring.fabric.leaves else []))


@dataclass
class Children:
    """Controller processes, by fabric and region. Each dies with this process, whatever ends it."""

    running: dict[int, tuple[Path, Region | None]] = field(default_factory=dict)
    fallen: dict[Path, list[Region | None]] = field(default_factory=dict)
    """Whose controller has ended and hasn't been seen ready since."""

    def start(self, run: RunDir, wiring: Wiring, region: Region | None) -> None:
        """Start a controller. Its log is in the run directory."""
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # Eventlet's on fork: the child makes a hub of its own
            pid = os.fork()
        if pid == 0:
            _child(run, wiring, region, parent)
        self.running[pid] = (run.path, region)
        file = run.controller(region)
        with suppress(FileNotFoundError):  # a fabric that goes just now takes its controllers with it
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{pid}\n")

    def missing(self, run: RunDir, wiring: Wiring) -> Iterator[Region | None]:
        """The controllers that a fabric should have and has not."""
        there = {
            region.name if region else None for path, region in self.running.values() if path == run.path
        }
        return (region for region in controlled(wiring) if (region.name if region else None) not in there)

    def reap(self) -> int:
        """Forget those that have ended; the first exit status that one chose itself, else 0."""
        for pid in list(self.running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                path, region = self.running.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                if code > 0:  # it has told its fault, and nothing more is to be said after it
                    return code
                log.warning(
                    "controller of %s in %s ended: %d", region.name if region else "the EPS", path.name, code
                )
                self._fell(RunDir(path), region, code)
        return 0

    def _fell(self, run: RunDir, region: Region | None, code: int) -> None:
        run.controller(region).unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # the fabric is gone as well
            note(run, "detected", "controller", [_name(region)], f"its process ended ({code})")
            self.fallen.setdefault(run.path, []).append(region)

    def look(self, run: RunDir, wiring: Wiring) -> None:
        """See which of those that were started again are ready: all their switches, and their light taken over."""
        for region in list(self.fallen.get(run.path, [])):
            with ControllerClient(wiring.management.northbound(region), _GLANCE_S) as client:
                try:
                    ready = bool(client.health()["ready"])
                except ControlError:
                    ready = False
            if ready:
                self.fallen[run.path].remove(region)
                note(run, "recovered", "controller", [_name(region)], "started again, light taken over")

    def stop(self, run: RunDir | None = None) -> None:
        """End those of one fabric, or all, and wait until they have ended."""
        pids = [pid for pid, (path, _) in self.running.items() if run is None or path == run.path]
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)  # one that was stopped hears nothing else
        for pid in pids:
            os.waitpid(pid, 0)
            del self.running[pid]


def _name(region: Region | None) -> str:
    return region.name if region else "eps"


def _child(run: RunDir, wiring: Wiring, region: Region | None, parent: int) -> None:
    """The life of a forked controller; never returns."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        if os.getppid() == parent:
            _log_to(run.log(f"controller-{region.name if region else 'eps'}"))
            serve(wiring, region)
        status = 0
    except MoefabricError as fault:
        sys.stderr.write(f"{fault}\n")
    except BaseException:  # noqa: BLE001 - nothing of the parent's stack may run on in the child
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def supervise(run: RunDir) -> int:
    """Run all controllers of one fabric, once its wiring is there, until SIGTERM: 0. One that is killed starts again; a fault ends all."""
    children, reader = Children(), Reader()
    try:
        while not _told_to_stop():
            if status := children.reap():
                return status
            if wiring := reader.wiring_at(run):
                for region in list(children.missing(run, wiring)):
                    children.start(run, wiring, region)
                children.look(run, wiring)
        return 0
    finally:
        children.stop()


def watch(root: Path) -> int:
    """Run the controllers of every fabric in a folder, from when its wiring appears until it goes; until SIGTERM: 0."""
    children, reader = Children(), Reader()
    try:
        while not _told_to_stop():
            children.reap()
            for run in {RunDir(path) for path, _ in children.running.values()}:
                if not run.wiring.exists():
                    children.stop(run)
            for path in sorted(found.parent for found in root.glob("*/fabric.json")):
                run = RunDir(path)
                if wiring := reader.wiring_at(run):
                    for region in list(children.missing(run, wiring)):
                        children.start(run, wiring, region)
                    children.look(run, wiring)
        return 0
    finally:
        children.stop()


def _told_to_stop() -> bool:
    """Whether a signal to stop comes within the time until the next look at folders, which have no one event to wait for."""
    return signal.sigtimedwait(_STOPPING, _LOOK_AGAIN_S) is not None


def block_stopping() -> None:
    """Keep signals to stop for `sigtimedwait`, from the first moment on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
