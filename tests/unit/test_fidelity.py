"""A run is judged by what was seen; the worst of it counts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.fidelity import Observation, Verdict, judge, worst

GOOD = Observation(
    completion_errors=[0.01, -0.02, 0.03],
    link_rate_errors=[-0.01],
    cpu_idle=[0.5, 0.4],
    lateness=[0.001],
    bytes_sent=1000,
    bytes_received=1000,
    corrupt=0,
    lost_transfers=0,
)


def test_a_run_that_went_as_predicted_passes_with_its_figures() -> None:
    said = judge(GOOD)
    assert (said.verdict, said.reasons) == (Verdict.PASS, ())
    assert said.completion_error_p50 == pytest.approx(0.02)
    assert said.completion_error_p95 == pytest.approx(0.029)
    assert said.cpu_idle_min == 0.4
    assert said.link_rate_error_p95 == pytest.approx(0.01)
    assert said.start_lateness_p95 == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("seen", "verdict", "reason"),
    [
        pytest.param(
            {"completion_errors": [0.15] * 3},
            Verdict.DEGRADED,
            "median error of completion times against the fluid prediction 15.0% is over 10%",
            id="somewhat-late",
        ),
        pytest.param(
            {"completion_errors": [-0.25] * 3},
            Verdict.INVALID,
            "median error of completion times against the fluid prediction 25.0% is over 20%",
            id="too-early-counts-as-much-as-too-late",
        ),
        pytest.param(
            {"completion_errors": [0.0] * 9 + [0.9]},
            Verdict.INVALID,
            "95th percentile error of completion times against the fluid prediction 49.5% is over 40%",
            id="one-in-ten-far-out",
        ),
        pytest.param(
            {"disturbed": 0.3},
            Verdict.DEGRADED,
            "share of collectives during which others had this machine's CPU 30.0% is over 25%",
            id="a-shared-machine",
        ),
        pytest.param(
            {"disturbed": 0.8},
            Verdict.INVALID,
            "share of collectives during which others had this machine's CPU 80.0% is over 75%",
            id="a-machine-of-others",
        ),
        pytest.param(
            {"cpu_idle": [0.9, 0.3]},
            Verdict.DEGRADED,
            "least CPU idle time is too small: busy share 70.0% is over 65%",
            id="one-busy-second",
        ),
        pytest.param(
            {"lateness": [0.2]},
            Verdict.INVALID,
            "95th percentile of how late agents start, as a share of the collective, 20.0% is over 15%",
            id="a-straggling-agent",
        ),
        pytest.param(
            {"link_rate_errors": [-0.12]},
            Verdict.DEGRADED,
            "95th percentile error of full links' goodput against the planned one 12.0% is over 10%",
            id="links-not-as-fast-as-planned",
        ),
        pytest.param(
            {"bytes_received": 999},
            Verdict.INVALID,
            "1000 bytes were sent and 999 received",
            id="a-byte-lost",
        ),
        pytest.param({"corrupt": 1}, Verdict.INVALID, "1 transfers arrived changed", id="a-transfer-changed"),
        pytest.param(
            {"lost_transfers": 2}, Verdict.INVALID, "2 transfers did not arrive", id="transfers-lost"
        ),
        pytest.param({"remarks": ["no netem here"]}, Verdict.DEGRADED, "no netem here", id="a-remark"),
    ],
)
def test_what_is_wrong_with_a_run_is_said(seen: dict[str, object], verdict: Verdict, reason: str) -> None:
    said = judge(replace(GOOD, **seen))  # type: ignore[arg-type]
    assert said.verdict is verdict
    assert reason in said.reasons


def test_a_run_in_which_nothing_was_measured_is_invalid() -> None:
    said = judge(Observation([], [], [], [], 0, 0, 0, 0))
    assert (said.verdict, said.reasons) == (Verdict.INVALID, ("no collective was measured",))
    assert said.completion_error_p50 is None


@given(st.lists(st.sampled_from(Verdict)))
def test_the_worst_verdict_counts(verdicts: list[Verdict]) -> None:
    expected = next((v for v in (Verdict.INVALID, Verdict.DEGRADED) if v in verdicts), Verdict.PASS)
    assert worst(verdicts) is expected
