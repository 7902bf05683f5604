"""The all-to-alls that follow a request for circuits, from the tasks of a job."""

from collections.abc import Sequence

from moefabric.planner.outlook import Outlook
from moefabric.workload.iteration import Collective, Reconfigure
from moefabric.workload.tasks import Task, Work


def outlook(tasks: Sequence[Task], number: int, later_iterations: int) -> Outlook:
    """Return what follows the request for circuits that a task makes.

    Circuits may move again when a region of the task requests them for another layer. Later
    iterations count as if they had the same tasks.

    Args:
        tasks: The tasks of the iteration.
        number: Position of the task: a reconfiguration, or a collective that starts one.
        later_iterations: Iterations of the job after this one.
    """
    task = tasks[number]
    own = [
        (position, other.work)
        for position, other in enumerate(tasks)
        if not set(task.regions).isdisjoint(other.regions)
    ]
    present, every = (
        sum(_is_all_to_all(work) for position, work in own if position >= first)
        for first in (number, 0)
    )
    left = present + later_iterations * every
    others = [
        position
        for position, work in own
        if isinstance(work, Reconfigure) and work.layer != task.work.layer
    ]
    following = [position for position in others if position > number]
    if following or (others and not later_iterations):
        end = following[0] if following else len(tasks)
        alike = sum(_is_all_to_all(work) for at, work in own if number <= at < end)
    elif others:  # the next request for another layer is in the next iteration
        alike = present + sum(_is_all_to_all(work) for at, work in own if at < others[0])
    else:
        alike = left
    return Outlook(max(alike, 1), max(left, 1))


def _is_all_to_all(work: Work) -> bool:
    """Return whether work is a collective, of whose phases only the first counts."""
    return isinstance(work, Collective) and not work.phase
