"""False runs in memory, each of which the verdict has to catch, with the name of the culprit."""

import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import ControlError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import FailureRecord
from moefabric.core.flows import FlowRecord, PacedFlow
from moefabric.core.units import Scale
from moefabric.planner.horizon import Horizon
from moefabric.results.model import FabricResult, Verdict
from moefabric.results.records.records import CircuitChange
from tests.support.judged_runs import JudgedRun
from tests.support.memory_testbed import MemoryAgents, MemoryController

START_NS = 10**12
"""When runs begin."""
DILATED = {"scale": Scale(1, 10), "settle_ns": 250_000_000}


def assert_caught(result: FabricResult, verdict: Verdict, culprit: str) -> None:
    """Check the verdict, and that a reason matches the regular expression of the culprit."""
    reasons = result.fidelity.reasons
    assert any(re.search(culprit, reason) for reason in reasons), reasons
    assert result.fidelity.verdict is verdict, reasons


@pytest.mark.parametrize("wiring", [{}, DILATED], ids=["plain", "dilated"])
def test_run_without_fault_passes(wiring: dict[str, Any]) -> None:
    fidelity = JudgedRun(**wiring).result().fidelity
    assert (fidelity.verdict, fidelity.reasons) == (Verdict.PASS, [])


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
