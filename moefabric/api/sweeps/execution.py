"""Carries a run of a sweep out on this machine."""

import fcntl
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import IO, Final
from zipfile import ZipFile

from moefabric.api.sweeps.engine import RunEnded, RunTask
from moefabric.config.loader import load_experiment
from moefabric.core.errors import MoefabricError, UnsupportedError
from moefabric.prediction.experiment import predict_fabrics
from moefabric.runtime.atomic_file import output_error
from moefabric.runtime.run_directory import run_root
from moefabric.runtime.scratch_folder import scratch_folder

_ENDED: Final = (0, 3)
"""Exit statuses of `moefabric run` with a result."""
_GRACE_S: Final = 60.0
"""Time in which a run that is stopped removes its fabric."""
_POLL_S: Final = 0.5
_CORES: Final = ".cores"
"""Folder of the locks of cores."""


def execute(task: RunTask, archives: Mapping[str, bytes]) -> RunEnded:
    """Carry a run out and return how it has ended.

    Args:
        archives: Input files of the run, by digest.
    """
    started = time.monotonic()
    result, error = "", ""
    try:
        _check_version(task)
        with scratch_folder("moefabric-sweep-") as folder:
            unpack(archives, folder)
            file = folder / "experiment.yaml"
            file.write_text(json.dumps(task.document, ensure_ascii=False))
            if task.mode == "predict":
                prediction = predict_fabrics(load_experiment(file), folder)
                result = json.dumps(prediction.to_json(), indent=1) + "\n"
            else:
                result = _run(task, file)
    except MoefabricError as fault:
        error = str(fault)
    return RunEnded(task.id, result, error, time.monotonic() - started)


def _check_version(task: RunTask) -> None:
    if (installed := version("moefabric")) != task.version:
        raise UnsupportedError(
            f"moefabric {installed} is installed here, and the sweep was started by "
            f"{task.version}: install the same version on all machines"
        )


def _run(task: RunTask, file: Path) -> str:
    """Return the result of `moefabric run` or `train`, a process on reserved cores.

    The kernel ends the process if this one is killed, and its fabric ends with it.

    Raises:
        MoefabricError: If the run has no result.
    """
    result, log = file.with_name("result.json"), file.with_name("log")
    command = [sys.executable, "-m", "moefabric", task.mode, str(file), "--json", str(result)]
    command += ["--plugins", "any"]  # who started the sweep has checked its files
    with log.open("wb") as errors, reserved_cores(round(task.needs.cores)) as (cores, descriptors):
        on_cores = ["taskset", "--cpu-list", ",".join(map(str, cores))]
        process = subprocess.Popen(
            [*on_cores, "setpriv", "--pdeathsig", "TERM", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=descriptors,
            start_new_session=True,
        )
        status = _status(process)
    if status not in _ENDED or not result.exists():
        lines = log.read_text(errors="replace").splitlines()
        faults = [line for line in lines if line.startswith("moefabric: ")] or lines[-3:]
        raise MoefabricError(
            f"the {task.mode} exited {status}: {'; '.join(faults) or 'without a message'}"
        )
    return result.read_text()


def _status(process: "subprocess.Popen[bytes]") -> int:
    """Return the exit status of a process; stop it on an exception."""
    try:
        while True:  # Ray interrupts the main thread between system calls only
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S)
    except BaseException:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        process.kill()  # its fabric ends by itself
        raise


@contextmanager
def reserved_cores(count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Reserve `count` cores against other runs on this machine, once they are free.

    A core is a file that is locked (flock(2)). Processes that inherit the descriptors keep the
    cores until they end, also if this process is killed.

    Yields:
        Numbers of the cores, and descriptors of their files.

    Raises:
        UnsupportedError: If this process may not use so many cores.
    """
    usable = sorted(os.sched_getaffinity(0))
    if count > len(usable):
        raise UnsupportedError(f"{count} cores are needed, and this machine has {len(usable)}")
    folder = run_root() / _CORES
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    with ExitStack() as undo:
        with _opened(folder / "queue") as queue:  # one run at a time waits for cores
            fcntl.flock(queue, fcntl.LOCK_EX)
            while len(locked := _lock_free(folder, usable, count)) < count:
                busy = next(core for core in usable if core not in locked)
                for file in locked.values():
                    file.close()
                with _opened(folder / str(busy)) as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
        for file in locked.values():
            undo.enter_context(file)
        yield list(locked), [file.fileno() for file in locked.values()]


def _lock_free(folder: Path, cores: list[int], count: int) -> dict[int, IO[bytes]]:
    """Lock up to `count` cores that are free, and return their files by core."""
    locked: dict[int, IO[bytes]] = {}
    for core in cores:
        if len(locked) == count:
            break
        file = _opened(folder / str(core))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            locked[core] = file
    return locked


def _opened(path: Path) -> IO[bytes]:
    """Open a file that nobody else may open and lock; make it if there is none."""
    return open(path, "ab", opener=partial(os.open, mode=0o600))


def unpack(archives: Mapping[str, bytes], folder: Path) -> None:
    """Write the files of archives into a folder, each archive into a folder of its digest.

    Raises:
        OutputError: If there is no room.
    """
    for digest, contents in archives.items():
        place = folder / digest
        try:
            place.mkdir()
            with ZipFile(io.BytesIO(contents)) as archive:
                archive.extractall(place)
        except OSError as error:
            raise output_error(place, error) from error
