"""A cell of the paper's tables on an emulated fabric: two servers of LLaMA-MoE."""

import pytest
from moefabric_studies.paper.cell_runner import CellRunner
from moefabric_studies.paper.loader import load_jobs
from moefabric_studies.paper.measurements import Cell, CellMeasurement
from moefabric_studies.paper.network import NETWORKS

from moefabric.results.progress import PlainProgressReporter
from tests.support.attempts import measurements
from tests.support.paths import EXAMPLES

pytestmark = pytest.mark.kernel
JOBS = load_jobs(EXAMPLES / "paper/jobs.yaml")
RATE = 400e9


@pytest.mark.parametrize("network", ["mixnet-spill", "rail-optimised"])
def test_cell_lasts_as_long_as_predicted(network: str) -> None:
    """Allow a tenth on a busy machine; `make paper-emulated` reports the error of a quiet one."""
    cell = Cell("llama-moe", network, RATE)
    expected = NETWORKS[network].all_to_all(JOBS["llama-moe"], RATE)

    def measure() -> CellMeasurement:
        runner = CellRunner(JOBS, PlainProgressReporter())
        runner.run_all([cell])
        assert not runner.lost
        return runner.measurements[cell]

    def is_good(measurement: CellMeasurement) -> bool:
        return measurement.all_to_all.layer_s < 1.05 * expected.layer_s

    measurement = min(
        measurements(measure, is_good, 3), key=lambda measured: measured.all_to_all.layer_s
    )
    assert measurement.all_to_all.layer_s == pytest.approx(expected.layer_s, rel=0.1)
    assert measurement.fluid_layer_s == pytest.approx(expected.layer_s, rel=2e-3)
    assert measurement.bytes_by_light is not None
    assert (measurement.bytes_by_light > 0.7) == (network == "mixnet-spill")
