"""BigMac's formulae, and what its study sets up."""

from pathlib import Path

import pytest
from moefabric_studies.systems.bigmac import study as bigmac
from moefabric_studies.systems.bigmac.fine_grained import FineGrained
from moefabric_studies.systems.study import StudyContext, load_study

from moefabric.config.plugins import PAYLOAD_TRANSFORMS, load_plugin
from moefabric.results.progress import PlainProgressReporter
from moefabric.workload.models.payload import BigMac, Plain
from tests.support.paths import EXAMPLES


def test_formulae_give_the_papers_table_4() -> None:
    model, plain, narrow = FineGrained(), Plain(), BigMac(0.25)
    flops = [round(model.flops(form) / 1e12, 2) for form in (plain, narrow)]
    assert flops == [3490.67, 3649.00]
    assert [round(model.parameters(form) / 1e9, 2) for form in (plain, narrow)] == [3.73, 3.78]
    assert [model.all_to_all_bytes(form) / 2**30 for form in (plain, narrow)] == [1488, 372]


def test_speed_of_gpus_gives_all_to_alls_their_share() -> None:
    _, study, setup = load_study(EXAMPLES / "systems/bigmac.yaml")
    assert isinstance(study, bigmac.BigMacStudy)
    context = StudyContext(Path(), PlainProgressReporter())
    fitted = bigmac._with_fitted_speed(setup, context)
    prediction = context.predict(bigmac._document(fitted, 8, tuple(bigmac.TRANSFORMS)))
    times = {one.fabric: one.exposed_comm_s for one in prediction.fabrics}
    assert bigmac._share(prediction, bigmac.WIDE) == pytest.approx(0.918)
    assert times[bigmac.NARROW] == pytest.approx(times[bigmac.WIDE] / 4, rel=1e-3)
    assert times[bigmac.BOTH] == pytest.approx(times[bigmac.FP8] / 4, rel=1e-3)


def test_fabric_of_an_experiment_names_bigmac_with_arguments() -> None:
    transform = load_plugin(PAYLOAD_TRANSFORMS, "bigmac(r=0.5, inner=fp8)")
    assert transform == BigMac(0.5, "fp8")
