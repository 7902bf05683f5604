"""Carries the runs of a sweep out as tasks of Ray, on cores that Ray reserves for them.

A task is a generator of two values: the node on which the run starts, and the end of the run. So
the node of a run is known even if it dies.
"""

import platform
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from moefabric.api.sweeps.engine import RunEnded, RunEvent, RunStarted, RunTask
from moefabric.api.sweeps.execution import execute
from moefabric.core.errors import UnsupportedError
from moefabric.core.resource_needs import ResourceNeeds
from moefabric.testbed.cluster.ray_client import last_line

_CANCEL_S: Final = 90.0
"""Limit of the time in which cancelled runs remove their fabrics."""


CarryOut = Callable[[RunTask, Mapping[str, bytes]], RunEnded]
"""Function that carries out a run with its input files on the calling machine."""


def attempt(carry_out: CarryOut, task: RunTask, *archives: bytes) -> Iterator[RunEvent]:
    """Carry a run out in a process of Ray: yield its start and its end.

    Args:
        carry_out: Carries the run out.
        *archives: Input files of the run, in the order of `task.inputs`.
    """
    import ray

    node = ray.get_runtime_context().get_node_id()
    yield RunStarted(task.id, node, platform.node())
    yield carry_out(task, dict(zip(task.inputs, archives, strict=True)))


class RayEngine:
    """Carries runs out on the nodes of a Ray cluster.

    Args:
        ray: Ray, connected (`moefabric.testbed.cluster`).
        archives: Input files of all runs, by digest.
        carry_out: Carries a run out. Nodes must be able to import it.
    """

    def __init__(
        self, ray: Any, archives: Mapping[str, bytes], carry_out: CarryOut = execute
    ) -> None:
        self._ray, self._carry_out = ray, carry_out
        self._archives = {digest: ray.put(contents) for digest, contents in archives.items()}
        self._streams: dict[Any, RunTask] = {}

    def check(self, needs: ResourceNeeds) -> None:
        """Check that a node is large enough.

        Raises:
            UnsupportedError: If none is.
        """
        sizes = self._sizes().values()
        if not any(needs.fit_in(size) for size in sizes):
            largest = max(sizes, key=lambda size: size.cores, default=ResourceNeeds(0.0, 0))
            raise UnsupportedError(
                f"a run needs {needs}, and the largest node has {largest}: give fewer `cores` or "
                "less `memory` in the sweep, or add a node"
            )

    def submit(self, task: RunTask, avoid: Collection[str] = ()) -> None:
        """Add an attempt at a run; Ray starts it when cores and memory are free."""
        remote = self._ray.remote(num_cpus=task.needs.cores, memory=task.needs.memory_bytes)
        options = {"max_retries": 0, "name": task.title, **self._placement(task.needs, avoid)}
        archives = [self._archives[digest] for digest in task.inputs]
        stream = remote(attempt).options(**options).remote(self._carry_out, task, *archives)
        self._streams[stream] = task

    def next_event(self) -> RunEvent:
        """Wait until an attempt starts or ends."""
        from ray.exceptions import RayError

        (stream, *_), _ = self._ray.wait(list(self._streams), num_returns=1, timeout=None)
        task = self._streams[stream]
        try:
            event: RunEvent = self._ray.get(next(stream))
        except RayError as error:
            event = RunEnded(task.id, error=f"{type(error).__name__}: {last_line(error)}")
        if isinstance(event, RunEnded):
            del self._streams[stream]
        return event

    def close(self) -> None:
        """Cancel the attempts that have not ended, and wait for their ends."""
        for stream in self._streams:
            self._ray.cancel(stream)
        for stream in self._streams:
            with suppress(Exception):
                self._ray.get(stream.completed(), timeout=_CANCEL_S)

    def _sizes(self) -> dict[str, ResourceNeeds]:
        """Return cores and memory of each node that is alive."""
        return {
            node["NodeID"]: ResourceNeeds(
                node["Resources"].get("CPU", 0.0), int(node["Resources"].get("memory", 0))
            )
            for node in self._ray.nodes()
            if node["Alive"]
        }

    def _placement(self, needs: ResourceNeeds, avoid: Collection[str]) -> dict[str, Any]:
        """Return the options of a task that avoids some nodes, as long as others have room."""
        able = [n for n, size in self._sizes().items() if n not in avoid and needs.fit_in(size)]
        if not avoid or not able:
            return {}
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(able[0], soft=True)}
