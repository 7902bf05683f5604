"""The same experiment at two dilations on packets: equal model time."""

import pytest

from moefabric.runner.result_model import Verdict
from tests.kernel.fabric_lab import NEEDS
from tests.support.dilation import (
    between_packets_s,
    describe,
    iteration_s,
    own_namespace,
    run_at,
    wait_s,
)

pytestmark = NEEDS

SETTINGS = ["control_time=40ms", "training.iterations=2", "model.layers=2"]
"""A control time that is long enough for a busy machine."""


@pytest.mark.timeout(200)
def test_iteration_and_wait_are_those_of_another_dilation() -> None:
    with own_namespace() as (folder, netns):
        fast, slow = (run_at(dilation, folder, netns, SETTINGS) for dilation in (4, 12))
    print("\n".join(["", describe(4, fast), describe(12, slow)]))
    assert between_packets_s(fast) == pytest.approx(between_packets_s(slow), rel=0.005)
    assert wait_s(fast) == pytest.approx(0.040 + 0.025, rel=0.02)
    assert wait_s(fast) == pytest.approx(wait_s(slow), rel=0.02)
    if Verdict.INVALID in (fast.fidelity.verdict, slow.fidelity.verdict):
        pytest.skip("the machine is too slow for packets; all that isn't packets is equal")
    assert iteration_s(fast) == pytest.approx(iteration_s(slow), rel=0.02)
