"""Verdict on a run: bounds on its measurements, and the worst finding decides."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.runner.fidelity import LabelledError, Observation, judge, worst_verdict
from moefabric.runner.result_model import Integrity, Verdict

INTACT = Integrity(bytes_sent=1000, bytes_received=1000, corrupt=0, lost_transfers=0)


def labelled(*errors: float, label: str = "c") -> list[LabelledError]:
    return [LabelledError(f"{label}{number}", error) for number, error in enumerate(errors)]


def collectives(*errors: float) -> dict[str, list[LabelledError]]:
    return {"collective": labelled(*errors)}


USUAL = collectives(*[0.01, -0.01, 0.03, -0.02] * 14)


GOOD = Observation(
    errors=USUAL,
    link_rate_errors=[LabelledError("s0/o1 to ocs", -0.01)],
    cpu_idle=[0.5, 0.4],
    lateness=[LabelledError("s1", 0.001)],
    integrity=INTACT,
)


def test_judge_passes_a_run_that_went_as_predicted() -> None:
    fidelity = judge(GOOD)
    assert (fidelity.verdict, fidelity.reasons) == (Verdict.PASS, [])
    assert fidelity.completion_error_p50 == pytest.approx(0.015)
    assert fidelity.completion_error_p95 == pytest.approx(0.03)
    assert fidelity.cpu_idle_min == 0.4
    assert fidelity.link_rate_error_p95 == pytest.approx(0.01)
    assert fidelity.start_lateness_p95 == pytest.approx(0.001)


def test_judge_reports_signed_errors_of_each_kind() -> None:
    errors = {"collective": labelled(*[-0.01] * 30, 0.04), "flow": labelled(0.01)}
    summaries = judge(replace(GOOD, errors=errors)).completion_errors
    collective = summaries["collective"]
    assert (collective.n, collective.p50, collective.min, collective.max) == (
        31,
        -0.01,
        -0.01,
        0.04,
    )
    assert (summaries["flow"].n, summaries["flow"].abs_p50) == (1, 0.01)


@pytest.mark.parametrize(
    ("change", "verdict", "reason"),
    [
        pytest.param(
            {"errors": collectives(0.0)},
            Verdict.DEGRADED,
            "1 collectives were judged; a 95th percentile needs 20",
            id="one-sample",
        ),
        pytest.param(
            {"errors": collectives(*[0.0] * 54, 99.0, 99.0)},
            Verdict.INVALID,
            "2 of 56 collective times are over three times their prediction "
            "(c54 +9900.0%; c55 +9900.0%)",
            id="two-of-56-a-hundred-times-late",
        ),
        pytest.param(
            {"errors": collectives(*[0.0] * 55, 2.5)},
            Verdict.DEGRADED,
            "1 of 56 collective times are over three times their prediction (c55 +250.0%)",
            id="one-of-56-late",
        ),
        pytest.param(
            {"errors": collectives(*[-0.099] * 56)},
            Verdict.INVALID,
            "bias (signed median -9.9%) of collective times against their predictions 9.9% "
            "is over 5%",
            id="all-fast",
        ),
        pytest.param(
            {"errors": collectives(*[-0.012] * 56)},
            Verdict.DEGRADED,
            "bias (signed median -1.2%) of collective times against their predictions 1.2% "
            "is over 1%",
            id="slight-bias",
        ),
        pytest.param(
            {"errors": collectives(*[0.199, -0.199] * 28)},
            Verdict.INVALID,
            "median error of collective times against their predictions 19.9% is over 10% "
            "(worst: c0 +19.9%)",
            id="unbiased-but-wrong",
        ),
        pytest.param(
            {"errors": collectives(*[0.0] * 9, *[0.3] * 15)},
            Verdict.INVALID,
            "95th percentile error of collective times against their predictions 30.0% "
            "is over 20% (worst: c9 +30.0%)",
            id="tail",
        ),
        pytest.param(
            {"errors": USUAL | {"iteration": labelled(0.03, 0.03)}},
            Verdict.DEGRADED,
            "median error of iteration times against their predictions 3.0% is over 2% "
            "(worst: c0 +3.0%)",
            id="late-iterations",
        ),
        pytest.param(
            {"errors": USUAL | {"all-reduce": labelled(0.3)}},
            Verdict.INVALID,
            "median error of all-reduce times against their predictions 30.0% is over 10% "
            "(worst: c0 +30.0%)",
            id="late-all-reduce",
        ),
        pytest.param(
            {"disturbed": 0.2},
            Verdict.DEGRADED,
            "share of collectives not judged (failures, CPU steal) 20.0% is over 10%",
            id="some-discarded",
        ),
        pytest.param(
            {"disturbed": 0.75, "errors": collectives(0.0)},
            Verdict.INVALID,
            "share of collectives not judged (failures, CPU steal) 75.0% is over 50%",
            id="three-quarters-discarded-and-one-left",
        ),
        pytest.param(
            {"cpu_idle": [0.9, 0.3]},
            Verdict.DEGRADED,
            "least idle share of the CPU 30.0% is under 35%",
            id="one-busy-sample",
        ),
        pytest.param(
            {"cpu_idle": [0.0], "errors": collectives(*[0.03] * 56)},
            Verdict.INVALID,
            "least idle share of the CPU 0.0% is under 10% and times are wrong: "
            "the machine was too slow",
            id="starved-with-errors",
        ),
        pytest.param(
            {"cpu_idle": []},
            Verdict.DEGRADED,
            "no CPU sample was taken while packets were under way",
            id="no-cpu-sample",
        ),
        pytest.param(
            {"lateness": [LabelledError("s3", 0.2)]},
            Verdict.INVALID,
            "95th percentile of how late agents start, as a share of the collective, 20.0% "
            "is over 15% (worst: s3 +20.0%)",
            id="late-agent",
        ),
        pytest.param(
            {"link_rate_errors": [LabelledError("s3/o1 to ocs", -0.5)]},
            Verdict.INVALID,
            "goodput of a full link against the planned one: error 50.0% is over 10% "
            "(s3/o1 to ocs -50.0%)",
            id="nic-at-half-its-rate",
        ),
        pytest.param(
            {
                "link_rate_errors": [LabelledError("s3/o1 to ocs", 0.03)] * 9
                + [LabelledError("s0/o1 to ocs", 0.0)] * 90
            },
            Verdict.DEGRADED,
            "goodput of a full link against the planned one: error 3.0% is over 2% "
            "(s3/o1 to ocs +3.0%)",
            id="one-nic-at-103-percent",
        ),
        pytest.param(
            {"settle_errors": [LabelledError("ocs0", 0.2)]},
            Verdict.DEGRADED,
            "error of the dark time of reconfigurations 20.0% is over 5% (worst: ocs0 +20.0%)",
            id="dark-for-too-long",
        ),
        pytest.param(
            {"misrouted": ["s0 to s1 by o2"]}, Verdict.INVALID, "s0 to s1 by o2", id="misrouted"
        ),
        pytest.param(
            {"violations": ["a", "b", "c", "d", "e"]},
            Verdict.INVALID,
            "and 2 more such faults",
            id="violations",
        ),
        pytest.param(
            {"integrity": INTACT.model_copy(update={"bytes_received": 999})},
            Verdict.INVALID,
            "1000 bytes were sent and 999 received",
            id="lost-byte",
        ),
        pytest.param(
            {"integrity": INTACT.model_copy(update={"corrupt": 1})},
            Verdict.INVALID,
            "1 transfers arrived changed",
            id="corrupt-transfer",
        ),
        pytest.param(
            {"integrity": INTACT.model_copy(update={"lost_transfers": 2})},
            Verdict.INVALID,
            "2 transfers did not arrive",
            id="lost-transfers",
        ),
        pytest.param(
            {"remarks": ["no netem here"]}, Verdict.DEGRADED, "no netem here", id="remark"
        ),
    ],
)
def test_judge_names_every_bound_that_is_exceeded(
    change: dict[str, object], verdict: Verdict, reason: str
) -> None:
    fidelity = judge(replace(GOOD, **change))  # type: ignore[arg-type]
    assert fidelity.verdict is verdict
    assert reason in fidelity.reasons


def test_judge_allows_plain_tcp_larger_errors() -> None:
    late = replace(GOOD, errors=collectives(*[0.08] * 56))
    assert judge(late).verdict is Verdict.INVALID
    assert judge(replace(late, paced=False)).verdict is Verdict.PASS


def test_judge_tolerates_a_starved_machine_whose_times_are_right() -> None:
    assert judge(replace(GOOD, cpu_idle=[0.0])).verdict is Verdict.DEGRADED


def test_judge_invalidates_a_run_without_measurements() -> None:
    nothing = Integrity(bytes_sent=0, bytes_received=0, corrupt=0, lost_transfers=0)
    fidelity = judge(Observation({}, [], [0.5], [], nothing))
    assert (fidelity.verdict, fidelity.reasons) == (Verdict.INVALID, ["no collective was measured"])
    assert fidelity.completion_error_p50 is None


@given(st.lists(st.sampled_from(Verdict)))
def test_worst_verdict_is_the_first_present_of_invalid_degraded_pass(
    verdicts: list[Verdict],
) -> None:
    expected = next((v for v in (Verdict.INVALID, Verdict.DEGRADED) if v in verdicts), Verdict.PASS)
    assert worst_verdict(verdicts) is expected
