"""Layers of HybridEP on data centres with slow uplinks: messages, and bytes over uplinks."""

import os
from collections.abc import Iterator

import pytest

from moefabric.systems.hybrid_ep.bench import LayerBench, running_bench
from moefabric.systems.hybrid_ep.setup import MB
from moefabric.workload.hybrid_ep_graph import HybridEpPass, plain_pass

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def bench() -> Iterator[LayerBench]:
    """Two data centres of two servers, whose uplinks have a quarter of the NICs' rate."""
    document = {
        "fabric": f"hybridep-{os.getpid()}",
        "gpus_per_server": 1,
        "nic_rate": 1e9,
        "regions": [{"servers": 4}],
        "eps": {"servers_per_leaf": 2, "spines": 1, "oversubscription": 8},
        "nics": {"electrical": 1},
        "scale": {"bytes": 10},
    }
    with running_bench(document, 1, 0.5) as bench:
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
