"""Replays in memory of traffic that other servers forward."""

from dataclasses import dataclass, replace

import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Share, Split
from moefabric.core.topology import Fabric, Region
from moefabric.runner.executor import Executor
from moefabric.runner.memory_testbed import (
    ImmediateExecutor,
    MemoryAgents,
    MemoryController,
    VirtualClock,
)
from moefabric.runner.observation import _link_rate_errors
from moefabric.runner.result_model import FabricResult
from moefabric.runner.results import fabric_result
from moefabric.runner.run_records import IterationRun
from moefabric.workload.iteration import Collective
from tests.support.fabrics import MESH, fabric

SECOND = 100e9 / 8 * 1448 / 1514
"""Bytes that a NIC of 100 Gb/s carries in a second."""
SERVERS = ("s0", "s1", "s2", "s3")
DEMAND = DemandMatrix(
    SERVERS, [[0.0, SECOND / 10, 0.0, 0.0], [0.0] * 4, [0.0] * 4, [0.0, SECOND / 10, 0.0, 0.0]]
)
ENOUGH = 20
"""Iterations that suffice for a verdict."""


@dataclass(frozen=True)
class RelayedBy:
    """A policy whose circuits never move, and of which one server forwards all bytes."""

    relay: str

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet
    ) -> CircuitSet:
        """Return a full mesh."""
        return CircuitSet.of(MESH)

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """Return a split without bytes over the pairs' own circuits."""
        shares = (Share(a, b, 0.0, 0.0, (), ((self.relay, owed),)) for a, b, owed in demand.pairs())
        return Split(tuple(shares))


def replayed(wired: Fabric) -> tuple[list[IterationRun], FabricResult]:
    """Replay all-to-alls that s2 forwards."""
    policy, clock = RelayedBy("s2"), VirtualClock(now_ns=10**12)
    light = MemoryController(wired, policy, clock)
    light.lit = CircuitSet.of(MESH)
    agents = MemoryAgents(wired, lambda: light.lit, clock)
    executor = Executor(
        wired, policy, agents, {"r0": light}, light.lit, control_s=0.0, clock=clock,
        background=ImmediateExecutor(), cpu_steal=lambda: (0, 0), counters=agents.counters,
    )  # fmt: skip
    work = (Collective("dispatch", "forward", 0, DEMAND),)
    runs = [executor.iteration(number, work) for number in range(ENOUGH)]
    return runs, fabric_result(wired, "relayed", "relayed", runs, cpu_idle=[0.5], remarks=[])


@pytest.mark.parametrize(("rate_bps", "seconds"), [(None, 0.2), (50e9, 0.4)])
def test_replay_keeps_to_the_forwarding_rate(rate_bps: float | None, seconds: float) -> None:
    wired = replace(fabric(3, 1), forwarding=True, forwarding_rate_bps=rate_bps)
    runs, result = replayed(wired)
    collective = result.collectives[-1]
    assert collective.predicted_s == pytest.approx(seconds, rel=1e-6)
    assert collective.measured_s == pytest.approx(seconds, rel=1e-4)
    assert collective.bytes_by_light == pytest.approx(SECOND / 5, abs=2)
    assert result.fidelity.verdict == "pass", result.fidelity.reasons
    cables = {error.label for error in _link_rate_errors(wired, runs[-1].collectives[0])}
    full = {"s2/o2 to ocs"} if rate_bps is None else set()
    assert cables == full, "a forwarding rate is no cable that could be off its rate"
