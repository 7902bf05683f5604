"""One experiment at four dilations: the same iteration, wait and control time in model seconds."""

import pytest

from tests.bench.recording import record
from tests.support.command_home import new_home
from tests.support.dilation import (
    between_packets_s,
    describe,
    iteration_s,
    run_at,
    wait_s,
    without_control_s,
)

pytestmark = pytest.mark.kernel

DILATIONS = (25, 10, 2, 1)
BOUND, BOUND_UNDILATED = 0.02, 0.03
"""Greatest deviation from the run at dilation 25. Undilated, agents' lateness counts in full."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("control_time", ["40ms", "measured"])
def test_model_time_does_not_depend_on_the_dilation(control_time: str) -> None:
    """Measured control times differ by themselves; without them, iterations are equal."""
    settings = [f"control_time={control_time}"]
    with new_home() as home:
        runs = {d: run_at(d, home, settings) for d in DILATIONS}
    print(f"\ncontrol_time: {control_time}")
    for dilation, result in runs.items():
        print(describe(dilation, result))
    base = runs[DILATIONS[0]]
    fixed = control_time != "measured"
    for dilation, result in runs.items():
        bound = BOUND if dilation > 1 else BOUND_UNDILATED
        if result is not base:
            compared = {"iteration without control time": (without_control_s, bound)}
            if fixed:
                compared = {
                    "iteration without all-to-alls": (between_packets_s, 0.005),
                    "iteration": (iteration_s, bound),
                }
            for what, (seconds, most) in compared.items():
                name = f"{what}, from that at dilation 25, control time {control_time}"
                error = seconds(result) / seconds(base) - 1
                record(f"{name}: dilation {dilation}", "%", error, at_most=most)
        assert without_control_s(result) == pytest.approx(without_control_s(base), rel=bound)
        if fixed:
            assert between_packets_s(result) == pytest.approx(between_packets_s(base), rel=0.005)
            assert iteration_s(result) == pytest.approx(iteration_s(base), rel=bound)
            assert wait_s(result) == pytest.approx(wait_s(base), rel=bound)
