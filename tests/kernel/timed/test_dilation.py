"""The same experiment at two dilations on packets: equal model time."""

from functools import partial

import pytest

from moefabric.results.model import FabricResult, Verdict
from tests.support.attempts import measurements
from tests.support.command_home import new_home
from tests.support.dilation import between_packets_s, describe, iteration_s, run_at, wait_s
from tests.support.slow_machines import unaccepted

pytestmark = [pytest.mark.ovs, pytest.mark.nightly]

SETTINGS = ["control_time=40ms", "training.iterations=2", "model.layers=2"]
"""A control time that is long enough for a busy machine."""


def is_valid(result: FabricResult) -> bool:
    return result.fidelity.verdict is not Verdict.INVALID


@pytest.mark.timeout(400)
def test_iteration_and_wait_are_those_of_another_dilation() -> None:
    with new_home() as home:
        fast, slow = (
            min(
                measurements(partial(run_at, dilation, home, SETTINGS), is_valid, 3),
                key=lambda result: (not is_valid(result), iteration_s(result)),
            )
            for dilation in (4, 12)
        )
    print("\n".join(["", describe(4, fast), describe(12, slow)]))
    assert between_packets_s(fast) == pytest.approx(between_packets_s(slow), rel=0.005)
    assert wait_s(fast) == pytest.approx(0.040 + 0.025, rel=0.02)
    assert wait_s(fast) == pytest.approx(wait_s(slow), rel=0.02)
    assert unaccepted([*fast.fidelity.reasons, *slow.fidelity.reasons]) == []
    equal = iteration_s(fast) == pytest.approx(iteration_s(slow), rel=0.02)
    if not equal and not (is_valid(fast) and is_valid(slow)):
        pytest.skip("the machine is too slow for packets; all that isn't packets is equal")
    assert equal
