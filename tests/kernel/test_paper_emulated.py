"""A cell of the paper's tables on packets: two servers of LLaMA-MoE, by light and EPS and by the EPS alone."""

from pathlib import Path

import pytest

from moefabric.console import PlainReporter
from moefabric.paper.network import NETWORKS
from moefabric.paper.packets import Measuring
from moefabric.paper.read import jobs
from moefabric.paper.seen import Cell

pytestmark = pytest.mark.kernel
JOBS = jobs(Path(__file__).parents[2] / "examples/paper/jobs.yaml")
RATE = 400e9


@pytest.mark.parametrize("network", ["mixnet-spill", "rail-optimised"])
def test_a_cell_takes_as_long_as_predicted(network: str) -> None:
    """Within a tenth, whatever else the machine does: how near it comes on a quiet one, `make paper-emulated` tells."""
    cell = Cell("llama-moe", network, RATE)
    measuring = Measuring(JOBS, PlainReporter())
    measuring.all([cell])
    assert not measuring.lost
    seen = measuring.found[cell]
    expected = NETWORKS[network].all_to_all(JOBS["llama-moe"], RATE)
    assert seen.sent.layer_s == pytest.approx(expected.layer_s, rel=0.1)
    assert seen.fluid_s == pytest.approx(expected.layer_s, rel=2e-3)
    assert (seen.light > 0.7) == (network == "mixnet-spill")
