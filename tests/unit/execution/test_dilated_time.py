"""The same experiment takes the same model time at any dilation, in memory."""

from collections.abc import Sequence

import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.exchange import Exchange
from moefabric.core.flows import PacedFlow
from moefabric.core.units import Scale
from moefabric.execution.executor import ControlSettings, Executor, RunSettings
from moefabric.planner.mixnet import MIXNET
from moefabric.prediction.control_time import CONTROL_S
from moefabric.results.model import FabricResult
from moefabric.results.records.records import IterationRun
from moefabric.results.verdict.fabric_result import control_time_findings, fabric_result
from moefabric.workload.iterations.iteration import Collective, Compute, Operation, Reconfigure
from tests.support.fabrics import fabric
from tests.support.memory_testbed import (
    MemoryAgents,
    MemoryController,
    VirtualClock,
    VirtualTimeExecutor,
    demand,
    instruments_in_memory,
)

MS = 1_000_000
DILATIONS = (1, 2, 10, 25)


def layer(number: int, owed: DemandMatrix, first: str) -> list[Operation]:
    """Attention of 30 ms, a dispatch, experts of 20 ms, and a combine, with moving circuits."""
    light = Reconfigure("forward", number, owed)
    return [
        Compute("attention", "forward", number, (0.030,) * 4),
        *((light,) if first == "block" else ()),
        Collective("dispatch", "forward", number, owed, light if first == "divert" else None),
        Compute("expert", "forward", number, (0.020,) * 4, light if first == "reuse" else None),
        Collective("combine", "forward", number, owed.combine()),
    ]


class Bench:
    """Four servers whose controller works for some wall time, at a dilation."""

    def __init__(
        self,
        dilation: float,
        *,
        work_ms: float = 12.0,
        arming_ms: float = 20.0,
        control_s: float | None = None,
        timeout_s: float = 1.0,
        agents: type[MemoryAgents] = MemoryAgents,
    ) -> None:
        scale = Scale(1000 / dilation, dilation)
        self.fabric = fabric(1, 1, scale=scale, settle_ns=scale.wall_ns(25 * MS))
        self.clock, own = VirtualClock(10**12), VirtualClock()
        self.controller = MemoryController(self.fabric, MIXNET, own, work_ns=round(work_ms * MS))
        self.executor = Executor(
            self.fabric,
            MIXNET,
            agents(self.fabric, lambda: self.controller.lit, self.clock),
            {"r0": self.controller},
            CircuitSet(),
            settings=RunSettings(
                arming_ns=round(arming_ms * MS),
                control=ControlSettings(control_s=control_s, timeout_s=timeout_s),
            ),
            instruments=instruments_in_memory(self.clock, VirtualTimeExecutor(self.clock, own)),
        )

    def run(self, first: str = "block") -> IterationRun:
        pairs = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 1), (2, 3))]
        operations = [
            operation
            for number, of_layer in enumerate(pairs)
            for operation in layer(number, demand(*of_layer), first)
        ]
        return self.executor.iteration(0, operations)

    def result(self, run: IterationRun) -> FabricResult:
        return fabric_result(self.fabric, "mixnet", "mixnet", [run], cpu_idle=[], remarks=[])


@pytest.mark.parametrize("dilation", DILATIONS)
def test_controllers_work_costs_model_time_one_to_one(dilation: float) -> None:
    bench = Bench(dilation)
    result = bench.result(bench.run())
    [iteration] = result.iterations
    assert iteration.measured_s == pytest.approx(
        3 * (0.030 + 0.012 + 0.025 + 0.2 + 0.020), rel=1e-6
    )
    dispatches = [c for c in result.collectives if c.kind == "dispatch"]
    assert [c.waited_s for c in dispatches] == pytest.approx([0.037] * 3, rel=1e-6)
    for change in result.reconfigurations:
        assert (change.plan_s, change.settle_s) == pytest.approx((0.012, 0.025))
        assert (change.control_s, change.total_s) == pytest.approx((0.012, 0.037))
    assert not [reason for reason in result.fidelity.reasons if "dark time" in reason]
    assert result.control_time.count == 3
    assert result.control_time.p50_s == result.control_time.p95_s == pytest.approx(0.012)


@pytest.mark.parametrize("first", ["reuse", "divert"])
def test_model_time_is_the_same_with_traffic_during_a_change(first: str) -> None:
    """Late flows are ordered during the stretched control time from dilation 4 on."""
    runs = [(dilation, Bench(dilation).run(first)) for dilation in (4, 10, 25)]
    seconds = [(run.end_ns - run.start_ns) / 1e9 / dilation for dilation, run in runs]
    assert seconds == pytest.approx([seconds[0]] * 3, rel=1e-3)


def test_late_flows_start_no_earlier_than_the_stretched_reply() -> None:
    run = Bench(10).run("divert")
    assert run.reconfigurations
    for change in run.reconfigurations:
        late = [
            record.first_sent_ns
            for c in run.collectives
            if c.reconfigured_meanwhile
            for record in c.records
            if record.path == "o0" and record.first_sent_ns >= change.start_ns
        ]
        assert change.end_ns - change.start_ns == 10 * (25 + 12) * MS
        assert min(late) >= change.end_ns


@pytest.mark.parametrize("dilation", DILATIONS)
def test_orders_to_agents_cost_no_model_time(dilation: float) -> None:
    quick, slow = (Bench(dilation, arming_ms=ms) for ms in (6.0, 60.0))
    fast, late = quick.run(), slow.run()
    assert late.end_ns - late.start_ns == fast.end_ns - fast.start_ns
    assert quick.result(fast).harness_s <= slow.result(late).harness_s


class LateAgents(MemoryAgents):
    """Agents that start 3 ms after the ordered instant."""

    def launch(
        self,
        flows: Sequence[PacedFlow],
        start_ns: int | None,
        deadline_s: float,
        exchange: Exchange | None = None,
    ) -> int:
        start_ns = self.clock.now_ns() if start_ns is None else start_ns
        return super().launch(flows, start_ns + 3 * MS, deadline_s, exchange)


@pytest.mark.parametrize("dilation", DILATIONS)
def test_late_agents_cost_no_model_time(dilation: float) -> None:
    in_time, late = Bench(dilation).run(), Bench(dilation, agents=LateAgents).run()
    assert late.end_ns - late.start_ns == in_time.end_ns - in_time.start_ns
    assert late.harness_ns >= in_time.harness_ns + 6 * 3 * MS


def test_harness_time_is_reported_in_wall_seconds() -> None:
    """Control work of 12 ms hides the order to dispatch from dilation 3 on.

    At dilation 1, computation of experts is too short to hide both orders.
    """
    reported = [bench.result(bench.run()).harness_s for bench in map(Bench, DILATIONS)]
    assert reported == pytest.approx([6 * 0.020, 3 * 0.008, 0.0, 0.0], abs=1e-6)


def test_stretched_replies_are_not_waited_for_in_wall_time() -> None:
    """Control work of 0.5 s costs 12.5 s at dilation 25, of which 0.75 are really waited for."""
    bench = Bench(25, work_ms=500.0)
    started_ns = bench.clock.now_ns()
    run = bench.run()
    sent_s = sum(c.end_ns - c.start_ns for c in run.collectives) / 1e9
    waited_s = (bench.clock.now_ns() - started_ns) / 1e9 - sent_s - 3 * 25 * 0.025
    assert waited_s < 3 * (0.5 + 3 * 0.3)
    assert (run.end_ns - run.start_ns) / 25e9 == pytest.approx(3 * 0.775, rel=1e-6)


def control_times(run: IterationRun) -> list[float]:
    """Return the control time of each reconfiguration."""
    return [change.change.phases.control_s for change in run.reconfigurations]


@pytest.mark.parametrize("dilation", [10, 25])
def test_fixed_control_time_replaces_that_of_controllers(dilation: float) -> None:
    bench = Bench(dilation, control_s=0.002)
    run = bench.run()
    assert (run.end_ns - run.start_ns) / dilation / 1e9 == pytest.approx(3 * 0.277, rel=1e-6)
    [change, *_] = bench.result(run).reconfigurations
    assert (change.control_s, change.total_s) == pytest.approx((0.002, 0.027))
    assert change.plan_s == pytest.approx(0.002)
    assert list(control_time_findings(control_times(run), 0.002)) == []


def test_control_plane_slower_than_its_fixed_time_counts_and_is_said() -> None:
    bench = Bench(2, control_s=0.002)
    run = bench.run()
    assert [r.change.phases.control_s for r in run.reconfigurations] == pytest.approx([0.006] * 3)
    [finding] = control_time_findings(control_times(run), 0.002)
    assert finding.text == (
        "the control plane is slower than control_time 2 ms: 3 of 3 needed up to 6.0 ms; "
        "raise the dilation"
    )


@pytest.mark.parametrize("dilation", DILATIONS)
def test_silent_controller_costs_its_timeout_in_model_time(dilation: float) -> None:
    bench = Bench(dilation, work_ms=3000.0, timeout_s=0.5)
    run = bench.run()
    [first, *_] = run.reconfigurations
    assert first.change.error == "its controller didn't answer within 0.6 s"
    assert (first.end_ns - first.start_ns) / dilation / 1e9 == pytest.approx(0.55)


@pytest.mark.parametrize("dilation", DILATIONS)
def test_waits_are_predicted_from_earlier_changes(dilation: float) -> None:
    """The first change is expected to take the default time of the control plane."""
    run = Bench(dilation).run()
    expected = [c.predicted_wait_s for c in run.collectives if c.operation.kind == "dispatch"]
    assert expected == pytest.approx([0.025 + CONTROL_S, 0.037, 0.037], rel=1e-6)
