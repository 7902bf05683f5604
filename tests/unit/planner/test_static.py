"""Uniform circuits prefer no server."""

import pytest

from moefabric.planner.arrays import circuit_counts
from moefabric.planner.pair_order import Pair
from moefabric.planner.static import ring_order


@pytest.mark.parametrize(
    ("ports", "pairs"),
    [
        pytest.param([3] * 4, [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (1, 3)], id="full-mesh"),
        pytest.param(
            [4] * 4,
            [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (1, 3), (0, 1), (2, 3)],
            id="opposite-servers-once-a-round",
        ),
        pytest.param([1] * 4, [(0, 1), (2, 3)], id="one-port-each-pairs-neighbours"),
        pytest.param([2, 2], [(0, 1), (0, 1)], id="two-servers-share-all"),
        pytest.param([5], [], id="one-server-has-no-peer"),
    ],
)
def test_ring_order_spreads_circuits_evenly(ports: list[int], pairs: list[Pair]) -> None:
    assert ring_order(ports) == pairs


@pytest.mark.parametrize("servers", [3, 5, 8, 16])
@pytest.mark.parametrize("degree", [1, 2, 3, 6])
def test_ring_order_prefers_no_server(servers: int, degree: int) -> None:
    used = circuit_counts(servers, ring_order([degree] * servers)).sum(axis=1)
    assert used.max() - used.min() <= 1
    assert used.sum() >= servers * degree - 1
