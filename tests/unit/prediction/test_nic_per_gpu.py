"""Predictions of all-to-alls whose bytes pass the NICs of the GPUs that send and receive them."""

from pathlib import Path

import pytest

from moefabric.config.loader import experiment_of, load_experiment
from moefabric.prediction.experiment import predict_fabrics
from tests.support.paths import EXAMPLES
from tests.support.skewed_gpus import skewed_experiment, slowest_nic_to_pooled


@pytest.mark.parametrize("tp", [1, 2])
def test_slowest_nic_of_a_gpu_ends_an_all_to_all(tmp_path: Path, tp: int) -> None:
    spec = experiment_of(skewed_experiment(tmp_path, tp))
    pooled, own, hashed = predict_fabrics(spec, tmp_path).fabrics
    ratio = slowest_nic_to_pooled()
    assert ratio > 1.4
    assert own.all_to_all_s / pooled.all_to_all_s == pytest.approx(ratio)
    assert hashed.all_to_all_s >= own.all_to_all_s * (1 - 1e-9)


def test_guide_says_what_the_nics_of_the_prototypes_gpus_cost() -> None:
    guide = (EXAMPLES.parent / "docs/guides/compare-fabrics.md").read_text()
    own = "fabrics[0].eps.nic_per_gpu=true"
    for settings, ratio in (((), "1.44"), ((own,), "1.13")):
        spec = load_experiment(EXAMPLES / "prototype.yaml", settings)
        eps, mixnet = predict_fabrics(spec, EXAMPLES).fabrics[:2]
        assert f"{1e3 * eps.all_to_all_s:.1f} ms" in guide
        assert f"{mixnet.all_to_all_s / eps.all_to_all_s:.2f}" == ratio
        assert ratio in guide
