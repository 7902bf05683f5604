"""Replays in memory of traffic that other servers forward."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from moefabric.agents.fleet.connections import DataPath
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.errors import AgentError, ServerLossError
from moefabric.core.flows import Flow, PacedFlow, Share, Split
from moefabric.core.forwarding import circuit_rules
from moefabric.core.routes import route
from moefabric.core.rules import direct_rules
from moefabric.core.topology import Fabric, Region
from moefabric.execution.executor import ControlSettings, Executor, RunSettings
from moefabric.planner.multihop import MULTIHOP
from moefabric.planner.sending.task_flows import task_flows
from moefabric.results.model import FabricResult
from moefabric.results.records.records import IterationRun
from moefabric.results.verdict.fabric_result import fabric_result
from moefabric.results.verdict.measurements import _link_rate_errors
from moefabric.testbed.testbed import data_paths
from moefabric.workload.iterations.iteration import Collective
from moefabric.workload.iterations.tasks import Task
from tests.support.fabrics import MESH, fabric
from tests.support.memory_testbed import (
    MemoryAgents,
    MemoryController,
    VirtualClock,
    instruments_in_memory,
)

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
    lit: CircuitSet

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet
    ) -> CircuitSet:
        """Return the same circuits always."""
        return self.lit

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """Return a split without bytes over the pairs' own circuits."""
        shares = (Share(a, b, 0.0, 0.0, ((self.relay, owed),)) for a, b, owed in demand.pairs())
        return Split(tuple(shares))


def replayed(wired: Fabric, lit: CircuitSet) -> tuple[list[IterationRun], FabricResult]:
    """Replay all-to-alls that s2 forwards."""
    policy, clock = RelayedBy("s2", lit), VirtualClock(now_ns=10**12)
    light = MemoryController(wired, policy, clock)
    light.lit = lit
    agents = MemoryAgents(wired, lambda: light.lit, clock)
    executor = Executor(
        wired,
        policy,
        agents,
        {"r0": light},
        light.lit,
        settings=RunSettings(control=ControlSettings(control_s=0.0)),
        instruments=instruments_in_memory(clock, counters=agents.counters),
    )
    work = (Collective("dispatch", "forward", 0, DEMAND),)
    runs = [executor.iteration(number, work) for number in range(ENOUGH)]
    return runs, fabric_result(wired, "relayed", "relayed", runs, cpu_idle=[0.5], remarks=[])


@pytest.mark.parametrize("by_hosts", [False, True], ids=["switch", "host"])
@pytest.mark.parametrize(("rate_bps", "seconds"), [(None, 0.2), (50e9, 0.4)])
def test_replay_keeps_to_the_forwarding_rate(
    rate_bps: float | None, seconds: float, *, by_hosts: bool
) -> None:
    wired = replace(
        fabric(3, 1), forwarding=True, forwarding_by_hosts=by_hosts, forwarding_rate_bps=rate_bps
    )
    runs, result = replayed(wired, CircuitSet.of(MESH))
    collective = result.collectives[-1]
    assert collective.predicted_s == pytest.approx(seconds, rel=1e-6)
    assert collective.measured_s == pytest.approx(seconds, rel=1e-4)
    assert collective.bytes_by_light == pytest.approx(SECOND / 5, abs=2)
    assert result.fidelity.verdict == "pass", result.fidelity.reasons
    cables = {error.label for error in _link_rate_errors(wired, runs[-1].collectives[0])}
    full = {"s2/o2 to ocs"} if rate_bps is None else set()
    assert cables == full, "a forwarding rate is no cable that could be off its rate"


PAIRS = DemandMatrix(
    SERVERS,
    [
        [0.0, SECOND / 10, 0.0, 0.0],
        [SECOND / 10, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, SECOND / 10],
        [0.0, 0.0, SECOND / 10, 0.0],
    ],
)
FORWARDING = replace(fabric(3, 1), forwarding=True)


def nics_used(wired: Fabric, lit: CircuitSet, planned: Iterable[Flow]) -> set[str]:
    """The optical NICs that flows leave or arrive at."""
    links = {link for flow in planned for link in route(wired, lit, flow) if "ocs" in link}
    return {end for link in links for end in link} - {"ocs"}


def test_traffic_is_planned_for_the_circuits_that_a_failure_leaves() -> None:
    mesh, left = CircuitSet.of(MESH), CircuitSet.of(MESH[1:])  # without s0~s3
    clock, lit = VirtualClock(now_ns=10**12), [mesh]
    reports = iter([{}, {}, {"r0": left}])
    executor = Executor(
        FORWARDING,
        MULTIHOP,
        MemoryAgents(FORWARDING, lambda: lit[0], clock),
        {},
        mesh,
        instruments=instruments_in_memory(clock, reported_circuits=lambda: next(reports, {})),
    )
    work = (Collective("dispatch", "forward", 0, PAIRS),)
    runs = [executor.iteration(0, work)]
    assert executor.circuits == mesh
    lit[0] = left
    runs += [executor.iteration(number, work) for number in (1, 2)]
    first, *_, last = (run.collectives[0] for run in runs)
    assert executor.circuits == left
    assert "s0/o0" in nics_used(FORWARDING, first.circuits, first.planned)
    assert "s0/o0" not in nics_used(FORWARDING, last.circuits, last.planned)
    assert any(flow.path[0] == "r" for flow in last.planned)
    assert last.predicted_s > first.predicted_s
    assert last.measured_s(1.0) == pytest.approx(last.predicted_s, rel=1e-4)
    assert [
        first.start_ns < ns <= last.start_ns for ns in executor.reconfigurator.replanned_ns
    ] == [True]


def test_lost_server_forwards_nothing() -> None:
    wired = replace(
        FORWARDING,
        regions=(*FORWARDING.regions, Region("backup", 1, ("s4",), None, backup=True)),
        eps=Eps(5),
    )
    working = ("s0", "s1", "s4", "s3")
    demand = DemandMatrix(working, np.pad(PAIRS.array[:2, :2], (0, 2)))
    work = Collective("dispatch", "forward", 0, demand)
    task = Task(("r0",), 0, work, (), barrier=True)
    planned = task_flows(wired, MULTIHOP, task, CircuitSet.of(MESH), {"r0": working})
    assert planned is not None
    assert any(flow.path[0] == "r" for flow in planned.flows)
    assert not [n for n in nics_used(wired, planned.circuits, planned.flows) if n[:2] == "s2"]


def test_bytes_that_a_host_gets_by_the_eps_and_sends_on_by_light_count_once() -> None:
    """The circuit between s0 and s2 is dark, so what s0 sends to s2's agent takes the EPS."""
    wired = replace(fabric(3, 1), forwarding=True, forwarding_by_hosts=True)
    _, result = replayed(wired, CircuitSet.of(c for c in MESH if c != "s0/o1~s2/o0"))
    collective = result.collectives[-1]
    assert collective.predicted_s == pytest.approx(0.2, rel=1e-6)
    assert collective.bytes_by_light == pytest.approx(SECOND / 5, abs=2)
    assert collective.bytes_by_eps == 0
    assert result.fidelity.verdict == "pass", result.fidelity.reasons


def test_connections_over_agents_have_no_mark() -> None:
    wired = replace(fabric(3, 1), forwarding=True, forwarding_by_hosts=True)
    paths = {(p.src, p.dst, p.path): p for p in data_paths(wired)}
    relayed = [path for path in paths.values() if path.relay]
    assert len(relayed) == 4 * 3 * 2
    assert paths["s0", "s1", "r2"] == DataPath(
        "s0", "s1", "r2", wired.addressing.addresses("s2")[0], relay="s2"
    )
    assert all(path.dscp for path in paths.values() if not path.relay)
    assert circuit_rules(wired, CircuitSet.of(MESH)) == direct_rules(CircuitSet.of(MESH))


def test_agents_of_servers_that_take_no_part_relay_nothing() -> None:
    """s1 is lost: its circuits are lit and its switch forwards, but its agent is dead."""
    left, lit = ("s0", "s2", "s3"), CircuitSet.of(MESH)
    owed = DemandMatrix(left, [[0.0, SECOND, 0.0], [0.0] * 3, [0.0] * 3])
    roots = {}
    for by_hosts in (False, True):
        wired = replace(fabric(3, 1), forwarding=True, forwarding_by_hosts=by_hosts)
        [share] = MULTIHOP.split(wired, owed, lit)
        roots[by_hosts] = {root for root, _ in share.forwarded}
    assert roots == {False: {"s1", "s3"}, True: {"s3"}}


def test_relay_that_dies_in_memory_is_lost_and_then_refused() -> None:
    wired = replace(fabric(3, 1), forwarding=True, forwarding_by_hosts=True)
    clock = VirtualClock()
    agents = MemoryAgents(wired, lambda: CircuitSet.of(MESH), clock)
    flow = PacedFlow("s0", "s1", "r2", 10**10, None)
    number = agents.launch([flow], None, 100.0)
    agents.die("s2")
    with pytest.raises(ServerLossError, match="s2: lost"):
        agents.wait_ended(None)
    agents.drop(["s2"])
    agents.abandon(number)
    with pytest.raises(AgentError, match="server s2 has no agent"):
        agents.launch([flow], None, 100.0)
