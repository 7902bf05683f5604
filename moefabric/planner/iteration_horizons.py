"""The all-to-alls that follow a request for circuits, from the tasks of a job."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from moefabric.planner.horizon import Horizon
from moefabric.workload.iterations.iteration import Collective, Reconfigure
from moefabric.workload.iterations.tasks import Task


@dataclass
class RegionTasks:
    """Work of regions in an iteration: positions of tasks, in order.

    Attributes:
        all_to_alls: Their all-to-alls, each by its first phase.
        requests: Their requests for circuits, by layer.
    """

    all_to_alls: list[int] = field(default_factory=list)
    requests: defaultdict[int | None, list[int]] = field(default_factory=lambda: defaultdict(list))


class IterationHorizons:
    """The horizon of each request for circuits in an iteration."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        """Take the tasks of an iteration; they are searched once for each region."""
        self._tasks = tasks
        self._of_regions: dict[tuple[str, ...], RegionTasks] = {}

    def horizon(self, number: int, later_iterations: int) -> Horizon:
        """Return the horizon of the request for circuits that a task makes.

        Circuits may move again when a region of the task requests them for another layer. Later
        iterations count as if they had the same tasks.

        Args:
            number: Position of the task: a reconfiguration, or a collective that starts one.
            later_iterations: Iterations of the job after this one.
        """
        task = self._tasks[number]
        tasks = self._tasks_of(task.regions)
        total, before = len(tasks.all_to_alls), bisect_left(tasks.all_to_alls, number)
        present = total - before
        remaining = present + later_iterations * total
        others = [at for layer, at in tasks.requests.items() if layer != task.work.layer]
        following = [at[k] for at in others if (k := bisect_right(at, number)) < len(at)]
        if following or (others and not later_iterations):
            end = min(following, default=len(self._tasks))
            alike = bisect_left(tasks.all_to_alls, end) - before
        elif others:  # the next request for another layer is in the next iteration
            alike = present + bisect_left(tasks.all_to_alls, min(at[0] for at in others))
        else:
            alike = remaining
        return Horizon(max(alike, 1), max(remaining, 1))

    def _tasks_of(self, regions: tuple[str, ...]) -> RegionTasks:
        if (cached := self._of_regions.get(regions)) is not None:
            return cached
        tasks, names = RegionTasks(), set(regions)
        for position, task in enumerate(self._tasks):
            if names.isdisjoint(task.regions):
                continue
            match task.work:
                case Collective(phase=0):
                    tasks.all_to_alls.append(position)
                case Reconfigure(layer=layer):
                    tasks.requests[layer].append(position)
        return self._of_regions.setdefault(regions, tasks)
