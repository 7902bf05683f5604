"""The fluid model against figures computed by hand, and routes against the rules."""

import json
from collections import Counter
from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix, Placement
from moefabric.core.eps import Eps
from moefabric.core.flows import Flow, Share, Split, flows
from moefabric.core.forwarding import circuit_rules
from moefabric.core.nic import Nic
from moefabric.core.paths import relay_path, routes_by_region
from moefabric.core.routes import is_forwarding, route
from moefabric.core.rules import Rule, direct_rules, eps_rules, server_rules
from moefabric.core.topology import Fabric
from moefabric.simulator.fluid import bound_s, goodput_share, predict
from tests.support.fabrics import MESH, fabric, lit_fabrics
from tests.support.paths import EXAMPLES

GATING = EXAMPLES / "data/gating-8x8.json"
SECOND = 100e9 / 8 * 1448 / 1514
"""Bytes that a NIC of 100 Gb/s carries in a second."""


def prototype_demand(servers: tuple[str, ...]) -> DemandMatrix:
    """The measured matrix, tokens of 4096 bfloat16 numbers, each sent to two experts."""
    gating = json.loads(GATING.read_text())["num_global_tokens_per_expert"]
    return DemandMatrix(servers, Placement(servers, 8, 8).server_tokens(gating) * 8192 * 2.0)


def test_prototype_all_to_all_takes_41_percent_longer_over_circuits_than_over_a_full_eps() -> None:
    mixnet, eps = fabric(3, 1), fabric(0, 4)
    demand, lit = prototype_demand(mixnet.servers), CircuitSet.of(MESH)
    by_light = Split(tuple(Share(a, b, owed, 0) for a, b, owed in demand.pairs()))
    by_wire = Split(tuple(Share(a, b, 0, owed) for a, b, owed in demand.pairs()))
    light_s = predict(mixnet, lit, flows(mixnet, lit, by_light)).seconds
    wire_s = predict(eps, CircuitSet(), flows(eps, CircuitSet(), by_wire)).seconds
    assert wire_s == pytest.approx(0.031418, abs=1e-6)
    assert light_s == pytest.approx(0.044369, abs=1e-6)
    assert light_s / wire_s == pytest.approx(1.412, abs=1e-3)


def test_goodput_share_excludes_headers() -> None:
    assert goodput_share(1500) == 1448 / 1514
    assert goodput_share(9000) == 8948 / 9014


@pytest.mark.parametrize(
    ("lit", "sent", "seconds", "bottleneck"),
    [
        pytest.param([], [], 0, None, id="nothing-takes-no-time"),
        pytest.param(
            [], [Flow("s0", "s1", "e0", 0)], 0, ("s0/e0", "leaf0"), id="no-bytes-take-no-time"
        ),
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
def test_predict_takes_the_time_of_the_bottleneck(
    lit: list[str], sent: list[Flow], seconds: float, bottleneck: tuple[str, str] | None
) -> None:
    prediction = predict(fabric(), CircuitSet.of(lit), sent)
    assert prediction.seconds == pytest.approx(seconds)
    assert prediction.bottleneck == bottleneck


def test_predicted_rates_end_all_flows_together() -> None:
    sent = [Flow("s0", "s1", "e0", SECOND), Flow("s0", "s2", "e0", 3 * SECOND)]
    prediction = predict(fabric(), CircuitSet(), sent)
    assert prediction.seconds == pytest.approx(4)
    assert prediction.rates_bps == pytest.approx((SECOND * 8 / 4, SECOND * 8 * 3 / 4))
    assert prediction.load["s0/e0", "leaf0"] == pytest.approx(4 * SECOND)


def test_predict_finds_an_oversubscribed_uplink() -> None:
    wired = fabric(0, 1, eps=Eps(servers_per_leaf=2, spines=1, oversubscription=4.0))
    prediction = predict(wired, CircuitSet(), [Flow("s0", "s2", "e0", SECOND)])
    assert prediction.seconds == pytest.approx(2), (
        "2 servers of 100 Gb/s over 4 is an uplink of 50 Gb/s"
    )
    assert "spine0" in (prediction.bottleneck or ())


def test_predict_is_infinite_for_a_flow_without_a_route() -> None:
    assert predict(fabric(3, 0), CircuitSet(), [Flow("s0", "s1", "o0", 1)]).seconds == inf


def test_bound_is_the_busiest_server_over_all_its_nics() -> None:
    demand = DemandMatrix(
        ("s0", "s1", "s2", "s3"), [[9 * SECOND, SECOND, SECOND, 0.0], *[[0.0] * 4] * 3]
    )
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


RELAYED = (Flow("s0", "s1", "r2", SECOND), Flow("s3", "s1", "r2", SECOND / 2))
"""Flows that s2 forwards; they meet on the circuit from s2 to s1."""


@pytest.mark.parametrize(
    ("rate_bps", "seconds", "bottleneck"),
    [
        pytest.param(None, 1.5, ("s2/o2", "ocs"), id="circuits-alone"),
        pytest.param(400e9, 1.5, ("s2/o2", "ocs"), id="more-than-circuits-carry"),
        pytest.param(50e9, 3.0, ("s2", "forwarding"), id="half-a-circuit"),
    ],
)
def test_forwarding_rate_is_a_link_of_all_that_a_server_forwards(
    rate_bps: float | None, seconds: float, bottleneck: tuple[str, str]
) -> None:
    wired = replace(fabric(3, 1), forwarding=True, forwarding_rate_bps=rate_bps)
    prediction = predict(wired, CircuitSet.of(MESH), RELAYED)
    assert prediction.seconds == pytest.approx(seconds)
    assert prediction.bottleneck == bottleneck


def test_route_crosses_forwarding_at_each_server_between_its_ends() -> None:
    line = CircuitSet.of(["s0/o0~s1/o0", "s1/o1~s2/o0", "s2/o1~s3/o0"])
    wired = replace(fabric(3, 1), forwarding=True, forwarding_rate_bps=50e9)
    links = route(wired, line, Flow("s0", "s3", "r2", 1))
    assert [link for link in links if is_forwarding(link)] == [
        ("s1", "forwarding"),
        ("s2", "forwarding"),
    ]
    unlimited = replace(wired, forwarding_rate_bps=None)
    cables = tuple(link for link in links if not is_forwarding(link))
    assert route(unlimited, line, Flow("s0", "s3", "r2", 1)) == cables
    panel = replace(wired, electrical=0, eps=None, patch_panel=True, forwarding=False)
    assert route(panel, line, Flow("s0", "s3", "o0", 1)) == links
    for path in ("o0", "e0"):
        assert not any(map(is_forwarding, route(wired, line, Flow("s0", "s1", path, 1))))


@given(demands())
def test_prediction_is_never_below_the_bound(
    case: tuple[Fabric, CircuitSet, DemandMatrix, Split],
) -> None:
    wired, lit, demand, split = case
    assert predict(wired, lit, flows(wired, lit, split)).seconds >= bound_s(wired, demand) * (
        1 - 1e-9
    )


@given(lit_fabrics(), st.randoms(use_true_random=False))
def test_route_follows_the_rules(given_light: tuple[Fabric, CircuitSet], random: Random) -> None:
    wired, lit = given_light
    src, dst = random.sample(wired.servers, 2)
    rules = direct_rules(lit) | eps_rules(wired)
    for region in wired.regions:
        rules |= server_rules(wired, region)
    for nic in wired.nics(src):
        links = route(wired, lit, Flow(src, dst, nic.path, 1))
        assert _hops(links) == _walk(wired, lit, rules, src, dst, nic.path)


@pytest.mark.parametrize("electrical", [1, 2])
def test_route_follows_the_rules_where_regions_share_one(electrical: int) -> None:
    wired = fabric(1, electrical, regions=(3,) * 32, eps=Eps(4, 2))  # some regions on two leaves
    assert routes_by_region(wired)
    rules = eps_rules(wired).union(*(server_rules(wired, region) for region in wired.regions))
    assert any(rule.to == "r31" for rule in rules)
    assert {Rule("spine0", "r0", "leaf0"), Rule("spine0", "s3", "leaf0")} <= rules
    assert not any(rule.to == "s0" for rule in rules if rule.switch == "spine0")
    crossed = Counter[str]()
    for dst in wired.servers[1:]:
        for nic in wired.electrical_nics("s0"):
            hops = _hops(route(wired, CircuitSet(), Flow("s0", dst, nic.path, 1)))
            assert hops == _walk(wired, CircuitSet(), rules, "s0", dst, nic.path)
        crossed.update(_walk(wired, CircuitSet(), rules, "s0", dst, None)[1:2])
    assert abs(crossed["spine0"] - crossed["spine1"]) <= 3


@given(lit_fabrics(), st.randoms(use_true_random=False))
def test_route_over_a_host_is_that_of_packets_without_a_mark(
    given_light: tuple[Fabric, CircuitSet], random: Random
) -> None:
    wired, lit = given_light
    wired = replace(wired, forwarding=True, forwarding_by_hosts=True)
    rules = circuit_rules(wired, lit) | eps_rules(wired)
    for region in wired.regions:
        rules |= server_rules(wired, region)
    region = max(wired.regions, key=lambda region: len(region.servers))
    assume(len(region.servers) > 2)
    src, relay, dst = random.sample(region.servers, 3)
    links = route(wired, lit, Flow(src, dst, relay_path(wired, relay), 1))
    here = next(n for n, (near, _) in enumerate(links) if n and near.startswith(f"{relay}/"))
    assert _hops(links[:here]) == _walk(wired, lit, rules, src, relay, None)
    assert _hops(links[here:]) == _walk(wired, lit, rules, relay, dst, None)


def _hops(links: tuple[tuple[str, str], ...]) -> list[str]:
    """The ports by which a route leaves: the sender's NIC, then the far end of each later link."""
    return [links[0][0], *(there for _, there in links[1:])]


def _walk(
    wired: Fabric, lit: CircuitSet, rules: frozenset[Rule], src: str, dst: str, path: str | None
) -> list[str]:
    """The ports that a packet leaves by, switch after switch, by the rules alone."""
    switch, hops = src, []
    while switch != dst:
        out = _best(wired, [rule for rule in rules if rule.switch == switch], dst, path).out
        hops.append(out)
        switch = _far_end(wired, lit, switch, out, hops)
        assert len(hops) < 6, "the rules make a loop"
    return hops


def _best(wired: Fabric, rules: list[Rule], dst: str, path: str | None) -> Rule:
    """Light before marks, marks before prefixes, as flow entries have it.

    A light rule without a mark takes unmarked packets only.
    """
    fitting = [
        rule
        for rule in rules
        if rule.to in (dst, wired.region_of[dst].name, "*")
        and (rule.path == path or (rule.path is None and not rule.light))
    ]
    prefixes = ["*", wired.region_of[dst].name, dst]
    return max(
        fitting, key=lambda rule: (rule.light, rule.path is not None, prefixes.index(rule.to))
    )


def _far_end(wired: Fabric, lit: CircuitSet, switch: str, out: str, hops: list[str]) -> str:
    if "/o" in out:
        [circuit] = [c for c in lit if out in (str(c.a), str(c.b))]
        far = circuit.b if str(circuit.a) == out else circuit.a
        hops.append(str(far))
        return far.server
    if "/e" in out:
        nic = Nic.parse(out)
        return wired.eps_wiring.leaf_of_nic(nic) if switch == nic.server else nic.server
    return out
