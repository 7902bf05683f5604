"""When tasks may start, given the ends of some of them and the durations of all others.

In a hybrid run, some tasks are executed and others have the durations of a model. The executed
tasks wait for modelled ones, and these for executed ones before them. The longest path of modelled
durations from each executed task replaces the modelled tasks between: a task may start `lag` after
the end of each of these (max-plus algebra). Nothing is lost by that: executed tasks that are late
make others late as they would if every modelled task were waited for.
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
"""By executed task (its position), or `START`: the lag after its end."""


@dataclass(frozen=True)
class TaskPart:
    """A task as far as it is executed, modelled or both.

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


def latest(several: Iterable[Lags]) -> Lags:
    """Return the lags of what waits for several tasks; of none, that of the start."""
    merged: dict[int, Lag] = {}
    for lags in several:
        for executed, lag in lags.items():
            known = merged.get(executed, lag)
            merged[executed] = Lag(
                max(known.seconds, lag.seconds), max(known.compute_s, lag.compute_s)
            )
    return merged or {START: Lag()}
