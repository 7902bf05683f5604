"""Fabrics that run on this machine: their list, the choice of one by name, their removal."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from moefabric.core.errors import FabricError, SpecError, some_of
from moefabric.emulator.fabric.run_directories import (
    check_access,
    fabrics_in_use,
    holder_pid,
    named_run_directory,
    running_fabrics,
)
from moefabric.runtime.failure_log import ended_processes
from moefabric.runtime.run_directory import FabricWiring, RunDirectory, owner_name

if TYPE_CHECKING:
    from moefabric.results.parts import Json

__all__ = [
    "RunningFabric", "check_up", "listed_fabrics", "neither", "not_up", "removable_fabric",
    "remove_fabric", "running_fabric", "running_fabrics", "running_names",
]  # fmt: skip


@dataclass(frozen=True)
class RunningFabric:
    """A fabric that runs, as `moefabric list` shows it.

    Attributes:
        age_s: Seconds since its start.
        owner: User who started it.
        servers: Number of its servers; None while it comes up.
        run: Experiment of the run that uses it, with the iteration; empty if none does.
        pid: Process that uses it, such as a run, and takes it down; None if it stays until `down`.
        ended: Its processes that have ended, such as `switches ended (signal 9)`.
    """

    name: str
    age_s: float
    owner: str
    servers: int | None
    run: str
    pid: int | None
    ended: tuple[str, ...] = ()

    def to_json(self) -> "Json":
        """Return the object of `moefabric list --json`."""
        return asdict(self)


def listed_fabrics() -> list[RunningFabric]:
    """Return the fabrics that run on this machine, by name."""
    listed = []
    for name in running_fabrics():
        with suppress(FileNotFoundError):  # it has ended meanwhile
            listed.append(_listed(named_run_directory(name)))
    return listed


def _listed(run_dir: RunDirectory) -> RunningFabric:
    from moefabric.runtime.run_status import read_run_status

    owner, servers = owner_name(run_dir.token_file), None
    with suppress(FileNotFoundError):
        servers = len(FabricWiring.from_json(run_dir.wiring_file.read_bytes()).fabric.servers)
    status, run = read_run_status(run_dir.run_status_file), ""
    if status is not None:
        iteration = f"iteration {status.iteration + 1} of {status.iterations}"
        run = f"{status.experiment}: {status.fabric}, {iteration}"
    age_s = max(0.0, time.time() - run_dir.token_file.stat().st_mtime)
    ended = ended_processes(run_dir)
    return RunningFabric(run_dir.name, age_s, owner, servers, run, holder_pid(run_dir), ended)


def not_up(name: str) -> str:
    """Return the message for a fabric that doesn't run, with those that do."""
    from moefabric.config.input_file import did_you_mean  # slow to import, and not needed by help

    others = f"; {running} up" if (running := running_names()) else ""
    alike = did_you_mean(name, running_fabrics())
    return f"{name} is not up: start it with `moefabric up FABRIC.yaml`{others}{alike}"


def check_up(name: str) -> None:
    """Check that a fabric runs, and that this user may ask it.

    Raises:
        FabricError: If no fabric of this name runs.
        UnsupportedError: If it belongs to another user.
    """
    if name not in running_fabrics():
        raise FabricError(not_up(name))
    check_access(named_run_directory(name))


def neither(word: str, known: Sequence[str]) -> str:
    """Return the message for a word that is neither a known name nor that of a running fabric."""
    from moefabric.config.input_file import did_you_mean

    running = running_names()
    either = f"; no fabric {word} is up either: {running} up" if running else ""
    alike = did_you_mean(word, [*running_fabrics(), *known])
    return f"{word} is none of {some_of(known)}{either}{alike}"


def running_names() -> str:
    """Return the names of the fabrics that run with a verb: `lab, other are`; empty if none do."""
    return _names(running_fabrics())


def _names(fabrics: Sequence[str]) -> str:
    return f"{', '.join(fabrics)} {'is' if len(fabrics) == 1 else 'are'}" if fabrics else ""


def running_fabric(name: str | None) -> str:
    """Return `name`, or the name of the only running fabric if it is None.

    Raises:
        SpecError: If no fabric runs, or several do.
    """
    if name is not None:
        return name
    match running_fabrics():
        case [only]:
            return only
        case []:
            message = "no fabric is up: start one with `moefabric up FABRIC.yaml`"
        case running:
            remedy = "choose one by its NAME, by `--name NAME` or by MOEFABRIC_FABRIC"
            message = f"{_names(running)} up: {remedy}"
    raise SpecError([("", message)])


def removable_fabric(running: Sequence[str], users: Mapping[str, int]) -> str:
    """Return the only running fabric that no run uses.

    Args:
        running: Names of the running fabrics.
        users: Process ids of the runs that use a fabric, by its name.

    Raises:
        SpecError: If there are several such fabrics, or none.
    """
    fabrics = [f"{name} (of process {users[name]})" if name in users else name for name in running]
    match [name for name in running if name not in users]:
        case [only]:
            return only
        case []:
            remedy = "left to the run; `moefabric down NAME` removes it nevertheless"
        case _:
            remedy = "choose one with `moefabric down NAME`"
    raise SpecError([("", f"{_names(fabrics)} up: {remedy}")])


def remove_fabric(name: str | None = None, *, force: bool = False) -> dict[str, bool]:
    """Remove a fabric; without a name all that dead fabrics left, and the one that no run uses.

    Args:
        name: The fabric.
        force: Kill the process of a fabric that doesn't answer.

    Returns:
        By name, whether there was anything to remove; nothing if no fabric is up.

    Raises:
        SpecError: If `name` is None and there are several fabrics that no run uses.
        FabricError: If the fabric's process doesn't answer.
    """
    from moefabric.emulator.fabric import lifecycle

    if name is not None:
        return {name: lifecycle.down(name, force=force)}
    removed = dict.fromkeys(lifecycle.remove_remains(), True)
    running, users = running_fabrics(), fabrics_in_use()
    if running and not (removed and set(running) <= users.keys()):
        chosen = removable_fabric(running, users)
        removed[chosen] = lifecycle.down(chosen, force=force)
    return removed
