"""Circuits, prices and completion times of the frontier study."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moefabric_studies.paper.frontier.networks import (
    EPS,
    EVEN_SPILL,
    JOINT,
    MIXNET,
    MOVED_MULTIHOP,
    MULTIHOP,
    NICS,
    POLICIES,
    SPILL,
    TAPERED,
    Comparison,
    even_circuits,
    forwarded_split,
    optical_nics,
    server_usd,
    wired_circuits,
)
from moefabric_studies.paper.job import FloatArray

from moefabric.core.network_cost import paper_network_usd


def random_demand(seed: int, servers: int, skew: float = 1.0) -> FloatArray:
    random = np.random.RandomState(seed)
    demand = random.dirichlet(np.full(servers, skew), servers)
    np.fill_diagonal(demand, 0.0)
    return np.asarray(demand)


@pytest.mark.parametrize(
    ("rate_bps", "panel"), [(100e9, 2.18), (200e9, 2.45), (400e9, 3.22), (800e9, 3.19)]
)
def test_prices_are_those_of_the_cost_model(rate_bps: float, panel: float) -> None:
    eps = server_usd(EPS, 0, rate_bps)
    assert eps == paper_network_usd("fat-tree", 1, rate_bps)
    assert server_usd(MIXNET, 6, rate_bps) == paper_network_usd("mixnet", 1, rate_bps)
    assert eps / server_usd(MULTIHOP, 7, rate_bps) == pytest.approx(panel, abs=0.005)
    assert eps / server_usd(TAPERED, 7, rate_bps) < panel


def test_tapered_eps_costs_more_the_more_uplinks_it_has() -> None:
    prices = [server_usd(TAPERED, optical, 400e9) for optical in optical_nics(TAPERED)]
    assert prices == sorted(prices, reverse=True)
    assert prices[0] < server_usd(EPS, 0, 400e9)


@pytest.mark.parametrize("servers", [4, 8, 16, 32])
@pytest.mark.parametrize("degree", [1, 4, 6, 7])
def test_even_circuits_use_every_nic_and_join_as_many_pairs_as_they_can(
    servers: int, degree: int
) -> None:
    counts = even_circuits(servers, degree)
    assert (counts.sum(axis=1) == degree).all()
    assert (counts == counts.T).all()
    assert (counts > 0).sum() == servers * min(degree, servers - 1)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([4, 8, 10]), st.integers(1, 7))
def test_more_freedom_never_takes_longer(seed: int, servers: int, optical: int) -> None:
    comparison = Comparison(random_demand(seed, servers), optical)
    times = {policy: comparison.nic_bytes(policy) for policy in POLICIES}
    for faster, slower in (
        (EPS, MOVED_MULTIHOP),
        (MOVED_MULTIHOP, MULTIHOP),
        (MOVED_MULTIHOP, JOINT),
        (MULTIHOP, EVEN_SPILL),
        (JOINT, EVEN_SPILL),
        (JOINT, SPILL),
        (SPILL, MIXNET),
    ):
        assert times[faster] <= times[slower] * (1 + 1e-6), (faster.name, slower.name)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 7))
def test_forwarding_rate_leads_from_the_null_model_to_unlimited_forwarding(
    seed: int, optical: int
) -> None:
    comparison = Comparison(random_demand(seed, 8, skew=0.3), optical)
    times = [comparison.limited_nic_bytes(nics) for nics in (0.0, 0.1, 0.5, 2.0, float(NICS))]
    assert times[0] == pytest.approx(comparison.nic_bytes(EVEN_SPILL))
    assert times[-1] == pytest.approx(comparison.nic_bytes(MULTIHOP))
    assert all(later <= sooner * (1 + 1e-6) for sooner, later in pairwise(times))


def test_large_regions_need_more_than_a_little_forwarding() -> None:
    """Most pairs have no circuit, so a server has to forward more than a tenth of a NIC."""
    comparison = Comparison(np.ones((16, 16)) - np.eye(16), 7)
    times = [comparison.limited_nic_bytes(nics) for nics in (0.0, 0.1, 8.0)]
    assert times[0] > 1.05 * times[1] > 2 * times[2]


def test_partners_that_exchange_all_bytes_use_five_of_eight_nics_of_a_mesh() -> None:
    """They use a direct circuit, an electrical NIC, and six detours of two circuits each."""
    demand = np.zeros((8, 8))
    demand[np.arange(8), np.arange(8) ^ 1] = 40.0
    split = Comparison(demand, 7).multihop_split
    assert split.nic_bytes == pytest.approx(8.0)
    assert split.forwarded == pytest.approx(24 / 40)
    assert split.relays == 1
    assert Comparison(demand, 7).nic_bytes(EVEN_SPILL) == pytest.approx(20.0)
    assert Comparison(demand, 7).nic_bytes(JOINT) == pytest.approx(5.0)


def test_a_ring_without_an_eps_forwards_to_the_far_side() -> None:
    """Server 0 owes server 2 of a ring of four; half of it goes each way."""
    ring = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
    demand = np.zeros((4, 4))
    demand[0, 2] = 6.0
    split = forwarded_split(demand, ring, electrical=0)
    assert split.nic_bytes == pytest.approx(3.0)
    assert split.forwarded == pytest.approx(1.0)
    assert split.relays == 1


def test_circuits_are_wired_to_one_nic_each() -> None:
    circuits = wired_circuits(even_circuits(16, 7))
    assert len(circuits) == 16 * 7 // 2
    assert len(circuits.nics) == 16 * 7
