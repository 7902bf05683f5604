"""Traffic goes round what has failed, by a way that works, and comes back."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.failures import Condition, Failed, Failure, News, failures, relays
from controller.findings import KEPT, Findings
from controller.planner.plan import POLICIES, plan
from controller.planner.water import EpsLinks
from moefabric.circuits import Circuit, CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import ControlError
from moefabric.fluid import Link
from moefabric.rules import eps_rules, server_rules
from moefabric.topology import Eps, EpsKind, Fabric, Nic
from tests.fabrics import fabric
from tests.failure_bench import Bench

FOUR = fabric(2, 2)
SMALL = st.builds(
    fabric,
    st.integers(1, 2),
    st.integers(1, 3),
    regions=st.sampled_from([(2,), (3,), (4,), (2, 2), (3, 2)]),
    eps=st.builds(Eps, st.integers(1, 4), st.integers(0, 3), kind=st.sampled_from(EpsKind)),
)
RING = ["s0/o0~s1/o0", "s1/o1~s2/o0", "s2/o1~s3/o0", "s3/o1~s0/o1"]
MATRIX = [[0, 9, 1, 1], [9, 0, 1, 1], [1, 1, 0, 9], [1, 1, 9, 0]]


def nics(*names: str) -> frozenset[Nic]:
    return frozenset(map(Nic.parse, names))


def lit(bench: Bench, *circuits: str) -> Bench:
    bench.controls["r0"].light({"circuits": list(circuits)}, 0.0)
    return bench


def used(way: tuple[Link, ...]) -> set[str]:
    return {end for link in way for end in link if "/" in end}


def marks(wired: Fabric) -> list[str | None]:
    return [None, *(f"e{k}" for k in range(wired.electrical)), *(f"o{k}" for k in range(wired.optical))]


def all_ways(bench: Bench) -> dict[tuple[str, str, str | None], tuple[Link, ...]]:
    servers = bench.fabric.servers
    asked = [(a, b, m) for a, b in product(servers, servers) if a != b for m in marks(bench.fabric)]
    return {(a, b, m): bench.way(a, b, m) for a, b, m in asked}


def meet(wired: Fabric, a: str, b: str) -> bool:
    """Whether packets that two servers of an EPS send can meet anywhere: on rails without spines only servers of one region choose their rail."""
    if wired.spines or not wired.rails:
        return True
    both = {nic.index for nic in wired.usable_electrical(a)} & {
        nic.index for nic in wired.usable_electrical(b)
    }
    return bool(both) and wired.region_of[a] is wired.region_of[b]


@st.composite
def broken(draw: st.DrawFn) -> tuple[Bench, list[Nic]]:
    """A fabric with some light, and NICs of it that are to fail."""
    bench = Bench(draw(SMALL))
    every = [nic for server in bench.fabric.servers for nic in bench.fabric.nics(server)]
    for region in bench.fabric.regions:
        free: list[Nic] = draw(
            st.permutations([n for s in region.servers for n in bench.fabric.optical_nics(s)])
        )
        pairs = [Circuit(a, b) for a, b in zip(free[::2], free[1::2], strict=False) if a.server != b.server]
        bench.controls[region.name].light({"circuits": [str(c) for c in pairs]}, 0.0)
    return bench, draw(st.lists(st.sampled_from(every), unique=True, max_size=len(every)))


@given(broken())
@settings(max_examples=40, deadline=None)
def test_no_packet_goes_by_a_nic_that_is_out_and_every_pair_that_can_has_a_way(
    told: tuple[Bench, list[Nic]],
) -> None:
    bench, gone = told
    bench.hear(gone, up=False)
    wired = bench.fabric.without(gone)
    relayed = {name: bench.recovery(name).relays for name in bench.controls}
    reached = {
        server
        for server in wired.servers
        if wired.usable_electrical(server) or server in relayed[wired.region_of[server].name]
    }
    for (a, b, mark), way in all_ways(bench).items():
        assert not used(way) & set(map(str, gone)), f"{a} to {b} by {mark}: {way}"
        assert way or not {a, b} <= reached or not meet(wired, a, b), f"{a} to {b} by {mark}"


@given(broken())
@settings(max_examples=40, deadline=None)
def test_a_server_without_electrical_nics_has_a_relay_where_any_peer_can_give_it_a_circuit(
    told: tuple[Bench, list[Nic]],
) -> None:
    bench, gone = told
    bench.hear(gone, up=False)
    wired = bench.fabric.without(gone)
    for region in wired.regions:
        found = bench.recovery(region.name).relays
        taken = {nic for circuit in found.values() for nic in (circuit.a, circuit.b)}
        for server in region.servers:
            if wired.usable_electrical(server) or server in found:
                continue
            able = [
                peer
                for peer in region.servers
                if wired.usable_electrical(peer) and set(wired.usable_optical(peer)) - taken
            ]
            assert not able or not set(wired.usable_optical(server)) - taken


@given(broken())
@settings(max_examples=40, deadline=None)
def test_when_all_works_again_the_rules_are_those_of_before(told: tuple[Bench, list[Nic]]) -> None:
    bench, gone = told
    for nic in gone:
        bench.hear([nic], up=False)
    bench.hear(gone, up=True)
    fresh = Bench(bench.fabric)
    for name in bench.controls:
        fresh.controls[name].light({"circuits": list(map(str, bench.lit(name)))}, 0.0)
    assert bench.switches.entries() == fresh.switches.entries()
    assert not any(bench.recovery(name).findings.standing() for name in bench.controls)


def test_one_of_two_electrical_nics_leaves_its_traffic_to_the_other_and_moves_no_other() -> None:
    bench = Bench(FOUR)
    before = all_ways(bench)
    bench.hear(["s0/e0"], up=False)
    for key, way in all_ways(bench).items():
        assert "s0/e0" not in used(way)
        assert way == before[key] or "s0/e0" in used(before[key])
    assert bench.way("s0", "s3", "e0") == (("s0/e1", "leaf0"), ("leaf0", "s3/e0"))
    assert bench.way("s3", "s0", "e0") == (("s3/e0", "leaf0"), ("leaf0", "s0/e1"))


def test_a_server_that_has_lost_the_eps_is_reached_over_a_lit_circuit_by_its_peer_both_ways() -> None:
    bench = lit(Bench(FOUR), *RING)
    bench.hear(["s0/e0", "s0/e1"], up=False)
    assert bench.recovery().doors == {"s0": "s1"} == bench.eps.relays
    assert [one.action for one in bench.eps.findings.standing()] == [
        "s0 waits for a relay; s0 is reached by s1"
    ] * 2
    for mark in ("e0", "e1", "o0", None):
        assert bench.way("s0", "s2", mark)[:2] == (("s0/o0", "ocs"), ("ocs", "s1/o0")), mark
        assert bench.way("s2", "s0", mark)[-2:] == (("s1/o0", "ocs"), ("ocs", "s0/o0")), mark
    assert bench.way("s0", "s3", None) == (("s0/o1", "ocs"), ("ocs", "s3/o1"))  # light of its own comes first


def test_a_relay_that_has_no_light_yet_is_lit() -> None:
    bench = Bench(FOUR)
    bench.hear(["s2/e0", "s2/e1"], up=False)
    assert bench.lit() == CircuitSet.of(["s0/o1~s2/o1"])
    assert bench.way("s3", "s2", "e1")[-1] == ("ocs", "s2/o1")


def test_a_relay_whose_peer_fails_too_is_replaced() -> None:
    bench = lit(Bench(FOUR), *RING)
    bench.hear(["s0/e0", "s0/e1"], up=False)
    bench.hear(["s1/e0", "s1/e1"], up=False)
    assert bench.recovery().doors == {"s0": "s3", "s1": "s2"} == bench.eps.relays
    assert bench.way("s0", "s1", "e0")
    assert used(bench.way("s2", "s0", "e0")) == {"s2/e0", "s3/e0", "s3/o1", "s0/o1"}


def test_light_moves_though_the_controller_of_the_eps_is_gone_and_a_relay_waits_for_it() -> None:
    bench = lit(Bench(FOUR), *RING)
    bench.hear(["s0/e0", "s0/e1"], up=False, relight=False)
    bench.eps_gone = True
    answered = bench.controls["r0"].light({"circuits": RING[:2]}, 0.0)
    assert answered["circuits_after"] == RING[:2]
    with pytest.raises(ControlError, match="no answer"):
        bench.controls["r0"].relight()
    bench.eps_gone = False
    bench.controls["r0"].relight()
    assert bench.eps.relays == {"s0": "s1"}


def test_a_peer_that_loses_one_of_its_nics_relays_by_the_other() -> None:
    bench = lit(Bench(FOUR), *RING)
    bench.hear(["s0/e0", "s0/e1"], up=False)
    bench.hear(["s1/e0"], up=False)
    assert bench.recovery().doors == {"s0": "s1"}
    for mark in marks(FOUR):
        assert used(bench.way("s2", "s0", mark)) >= {"s1/e1", "s1/o0", "s0/o0"}, mark


def test_who_has_a_relay_keeps_it_and_who_has_none_takes_nics_without_light() -> None:
    out = FOUR.without(nics("s0/e0", "s0/e1"))
    there = {"s0": Circuit.parse("s0/o1~s3/o1")}
    assert relays(out, out.regions[0], CircuitSet.of(RING), there) == there
    elsewhere = CircuitSet.of(["s1/o1~s2/o0"])
    assert relays(out, out.regions[0], elsewhere, {}) == {"s0": Circuit.parse("s0/o1~s1/o0")}


def test_a_server_with_one_of_two_nics_left_has_half_as_much_of_the_eps() -> None:
    budget = EpsLinks.of(FOUR.without(nics("s0/e0")), FOUR.servers).budget
    sending, receiving = budget[:4], budget[4:]
    assert (sending[0], receiving[0]) == (sending[1] / 2, receiving[1] / 2)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "eps"])
def test_a_plan_uses_no_nic_that_is_out_and_leaves_what_is_held(policy: str) -> None:
    held = CircuitSet.of(["s1/o1~s2/o1"])
    out = FOUR.without(nics("s0/o0", "s3/o0", "s3/o1"))
    demand = DemandMatrix(FOUR.servers, [[float(x) for x in row] for row in MATRIX])
    now = CircuitSet.of(RING)
    for lit_now in (CircuitSet(), now):
        planned = plan(out, out.regions[0], demand, POLICIES[policy], lit_now, held)
        ends = {nic for circuit in planned.circuits for nic in (circuit.a, circuit.b)}
        assert held.circuits <= planned.circuits.circuits
        assert not ends & out.out
        assert planned.leftover_ports[3] == 0


def test_light_is_planned_anew_for_the_last_demand_without_the_port_that_failed() -> None:
    bench = Bench(fabric(1, 1))
    bench.controls["r0"].demand({"demand": MATRIX}, 0.0)
    assert bench.lit() == CircuitSet.of(["s0/o0~s1/o0", "s2/o0~s3/o0"])
    bench.hear(["s1/o0"], up=False, port=True)
    assert bench.lit() == CircuitSet.of(["s2/o0~s3/o0"])
    assert bench.way("s0", "s1", "o0") == (("s0/e0", "leaf0"), ("leaf0", "s1/e0"))
    (finding,) = bench.recovery().findings.standing()
    assert (finding.what, finding.kind) == ("s1/o0", "ocs-port")
    bench.hear(["s1/o0"], up=True, port=True)
    assert bench.lit() == CircuitSet.of(["s0/o0~s1/o0", "s2/o0~s3/o0"])


def test_the_other_end_of_a_circuit_that_failed_is_lit_to_whom_it_helps_most() -> None:
    bench = Bench(FOUR)
    bench.controls["r0"].demand({"demand": MATRIX}, 0.0)
    before = bench.lit()
    (gone,) = [nic for circuit in before.between("s0", "s1")[:1] for nic in [circuit.a]]
    bench.hear([gone], up=False)
    after = bench.lit()
    assert after != before
    assert after.between("s0", "s1")
    assert {nic for circuit in after for nic in (circuit.a, circuit.b)} >= {*FOUR.optical_nics("s2")}
    (finding,) = bench.recovery().findings.standing()
    assert finding.action == f"its pair is on the EPS; lit anew: {after}"


def test_a_pair_is_on_the_eps_before_light_is_moved() -> None:
    bench = lit(Bench(FOUR), *RING)
    bench.hear(["s0/o0"], up=False, relight=False)
    assert bench.way("s0", "s1", "o0") == (("s0/e0", "leaf0"), ("leaf0", "s1/e0"))
    assert bench.way("s1", "s2", "o1") == (("s1/o1", "ocs"), ("ocs", "s2/o0"))


def test_a_link_that_hangs_on_light_counts_where_traffic_relied_on_it_until_light_is_asked_for_again() -> (
    None
):
    bench = lit(Bench(FOUR), *RING[:1])
    bench.hear(["s2/o0", "s3/o1"], up=False, hangs=True)  # nothing was lit there
    assert bench.recovery().findings.told()["failures"] == []
    bench.hear(["s0/o0"], up=False, hangs=True)
    assert bench.lit() == CircuitSet()
    assert bench.way("s0", "s1", "o0") == (("s0/e0", "leaf0"), ("leaf0", "s1/e0"))
    bench.hear(
        ["s1/o0"], up=False, hangs=True
    )  # it went dark with the other end, and nobody relies on it any more
    assert [one.what for one in bench.recovery().findings.standing()] == ["s0/o0"]
    bench.out = frozenset()
    lit(bench, *RING[:1])
    assert bench.way("s0", "s1", "o0") == (("s0/o0", "ocs"), ("ocs", "s1/o0"))
    bench.hear(["s0/o0", "s1/o0"], up=True, hangs=True)
    assert bench.recovery().findings.standing() == []


def test_without_its_optical_switch_a_region_is_on_the_eps_and_asks_it_nothing() -> None:
    bench = lit(Bench(FOUR), *RING)
    bench.ocs["r0"].gone = True
    bench.hear([nic for server in FOUR.servers for nic in FOUR.optical_nics(server)], up=False)
    assert all(way[0][1] == "leaf0" for way in all_ways(bench).values())
    assert [(f.what, f.kind) for f in bench.recovery().findings.standing()] == [("ocs0", "ocs")]
    with bench.lock:  # somebody still waits for the switch that is gone
        answered = bench.controls["r0"].demand({"demand": MATRIX}, 0.0)
    assert answered["circuits_after"] == []
    bench.ocs["r0"].gone = False
    bench.hear([nic for server in FOUR.servers for nic in FOUR.optical_nics(server)], up=True)
    assert len(bench.lit()) == 4
    assert bench.recovery().findings.standing() == []


def test_on_rails_a_peers_packets_take_a_rail_on_which_both_have_a_nic() -> None:
    rails = fabric(1, 2, eps=Eps(4, kind=EpsKind.RAIL))
    bench = Bench(rails)
    bench.hear(["s0/e0"], up=False)
    for mark in marks(rails):
        assert used(bench.way("s2", "s0", mark)) == {"s2/e1", "s0/e1"}
        assert used(bench.way("s0", "s2", mark)) == {"s0/e1", "s2/e1"}
    assert used(bench.way("s2", "s3", "e0")) == {"s2/e0", "s3/e0"}


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        (["s0/e0"], [Failure("s0/e0", Failed.ELECTRICAL_NIC)]),
        (["s0/o1"], [Failure("s0/o1", Failed.OPTICAL_NIC)]),
        ([f"s1/{path}" for path in ("o0", "o1", "e0", "e1")], [Failure("s1", Failed.SERVER)]),
        ([f"s{s}/o{k}" for s in range(4) for k in range(2)], [Failure("ocs0", Failed.OCS)]),
        (
            [f"s{s}/o{k}" for s in range(4) for k in range(2)] + ["s2/e0", "s2/e1"],
            [Failure("ocs0", Failed.OCS), Failure("s2", Failed.SERVER)],
        ),
    ],
    ids=["electrical", "optical", "server", "ocs", "ocs-and-server"],
)
def test_what_has_failed_is_told_in_the_fewest_words(gone: list[str], expected: list[Failure]) -> None:
    condition = Condition().told(News(nic, up=False, at_ns=1) for nic in nics(*gone))
    assert list(failures(FOUR, FOUR.regions, Condition(), condition)) == expected


def test_what_works_again_piece_by_piece_is_no_new_failure() -> None:
    every = [nic for server in FOUR.servers for nic in FOUR.optical_nics(server)]
    dark = Condition().told(News(nic, up=False, at_ns=1) for nic in every)
    dawning = dark.told([News(every[0], up=True, at_ns=2)])
    assert failures(FOUR, FOUR.regions, dark, dawning) == ()


def test_relays_are_spread_over_peers() -> None:
    out = FOUR.without(nics("s0/e0", "s0/e1", "s1/e0", "s1/e1"))
    chosen = relays(out, out.regions[0], CircuitSet(), {})
    assert {circuit.end_across(server).server for server, circuit in chosen.items()} == {"s2", "s3"}


def test_findings_say_when_and_what_was_done_and_wake_who_waits() -> None:
    bench = Bench(FOUR)
    findings = bench.recovery().findings
    assert findings.told() == {"version": 0, "failures": []}
    bench.hear(["s0/e1"], up=False)
    told = findings.told(after=0, patience_s=5.0)
    (finding,) = told["failures"]
    assert finding["action"] == "s0 sends by s0/e0"
    assert 0 < finding["detected_ns"] < finding["recovered_ns"]
    assert finding["cleared_ns"] is None
    bench.hear(["s0/e1"], up=True)
    (finding,) = findings.told(after=told["version"])["failures"]
    assert finding["cleared_ns"] > finding["recovered_ns"]


def test_what_stands_is_kept_however_much_fails_and_works_again() -> None:
    findings, stands = Findings(), Failure("s0/e0", Failed.ELECTRICAL_NIC)
    findings.detected([stands], 1)
    for _ in range(KEPT + 2):
        findings.detected([Failure("s1/e0", Failed.ELECTRICAL_NIC)], 2)
        findings.cleared(lambda one: one.what == "s1/e0")
    findings.acted(1, "s0 sends by s0/e1")
    told = findings.told()["failures"]
    assert (told[0]["what"], told[0]["action"]) == ("s0/e0", "s0 sends by s0/e1")
    assert len(told) <= KEPT + 2


def test_rules_of_a_fabric_without_failures_are_the_same_with_and_without_the_word_relay() -> None:
    assert eps_rules(FOUR, {}) == eps_rules(FOUR)
    assert server_rules(FOUR, FOUR.regions[0], {}) == server_rules(FOUR, FOUR.regions[0])
