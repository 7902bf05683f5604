"""The traits of kinds decide for how long a failure disturbs what was planned."""

import pytest

from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import FailureRecord


@pytest.mark.parametrize(
    ("kind", "component", "disturbed"),
    [
        pytest.param(FailureKind.SERVER, "s3", True, id="circuits-to-a-server-return"),
        pytest.param(FailureKind.OCS, "ocs0", True, id="circuits-of-an-ocs-return"),
        pytest.param(FailureKind.NIC, "s0/o1", True, id="a-circuit-returns"),
        pytest.param(FailureKind.NIC, "s0/e0", False, id="no-plan-considers-an-electrical-nic"),
        pytest.param(FailureKind.GPU, "s0/1", False, id="no-circuit-ends-at-a-gpu"),
    ],
)
def test_cleared_failure_disturbs_until_the_next_plan_if_circuits_return(
    kind: FailureKind, component: str, disturbed: bool
) -> None:
    record = FailureRecord(kind, (component,), 10, 11, 12, cleared_ns=40)
    assert record.disturbs(42, 43, planned_ns=[20, 45]) is disturbed
    assert not record.disturbs(46, 47, planned_ns=[20, 45])


@pytest.mark.parametrize(
    ("kind", "component", "disturbed"),
    [
        pytest.param(FailureKind.OCS_PORT, "s0/o1", True, id="the-next-plan-avoids-a-port"),
        pytest.param(FailureKind.SERVER, "s3", False, id="others-replace-a-server-at-once"),
    ],
)
def test_recovered_failure_disturbs_until_the_next_plan_if_it_avoids_circuits(
    kind: FailureKind, component: str, disturbed: bool
) -> None:
    record = FailureRecord(kind, (component,), 10, 11, 12)
    assert record.disturbs(13, 14, planned_ns=[20]) is disturbed
    assert not record.disturbs(21, 22, planned_ns=[20])
