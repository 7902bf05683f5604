"""Fabrics that run on this machine: which one is meant, and their removal."""

from collections.abc import Mapping, Sequence

from moefabric.core.errors import SpecError
from moefabric.emulator.fabric import lifecycle

running_fabrics = lifecycle.running_fabrics

__all__ = ["removable_fabric", "remove_fabric", "running_fabric", "running_fabrics"]


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
            message = f"{', '.join(running)} are up: choose one with `--name NAME`"
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
    verb = "is" if len(fabrics) == 1 else "are"
    raise SpecError([("", f"{', '.join(fabrics)} {verb} up: {remedy}")])


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
    if name is not None:
        return {name: lifecycle.down(name, force=force)}
    removed = dict.fromkeys(lifecycle.remove_remains(), True)
    running, users = running_fabrics(), lifecycle.fabrics_in_use()
    if running and not (removed and set(running) <= users.keys()):
        chosen = removable_fabric(running, users)
        removed[chosen] = lifecycle.down(chosen, force=force)
    return removed
