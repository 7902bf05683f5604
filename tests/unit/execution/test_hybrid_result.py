"""The verdict on background flows, and what a result says about a hybrid run."""

import pytest

from moefabric.config.loader import load_experiment
from moefabric.core.units import Scale
from moefabric.execution.hybrid_result import with_hybrid
from moefabric.prediction.hybrid_jobs import HybridJobs
from moefabric.report.remarks import hybrid_text
from moefabric.results.model import FabricResult, Verdict
from moefabric.results.parts import CollectiveResult
from tests.support.paths import EXAMPLES


def background(seconds: float, counted: int = 1000) -> CollectiveResult:
    """Return a transfer of 1,000 bytes that takes a second in the model."""
    return CollectiveResult(
        kind="background", measured_s=seconds, planned_s=1.0, bytes=1000, bytes_by_eps=counted
    )


def judged(*sent: CollectiveResult) -> FabricResult:
    spec = load_experiment(EXAMPLES / "hybrid.yaml")
    jobs = HybridJobs.of(spec, spec.fabrics[0], "part", Scale(250, 16), EXAMPLES)
    passed = {"verdict": "pass", "completion_errors": {}}
    result = FabricResult.model_validate({"fidelity": passed, "transfers": list(sent)})
    return with_hybrid(result, spec, jobs)


def test_result_names_emulated_and_modelled_regions() -> None:
    result = judged(background(1.0))
    part = result.hybrid
    assert part is not None
    assert (part.emulated, part.regions, part.servers, part.gpus) == (["r1"], 8, 32, 256)
    assert not {"s4", "s5", "s6", "s7"} & set(part.peers)
    assert result.fidelity.verdict is Verdict.PASS
    line = "r1 is emulated in a modelled cluster of 8 regions, 32 servers and 256 GPUs"
    assert hybrid_text(part).startswith(line)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ([background(1.0), background(1.1), background(1.1)], "median of their rates -9.1%"),
        ([background(1.0)] * 9 + [background(2.0)], "5th percentile of their rates -50.0%"),
        ([background(1.0, counted=900)], "median of their rates -10.0%"),
    ],
)
def test_background_that_falls_behind_degrades_a_run(
    sent: list[CollectiveResult], reason: str
) -> None:
    fidelity = judged(*sent).fidelity
    assert fidelity.verdict is Verdict.DEGRADED
    assert reason in fidelity.reasons[0]
