"""Repeats the policy's choices in the run, for comparison with the circuits that are lit."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from moefabric.config.guarded_policy import GuardedPolicy
from moefabric.core.topology import Fabric
from moefabric.planner.plan import with_horizon
from moefabric.planner.sending.flow_pacing import SplitPolicy
from moefabric.results.records.records import IterationRun, ReconfigurationRun

_FIRST_S: Final = 1.0
_SHARE: Final = 0.02
"""Seconds, and share of the time since, that repeated choices may take."""


class CircuitChoices:
    """Asks the policy for the circuits of each demand that a controller got, between iterations.

    A policy that takes long is asked for a sample. A policy of another package is not asked: it
    may depend on what it was asked before.
    """

    def __init__(self, fabric: Fabric, policy: SplitPolicy) -> None:
        self._fabric, self._policy = fabric, policy
        self._regions = {region.name: region for region in fabric.regions}
        self._began_s, self._spent_s = time.monotonic(), 0.0

    def add(self, runs: Sequence[IterationRun]) -> None:
        """Add the choices to the reconfigurations of iterations that have ended."""
        if isinstance(self._policy, GuardedPolicy):
            return
        for run in runs:
            changes = run.reconfigurations
            for place in range(len(changes)):
                if self._spent_s > _FIRST_S + _SHARE * (time.monotonic() - self._began_s):
                    return
                turned = (place + run.number) % len(changes)  # else the same few would be asked for
                changes[turned] = self._with_choice(changes[turned])

    def _with_choice(self, change: ReconfigurationRun) -> ReconfigurationRun:
        region, demand = self._regions[change.region], change.demand
        if demand is None or demand.servers != region.servers:
            return change
        policy = with_horizon(self._policy, change.horizon)
        began_s = time.thread_time()
        chosen = policy.circuits(self._fabric, region, demand, change.change.before)
        took_s = time.thread_time() - began_s
        self._spent_s += took_s
        return replace(change, chosen=chosen, plan_s=took_s)
