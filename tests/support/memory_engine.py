"""Engine of sweeps in memory."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final

from moefabric.api.sweeps.engine import RunEnded, RunEvent, RunStarted, RunTask
from moefabric.core.errors import UnsupportedError
from moefabric.core.resource_needs import ResourceNeeds

_SIZE: Final = ResourceNeeds(2, 4_000_000_000)


class MemoryEngine:
    """Carries runs out in this process, one after the other, on machines that are names only.

    Args:
        carry_out: Carries a run out on the machine with this name.
        nodes: Names of the machines.
        size: Cores and memory of each machine.
    """

    def __init__(
        self,
        carry_out: Callable[[RunTask, str], RunEnded],
        nodes: Sequence[str] = ("memory",),
        size: ResourceNeeds = _SIZE,
    ) -> None:
        self._carry_out, self._nodes, self._size = carry_out, nodes, size
        self._waiting: deque[tuple[RunTask, str]] = deque()
        self._started: tuple[RunTask, str] | None = None

    def check(self, needs: ResourceNeeds) -> None:
        """Check that a machine is large enough."""
        if not needs.fit_in(self._size):
            raise UnsupportedError(f"a run needs {needs}, and each machine has {self._size}")

    def submit(self, task: RunTask, avoid: Collection[str] = ()) -> None:
        """Add an attempt at a run."""
        others = [node for node in self._nodes if node not in avoid]
        self._waiting.append((task, (others or self._nodes)[0]))

    def next_event(self) -> RunEvent:
        """Start the next attempt, or carry out the one that has started."""
        if self._started is None:
            self._started = task, node = self._waiting.popleft()
            return RunStarted(task.id, node, node)
        (task, node), self._started = self._started, None
        return self._carry_out(task, node)
