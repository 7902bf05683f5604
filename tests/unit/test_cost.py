"""What networks cost, against the published figures, and what a dollar of them buys."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from moefabric.commands.cost import cost
from moefabric.cost import PRICES, Wired, bought, cost_efficiency, network_usd, paper_network_usd
from moefabric.errors import SpecError
from moefabric.topology import Eps, Fabric
from tests.fabrics import fabric as _fabric

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
def test_a_network_of_128_servers_costs(rate: float, network: str, million_usd: float) -> None:
    assert paper_network_usd(network, 128, rate) == pytest.approx(million_usd * 1e6, abs=500)


def test_the_ratio_that_the_paper_tells() -> None:
    """2.3 times cheaper at 400 Gb/s, 2.0 times on average (section 7.4)."""
    ratios = [
        paper_network_usd("fat-tree", 128, rate) / paper_network_usd("mixnet", 128, rate) for rate in PRICES
    ]
    assert ratios == pytest.approx([1.52, 1.79, 2.29, 2.33], abs=0.005)
    assert sum(ratios) / 4 == pytest.approx(2.0, abs=0.05)


@given(st.integers(1, 1000), NICS, NICS, NICS, RATES)
def test_networks_of_more_servers_cost_more_in_proportion(
    servers: int, electrical: int, optical: int, patched: int, rate: float
) -> None:
    one = network_usd(Wired(1, electrical, optical, patched), rate)
    assert network_usd(Wired(servers, electrical, optical, patched), rate) == pytest.approx(servers * one)


@given(st.integers(1, 7), RATES)
def test_light_is_cheaper_than_a_clos_and_a_panel_cheaper_than_both(moved: int, rate: float) -> None:
    eps, ocs, panel = (
        network_usd(wired, rate)
        for wired in (Wired(9, 8), Wired(9, 8 - moved, moved), Wired(9, 8 - moved, 0, moved))
    )
    assert panel < ocs < eps


def test_three_to_one_saves_two_thirds_of_all_above_the_leaves() -> None:
    """At 400 Gb/s a NIC of 1,499 USD, 10/3 transceivers of 659, 7/3 ports of 1,090 and 5/3 fibres of 150 are 6,489 USD."""
    assert network_usd(Wired(1, 1, oversubscription=3.0), 400e9) == pytest.approx(6489.0)
    assert paper_network_usd("oversubscribed", 128, 400e9) == pytest.approx(6.645e6, abs=500)
    assert network_usd(Wired(1, 1, oversubscription=1e9), 400e9) == pytest.approx(1499 + 2 * 659 + 1090 + 150)


@pytest.mark.parametrize(
    ("fabric", "expected"),
    [
        (_fabric(6, 2), Wired(4, 2, 6)),
        (_fabric(0, 8, eps=Eps(2, 2, 3.0)), Wired(4, 8, oversubscription=3.0)),
        (_fabric(0, 8, eps=Eps(4, 2, 3.0)), Wired(4, 8)),
        (replace(_fabric(8, 0), panel=True), Wired(4, 0, 0, 8)),
    ],
    ids=["mixnet", "narrow-uplinks", "no-uplinks", "panel"],
)
def test_a_fabric_is_bought_as_what_it_is_made_of(fabric: Fabric, expected: Wired) -> None:
    assert bought(fabric) == expected


def test_efficiency_is_speed_for_a_dollar_relative_to_a_base() -> None:
    assert cost_efficiency(iteration_s=2.0, usd=50.0, base_s=1.0, base_usd=300.0) == 3.0


def test_a_rate_without_prices_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"nic rate: 50Gb/s has no prices; 100Gb/s, 200Gb/s, 400Gb/s, 800Gb/s have"
    ):
        network_usd(Wired(1, 8), 50e9)


def test_the_command_prints_every_network_at_every_rate() -> None:
    said = json.loads(CliRunner().invoke(cost, ["--servers", "128", "--json"]).output)
    assert list(said) == ["100Gb/s", "200Gb/s", "400Gb/s", "800Gb/s"]
    assert said["400Gb/s"]["mixnet"] == pytest.approx(5.078e6, abs=500)
    assert set(said["100Gb/s"]) == {"fat-tree", "oversubscribed", "rail-optimised", "mixnet", "topoopt"}


def test_the_command_tells_people_the_ratio() -> None:
    lines = CliRunner().invoke(cost, []).output.splitlines()
    assert lines[0] == "networks of 128 servers of 8 NICs, thousand USD"
    assert lines[4].split() == ["400Gb/s", "11,625", "6,645", "11,625", "5,078", "2,466", "2.29"]
