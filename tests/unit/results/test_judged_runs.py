"""False runs in memory, each of which the verdict has to catch, with the name of the culprit."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from moefabric.config.ocs import load_profile
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import ControlError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import FailureRecord
from moefabric.core.flows import FlowRecord, PacedFlow
from moefabric.core.ocs import DeviceProfile, Ocs, SettleTime
from moefabric.core.transition import ReconfigurationPhases
from moefabric.core.units import NS_PER_S, Scale
from moefabric.emulator.ocs.physics import Settling
from moefabric.execution.executor import ControlSettings, Executor, RunSettings
from moefabric.planner.horizon import Horizon
from moefabric.planner.mixnet import MIXNET, SPILL
from moefabric.planner.policy import Policy
from moefabric.results.model import FabricResult, Verdict
from moefabric.results.records.records import CircuitChange, RunFailures
from moefabric.results.verdict.fabric_result import fabric_result
from moefabric.workload.iterations.iteration import Collective, Operation, Reconfigure
from moefabric.workload.placement.collective_order import Concurrent, ordered_operations
from tests.support.fabrics import fabric
from tests.support.memory_testbed import (
    MemoryAgents,
    MemoryController,
    VirtualClock,
    instruments_in_memory,
)
from tests.support.recorded_runs import demand as demand_of
from tests.support.recorded_runs import operations

START_NS = 10**12
"""When runs begin."""
DILATED: dict[str, Any] = {"scale": Scale(1, 10), "settle_ns": 250_000_000}
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
            instruments=instruments_in_memory(self.clock, counters=self.agents.counters),
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


def assert_caught(result: FabricResult, verdict: Verdict, culprit: str) -> None:
    """Check the verdict, and that a reason matches the regular expression of the culprit."""
    reasons = result.fidelity.reasons
    assert any(re.search(culprit, reason) for reason in reasons), reasons
    assert result.fidelity.verdict is verdict, reasons


@pytest.mark.parametrize("wiring", [{}, DILATED], ids=["plain", "dilated"])
def test_run_without_fault_passes(wiring: dict[str, Any]) -> None:
    fidelity = JudgedRun(**wiring).result().fidelity
    assert (fidelity.verdict, fidelity.reasons) == (Verdict.PASS, [])
    assert fidelity.completion_errors["iteration"].n == ITERATIONS


# --- refusals ------------------------------------------------------------------------------------


class RefusingController(MemoryController):
    """Refuses all requests, or all after some."""

    def __init__(self, *arguments: Any, grants: int = 0) -> None:
        super().__init__(*arguments)
        self.grants = grants

    def reconfigure(self, demand: DemandMatrix, horizon: Horizon) -> CircuitChange:
        self.grants -= 1
        if self.grants < 0:
            raise ControlError("ocs0 refuses")
        return super().reconfigure(demand, horizon)


def nic_failure(at_ns: int = START_NS) -> FailureRecord:
    """Return a NIC's failure of 4 ns."""
    return FailureRecord(FailureKind.NIC, ("s1/o0",), at_ns, at_ns + 1, at_ns + 2, at_ns + 4)


@pytest.mark.parametrize("failures", [(), (nic_failure(),)], ids=["healthy", "after-a-failure"])
def test_run_whose_every_request_was_refused_is_invalid(failures: Any) -> None:
    result = JudgedRun(controller=RefusingController).result(failures)
    assert_caught(result, Verdict.INVALID, r"r0: none of \d+ requests .* was granted")


def test_refusals_that_a_failure_does_not_explain_are_judged() -> None:
    run = JudgedRun(controller=partial(RefusingController, grants=4))
    assert_caught(
        run.result([nic_failure()]), Verdict.DEGRADED, r"8 of 12 reconfigurations failed \(r0"
    )


def test_refusals_during_a_failure_are_not_judged() -> None:
    run = JudgedRun(controller=partial(RefusingController, grants=4))
    lost = FailureRecord(FailureKind.OCS, ("ocs0",), START_NS + 1, START_NS + 2, START_NS + 3)
    result = run.result([lost])
    assert not [reason for reason in result.fidelity.reasons if "reconfigurations" in reason]


# --- instants ------------------------------------------------------------------------------------


class LateAgents(MemoryAgents):
    """Start together, but some time after the instant of their order."""

    def launch(self, flows: Any, start_ns: int | None, *others: Any) -> int:
        assert start_ns is not None
        return super().launch(flows, start_ns + 400_000_000, *others)


class HidingAgents(MemoryAgents):
    """Send at half their rate, while receivers report the times of the plan.

    Args:
        senders: Whether senders hide the true end, too.
    """

    def __init__(self, *arguments: Any, senders: bool = False) -> None:
        super().__init__(*arguments)
        self.senders = senders

    def _record(self, flow: PacedFlow, start: int, end: int, why: str) -> FlowRecord:
        record = super()._record(flow, start, end, why)
        return replace(record, acknowledged_ns=2 * end - start)

    def wait_ended(self, until_ns: int | None) -> dict[int, list[FlowRecord]]:
        return {
            number: [
                replace(record, acknowledged_ns=record.last_received_ns) if self.senders else record
                for record in records
            ]
            for number, records in super().wait_ended(until_ns).items()
        }


def test_agents_that_all_start_late_alike_are_caught() -> None:
    result = JudgedRun(agents=LateAgents, **DILATED).result()
    assert_caught(
        result, Verdict.INVALID, r"first agent starts .* 40\.0% .*\(worst: s\d, r0: .* dispatch"
    )


def test_slow_network_whose_receivers_report_the_plan_is_caught() -> None:
    result = JudgedRun(agents=HidingAgents).result()
    assert_caught(result, Verdict.INVALID, r"senders contradict s\d.* 100\.0% of the collective")


def test_slow_network_whose_agents_all_report_the_plan_is_caught() -> None:
    result = JudgedRun(agents=partial(HidingAgents, senders=True)).result()
    assert_caught(result, Verdict.INVALID, r"last byte to their report.* 100\.0% .*worst: r0: ")


# --- circuits ------------------------------------------------------------------------------------


class IdleController(MemoryController):
    """Keeps its circuits after the first demand, whatever the next ones are."""

    def reconfigure(self, demand: DemandMatrix, horizon: Horizon) -> CircuitChange:
        if not self.lit.circuits:
            return super().reconfigure(demand, horizon)
        return CircuitChange(self.lit, self.lit, ReconfigurationPhases())


class MisreadingController(MemoryController):
    """Plans for the demand of other servers than those that it was given."""

    def reconfigure(self, demand: DemandMatrix, horizon: Horizon) -> CircuitChange:
        moved = np.roll(demand.array, 1, axis=(0, 1))
        return super().reconfigure(DemandMatrix(demand.servers, moved), horizon)


@pytest.mark.parametrize("policy", [MIXNET, SPILL], ids=lambda policy: policy.name)
@pytest.mark.parametrize("controller", [IdleController, MisreadingController])
def test_controllers_that_ignore_demands_are_caught(controller: Any, policy: Policy) -> None:
    result = JudgedRun(controller=controller, policy=policy).result()
    culprit = r"r0: forward light of layer 0, iteration 1: not the circuits that the policy chooses"
    assert_caught(result, Verdict.INVALID, culprit)


def test_failure_of_the_region_explains_other_circuits() -> None:
    lost = FailureRecord(FailureKind.NIC, ("s1/o0",), START_NS, START_NS + 1, START_NS + 2)
    result = JudgedRun(controller=IdleController).result([lost])
    assert not [reason for reason in result.fidelity.reasons if "the policy chooses" in reason]


@pytest.mark.parametrize("predicted", [False, True], ids=["known", "predicted"])
def test_requests_for_another_demand_than_the_layers_are_caught(*, predicted: bool) -> None:
    def changed(light: Reconfigure) -> Reconfigure:
        return replace(light, demand=demand_of({(0, 3): 0.1}), predicted=predicted)

    result = JudgedRun(light=changed).result()
    if predicted:
        assert result.fidelity.reasons == []
    else:
        culprit = "r0: forward light of layer 0, iteration 1: its demand is not that of the layer"
        assert_caught(result, Verdict.INVALID, culprit)


class TwoPhases(Concurrent):
    """Sends to servers of greater numbers first."""

    def phases(self, demand: Any) -> Sequence[Any]:
        return np.triu(demand), np.tril(demand)


class PhasedRun(JudgedRun):
    """Each all-to-all has two phases, and tokens stay on their server, too."""

    def _operations(self, number: int) -> list[Operation]:
        whole = list[Operation]()
        for work in super()._operations(number):
            if isinstance(work, Collective | Reconfigure):
                demand = work.demand
                local = DemandMatrix(demand.servers, demand.array + 1e8 * np.eye(4))
                whole.append(replace(work, demand=local))
            else:
                whole.append(work)
        return list(ordered_operations(whole, TwoPhases()))


def test_requests_for_the_sum_of_phases_are_those_of_the_layer() -> None:
    assert PhasedRun().result().fidelity.reasons == []


@pytest.mark.parametrize(
    ("work_s", "control_s", "verdict", "reasons"),
    [
        pytest.param(0.06, None, Verdict.PASS, "", id="busy-machine"),
        pytest.param(0.2, None, Verdict.DEGRADED, r"takes [78]\.\d times .* over 5", id="8-times"),
        pytest.param(
            0.5, None, Verdict.INVALID, r"r0 with requests that move .* over 15", id="20-times"
        ),
        pytest.param(0.2, 0.3, Verdict.PASS, "", id="as-the-experiment-says"),
        pytest.param(
            0.2, 0.002, Verdict.INVALID, "takes 1.* over 15", id="not-as-the-experiment-says"
        ),
    ],
)
def test_slow_controllers_are_caught(
    work_s: float, control_s: float | None, verdict: Verdict, reasons: str
) -> None:
    controller = partial(MemoryController, work_ns=round(work_s * 1e9))
    result = JudgedRun(controller=controller, control_s=control_s).result(iterations=40)
    if reasons:
        assert_caught(result, verdict, reasons)
    else:
        assert (result.fidelity.verdict, result.fidelity.reasons) == (verdict, [])


# --- dark times ----------------------------------------------------------------------------------


class RandomOcsController(MemoryController):
    """Its OCS settles by its profile, or by another one.

    Args:
        settle: What the OCS really does.
    """

    def __init__(self, *arguments: Any, settle: SettleTime) -> None:
        super().__init__(*arguments)
        self._settling = Settling(settle, "seed")

    def reconfigure(self, demand: DemandMatrix, horizon: Horizon) -> CircuitChange:
        before, [region] = self.lit, self.fabric.regions
        self.lit = self.policy.circuits(self.fabric, region, demand, before)
        pairs = [(k, 100 + k) for k in range(2 * len(self.lit - before))]
        settle_ns = max(self._settling.times_ns(pairs, conflicts=False), default=0)
        self.clock.sleep_until(self.clock.now_ns() + settle_ns)
        settle_s = settle_ns / NS_PER_S
        phases = ReconfigurationPhases(settle_s=settle_s, total_s=settle_s)
        return CircuitChange(before, self.lit, phases)


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, Verdict.PASS), (0.9, Verdict.DEGRADED), (0.5, Verdict.INVALID)],
    ids=["as-its-profile-says", "early", "as-if-not-dilated"],
)
def test_light_that_comes_earlier_than_the_profile_says_is_caught(
    factor: float, verdict: Verdict
) -> None:
    """An OCS that settles at its own pace in a run dilated twofold takes half of its time."""
    profile = DeviceProfile(settle=SettleTime(fixed_ns=25_000_000))
    controller = partial(RandomOcsController, settle=profile.settle.scaled(factor))
    result = JudgedRun(controller=controller, profile=profile, control_s=0.0).result()
    if verdict is Verdict.PASS:
        assert (result.fidelity.verdict, result.fidelity.reasons) == (verdict, [])
    else:
        assert_caught(result, verdict, r"error of the dark time .*worst: ocs0.* -\d0\.0%")


MIXNET_OCS = load_profile("polatis-mixnet")
STEADY = replace(MIXNET_OCS.settle, fixed_ns=41_500_000, jitter_ns=0)


@pytest.mark.parametrize(
    ("settle", "verdict", "reasons"),
    [
        pytest.param(MIXNET_OCS.settle, Verdict.PASS, "", id="as-its-profile-says"),
        pytest.param(
            MIXNET_OCS.settle.scaled(1.3), Verdict.DEGRADED, r"mean dark time of ocs0 is \+[23]\d",
            id="slow",
        ),
        pytest.param(
            MIXNET_OCS.settle.scaled(3), Verdict.INVALID, "error of the dark time .*ocs0",
            id="stuck",
        ),
        pytest.param(STEADY, Verdict.DEGRADED, r"dark times of ocs0 vary 0\.", id="without-spread"),
    ],
)  # fmt: skip
def test_random_dark_times_are_judged_by_their_distribution(
    settle: SettleTime, verdict: Verdict, reasons: str
) -> None:
    controller = partial(RandomOcsController, settle=settle)
    run = JudgedRun(controller=controller, profile=MIXNET_OCS, control_s=0.0)
    result = run.result(iterations=40)
    if reasons:
        assert_caught(result, verdict, reasons)
    else:
        assert (result.fidelity.verdict, result.fidelity.reasons) == (verdict, [])
