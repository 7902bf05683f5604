"""Servers whose NICs have a rate of their own: links, circuits, uplinks, plans and predictions."""

from dataclasses import replace

import numpy as np
import pytest

from moefabric.config.fabric import FabricSpec
from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.flows import Flow
from moefabric.core.topology import Fabric, capacity_bps, circuit_rate_bps, uplink_rate_bps
from moefabric.core.units import Scale
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.planner.multihop import least_s
from moefabric.planner.plan import plan
from moefabric.planner.waterfill import EpsLinks, circuit_rates, completion_s, off_diagonal
from moefabric.results.comparison import network_cost
from moefabric.results.verdict.fabric_result import wiring_summary
from moefabric.runtime.run_directory import ManagementNetwork
from moefabric.simulator.fluid import bound_s, goodput_share, link_rate_bps, predict
from tests.support.fabrics import fabric
from tests.support.policies import POLICIES

SLOW = replace(fabric(), own_rates_bps=(("s1", 25e9),))
"""The paper's prototype, in which one server has NICs of a quarter of the others' rate."""
SECOND = 100e9 / 8 * goodput_share(1500)
"""Bytes that a NIC of 100 Gb/s carries in a second."""


def test_every_server_has_its_own_rate() -> None:
    assert SLOW.rates_bps == (100e9, 25e9, 100e9, 100e9)
    assert capacity_bps(SLOW) == 4 * 325e9
    assert capacity_bps(fabric()) == 16 * 100e9
    assert circuit_rate_bps(SLOW, "s0", "s1") == circuit_rate_bps(SLOW, "s1", "s0") == 25e9
    assert circuit_rate_bps(SLOW, "s0", "s2") == 100e9


@pytest.mark.parametrize("link", [("s1/e0", "leaf0"), ("leaf0", "s1/e0"), ("s1/o2", "ocs")])
def test_links_of_a_slow_server_are_slow(link: tuple[str, str]) -> None:
    assert link_rate_bps(SLOW, link) == 25e9
    assert link_rate_bps(SLOW, (link[0].replace("s1", "s10"), link[1].replace("s1", "s10"))) == 1e11


@pytest.mark.parametrize("rate", [25e9, 400e9])
def test_uplinks_suit_the_fastest_nics(rate: float) -> None:
    wired = replace(fabric(0, 2, eps=Eps(2, 2)), own_rates_bps=(("s1", rate),))
    assert uplink_rate_bps(wired) == 2 * max(rate, 100e9)


def test_flow_over_a_circuit_takes_the_time_of_its_slower_nic() -> None:
    lit = CircuitSet(frozenset(map(Circuit.parse, ("s0/o0~s1/o0", "s2/o0~s3/o0"))))
    slow, fast = Flow("s0", "s1", "o0", SECOND), Flow("s2", "s3", "o0", SECOND)
    assert predict(SLOW, lit, [slow]).seconds == pytest.approx(4.0)
    assert predict(SLOW, lit, [fast]).seconds == pytest.approx(1.0)
    light = circuit_rates(SLOW, SLOW.servers, lit)
    assert light[0, 1] == light[1, 0] == pytest.approx(SECOND / 4)
    assert light[2, 3] == pytest.approx(SECOND)


def test_bound_is_that_of_the_server_whose_nics_take_longest() -> None:
    owed = np.zeros((4, 4))
    owed[0, 1], owed[2, 3] = SECOND, 3 * SECOND
    demand = DemandMatrix(SLOW.servers, owed)
    assert bound_s(fabric(), demand) == pytest.approx(3 / 4)
    assert bound_s(SLOW, demand) == pytest.approx(1.0)


def test_water_filling_ends_when_the_slow_server_does() -> None:
    owed = np.full((4, 4), SECOND)
    links = EpsLinks.of(SLOW, SLOW.servers)
    assert links.nics == pytest.approx([SECOND, SECOND / 4, SECOND, SECOND])
    none = np.zeros((4, 4))
    assert completion_s(owed - np.diag(np.diag(owed)), none, links) == pytest.approx(12.0)


@pytest.mark.parametrize("name", ["spill", "joint", "mixnet-multihop", "joint-multihop", "static"])
def test_plans_take_the_time_of_the_fluid_model_and_at_least_the_bound(name: str) -> None:
    policy = POLICIES[name]
    wired = replace(SLOW, forwarding=policy.forwards)
    rows = np.random.default_rng(3).pareto(1.5, (4, 4)) * SECOND
    demand = DemandMatrix(wired.servers, rows - np.diag(np.diag(rows)))
    chosen = plan(wired, wired.regions[0], demand, policy, CircuitSet())
    assert chosen.predicted_s >= bound_s(wired, demand) * (1 - 1e-9)
    light = circuit_rates(wired, wired.servers, chosen.circuits)
    spill_s = completion_s(off_diagonal(demand), light, EpsLinks.of(wired, wired.servers))
    if name != "static":
        assert chosen.predicted_s <= spill_s * (1 + 1e-6)
    if policy.forwards:
        least = least_s(wired, demand, chosen.circuits)
        assert chosen.predicted_s == pytest.approx(least, rel=0.01)


def test_emulated_links_have_the_rates_of_their_servers() -> None:
    wired = replace(SLOW, scale=Scale(100, 10))
    rates = {
        link.name: link.rate_bps
        for link in plan_fabric(wired, ManagementNetwork("198.18.0.0/24")).links
    }
    assert rates["s0/e0"] == rates["s0/o2"] == 100e6
    assert rates["s1/e0"] == rates["s1/o2"] == 25e6


def test_networks_of_several_rates_have_no_price() -> None:
    assert network_cost(fabric(), 1.0).network_usd
    assert "one rate" in network_cost(SLOW, 1.0).why


def test_fabric_file_gives_servers_rates() -> None:
    text = {
        "fabric": "f",
        "gpus_per_server": 1,
        "nic_rate": "100Gb/s",
        "nics": {"optical": 1, "electrical": 1},
        "regions": [{"servers": 2}],
        "scale": {"bytes": 1000},
        "servers": {"s1": {"nic_rate": "25Gb/s"}},
    }
    wired = FabricSpec.model_validate(text).build()
    assert isinstance(wired, Fabric)
    assert wired.rates_bps == (100e9, 25e9)
    assert wiring_summary(wired).own_nic_rates_bps == {"s1": 25e9}
