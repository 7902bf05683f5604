"""Earliest starts of tasks, from the ends of executed tasks and the durations of modelled ones.

In a hybrid run, some tasks are executed and others have the durations of a model. Executed
tasks wait for modelled ones, and these for earlier executed ones. The longest path of modelled
durations from each executed task replaces the modelled tasks between: a task may start `lag` after
the end of each of these (max-plus algebra). That is exact: a late
executed task delays others as much as if they waited for each modelled task.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

START = -1
"""Stands for the start of the iteration among the positions of tasks."""


@dataclass(frozen=True)
class Lag:
    """Seconds on the longest path of modelled tasks, and on the longest of their computation."""

    seconds: float = 0.0
    compute_s: float = 0.0

    def then(self, seconds: float, compute_s: float) -> "Lag":
        """Return the lag after another modelled task."""
        return Lag(self.seconds + seconds, self.compute_s + compute_s)


Lags = Mapping[int, Lag]
"""Lag after the end of each executed task, by its position or `START`."""


@dataclass(frozen=True)
class TaskPart:
    """A task with its executed part, its modelled part, or both.

    Attributes:
        after: Positions of the tasks for which it waits, all of them earlier.
        executed: Whether it, or a part of it, is executed.
        modelled_s: Duration of its modelled part; None if all of it is executed.
        compute_s: Duration of the modelled part's computation.
    """

    after: tuple[int, ...]
    executed: bool
    modelled_s: float | None = None
    compute_s: float = 0.0


def task_lags(parts: Sequence[TaskPart]) -> tuple[list[Lags], Lags]:
    """Return the lags of tasks.

    Args:
        parts: The tasks of an iteration.

    Returns:
        For each task, the lags after which it may start; and those after which all have ended.
    """
    starts, ends = list[Lags](), list[Lags]()
    for position, part in enumerate(parts):
        start = latest(ends[before] for before in part.after)
        starts.append(start)
        own: dict[int, Lag] = {}
        if part.modelled_s is not None:
            own = {e: lag.then(part.modelled_s, part.compute_s) for e, lag in start.items()}
        if part.executed:
            own[position] = Lag()
        ends.append(own)
    return starts, latest(ends)


def latest(lags_of_tasks: Iterable[Lags]) -> Lags:
    """Return the lags of a task that waits for several tasks; without any, that of the start."""
    merged: dict[int, Lag] = {}
    for lags in lags_of_tasks:
        for executed, lag in lags.items():
            previous = merged.get(executed, lag)
            merged[executed] = Lag(
                max(previous.seconds, lag.seconds), max(previous.compute_s, lag.compute_s)
            )
    return merged or {START: Lag()}
