"""Reasons and remedies as a run shows them: consequences counted, remedies for all fabrics."""

from typing import Any

from moefabric.report.findings import shared_remedies, shown_findings
from moefabric.report.page import page
from moefabric.report.summary import FabricSummary, summaries
from moefabric.report.table import text
from moefabric.results.model import RunResult
from moefabric.results.verdict import reasons
from moefabric.results.verdict.reasons import RunFinding, RunSetting, with_remedies


def fabrics(**findings: tuple[RunSetting, list[RunFinding]]) -> tuple[RunResult, Any]:
    """Return a run whose fabrics, by name, have these findings at a scale."""
    results = [
        {
            "fabric": name,
            "policy": name,
            "fidelity": {
                "verdict": "invalid",
                "reasons": [one.text for one in listed],
                "findings": [one.to_json() for one in with_remedies(listed, setting)],
            },
        }
        for name, (setting, listed) in findings.items()
    ]
    run = RunResult.model_validate({"results": results})
    return run, summaries(run)


def late(value: float) -> list[RunFinding]:
    return [*reasons.LATENESS.judge(value, place="s0")]


STARVED = [*reasons.STARVED.judge(0.001)]
LOST = [*reasons.MANY_OUTLIERS.judge(3, count=9, kind="flow", share=0.5, short=0.3, place="s0")]
FEW = [*reasons.FEW_COLLECTIVES.judge(5)]


def test_scale_of_remedies_serves_every_fabric_and_is_said_once() -> None:
    run, shown = fabrics(
        eps=(RunSetting(120, 30), late(0.5)),
        mixnet=(RunSetting(270, 13), late(0.08)),
        own=(RunSetting(270, 13), late(0.5)),
    )
    assert [one.result.fidelity.remedies[0].partition("scale: ")[2] for one in shown] == [
        "{bytes: 120, dilation: 120}", "{bytes: 270, dilation: 23}", "{bytes: 270, dilation: 52}"
    ]  # fmt: skip
    alone = f"{reasons.ALONE}, or slow it down"
    remedy = f"{alone}: scale: {{bytes: 120, dilation: 120}}, which serves all fabrics"
    assert shared_remedies(shown) == {remedy: ["eps", "mixnet", "own"]}
    assert " ".join(text(run).split()).count(f"remedy for eps, mixnet, own: {remedy}") == 1
    assert page(run).count(remedy) == 1


def test_common_scale_sends_no_fewer_bytes_and_is_no_faster_than_each() -> None:
    _, shown = fabrics(a=(RunSetting(100, 10), late(0.08)), b=(RunSetting(400, 10), late(0.08)))
    (remedy,) = shared_remedies(shown)
    assert "scale: {bytes: 100, dilation: 72}, which serves" in remedy  # 400 x 18


def test_iterations_of_remedies_are_the_most_and_a_remedy_within_another_is_left_out() -> None:
    outliers = [*reasons.FEW_OUTLIERS.judge(1, count=9, kind="f", share=0.5, short=0.3, place="s")]
    _, shown = fabrics(
        a=(RunSetting(1, 10, 1), FEW),
        b=(RunSetting(1, 10, 4), [*FEW, *outliers, *late(0.08)]),
        c=(RunSetting(1, 10, 4), outliers),
    )
    remedies = shared_remedies(shown)
    assert remedies["training.iterations: 16"] == ["a", "b"]
    assert remedies[reasons.ALONE] == ["c"]
    assert len(remedies) == 3


def texts(summary: FabricSummary) -> list[str]:
    return [one.text for one in shown_findings(summary)]


def test_reasons_that_follow_from_a_busy_cpu_are_counted() -> None:
    _, (busy, idle) = fabrics(
        busy=(RunSetting(1, 10), [*late(0.2), *late(0.08), *LOST, *STARVED]),
        idle=(RunSetting(1, 10), [*late(0.2), *late(0.08)]),
    )
    cause, counted, lost = shown_findings(busy)
    assert cause.text == STARVED[0].text
    assert counted.text.startswith("2 more reasons that follow from this are in .fidelity.findings")
    assert counted.verdict == "invalid"
    assert lost.text == LOST[0].text
    assert len(texts(idle)) == 2
    assert len(busy.findings) == 4
