"""A hybrid run on packets: one region is emulated, the flows of the other one are replayed."""

import pytest

from moefabric.config.loader import experiment_of
from moefabric.execution.run import run
from moefabric.results.model import FabricResult
from moefabric.results.progress import PlainProgressReporter
from tests.support.paths import EXAMPLES

pytestmark = pytest.mark.ovs


def hybrid_result() -> FabricResult:
    """Return the result of two replicas; the other one lies across both leaves."""
    experiment = experiment_of(
        {
            "experiment": "hybrid-test",
            "model": {"name": "mixtral-8x7b", "layers": 1},
            "training": {
                "ep": 2, "tp": 1, "dp": 2, "sequence": 4096, "micro_batch": 8, "iterations": 1,
            },
            "gating": {"generator": "mixtral-web"},
            "wiring": {
                "gpus_per_server": 1,
                "nic_rate": "100Gb/s",
                "regions": [{"count": 2, "servers": 2}],
                "eps": {"servers_per_leaf": 3, "spines": 1, "oversubscription": 3},
            },
            "fabrics": [{"name": "spill", "optical": 1, "electrical": 1, "policy": "spill"}],
            "hybrid": {"emulated": ["r0"]},
            "scale": {"bytes": 1000, "dilation": 4},
        }
    )  # fmt: skip
    [result] = run(experiment, EXAMPLES, PlainProgressReporter()).results
    return result


def test_modelled_region_sends_the_flows_of_the_model() -> None:
    result = hybrid_result()
    part = result.hybrid
    assert part is not None
    assert (part.emulated, part.regions, part.peers) == (["r0"], 2, ["s2", "s3"])
    assert {one.region for one in result.collectives} == {"r0"}
    assert result.wiring.regions == {"r0": ["s0", "s1"], "r1": ["s2", "s3"]}
    sent = [one for one in result.transfers if one.kind == "background"]
    assert len(sent) > 1
    assert part.counted_bytes is not None
    assert abs(part.counted_bytes / part.bytes - 1) < 0.02
    assert result.spines is not None
    assert result.spines.bytes > 0
    integrity = result.integrity
    assert integrity.bytes_sent == integrity.bytes_received
    assert (integrity.corrupt, integrity.lost_transfers) == (0, 0)
