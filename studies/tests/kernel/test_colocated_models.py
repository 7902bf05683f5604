"""Two models on the same servers of different speed, with packets."""

import os
from pathlib import Path

import numpy as np
import pytest
from moefabric_studies.systems.aurora.colocation import Deployment, ExpertLayer, HostedLayer
from moefabric_studies.systems.aurora.packets import Comparison, replayed, server_fabric
from moefabric_studies.systems.study import StudyContext

from moefabric.results.progress import PlainProgressReporter

RATES = np.array([1.0, 1.0, 0.5, 0.25])
TOKEN_BYTES = 1000.0


def layer(seed: int, experts: int) -> ExpertLayer:
    tokens = np.random.default_rng(seed).integers(500, 1000, (experts, experts))
    return ExpertLayer(tokens.astype(np.float64), gate=0.0)


def sent_bytes(deployment: Deployment) -> float:
    """Return the bytes of both all-to-alls of each layer."""
    tokens = [one.layer.tokens for one in deployment.hosted]
    return float(2 * TOKEN_BYTES * sum(each.sum() - np.trace(each) for each in tokens))


def test_all_to_alls_of_two_models_share_ports_and_deliver_all_tokens() -> None:
    together = Deployment.of([layer(1, 4), layer(2, 4)], RATES)
    apart = tuple(HostedLayer(layer(n, 2), gpus) for n, gpus in ((3, (0, 1)), (4, (2, 3))))
    comparison = Comparison("shared", "two", together, Deployment(apart, RATES))
    wiring = {"gpus_per_server": 1, "nic_rate": "1Gb/s", "regions": [{"servers": 4}]}
    fabric = server_fabric(
        f"shared-{os.getpid()}", {"wiring": wiring, "scale": {"bytes": 10}}, RATES
    )
    context = StudyContext(Path(), PlainProgressReporter())
    [found] = replayed([comparison], {False: fabric}, TOKEN_BYTES, 0.5, context)
    for sent, deployment in zip(found.results, (together, comparison.other), strict=True):
        assert sent.wrong == 0
        assert sent.bytes_by_eps == pytest.approx(sent_bytes(deployment), rel=0.02)
    # The slowest server's NIC carries the tokens of both models, in a quarter of the rate.
    busiest = sum(one.layer.tokens[:3, 3].sum() for one in together.hosted)
    assert found.results[0].seconds[0] > 0.95 * 2 * busiest * 4 * found.token_s
