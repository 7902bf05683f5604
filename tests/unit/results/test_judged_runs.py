"""False runs in memory, each of which the verdict has to catch, with the name of the culprit."""

import re
from functools import partial
from typing import Any

import pytest

from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import ControlError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import FailureRecord
from moefabric.core.units import Scale
from moefabric.planner.horizon import Horizon
from moefabric.results.model import FabricResult, Verdict
from moefabric.results.records.records import CircuitChange
from tests.support.judged_runs import JudgedRun
from tests.support.memory_testbed import MemoryController

START_NS = 10**12
"""When runs begin."""


def assert_caught(result: FabricResult, verdict: Verdict, culprit: str) -> None:
    """Check the verdict, and that a reason matches the regular expression of the culprit."""
    reasons = result.fidelity.reasons
    assert any(re.search(culprit, reason) for reason in reasons), reasons
    assert result.fidelity.verdict is verdict, reasons


@pytest.mark.parametrize("dilation", [1, 10])
def test_run_without_fault_passes(dilation: int) -> None:
    wiring = {"scale": Scale(1, dilation), "settle_ns": 25_000_000 * dilation}
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
