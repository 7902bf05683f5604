"""Engines that carry out the runs of a sweep, on one machine or many."""

from collections.abc import Collection
from typing import Protocol

from moefabric.api.sweeps.task import RunEnded, RunStarted, RunTask
from moefabric.core.resource_needs import ResourceNeeds

RunEvent = RunStarted | RunEnded


class Engine(Protocol):
    """Carries runs out, each on a machine that has enough cores and memory free for it."""

    def check(self, needs: ResourceNeeds) -> None:
        """Check that some machine is large enough for a run.

        Raises:
            UnsupportedError: If none is; names what is missing.
        """

    def submit(self, task: RunTask, avoid: Collection[str] = ()) -> None:
        """Add an attempt at a run, which starts when resources are free.

        Args:
            task: The run.
            avoid: Identities of machines to leave out, as long as there are others.
        """

    def next_event(self) -> RunEvent:
        """Wait until an attempt starts or ends. At least one must not have ended."""
