"""Verdict on a run: bounds on its measurements, and the worst finding decides."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.results.model import FidelityResult, Integrity, Verdict, VerdictFinding
from moefabric.results.verdict.measurements import Errors, FabricMeasurements
from moefabric.results.verdict.reasons import (
    BUSY,
    CIRCUMSTANCE,
    FEW_COLLECTIVES,
    LATENESS,
    LOST_TRANSFERS,
    LabelledError,
    Reason,
    RunSetting,
    with_remedies,
)
from moefabric.results.verdict.verdict import judge, worst_verdict

INTACT = Integrity(bytes_sent=1000, bytes_received=1000, corrupt=0, lost_transfers=0)


def labelled(*errors: float, label: str = "c") -> Errors:
    return Errors.of(
        LabelledError(f"{label}{number}", error) for number, error in enumerate(errors)
    )


def named(label: str, error: float) -> Errors:
    return Errors.of([LabelledError(label, error)])


def collectives(*errors: float) -> dict[str, Errors]:
    return {"collective": labelled(*errors)}


USUAL = collectives(*[0.01, -0.01, 0.03, -0.02] * 14)


def measured(**change: Any) -> FabricMeasurements:
    """Return the measurements of a good run with a change."""
    good: dict[str, Any] = {
        "errors": USUAL,
        "links": {"s0/o1 to ocs": [-0.01]},
        "cpu_idle": [0.5, 0.4],
        "lateness": named("s1", 0.001),
        "integrity": INTACT,
    }
    return FabricMeasurements(**good | change)


def test_judge_passes_a_run_that_went_as_predicted() -> None:
    fidelity = judge(measured())
    assert (fidelity.verdict, fidelity.reasons) == (Verdict.PASS, [])
    assert fidelity.completion_error_p50 == pytest.approx(0.015)
    assert fidelity.completion_error_p95 == pytest.approx(0.03)
    assert fidelity.cpu_idle_min == 0.4
    assert fidelity.link_rate_error_p95 == pytest.approx(0.01)
    assert fidelity.start_lateness_p95 == pytest.approx(0.001)


def test_failed_reconfigurations_are_the_first_reasons_and_their_fault_is_the_very_first() -> None:
    failed = {"requests": {"r0": 1}, "refusals": {"r0": 1}, "failed_changes": ["r0: no idea"]}
    reasons = judge(measured(errors=collectives(0.5), cpu_idle=[0.0], **failed)).reasons
    assert reasons[0] == "1 of 1 reconfigurations failed (r0: no idea)"
    assert reasons[1].startswith("r0: none of 1 requests for circuits was granted")
    assert len(reasons) > 3


def test_judge_reports_signed_errors_of_each_kind() -> None:
    errors = {"collective": labelled(*[-0.01] * 30, 0.04), "flow": labelled(0.01)}
    summaries = judge(measured(errors=errors)).completion_errors
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
            "2 of 56 collective times are over 50% too long, or 33% too short "
            "(c54 +9900.0%; c55 +9900.0%)",
            id="two-of-56-a-hundred-times-late",
        ),
        pytest.param(
            {"errors": collectives(*[0.0] * 55, 2.5)},
            Verdict.DEGRADED,
            "1 of 56 collective times are over 50% too long, or 33% too short (c55 +250.0%)",
            id="one-of-56-late",
        ),
        pytest.param(
            {"errors": collectives(*[0.0] * 84, *[1.5] * 4)},
            Verdict.DEGRADED,
            "4 of 88 collective times are over 50% too long, or 33% too short "
            "(c84 +150.0%; c85 +150.0%; c86 +150.0%)",
            id="four-of-88-at-2.5-times",
        ),
        pytest.param(
            {"errors": collectives(*[0.0] * 87, -0.4)},
            Verdict.DEGRADED,
            "1 of 88 collective times are over 50% too long, or 33% too short (c87 -40.0%)",
            id="one-of-88-too-fast",
        ),
        pytest.param(
            {"errors": USUAL | {"iteration": labelled(*[0.0] * 21, 1.9)}},
            Verdict.DEGRADED,
            "1 of 22 iteration times are over 50% too long, or 33% too short (c21 +190.0%)",
            id="one-of-22-iterations",
        ),
        pytest.param(
            {"dark_time": labelled(*[0.0] * 58, 39.0, 39.0)},
            Verdict.INVALID,
            "2 of 60 dark times of reconfigurations are over 50% too long, or 33% too short "
            "(c58 +3900.0%; c59 +3900.0%)",
            id="two-of-60-dark-for-40-times-as-long",
        ),
        pytest.param(
            {"starts": labelled(*[0.0] * 50, 0.6)},
            Verdict.DEGRADED,
            "1 of 51 starts of collectives are over 50% too long, or 33% too short (c50 +60.0%)",
            id="one-late-start",
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
            {"collectives": 5, "judged": 4},
            Verdict.DEGRADED,
            "share of collectives not judged (failures, CPU steal) 20.0% is over 10%",
            id="some-discarded",
        ),
        pytest.param(
            {"collectives": 4, "judged": 1, "errors": collectives(0.0)},
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
            {"lateness": named("s3", 0.2)},
            Verdict.INVALID,
            "95th percentile of how late agents start, as a share of the collective, 20.0% "
            "is over 15% (worst: s3 +20.0%)",
            id="late-agent",
        ),
        pytest.param(
            {"starts": named("s2, r0: dispatch", 0.12)},
            Verdict.DEGRADED,
            "95th percentile of how late the first agent starts after its order's instant, as a "
            "share of the collective, 12.0% is over 10% (worst: s2, r0: dispatch +12.0%)",
            id="all-agents-late",
        ),
        pytest.param(
            {"reports": named("r0: dispatch", 0.6)},
            Verdict.INVALID,
            "median of how long agents take from a collective's last byte to their report, as a "
            "share of the collective, 60.0% is over 50% (worst: r0: dispatch +60.0%)",
            id="late-reports",
        ),
        pytest.param(
            {"arrivals": {"s0": [0.01] * 3, "s1": [0.0, 0.1, 0.1], "s2": [-0.2]}},
            Verdict.INVALID,
            "senders contradict s2, which says that bytes arrived earlier or later: median 20.0% "
            "of the collective is over 15%",
            id="arrivals-after-their-acknowledgement",
        ),
        pytest.param(
            {"arrivals": {"s0": [0.01] * 3, "s1": [0.0, 0.1, 0.1]}},
            Verdict.DEGRADED,
            "senders contradict s1, which says that bytes arrived earlier or later: median 10.0% "
            "of the collective is over 5%",
            id="arrivals-before-their-acknowledgement",
        ),
        pytest.param(
            {"links": {"s3/o1 to ocs": [-0.5]}},
            Verdict.INVALID,
            "goodput of a full link against the planned one: error 50.0% is over 10% "
            "(s3/o1 to ocs -50.0%)",
            id="nic-at-half-its-rate",
        ),
        pytest.param(
            {"links": {"s3/o1 to ocs": [0.03] * 9, "s0/o1 to ocs": [0.0] * 90}},
            Verdict.DEGRADED,
            "goodput of a full link against the planned one: error 3.0% is over 2% "
            "(s3/o1 to ocs +3.0%)",
            id="one-nic-at-103-percent",
        ),
        pytest.param(
            {"dark_time": named("ocs0", 0.2)},
            Verdict.DEGRADED,
            "error of the dark time of reconfigurations 20.0% is over 5% (worst: ocs0 +20.0%)",
            id="dark-for-too-long",
        ),
        pytest.param(
            {"misrouted": ["s0 to s1 by o2"]}, Verdict.INVALID, "s0 to s1 by o2", id="misrouted"
        ),
        pytest.param(
            {"contradictions": ["a", "b", "c", "d", "e"]},
            Verdict.INVALID,
            "and 2 more such faults",
            id="contradictions",
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
            {
                "repetitions": 30,
                "most_repetitions": (20, "from s0 to s1 by e0"),
                "judged_bytes": 10**6,
            },
            Verdict.DEGRADED,
            "30 TCP segments were sent again, most from s0 to s1 by e0 (20): "
            "a queue or link dropped frames",
            id="repetitions",
        ),
        pytest.param(
            {
                "requests": {"r0": 5, "r1": 4},
                "failed_changes": ["r0: a", "r0: b", "r0: a", "r1: c", "r1: d"],
            },
            Verdict.DEGRADED,
            "5 of 9 reconfigurations failed (r0: a; r0: b; r1: c; and 1 more)",
            id="failed-reconfigurations",
        ),
        pytest.param(
            {"requests": {"r0": 5, "r1": 4}, "refusals": {"r0": 1, "r1": 4}},
            Verdict.INVALID,
            "r1: none of 4 requests for circuits was granted: the policy had no light",
            id="region-without-light",
        ),
        pytest.param(
            {"control": {"r0 with requests that move circuits": [1.0, 6.0, 7.0]}},
            Verdict.DEGRADED,
            "the controller of r0 with requests that move circuits takes 6.0 times the expected "
            "time in the median, over 5",
            id="slow-controller",
        ),
        pytest.param({"circuits": ["r0: a"]}, Verdict.INVALID, "r0: a", id="other-circuits"),
    ],
)
def test_judge_names_every_bound_that_is_exceeded(
    change: dict[str, object], verdict: Verdict, reason: str
) -> None:
    fidelity = judge(measured(**change))
    assert fidelity.verdict is verdict
    assert reason in fidelity.reasons


def test_judge_allows_plain_tcp_larger_errors() -> None:
    late = measured(errors=collectives(*[0.08] * 56))
    assert judge(late).verdict is Verdict.INVALID
    assert judge(late, paced=False).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("segments", "verdict"), [(4, Verdict.PASS), (6, Verdict.DEGRADED), (21, Verdict.INVALID)]
)
def test_judge_bounds_what_plain_tcp_sends_again(segments: int, verdict: Verdict) -> None:
    share = {"judged_bytes": 100 * 1500, "repetitions": segments}
    fidelity = judge(measured(**share, most_repetitions=(3, "from s0 to s1 by e0")), paced=False)
    assert fidelity.verdict is verdict
    assert any("most from s0 to s1 by e0 (3)" in r for r in fidelity.reasons) == bool(
        fidelity.reasons
    )


def test_one_sample_of_two_judges_no_link_and_no_server() -> None:
    one = judge(measured(links={"s2/o1 to ocs": [-0.002, -0.041]}, arrivals={"s0": [0.2, 0.0]}))
    assert one.reasons == []
    both = judge(measured(links={"s2/o1 to ocs": [-0.03, -0.041]}))
    assert [reason.partition(": ")[2] for reason in both.reasons] == [
        "error 3.0% is over 2% (s2/o1 to ocs -3.0%)"
    ]


def test_outliers_are_those_of_the_samples_own_spread() -> None:
    """Plain TCP varies: 110 % are too much only where others are within some per cent."""
    spread = [0.15 * (number % 11 - 5) / 5 for number in range(88)]
    steady = [0.01 * one for one in spread]
    varied, single = (measured(errors=collectives(*all_, 1.1)) for all_ in (spread, steady))
    assert judge(varied, paced=False).verdict is Verdict.PASS
    assert judge(single, paced=False).verdict is Verdict.DEGRADED
    slower = measured(errors=collectives(*steady, 0.6))
    assert judge(slower, paced=False).verdict is Verdict.PASS
    assert judge(slower).verdict is Verdict.DEGRADED


def test_acknowledgements_may_wait_in_the_queues_of_greedy_senders() -> None:
    waiting = measured(arrivals={"s1": [0.18] * 3})
    assert judge(waiting).verdict is Verdict.INVALID
    assert judge(waiting, paced=False).verdict is Verdict.PASS
    hidden = measured(arrivals={"s1": [1.0] * 3})
    assert judge(hidden, paced=False).verdict is Verdict.INVALID


def test_judge_tolerates_a_starved_machine_whose_times_are_right() -> None:
    assert judge(measured(cpu_idle=[0.0])).verdict is Verdict.DEGRADED


def test_judge_invalidates_a_run_without_measurements() -> None:
    nothing = Integrity(bytes_sent=0, bytes_received=0, corrupt=0, lost_transfers=0)
    fidelity = judge(FabricMeasurements(cpu_idle=[0.5], integrity=nothing))
    assert (fidelity.verdict, fidelity.reasons) == (Verdict.INVALID, ["no collective was measured"])
    assert fidelity.completion_error_p50 is None


def test_judge_counts_findings_from_elsewhere() -> None:
    fidelity = judge(measured(), CIRCUMSTANCE.judge_each(["no netem here"]))
    assert (fidelity.verdict, fidelity.reasons) == (Verdict.DEGRADED, ["no netem here"])


@pytest.mark.parametrize(
    ("value", "paced", "findings"),
    [
        (0.1, True, []),
        (0.2, True, [(Verdict.DEGRADED, "s0: 0.2 over 0.1")]),
        (0.6, True, [(Verdict.INVALID, "s0: 0.6 over 0.5")]),
        (0.6, False, [(Verdict.DEGRADED, "s0: 0.6 over 0.3")]),
    ],
)
def test_reason_has_the_verdict_of_the_bound_that_its_value_exceeds(
    value: float, paced: bool, findings: list[tuple[Verdict, str]]
) -> None:
    reason = Reason("{place}: {value} over {limit}", (0.1, 0.5), tcp=(0.3, None))
    judged = reason.judge(value, paced=paced, place="s0")
    assert [(finding.verdict, finding.text) for finding in judged] == findings


def test_each_reason_has_its_own_verdict_and_figures() -> None:
    errors = collectives(*[0.03] * 56)  # median and bias degrade; a lost transfer invalidates
    lost = Integrity(bytes_sent=9, bytes_received=9, corrupt=0, lost_transfers=1)
    fidelity = judge(measured(errors=errors, integrity=lost))
    own = {finding.text.partition(" of ")[0]: finding for finding in fidelity.findings}
    assert [finding.text for finding in fidelity.findings] == fidelity.reasons
    assert fidelity.verdict is Verdict.INVALID
    assert own["median error"].verdict is Verdict.DEGRADED
    assert own["median error"].value == pytest.approx(0.03)
    assert own["median error"].limit == pytest.approx(0.02)
    assert own["1 transfers did not arrive"].verdict is Verdict.INVALID


@pytest.mark.parametrize(
    ("reason", "value", "remedy"),
    [
        pytest.param(FEW_COLLECTIVES, 16, "training.iterations: 4", id="too-few-samples"),
        pytest.param(BUSY, 0.051, "scale: {bytes: 50, dilation: 280}", id="busy-cores"),
        pytest.param(LATENESS, 0.06, "scale: {bytes: 50, dilation: 230}", id="late-starts"),
        pytest.param(LATENESS, 0.9, "scale: {bytes: 50, dilation: 690}", id="slowed-down-4-times"),
        pytest.param(LOST_TRANSFERS, 1, "", id="nothing-to-change"),
    ],
)
def test_remedy_names_key_and_number(reason: Reason, value: float, remedy: str) -> None:
    (found,) = reason.judge(value, place="s0")
    setting = RunSetting(bytes_scale=50, dilation=172, iterations=3)
    (result,) = with_remedies([found], setting)
    assert result.remedy.endswith(remedy)
    assert bool(result.remedy) == bool(remedy)


def test_findings_share_the_remedy_of_the_worst() -> None:
    findings = [
        *LATENESS.judge(0.06, place="s0"),
        *BUSY.judge(0.05),
        *LATENESS.judge(0.1, place="s1"),
    ]
    remedies = {one.remedy for one in with_remedies(findings, RunSetting(50, 100))}
    assert len(remedies) == 1
    assert remedies.pop().endswith("scale: {bytes: 50, dilation: 220}")


def test_a_remedy_that_another_contains_is_left_out() -> None:
    alone = "run it with nothing else on the machine"
    remedies = [alone, f"{alone}, or slow it down: --seconds 4", "training.iterations: 20", ""]
    findings = [VerdictFinding(verdict=Verdict.DEGRADED, text="", remedy=r) for r in remedies]
    fidelity = FidelityResult(verdict=Verdict.DEGRADED, findings=findings)
    assert fidelity.remedies == remedies[1:3]


@pytest.mark.parametrize("parts", [1, 2, 8])
def test_measurements_of_iterations_add_up(parts: int) -> None:
    """However a run is cut into iterations, the verdict is that on all of it."""
    errors = [-3.0, 2.5, 0.1, 2.1, 4.0, -0.2, 2.2, 0.0]
    size = len(errors) // parts
    total = FabricMeasurements()
    for start in range(0, len(errors), size):
        listed = [LabelledError(str(error), error) for error in errors[start : start + size]]
        total.add(
            FabricMeasurements(
                errors={"collective": Errors.of(listed)},
                links={"s0/o0 to ocs": [one.error for one in listed]},
                most_repetitions=(start + 1, str(9 - start)),
                misrouted=[one.label for one in listed],
                requests={"r0": len(listed)},
                integrity=Integrity(corrupt=len(listed)),
            )
        )
    found = total.errors["collective"]
    assert (list(found.values), found.worst) == (errors, ("4.0", 4.0))
    assert [one.error for one in found.outliers(2.0)] == [4.0, -3.0, 2.5]
    assert list(total.links["s0/o0 to ocs"]) == errors
    assert total.most_repetitions == (len(errors) - size + 1, str(9 - len(errors) + size))
    assert total.requests == {"r0": 8}
    assert {value for name, value in total.integrity if name != "corrupt"} == {0}
    assert total.integrity.corrupt == 8
    assert total.misrouted == [str(error) for error in errors]
    assert FabricMeasurements.model_validate_json(total.model_dump_json()) == total


@given(st.lists(st.sampled_from(Verdict)))
def test_worst_verdict_is_the_first_present_of_invalid_degraded_pass(
    verdicts: list[Verdict],
) -> None:
    expected = next((v for v in (Verdict.INVALID, Verdict.DEGRADED) if v in verdicts), Verdict.PASS)
    assert worst_verdict(verdicts) is expected


@pytest.mark.parametrize(
    ("change", "is_fixed"),
    [({}, True), ({"control": {}}, False), ({"errors": collectives(*[0.03] * 56)}, False)],
    ids=["iterations-alone", "no-request", "collectives-too"],
)
def test_controllers_speed_is_the_remedy_of_iterations_whose_transfers_are_right(
    change: dict[str, Any], is_fixed: bool
) -> None:
    late = {
        "errors": USUAL | change.pop("errors", {}) | {"iteration": labelled(0.03, 0.03)},
        "control": {"changes of r0": [1.0, 3.0]},
        "cpu_idle": [0.0],
    }
    setting = RunSetting(33, 32, measured_control=True)
    remedies = judge(measured(**late | change), setting=setting).remedies
    assert ["control_time: 25ms" in remedy for remedy in remedies] == [is_fixed]
    assert "scale: " in judge(measured(**late)).remedies[0]


def test_verdict_in_short_begins_with_the_reason_that_decides_it() -> None:
    starved = {"cpu_idle": [0.0], "errors": collectives(*[0.03] * 56)}
    text = "least idle share of the CPU 0.0% is under 10% and times are wrong"
    shown = judge(measured(**starved)).in_short
    assert shown == f"invalid; {text}: the machine was too slow; and 2 more reasons"
    assert judge(measured()).in_short == "pass"
