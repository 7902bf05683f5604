"""Layers of HybridEP on data centres with slow uplinks: messages, and bytes over uplinks."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from moefabric_studies.systems.hybrid_ep.bench import LayerBench, running_bench
from moefabric_studies.systems.hybrid_ep.graph import HybridEpPass, plain_pass
from moefabric_studies.systems.hybrid_ep.setup import MB
from moefabric_studies.systems.study import StudyContext

from moefabric import Experiment
from moefabric.config.loader import experiment_of
from moefabric.results.progress import PlainProgressReporter

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def bench() -> Iterator[LayerBench]:
    """Two data centres of two servers, whose uplinks have a quarter of the NICs' rate."""
    document = {
        "fabric": f"hybridep-{os.getpid()}",
        "gpus_per_server": 1,
        "nic_rate": "1Gb/s",
        "regions": [{"servers": 4}],
        "eps": {"servers_per_leaf": 2, "spines": 1, "oversubscription": 8},
        "nics": {"electrical": 1},
        "scale": {"bytes": 10},
    }
    context = StudyContext(Path(), PlainProgressReporter())
    with running_bench(document, 1, 0.5, context) as bench:
        bench.open_connections(plain_pass(4, MB, 1e-3))
        yield bench


@pytest.mark.parametrize(
    ("domains", "messages", "crossing_mb"),
    [
        ((1, 1), {"all_to_all": 16}, 4 * 2 * 2),
        ((2, 1), {"all_to_all": 8, "all_gather": 4}, 4 * 1),
        ((2, 2), {"all_gather": 8}, 4 * 1),
    ],
)
def test_uplinks_carry_tokens_between_domains_and_each_expert_once(
    bench: LayerBench, domains: tuple[int, int], messages: dict[str, int], crossing_mb: float
) -> None:
    layer = HybridEpPass((2, 2), domains, (4 * MB, 4 * MB), 1 * MB, 10e-3)
    run = bench.run(layer, str(domains))
    assert run.is_valid, run.result.reasons
    assert run.result.wrong == 0
    assert run.messages == messages
    assert run.uplink_bytes == pytest.approx(crossing_mb * MB, rel=0.05)


def test_run_moves_experts_beside_attention_and_tokens_inside_data_centres() -> None:
    choice = {"optical": 0, "electrical": 1, "policy": "eps"}
    experiment = experiment_of(
        {
            "experiment": f"hybridep-run-{os.getpid()}",
            "model": {"name": "mixtral-8x7b", "layers": 1},
            "training": {
                "ep": 4,
                "tp": 1,
                "sequence": 512,
                "micro_batch": 1,
                "iterations": 1,
                "gradient_sums": False,
            },
            "gating": {"generator": "mixtral-web"},
            "wiring": {
                "gpus_per_server": 1,
                "nic_rate": "100Gb/s",
                "regions": [{"servers": 4}],
                "eps": {"servers_per_leaf": 2, "spines": 1, "oversubscription": 4},
            },
            "fabrics": [
                {"name": "plain", **choice},
                {"name": "hybrid", "experts": "hybridep(leaf=2, dcs=2, ratio=500)", **choice},
            ],
            "scale": {"bytes": 4, "dilation": 100},
        }
    )
    result = Experiment.of(experiment).run()
    plain, hybrid = result["plain"], result["hybrid"]
    assert not plain.transfers
    [experts] = hybrid.transfers
    assert experts.kind == "experts"
    # Two of eight experts on a server, of 3 x 4096 x 14336 weights; four pairs.
    assert experts.bytes == pytest.approx(4 * 2 * 2 * 3 * 4096 * 14336 / 500, rel=0.001)
    assert experts.bytes_by_eps == pytest.approx(experts.bytes, rel=0.01)
    assert plain.spines is not None
    assert hybrid.spines is not None
    assert (plain.spines.counted_bytes or 0) > 2 * experts.bytes
    assert hybrid.spines.counted_bytes == pytest.approx(experts.bytes, rel=0.02)
    for one in (plain, hybrid):
        assert one.integrity.bytes_sent == one.integrity.bytes_received
