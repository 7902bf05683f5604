"""The fluid model against figures found by hand, and against the way that the rules send a packet."""

import json
from math import inf
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix, Placement
from moefabric.flows import Flow, Share, Split, flows
from moefabric.fluid import bound_s, goodput_share, predict, route
from moefabric.rules import Rule, eps_rules, light_rules, server_rules
from moefabric.topology import Eps, Fabric, Nic
from tests.fabrics import MESH, fabric, lit_fabrics

GATING = Path(__file__).parents[2] / "examples/data/gating-8x8.json"
SECOND = 100e9 / 8 * 1448 / 1514
"""Bytes that a NIC of 100 Gb/s carries in a second."""


def prototype_demand(servers: tuple[str, ...]) -> DemandMatrix:
    """The measured matrix, tokens of 4096 bfloat16 numbers, each sent to two experts."""
    gating = json.loads(GATING.read_text())["num_global_tokens_per_expert"]
    return DemandMatrix(servers, Placement(servers, 8, 8).tokens(gating) * 8192 * 2.0)


def test_the_prototypes_all_to_all_takes_41_percent_longer_by_light_than_by_a_full_eps() -> None:
    mixnet, eps = fabric(3, 1), fabric(0, 4)
    demand, lit = prototype_demand(mixnet.servers), CircuitSet.of(MESH)
    by_light = Split(tuple(Share(a, b, owed, 0) for a, b, owed in demand.pairs()))
    by_wire = Split(tuple(Share(a, b, 0, owed) for a, b, owed in demand.pairs()))
    light_s = predict(mixnet, lit, flows(mixnet, lit, by_light)).seconds
    wire_s = predict(eps, CircuitSet(), flows(eps, CircuitSet(), by_wire)).seconds
    assert wire_s == pytest.approx(0.031418, abs=1e-6)
    assert light_s == pytest.approx(0.044369, abs=1e-6)
    assert light_s / wire_s == pytest.approx(1.412, abs=1e-3)


def test_headers_take_their_share_of_a_link() -> None:
    assert goodput_share(1500) == 1448 / 1514
    assert goodput_share(9000) == 8948 / 9014


@pytest.mark.parametrize(
    ("lit", "sent", "seconds", "fullest"),
    [
        pytest.param([], [], 0, None, id="nothing-takes-no-time"),
        pytest.param([], [Flow("s0", "s1", "e0", 0)], 0, ("s0/e0", "leaf0"), id="no-bytes-take-no-time"),
        pytest.param([], [Flow("s0", "s1", "e0", SECOND)], 1, ("s0/e0", "leaf0"), id="one-wire"),
        pytest.param(
            ["s0/o0~s1/o2"], [Flow("s0", "s1", "o0", SECOND)], 1, ("s0/o0", "ocs"), id="one-circuit"
        ),
        pytest.param(
            ["s0/o0~s1/o2"],
            [Flow("s0", "s1", "o0", 2 * SECOND), Flow("s0", "s1", "e0", SECOND)],
            2,
            ("s0/o0", "ocs"),
            id="light-and-wire-side-by-side",
        ),
        pytest.param(
            [],
            [Flow("s0", "s2", "e0", SECOND), Flow("s1", "s2", "e0", SECOND)],
            2,
            ("leaf0", "s2/e0"),
            id="two-senders-fill-one-receiver",
        ),
        pytest.param(
            ["s0/o0~s1/o2"],
            [Flow("s0", "s1", "o1", SECOND), Flow("s0", "s2", "e0", SECOND)],
            2,
            ("s0/e0", "leaf0"),
            id="a-path-without-light-takes-the-wire",
        ),
    ],
)
def test_the_fullest_link_sets_the_time(
    lit: list[str], sent: list[Flow], seconds: float, fullest: tuple[str, str] | None
) -> None:
    said = predict(fabric(), CircuitSet.of(lit), sent)
    assert said.seconds == pytest.approx(seconds)
    assert said.fullest == fullest


def test_flows_end_together_at_the_rates_it_gives() -> None:
    sent = [Flow("s0", "s1", "e0", SECOND), Flow("s0", "s2", "e0", 3 * SECOND)]
    said = predict(fabric(), CircuitSet(), sent)
    assert said.seconds == pytest.approx(4)
    assert said.rates_bps == pytest.approx((SECOND * 8 / 4, SECOND * 8 * 3 / 4))
    assert said.load["s0/e0", "leaf0"] == pytest.approx(4 * SECOND)


def test_an_oversubscribed_uplink_is_what_fills() -> None:
    made = fabric(0, 1, eps=Eps(servers_per_leaf=2, spines=1, oversubscription=4.0))
    said = predict(made, CircuitSet(), [Flow("s0", "s2", "e0", SECOND)])
    assert said.seconds == pytest.approx(2), "2 servers of 100 Gb/s over 4 is an uplink of 50 Gb/s"
    assert "spine0" in (said.fullest or ())


def test_a_flow_without_a_way_never_ends() -> None:
    assert predict(fabric(3, 0), CircuitSet(), [Flow("s0", "s1", "o0", 1)]).seconds == inf


def test_no_fabric_beats_the_busiest_server_over_all_its_nics() -> None:
    demand = DemandMatrix(("s0", "s1", "s2", "s3"), [[9 * SECOND, SECOND, SECOND, 0.0], *[[0.0] * 4] * 3])
    assert bound_s(fabric(3, 1), demand) == pytest.approx(0.5)


@st.composite
def demands(draw: st.DrawFn) -> tuple[Fabric, CircuitSet, DemandMatrix, Split]:
    """Any demand on any lit fabric, each pair's bytes split in any way that its light allows."""
    wired, lit = draw(lit_fabrics())
    n = len(wired.servers)
    sizes = st.lists(st.integers(0, 10**12), min_size=n, max_size=n)
    demand = DemandMatrix(wired.servers, draw(st.lists(sizes, min_size=n, max_size=n)))
    part = draw(st.floats(0, 1))
    shares = []
    for a, b, owed in demand.pairs():
        light = part * owed if lit.between(a, b) else 0.0
        shares.append(Share(a, b, light, owed - light))
    return wired, lit, demand, Split(tuple(shares))


@given(demands())
def test_a_prediction_is_never_under_the_bound(case: tuple[Fabric, CircuitSet, DemandMatrix, Split]) -> None:
    wired, lit, demand, split = case
    assert predict(wired, lit, flows(wired, lit, split)).seconds >= bound_s(wired, demand) * (1 - 1e-9)


@given(lit_fabrics(), st.randoms(use_true_random=False))
def test_a_flow_goes_where_the_rules_send_its_packets(
    given_light: tuple[Fabric, CircuitSet], random: Random
) -> None:
    wired, lit = given_light
    src, dst = random.sample(wired.servers, 2)
    rules = light_rules(lit) | eps_rules(wired)
    for region in wired.regions:
        rules |= server_rules(wired, region)
    for nic in wired.nics(src):
        links = route(wired, lit, Flow(src, dst, nic.path, 1))
        assert _hops(links) == _walk(wired, lit, rules, src, dst, nic.path)


def _hops(links: tuple[tuple[str, str], ...]) -> list[str]:
    """The ports that a route leaves by: the sender's NIC, then whatever the far end of each later link is."""
    return [links[0][0], *(there for _, there in links[1:])]


def _walk(wired: Fabric, lit: CircuitSet, rules: frozenset[Rule], src: str, dst: str, path: str) -> list[str]:
    """The ports that a marked packet leaves by, switch after switch, by the rules alone."""
    switch, hops = src, []
    while switch != dst:
        out = _best(wired, [rule for rule in rules if rule.switch == switch], dst, path).out
        hops.append(out)
        switch = _far_end(wired, lit, switch, out, hops)
        assert len(hops) < 6, "the rules make a loop"
    return hops


def _best(wired: Fabric, rules: list[Rule], dst: str, path: str) -> Rule:
    """Light before marks, marks before prefixes, as flow entries have it; a light rule without a mark takes unmarked packets only."""
    fitting = [
        rule
        for rule in rules
        if rule.to in (dst, wired.region_of[dst].name, "*")
        and (rule.path == path or (rule.path is None and not rule.light))
    ]
    return max(fitting, key=lambda rule: (rule.light, rule.path is not None, rule.to == dst))


def _far_end(wired: Fabric, lit: CircuitSet, switch: str, out: str, hops: list[str]) -> str:
    if "/o" in out:
        [circuit] = [c for c in lit if out in (str(c.a), str(c.b))]
        far = circuit.b if str(circuit.a) == out else circuit.a
        hops.append(str(far))
        return far.server
    if "/e" in out:
        nic = Nic.parse(out)
        return wired.leaf_of_nic(nic) if switch == nic.server else nic.server
    return out
