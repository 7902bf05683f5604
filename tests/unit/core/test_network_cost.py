"""Prices of networks against published figures, and performance per dollar."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.eps import Eps
from moefabric.core.errors import SpecError
from moefabric.core.network_cost import (
    PRICES,
    NetworkInventory,
    inventory,
    network_usd,
    paper_network_usd,
    performance_per_dollar_ratio,
)
from moefabric.core.topology import Fabric
from moefabric.ui.cli.plan import cost
from tests.support.fabrics import fabric as _fabric

RATES = st.sampled_from(sorted(PRICES))
NICS = st.integers(0, 8)


@pytest.mark.parametrize(
    ("rate", "network", "million_usd"),
    [
        (100e9, "fat-tree", 2.701), (100e9, "mixnet", 1.772), (100e9, "topoopt", 1.032),
        (200e9, "fat-tree", 4.949), (200e9, "mixnet", 2.764), (200e9, "topoopt", 1.606),
        (400e9, "fat-tree", 11.625), (400e9, "mixnet", 5.078), (400e9, "topoopt", 2.466),
        (800e9, "fat-tree", 18.526), (800e9, "mixnet", 7.947), (800e9, "topoopt", 3.991),
    ],
)  # fmt: skip
def test_cost_of_a_network_of_128_servers(rate: float, network: str, million_usd: float) -> None:
    assert paper_network_usd(network, 128, rate) == pytest.approx(million_usd * 1e6, abs=500)


def test_cost_ratio_of_the_paper() -> None:
    """2.3 times cheaper at 400 Gb/s, 2.0 times on average (section 7.4)."""
    ratios = [
        paper_network_usd("fat-tree", 128, rate) / paper_network_usd("mixnet", 128, rate)
        for rate in PRICES
    ]
    assert ratios == pytest.approx([1.52, 1.79, 2.29, 2.33], abs=0.005)
    assert sum(ratios) / 4 == pytest.approx(2.0, abs=0.05)


@given(st.integers(1, 1000), NICS, NICS, NICS, RATES)
def test_cost_is_proportional_to_servers(
    servers: int, electrical: int, optical: int, patched: int, rate: float
) -> None:
    one = network_usd(NetworkInventory(1, electrical, optical, patched), rate)
    assert network_usd(
        NetworkInventory(servers, electrical, optical, patched), rate
    ) == pytest.approx(servers * one)


@given(st.integers(1, 7), RATES)
def test_ocs_is_cheaper_than_a_clos_and_a_patch_panel_cheaper_than_both(
    moved: int, rate: float
) -> None:
    eps, ocs, panel = (
        network_usd(wired, rate)
        for wired in (
            NetworkInventory(9, 8),
            NetworkInventory(9, 8 - moved, moved),
            NetworkInventory(9, 8 - moved, 0, moved),
        )
    )
    assert panel < ocs < eps


def test_three_to_one_oversubscription_saves_two_thirds_above_the_leaves() -> None:
    """At 400 Gb/s, each NIC costs 6,489 USD.

    A NIC of 1,499 USD, 10/3 transceivers of 659, 7/3 ports of 1,090 and 5/3 fibres of 150.
    """
    assert network_usd(NetworkInventory(1, 1, oversubscription=3.0), 400e9) == pytest.approx(6489.0)
    assert paper_network_usd("oversubscribed", 128, 400e9) == pytest.approx(6.645e6, abs=500)
    assert network_usd(NetworkInventory(1, 1, oversubscription=1e9), 400e9) == pytest.approx(
        1499 + 2 * 659 + 1090 + 150
    )


@pytest.mark.parametrize(
    ("fabric", "expected"),
    [
        (_fabric(6, 2), NetworkInventory(4, 2, 6)),
        (_fabric(0, 8, eps=Eps(2, 2, 3.0)), NetworkInventory(4, 8, oversubscription=3.0)),
        (_fabric(0, 8, eps=Eps(4, 2, 3.0)), NetworkInventory(4, 8)),
        (replace(_fabric(8, 0), patch_panel=True), NetworkInventory(4, 0, 0, 8)),
    ],
    ids=["mixnet", "narrow-uplinks", "no-uplinks", "panel"],
)
def test_inventory_of_a_fabric(fabric: Fabric, expected: NetworkInventory) -> None:
    assert inventory(fabric) == expected


def test_performance_per_dollar_ratio() -> None:
    assert (
        performance_per_dollar_ratio(iteration_s=2.0, usd=50.0, base_s=1.0, base_usd=300.0) == 3.0
    )


def test_prices_refuse_an_unknown_rate() -> None:
    with pytest.raises(
        SpecError, match=r"nic rate: 50Gb/s has no prices; 100Gb/s, 200Gb/s, 400Gb/s, 800Gb/s have"
    ):
        network_usd(NetworkInventory(1, 8), 50e9)


def test_cost_command_prints_every_network_at_every_rate() -> None:
    document = json.loads(CliRunner().invoke(cost, ["--servers", "128", "--json"]).output)
    assert list(document) == ["100Gb/s", "200Gb/s", "400Gb/s", "800Gb/s"]
    assert document["400Gb/s"]["mixnet"] == pytest.approx(5.078e6, abs=500)
    assert set(document["100Gb/s"]) == {
        "fat-tree",
        "oversubscribed",
        "rail-optimised",
        "mixnet",
        "topoopt",
    }


def test_cost_command_prints_the_ratio() -> None:
    lines = CliRunner().invoke(cost, []).output.splitlines()
    assert lines[0] == "networks of 128 servers of 8 NICs, thousand USD"
    assert lines[4].split() == ["400Gb/s", "11,625", "6,645", "11,625", "5,078", "2,466", "2.29"]
