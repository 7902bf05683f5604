"""Judged runs in memory, with faults of agents and controllers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from moefabric.core.circuits import CircuitSet
from moefabric.core.failures import FailureRecord
from moefabric.core.ocs import DeviceProfile, Ocs
from moefabric.execution.executor import ControlSettings, Executor, Instruments, RunSettings
from moefabric.planner.mixnet import MIXNET
from moefabric.planner.policy import Policy
from moefabric.results.model import FabricResult
from moefabric.results.records.records import RunFailures
from moefabric.results.verdict.fabric_result import fabric_result
from moefabric.workload.iterations.iteration import Operation, Reconfigure
from tests.support.fabrics import fabric
from tests.support.memory_testbed import (
    ImmediateExecutor,
    MemoryAgents,
    MemoryController,
    VirtualClock,
)
from tests.support.recorded_runs import operations

ITERATIONS = 12
"""Iterations of two collectives each, so that a 95th percentile has 20 samples at least."""


class JudgedRun:
    """A fabric in memory whose circuits move in each iteration.

    Args:
        policy: The policy of run and controller.
        agents: Makes the agents.
        controller: Makes the controller of region `r0`.
        control_s: Model seconds of a request besides settling; None for as many as it takes.
        light: Changes the reconfigurations of the job.
        profile: Profile of the OCS; None for one that settles in 25 ms.
    """

    def __init__(
        self,
        *,
        policy: Policy = MIXNET,
        agents: Callable[..., MemoryAgents] = MemoryAgents,
        controller: Callable[..., MemoryController] = MemoryController,
        control_s: float | None = None,
        light: Callable[[Reconfigure], Reconfigure] = lambda work: work,
        profile: DeviceProfile | None = None,
        **wiring: Any,
    ) -> None:
        self.fabric, self.clock = (
            fabric(1, 1, **{"settle_ns": 25_000_000, **wiring}),
            VirtualClock(10**12),
        )
        if profile is not None:
            [region] = self.fabric.regions
            ocs = Ocs("ocs0", 4, profile.settle.fixed_ns, profile=profile)
            self.fabric = replace(self.fabric, regions=(replace(region, ocs=ocs),))
        self.policy, self._change_light = policy, light
        self.light = controller(self.fabric, policy, self.clock)
        self.agents = agents(self.fabric, lambda: self.light.lit, self.clock)
        self.executor = Executor(
            self.fabric,
            policy,
            self.agents,
            {"r0": self.light},
            CircuitSet(),
            settings=RunSettings(control=ControlSettings(control_s=control_s)),
            instruments=Instruments(
                clock=self.clock,
                background=ImmediateExecutor(),
                cpu_steal=lambda: (0, 0),
                counters=self.agents.counters,
            ),
        )

    def _operations(self, number: int) -> list[Operation]:
        change = self._change_light
        return [change(one) if isinstance(one, Reconfigure) else one for one in operations(number)]

    def result(
        self, failures: Sequence[FailureRecord] = (), iterations: int = ITERATIONS
    ) -> FabricResult:
        """Run and judge iterations, with failures on the wall clock."""
        runs = [self.executor.iteration(n, self._operations(n)) for n in range(iterations)]
        clock = self.executor.clock
        known = RunFailures(
            tuple(failures),
            tuple(self.executor.iteration_windows),
            clock.past_wall_ns,
            clock.past_run_ns,
        )
        return fabric_result(
            self.fabric,
            "memory",
            self.policy.name,
            runs,
            cpu_idle=[0.9],
            remarks=[],
            failures=known,
        )
