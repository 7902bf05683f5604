"""HybridEP's study: its file, its measures and its tables, with recorded runs."""

from pathlib import Path

import pytest
from moefabric_studies.systems.hybrid_ep.bench import LayerRun
from moefabric_studies.systems.hybrid_ep.codec_training import CodecUse, trained_loss
from moefabric_studies.systems.hybrid_ep.graph import plain_pass
from moefabric_studies.systems.hybrid_ep.report import speed_up
from moefabric_studies.systems.hybrid_ep.setup import Setup
from moefabric_studies.systems.study import Measure, load_study

from moefabric.config.loader import fabric_of
from moefabric.core.topology import uplink_rate_bps
from moefabric.execution.programs.replay import ReplayResult
from moefabric.results.model import FidelityResult, Verdict

STUDY = Path("examples/systems/hybridep.yaml")


def layer_run(*seconds: float, verdict: str = "pass") -> LayerRun:
    result = ReplayResult(
        "layer", "fabric", 8, 8, "eps", seconds, 1.0, 1.0, (), 0.0, 1e6, 0.0, 0, 1.0, 1.0, (),
        fidelity=FidelityResult(verdict=Verdict(verdict)),
    )  # fmt: skip
    return LayerRun(plain_pass(8, 1e6, 1e-3), result, 0.0, {})


def test_study_file_names_fabrics_that_can_be_built() -> None:
    _, _, setup = load_study(STUDY)
    assert isinstance(setup, Setup)
    for cluster in setup.clusters:
        fabric = fabric_of(setup.cluster_fabric(cluster)).build()
        assert len(fabric.servers) == 4 * cluster.dcs
        assert uplink_rate_bps(fabric) == pytest.approx(10e9)
    assert fabric_of(setup.flat_fabric()).build().nic_rate_bps == 10e9


def test_speed_up_has_a_sample_for_each_run() -> None:
    assert speed_up(layer_run(4.0, 6.0), layer_run(2.0, 2.0)) == Measure(2.5, (2.0, 3.0))
    assert speed_up(layer_run(4.0, verdict="invalid"), layer_run(2.0)).value is None


@pytest.mark.nightly
@pytest.mark.parametrize("use", ["none", "shared", "alone"])
def test_training_with_the_codec_learns_and_repeats(use: CodecUse, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="nightly: needs PyTorch: packaging/setup all")
    text = tmp_path / "text"
    text.write_text("abcdefgh" * 1000)
    losses = [trained_loss(text, use, 50.0, steps, 1) for steps in (1, 10, 10)]
    assert losses[1] < losses[0]
    assert losses[1] == pytest.approx(losses[2], rel=1e-3)
