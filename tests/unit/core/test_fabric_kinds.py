"""Every kind of fabric connects all of its servers, and fluid routes follow its rules."""

from dataclasses import replace
from itertools import permutations, product
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps, EpsKind
from moefabric.core.fabric_description import fabric_description
from moefabric.core.flows import Flow, Share, flows
from moefabric.core.forwarding import circuit_rules, next_hops
from moefabric.core.ocs import Ocs
from moefabric.core.paths import (
    eps_paths,
    nic_paths,
    path_names,
    relay_lanes,
    relay_path,
    relay_paths,
    spine_paths,
)
from moefabric.core.routes import route
from moefabric.core.rules import RuleChange
from moefabric.core.topology import Fabric, Region
from moefabric.planner.policy import Policy
from moefabric.planner.static import STATIC
from moefabric.planner.topoopt import TopoOpt
from moefabric.planner.waterfill import EpsLinks, completion_s
from moefabric.simulator.fluid import predict
from tests.support.fabrics import circuit_sets, fabric, fabrics
from tests.support.memory_switches import MemorySwitches

SECOND = 100e9 / 8 * 1448 / 1514
"""Bytes that a NIC of 100 Gb/s carries in a second."""


def panel(servers: int, nics: int) -> Fabric:
    names = tuple(f"s{i}" for i in range(servers))
    region = Region("r0", 0, names, Ocs("ocs0", servers * nics))
    return Fabric("test", (region,), 8, nics, 0, 100e9, None, patch_panel=True)


def switched(wired: Fabric, lit: CircuitSet) -> MemorySwitches:
    """All packet switches, with traffic on that light."""
    switches = MemorySwitches(wired)
    switches.apply(RuleChange.between([], circuit_rules(wired, lit)))
    return switches


def marks(wired: Fabric) -> list[str | None]:
    return [
        None,
        *(f"o{k}" for k in range(wired.optical)),
        *(f"e{k}" for k in range(wired.electrical)),
        *(path.name for path in spine_paths(wired)),
        *(
            relay_path(wired, root, lane)
            for root in wired.servers
            if wired.forwarding
            for lane in range(relay_lanes(wired, wired.region_of[root]))
        ),
    ]


@st.composite
def laid_panels(draw: st.DrawFn) -> tuple[Fabric, CircuitSet]:
    """A patch panel as a policy lays it for any demand, none included."""
    wired = panel(draw(st.integers(2, 9)), draw(st.integers(2, 6)))
    n = len(wired.servers)
    row = st.lists(st.sampled_from([0, 0, 1, 7, 50]), min_size=n, max_size=n)
    demand = DemandMatrix(wired.servers, draw(st.lists(row, min_size=n, max_size=n)))
    policies: list[Policy] = [TopoOpt(), STATIC]
    policy = draw(st.sampled_from(policies))
    return wired, policy.circuits(wired, wired.regions[0], demand, CircuitSet())


@st.composite
def lit_fabrics(draw: st.DrawFn) -> tuple[Fabric, CircuitSet]:
    """Any kind of fabric, and light that it can have."""
    if draw(st.booleans()):
        return draw(laid_panels())
    wired = replace(draw(fabrics()), forwarding=draw(st.booleans()))
    return wired, draw(circuit_sets(wired))


@settings(deadline=None)
@given(lit_fabrics())
def test_packets_of_no_tree_take_the_same_route_with_and_without_trees(
    case: tuple[Fabric, CircuitSet],
) -> None:
    wired, lit = case
    without, with_trees = (replace(wired, forwarding=on) for on in (False, True))
    a, b = switched(without, lit), switched(with_trees, lit)
    for src, dst in permutations(wired.servers, 2):
        for mark in marks(without):
            assert a.route(src, dst, mark, lit) == b.route(src, dst, mark, lit)


@settings(deadline=None)
@given(lit_fabrics())
def test_every_packet_reaches_its_server_however_it_is_marked(
    case: tuple[Fabric, CircuitSet],
) -> None:
    wired, lit = case
    switches = switched(wired, lit)
    for src, dst in permutations(wired.servers, 2):
        for mark in marks(wired):
            links = switches.route(src, dst, mark, lit)
            assert links, f"{src} to {dst} marked {mark} is lost"
            assert links[-1][1].startswith(f"{dst}/")
            assert len(links) <= max(4, 2 * (len(wired.servers) - 1))


@settings(deadline=None)
@given(lit_fabrics())
def test_fluid_route_follows_the_rules(case: tuple[Fabric, CircuitSet]) -> None:
    wired, lit = case
    switches = switched(wired, lit)
    for src, dst in permutations(wired.servers, 2):
        paths = [nic.path for nic in wired.nics(src)] + [p.name for p in eps_paths(wired, src, dst)]
        for path in (*paths, *relay_paths(wired, src, dst)):
            flow = Flow(src, dst, path, 1.0)
            assert route(wired, lit, flow) == switches.route(src, dst, path, lit)


@settings(deadline=None)
@given(fabrics(), st.none() | st.integers(0, 9))
def test_bytes_between_gpus_take_the_nics_of_both(wired: Fabric, seed: int | None) -> None:
    assert wired.eps is not None
    own = replace(wired, eps=replace(wired.eps, nic_per_gpu=True, hash_seed=seed))
    switches, rails = MemorySwitches(own), own.eps_wiring.rail_optimised
    for src, dst in permutations(own.servers[:5], 2):
        for near, far in product(range(own.electrical), repeat=2):
            paths = nic_paths(own, src, dst, near, far)
            assert {*paths} <= {*path_names(own, src, dst)}
            for path in paths:
                links = switches.route(src, dst, path)
                ends = f"{src}/e{far if rails else near}", f"{dst}/e{far}"
                assert (links[0][0], links[-1][1]) == ends
                assert route(own, CircuitSet(), Flow(src, dst, path, 1.0)) == links


@settings(deadline=None)
@given(fabrics(kind=st.just(EpsKind.RAIL)))
def test_flow_arrives_on_the_rail_by_which_it_left(wired: Fabric) -> None:
    switches = switched(wired, CircuitSet())
    for src, dst in permutations(wired.servers, 2):
        for path in eps_paths(wired, src, dst):
            links = switches.route(src, dst, path.name)
            assert (links[0][0], links[-1][1]) == (f"{src}/e{path.nic}", f"{dst}/e{path.nic}")


@settings(deadline=None)
@given(laid_panels())
def test_flow_over_a_patch_panel_takes_its_nic_and_the_fewest_circuits(
    case: tuple[Fabric, CircuitSet],
) -> None:
    wired, lit = case
    hops = next_hops(lit)
    assume(hops)
    for (src, dst), nics in hops.items():
        lengths = {len(route(wired, lit, Flow(src, dst, nic.path, 1.0))) for nic in nics}
        assert len(lengths) == 1
        assert (lengths == {2}) == bool(lit.between(src, dst))
        for nic in nics:
            assert route(wired, lit, Flow(src, dst, nic.path, 1.0))[0] == (str(nic), "ocs")


def test_servers_forward_for_a_pair_without_a_circuit() -> None:
    wired, lit = panel(3, 2), CircuitSet.of(["s0/o0~s1/o0", "s1/o1~s2/o0"])
    sent = flows(wired, lit, [Share("s0", "s2", 0.0, SECOND), Share("s0", "s1", SECOND, 0.0)])
    assert sent == (Flow("s0", "s2", "o0", SECOND), Flow("s0", "s1", "o0", SECOND))
    assert route(wired, lit, sent[0]) == (
        ("s0/o0", "ocs"),
        ("ocs", "s1/o0"),
        ("s1/o1", "ocs"),
        ("ocs", "s2/o0"),
    )
    prediction = predict(wired, lit, sent)
    assert prediction.seconds == pytest.approx(2), "both flows are on the first circuit"
    assert prediction.load["s1/o1", "ocs"] == SECOND


def test_forwarded_flows_are_spread_over_all_shortest_paths() -> None:
    wired = panel(4, 2)
    lit = CircuitSet.of(["s0/o0~s1/o0", "s1/o1~s2/o0", "s2/o1~s3/o0", "s0/o1~s3/o1"])
    sent = flows(wired, lit, [Share("s0", "s2", 0.0, 2 * SECOND)])
    assert {flow.path: flow.bytes for flow in sent} == {"o0": SECOND, "o1": SECOND}
    assert predict(wired, lit, sent).seconds == pytest.approx(1)


def test_parallel_circuits_share_forwarded_flows() -> None:
    wired = panel(3, 4)
    lit = CircuitSet.of(["s0/o0~s1/o0", "s0/o1~s1/o1", "s1/o2~s2/o0", "s1/o3~s2/o1"])
    prediction = predict(wired, lit, flows(wired, lit, [Share("s0", "s2", 0.0, 2 * SECOND)]))
    assert prediction.seconds == pytest.approx(1)
    assert {link: load for link, load in prediction.load.items() if link[0].startswith("s1")} == {
        ("s1/o2", "ocs"): SECOND,
        ("s1/o3", "ocs"): SECOND,
    }


def test_unconnected_pair_has_no_route() -> None:
    wired, lit = panel(3, 2), CircuitSet.of(["s0/o0~s1/o0"])
    with pytest.raises(ValueError, match="s0 has no way over circuits for 5 bytes to s2"):
        flows(wired, lit, [Share("s0", "s2", 0.0, 5.0)])
    assert route(wired, lit, Flow("s0", "s2", "o0", 1.0)) == ()


def test_rails_of_one_pod_equal_a_non_blocking_leaf() -> None:
    shares = [Share("s0", "s1", 0, 8 * SECOND), Share("s2", "s1", 0, 8 * SECOND)]
    leaf, rail = fabric(0, 8), fabric(0, 8, eps=Eps(4, kind=EpsKind.RAIL))
    times = [predict(f, CircuitSet(), flows(f, CircuitSet(), shares)).seconds for f in (leaf, rail)]
    assert times == pytest.approx([2, 2])
    assert rail.spines == ()
    assert [str(nic) for nic in rail.eps_wiring.nics_under("leaf3")] == [
        "s0/e3",
        "s1/e3",
        "s2/e3",
        "s3/e3",
    ]


@pytest.mark.parametrize(
    ("wired", "words"),
    [
        (fabric(0, 8), "one leaf, non-blocking"),
        (fabric(0, 8, eps=Eps(2, 2)), "leaf-spine of 2 leaves and 2 spines, non-blocking"),
        (
            fabric(0, 8, eps=Eps(2, 2, hash_seed=1)),
            "leaf-spine of 2 leaves and 2 spines, non-blocking, flows hashed",
        ),
        (fabric(0, 8, eps=Eps(4, hash_seed=1)), "one leaf, non-blocking"),
        (fabric(0, 8, eps=Eps(4, nic_per_gpu=True)), "one leaf, non-blocking, a NIC for each GPU"),
        (
            fabric(0, 8, eps=Eps(2, 1, 3.0)),
            "leaf-spine of 2 leaves and 1 spine, 3:1 oversubscribed",
        ),
        (fabric(0, 8, eps=Eps(4, kind=EpsKind.RAIL)), "rail-optimised, 8 leaves, non-blocking"),
        (
            fabric(0, 2, eps=Eps(2, 2, 3.0, EpsKind.RAIL)),
            "rail-optimised, 4 leaves and 2 spines, 3:1 oversubscribed",
        ),
        (fabric(3, 1), "OCS of 12 ports + one leaf, non-blocking"),
        (fabric(3, 1, regions=(2, 2)), "2 OCSes of 6 ports each + one leaf, non-blocking"),
        (panel(4, 8), "flat patch panel of 32 ports, servers forward"),
        (
            replace(fabric(3, 1), forwarding=True, forwarding_rate_bps=200e9),
            "OCS of 12 ports + one leaf, non-blocking + servers forward 200Gb/s each",
        ),
    ],
)
def test_fabric_description(wired: Fabric, words: str) -> None:
    assert fabric_description(wired) == words


@given(fabrics(), st.randoms(use_true_random=False))
def test_optimal_split_agrees_with_the_fluid_model_on_every_kind(
    wired: Fabric, random: Random
) -> None:
    sent = np.array(
        [[random.choice([0, 1, 5, 30]) * (i != j) for j in wired.servers] for i in wired.servers]
    )
    owed = sent * SECOND
    shares = [Share(a, b, 0.0, size) for a, b, size in DemandMatrix(wired.servers, owed).pairs()]
    links = EpsLinks.of(wired, wired.servers)
    expected = predict(wired, CircuitSet(), flows(wired, CircuitSet(), shares)).seconds
    assert completion_s(owed, np.zeros_like(owed), links) == pytest.approx(expected)
