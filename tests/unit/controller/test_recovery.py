"""Recovery of regions and the EPS: traffic avoids failures and returns."""

import threading
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.controller.reconfiguration import Reconciler
from moefabric.controller.recovery.failure_history import MOST_CLEARED, FailureHistory
from moefabric.controller.recovery.failure_state import (
    DetectedFailure,
    NicEvent,
    NicStates,
    new_failures,
)
from moefabric.controller.recovery.relays import select_relays
from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps, EpsKind
from moefabric.core.errors import ControlError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.forwarding import tree_route
from moefabric.core.nic import Nic
from moefabric.core.paths import relay_paths, relay_root
from moefabric.core.routes import Link
from moefabric.core.rules import DROP, RuleChange, server_rules
from moefabric.core.topology import Fabric, ocs_port
from moefabric.planner.plan import plan
from moefabric.planner.waterfill import EpsLinks
from tests.support.fabrics import MESH, fabric
from tests.support.policies import POLICIES
from tests.support.recovery_bench import Bench

FOUR = fabric(2, 2)
SMALL = st.builds(
    replace,
    st.builds(
        fabric,
        st.integers(1, 2),
        st.integers(1, 3),
        regions=st.sampled_from([(2,), (3,), (4,), (2, 2), (3, 2)]),
        eps=st.builds(Eps, st.integers(1, 4), st.integers(0, 3), kind=st.sampled_from(EpsKind)),
    ),
    forwarding=st.booleans(),
)
RING = ["s0/o0~s1/o0", "s1/o1~s2/o0", "s2/o1~s3/o0", "s3/o1~s0/o1"]
MATRIX = [[0, 9, 1, 1], [9, 0, 1, 1], [1, 1, 0, 9], [1, 1, 9, 0]]


def nics(*names: str) -> frozenset[Nic]:
    return frozenset(map(Nic.parse, names))


def lit(bench: Bench, *circuits: str) -> Bench:
    bench.controllers["r0"].light({"circuits": list(circuits)}, 0.0)
    return bench


def used(way: tuple[Link, ...]) -> set[str]:
    return {end for link in way for end in link if "/" in end}


def marks(wired: Fabric) -> list[str | None]:
    return [
        None,
        *(f"e{k}" for k in range(wired.electrical)),
        *(f"o{k}" for k in range(wired.optical)),
    ]


def all_ways(bench: Bench) -> dict[tuple[str, str, str | None], tuple[Link, ...]]:
    wired = bench.fabric
    pairs = [(a, b) for a, b in product(wired.servers, wired.servers) if a != b]
    cases = [(a, b, m) for a, b in pairs for m in (*marks(wired), *relay_paths(wired, a, b))]
    return {(a, b, m): bench.route(a, b, m) for a, b, m in cases}


def meet(wired: Fabric, a: str, b: str) -> bool:
    """Whether packets of two servers can meet: without spines, only a region chooses its rail."""
    if wired.spines or not wired.eps_wiring.rail_optimised:
        return True
    both = {nic.index for nic in wired.usable_electrical(a)} & {
        nic.index for nic in wired.usable_electrical(b)
    }
    return bool(both) and wired.region_of[a] is wired.region_of[b]


@st.composite
def broken(draw: st.DrawFn) -> tuple[Bench, list[Nic]]:
    """Return a fabric with some circuits, and NICs that are to fail."""
    bench = Bench(draw(SMALL))
    every = [nic for server in bench.fabric.servers for nic in bench.fabric.nics(server)]
    for region in bench.fabric.regions:
        free: list[Nic] = draw(
            st.permutations([n for s in region.servers for n in bench.fabric.optical_nics(s)])
        )
        pairs = [
            Circuit(a, b)
            for a, b in zip(free[::2], free[1::2], strict=False)
            if a.server != b.server
        ]
        bench.controllers[region.name].light({"circuits": [str(c) for c in pairs]}, 0.0)
    return bench, draw(st.lists(st.sampled_from(every), unique=True, max_size=len(every)))


@given(broken())
def test_packets_avoid_failed_nics_and_reach_every_reachable_server(
    situation: tuple[Bench, list[Nic]],
) -> None:
    bench, gone = situation
    bench.deliver(gone, up=False)
    wired = bench.fabric.without_nics(gone)
    relayed = {name: bench.recovery(name).relay_circuits for name in bench.controllers}
    reached = {
        server
        for server in wired.servers
        if wired.usable_electrical(server) or server in relayed[wired.region_of[server].name]
    }
    for (a, b, mark), way in all_ways(bench).items():
        assert not used(way) & set(map(str, gone)), f"{a} to {b} by {mark}: {way}"
        assert way or not {a, b} <= reached or not meet(wired, a, b), f"{a} to {b} by {mark}"


@given(broken())
def test_isolated_server_gets_a_relay_if_any_peer_has_a_circuit(
    situation: tuple[Bench, list[Nic]],
) -> None:
    bench, some = situation
    gone = {*some, *bench.fabric.electrical_nics("s0")}
    bench.deliver(gone, up=False)
    wired = bench.fabric.without_nics(gone)
    for server in (one for one in wired.servers if not wired.usable_electrical(one)):
        region = wired.region_of[server]
        circuits = bench.recovery(region.name).relay_circuits
        taken = {nic for circuit in circuits.values() for nic in (circuit.a, circuit.b)}
        able = [
            peer
            for peer in region.servers
            if wired.usable_electrical(peer) and set(wired.usable_optical(peer)) - taken
        ]
        assert server in circuits or not able or not set(wired.usable_optical(server)) - taken


@given(broken())
def test_rules_return_when_all_nics_work_again(situation: tuple[Bench, list[Nic]]) -> None:
    bench, gone = situation
    for nic in gone:
        bench.deliver([nic], up=False)
    bench.deliver(gone, up=True)
    fresh = Bench(bench.fabric)
    for name in bench.controllers:
        fresh.controllers[name].light({"circuits": list(map(str, bench.lit(name)))}, 0.0)
    assert bench.switches.entries() == fresh.switches.entries()
    assert not any(bench.recovery(name).history.standing() for name in bench.controllers)


def test_failed_electrical_nic_moves_only_its_own_traffic() -> None:
    bench = Bench(FOUR)
    before = all_ways(bench)
    bench.deliver(["s0/e0"], up=False)
    for key, way in all_ways(bench).items():
        assert "s0/e0" not in used(way)
        assert way == before[key] or "s0/e0" in used(before[key])
    assert bench.route("s0", "s3", "e0") == (("s0/e1", "leaf0"), ("leaf0", "s3/e0"))
    assert bench.route("s3", "s0", "e0") == (("s3/e0", "leaf0"), ("leaf0", "s0/e1"))


def test_spread_flows_leave_failed_nics_and_return() -> None:
    wired = replace(fabric(2, 1), spreads_unmarked=True)
    bench = lit(Bench(wired), "s0/o0~s1/o0", "s0/o1~s1/o1")

    def ports() -> set[int]:
        entries = bench.switches.entries()["s0"]
        (spread,) = [entry.buckets for entry in entries if entry.buckets]
        return {port for port, _ in spread}

    whole = {wired.openflow.ports("s0")[name] for name in ("s0/o0", "s0/o1", "s0/e0")}
    assert ports() == whole
    for nic in ("s0/e0", "s0/o1"):
        bench.deliver([nic], up=False)
        assert ports() == whole - {wired.openflow.ports("s0")[nic]}
        bench.deliver([nic], up=True)
        assert ports() == whole


def test_relay_carries_traffic_both_ways() -> None:
    bench = lit(Bench(FOUR), *RING)
    bench.deliver(["s0/e0", "s0/e1"], up=False)
    assert bench.recovery().relays == {"s0": "s1"} == bench.eps.relays
    assert [one.action for one in bench.eps.history.standing()] == [
        "s0 waits for a relay; s0 is reached by s1"
    ] * 2
    for mark in ("e0", "e1", "o0", None):
        assert bench.route("s0", "s2", mark)[:2] == (("s0/o0", "ocs"), ("ocs", "s1/o0")), mark
        assert bench.route("s2", "s0", mark)[-2:] == (("s1/o0", "ocs"), ("ocs", "s0/o0")), mark
    assert bench.route("s0", "s3", None) == (
        ("s0/o1", "ocs"),
        ("ocs", "s3/o1"),
    )  # its own circuit comes first


def test_relay_over_a_lit_circuit_moves_no_circuits() -> None:
    bench = lit(Bench(FOUR), *RING)
    bench.deliver(["s0/e0", "s0/e1"], up=False, relight=False)
    assert not bench.recovery().relays
    assert not bench.controllers["r0"].relay()
    assert bench.recovery().relays.keys() == {"s0"}
    assert bench.lit() == CircuitSet.of(RING)


def test_reply_names_the_circuits_that_a_failed_nic_keeps_dark() -> None:
    bench = lit(Bench(FOUR), *RING)
    bench.deliver(["s0/o0"], up=False)
    reply = bench.controllers["r0"].light({"circuits": RING}, 0.0)
    assert reply["dark"] == RING[:1]
    assert CircuitSet.of(reply["circuits_after"]) == CircuitSet.of(RING[1:])


def test_circuit_that_a_failure_keeps_dark_stays_requested() -> None:
    bench = lit(Bench(FOUR), *RING)
    bench.deliver(["s0/o0"], up=False)
    requested = bench.controllers["r0"].circuits()["requested"]
    assert CircuitSet.of(requested) == CircuitSet.of(RING)
    lit(bench, *[name for name in requested if name != RING[1]])
    bench.deliver(["s0/o0"], up=True)
    assert bench.lit() == CircuitSet.of(RING) - CircuitSet.of(RING[1:2])


def test_requested_circuits_are_those_of_the_last_plan() -> None:
    bench = Bench(FOUR)
    bench.controllers["r0"].demand({"demand": MATRIX}, 0.0)
    for up in (False, True):
        bench.deliver(["s0/o0"], up=up)
        requested = CircuitSet.of(bench.controllers["r0"].circuits()["requested"])
        assert requested == bench.lit()


def test_controller_that_restarts_takes_what_the_ocs_shows_as_requested() -> None:
    bench = lit(Bench(FOUR), *RING)
    started = replace(bench.controllers["r0"])
    assert isinstance(started.reconciler, Reconciler)
    started.recovery.handle_events([NicEvent(Nic.parse("s0/o0"), up=False, at_ns=1)])
    started.adopt()
    started.adopted = started.reconciler is None
    started.adopt()
    assert CircuitSet.of(started.circuits()["requested"]) == CircuitSet.of(RING)
    started.recovery.handle_events([NicEvent(Nic.parse("s0/o0"), up=True, at_ns=2)])
    started.relight()
    assert bench.lit() == CircuitSet.of(RING)


def test_relay_without_light_is_forgotten_with_its_failure() -> None:
    bench = Bench(FOUR)
    bench.ocs["r0"].opaque = frozenset(ocs_port(FOUR, nic) for nic in FOUR.optical_nics("s3"))
    bench.deliver(FOUR.electrical_nics("s3"), up=False)
    reconciler = bench.controllers["r0"].reconciler
    assert reconciler is not None
    assert reconciler.dark.between("s3", "s0"), "its proof has failed"
    assert bench.controllers["r0"].circuits()["dark"] == [], "nobody has requested it"
    bench.deliver(FOUR.optical_nics("s3"), up=False)
    assert not reconciler.dark
    bench.deliver(FOUR.nics("s3"), up=True)
    assert not reconciler.dark


def test_relay_circuit_is_lit_if_needed() -> None:
    bench = Bench(FOUR)
    bench.deliver(["s2/e0", "s2/e1"], up=False)
    assert bench.lit() == CircuitSet.of(["s0/o1~s2/o1"])
    assert bench.route("s3", "s2", "e1")[-1] == ("ocs", "s2/o1")


def test_failed_relay_is_replaced() -> None:
    bench = lit(Bench(FOUR), *RING)
    bench.deliver(["s0/e0", "s0/e1"], up=False)
    bench.deliver(["s1/e0", "s1/e1"], up=False)
    assert bench.recovery().relays == {"s0": "s3", "s1": "s2"} == bench.eps.relays
    assert bench.route("s0", "s1", "e0")
    assert used(bench.route("s2", "s0", "e0")) == {"s2/e0", "s3/e0", "s3/o1", "s0/o1"}


def test_relays_wait_for_the_eps_controller_but_circuits_do_not() -> None:
    bench = lit(Bench(FOUR), *RING)
    bench.deliver(["s0/e0", "s0/e1"], up=False, relight=False)
    bench.eps_absent = True
    answered = bench.controllers["r0"].light({"circuits": RING[:2]}, 0.0)
    assert answered["circuits_after"] == RING[:2]
    with pytest.raises(ControlError, match="no answer"):
        bench.controllers["r0"].relight()
    bench.eps_absent = False
    bench.controllers["r0"].relight()
    assert bench.eps.relays == {"s0": "s1"}


def test_relay_uses_its_other_nic() -> None:
    bench = lit(Bench(FOUR), *RING)
    bench.deliver(["s0/e0", "s0/e1"], up=False)
    bench.deliver(["s1/e0"], up=False)
    assert bench.recovery().relays == {"s0": "s1"}
    for mark in marks(FOUR):
        assert used(bench.route("s2", "s0", mark)) >= {"s1/e1", "s1/o0", "s0/o0"}, mark


def test_select_relays_keeps_relays_and_prefers_unlit_nics() -> None:
    out = FOUR.without_nics(nics("s0/e0", "s0/e1"))
    there = {"s0": Circuit.parse("s0/o1~s3/o1")}
    assert select_relays(out, out.regions[0], CircuitSet.of(RING), there) == there
    elsewhere = CircuitSet.of(["s1/o1~s2/o0"])
    assert select_relays(out, out.regions[0], elsewhere, {}) == {"s0": Circuit.parse("s0/o1~s1/o0")}


def test_failed_nic_halves_the_eps_budget() -> None:
    budget = EpsLinks.of(FOUR.without_nics(nics("s0/e0")), FOUR.servers).budget
    sending, receiving = budget[:4], budget[4:]
    assert (sending[0], receiving[0]) == (sending[1] / 2, receiving[1] / 2)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "eps"])
def test_plan_avoids_failed_nics_and_keeps_reserved_circuits(policy: str) -> None:
    held = CircuitSet.of(["s1/o1~s2/o1"])
    out = FOUR.without_nics(nics("s0/o0", "s3/o0", "s3/o1"))
    demand = DemandMatrix(FOUR.servers, [[float(x) for x in row] for row in MATRIX])
    now = CircuitSet.of(RING)
    for lit_now in (CircuitSet(), now):
        planned = plan(out, out.regions[0], demand, POLICIES[policy], lit_now, held)
        ends = {nic for circuit in planned.circuits for nic in (circuit.a, circuit.b)}
        assert held.circuits <= planned.circuits.circuits
        assert not ends & out.unusable_nics
        assert planned.leftover_ports[3] == 0


def test_failed_port_replans_the_last_demand() -> None:
    bench = Bench(fabric(1, 1))
    bench.controllers["r0"].demand({"demand": MATRIX}, 0.0)
    assert bench.lit() == CircuitSet.of(["s0/o0~s1/o0", "s2/o0~s3/o0"])
    bench.deliver(["s1/o0"], up=False, ocs_port=True)
    assert bench.lit() == CircuitSet.of(["s2/o0~s3/o0"])
    assert bench.route("s0", "s1", "o0") == (("s0/e0", "leaf0"), ("leaf0", "s1/e0"))
    (report,) = bench.recovery().history.standing()
    assert (report.what, report.kind) == ("s1/o0", "ocs-port")
    bench.deliver(["s1/o0"], up=True, ocs_port=True)
    assert bench.lit() == CircuitSet.of(["s0/o0~s1/o0", "s2/o0~s3/o0"])


def test_far_end_of_a_failed_circuit_is_used_again() -> None:
    bench = Bench(FOUR)
    bench.controllers["r0"].demand({"demand": MATRIX}, 0.0)
    before = bench.lit()
    (gone,) = [nic for circuit in before.between("s0", "s1")[:1] for nic in [circuit.a]]
    bench.deliver([gone], up=False)
    after = bench.lit()
    assert after != before
    assert after.between("s0", "s1")
    assert {nic for circuit in after for nic in (circuit.a, circuit.b)} >= {
        *FOUR.optical_nics("s2")
    }
    (report,) = bench.recovery().history.standing()
    assert report.action == f"its pair is on the EPS; circuits lit again: {after}"


def test_pair_uses_the_eps_before_circuits_move() -> None:
    bench = lit(Bench(FOUR), *RING)
    bench.deliver(["s0/o0"], up=False, relight=False)
    assert bench.route("s0", "s1", "o0") == (("s0/e0", "leaf0"), ("leaf0", "s1/e0"))
    assert bench.route("s1", "s2", "o1") == (("s1/o1", "ocs"), ("ocs", "s2/o0"))


def test_link_that_follows_light_counts_only_on_used_circuits() -> None:
    bench = lit(Bench(FOUR), *RING[:1])
    bench.deliver(["s2/o0", "s3/o1"], up=False, follows_light=True)  # without circuits there
    assert bench.recovery().history.to_json()["failures"] == []
    bench.deliver(["s0/o0"], up=False, follows_light=True)
    assert bench.lit() == CircuitSet()
    assert bench.route("s0", "s1", "o0") == (("s0/e0", "leaf0"), ("leaf0", "s1/e0"))
    bench.deliver(
        ["s1/o0"], up=False, follows_light=True
    )  # it went dark with the other end, whose circuit carries no traffic any more
    assert [one.what for one in bench.recovery().history.standing()] == ["s0/o0"]
    bench.out = frozenset()
    lit(bench, *RING[:1])
    assert bench.route("s0", "s1", "o0") == (("s0/o0", "ocs"), ("ocs", "s1/o0"))
    bench.deliver(["s0/o0", "s1/o0"], up=True, follows_light=True)
    assert bench.recovery().history.standing() == []


def test_failed_ocs_moves_a_region_to_the_eps() -> None:
    bench = lit(Bench(FOUR), *RING)
    bench.ocs["r0"].gone = True
    bench.deliver([nic for server in FOUR.servers for nic in FOUR.optical_nics(server)], up=False)
    assert all(way[0][1] == "leaf0" for way in all_ways(bench).values())
    assert [(f.what, f.kind) for f in bench.recovery().history.standing()] == [("ocs0", "ocs")]
    with bench.lock:  # another request still waits for the OCS
        answered = bench.controllers["r0"].demand({"demand": MATRIX}, 0.0)
    assert answered["circuits_after"] == []
    bench.ocs["r0"].gone = False
    bench.deliver([nic for server in FOUR.servers for nic in FOUR.optical_nics(server)], up=True)
    assert len(bench.lit()) == 4
    assert bench.recovery().history.standing() == []


def test_rails_use_a_rail_of_both_servers() -> None:
    rails = fabric(1, 2, eps=Eps(4, kind=EpsKind.RAIL))
    bench = Bench(rails)
    bench.deliver(["s0/e0"], up=False)
    for mark in marks(rails):
        assert used(bench.route("s2", "s0", mark)) == {"s2/e1", "s0/e1"}
        assert used(bench.route("s0", "s2", mark)) == {"s0/e1", "s2/e1"}
    assert used(bench.route("s2", "s3", "e0")) == {"s2/e0", "s3/e0"}


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        (["s0/e0"], [DetectedFailure("s0/e0", FailureKind.ELECTRICAL_NIC)]),
        (["s0/o1"], [DetectedFailure("s0/o1", FailureKind.OPTICAL_NIC)]),
        (
            [f"s1/{path}" for path in ("o0", "o1", "e0", "e1")],
            [DetectedFailure("s1", FailureKind.SERVER)],
        ),
        (
            [f"s{s}/o{k}" for s in range(4) for k in range(2)],
            [DetectedFailure("ocs0", FailureKind.OCS)],
        ),
        (
            [f"s{s}/o{k}" for s in range(4) for k in range(2)] + ["s2/e0", "s2/e1"],
            [DetectedFailure("ocs0", FailureKind.OCS), DetectedFailure("s2", FailureKind.SERVER)],
        ),
    ],
    ids=["electrical", "optical", "server", "ocs", "ocs-and-server"],
)
def test_new_failures_names_the_largest_failed_component(
    gone: list[str], expected: list[DetectedFailure]
) -> None:
    condition = NicStates().after(NicEvent(nic, up=False, at_ns=1) for nic in nics(*gone))
    assert list(new_failures(FOUR, FOUR.regions, NicStates(), condition)) == expected


def test_partial_recovery_is_no_new_failure() -> None:
    every = [nic for server in FOUR.servers for nic in FOUR.optical_nics(server)]
    dark = NicStates().after(NicEvent(nic, up=False, at_ns=1) for nic in every)
    dawning = dark.after([NicEvent(every[0], up=True, at_ns=2)])
    assert new_failures(FOUR, FOUR.regions, dark, dawning) == ()


def test_select_relays_balances_peers() -> None:
    out = FOUR.without_nics(nics("s0/e0", "s0/e1", "s1/e0", "s1/e1"))
    chosen = select_relays(out, out.regions[0], CircuitSet(), {})
    assert {circuit.far_end(server).server for server, circuit in chosen.items()} == {"s2", "s3"}


def test_history_records_actions_and_wakes_readers() -> None:
    bench = Bench(FOUR)
    history = bench.recovery().history
    assert history.to_json() == {"version": 0, "failures": []}
    bench.deliver(["s0/e1"], up=False)
    situation = history.to_json(after=0, wait_s=5.0)
    (report,) = situation["failures"]
    assert report["action"] == "s0 sends by s0/e0"
    assert 0 < report["detected_ns"] < report["recovered_ns"]
    assert report["cleared_ns"] is None
    bench.deliver(["s0/e1"], up=True)
    cleared = history.to_json(after=situation["version"], wait_s=0.0)
    assert cleared["version"] > situation["version"]
    (report,) = cleared["failures"]
    assert report["cleared_ns"] > report["recovered_ns"]


def test_history_keeps_standing_failures() -> None:
    history, stands = FailureHistory(), DetectedFailure("s0/e0", FailureKind.ELECTRICAL_NIC)
    [report] = history.add([stands], 1)
    for _ in range(MOST_CLEARED + 2):
        history.add([DetectedFailure("s1/e0", FailureKind.ELECTRICAL_NIC)], 2)
        history.clear(lambda one: one.what == "s1/e0")
    history.record_action(report, "s0 sends by s0/e1")
    situation = history.to_json()["failures"]
    assert (situation[0]["what"], situation[0]["action"]) == ("s0/e0", "s0 sends by s0/e1")
    assert len(situation) <= MOST_CLEARED + 2


def test_history_notes_detection_and_each_action_since_traffic_has_a_path() -> None:
    noted, clock = list[tuple[object, ...]](), iter(range(10, 100, 10))
    history = FailureHistory(
        lambda: next(clock), note=lambda phase, _, *rest: noted.append((phase, *rest))
    )
    [report] = history.add([DetectedFailure("s0/e0", FailureKind.ELECTRICAL_NIC)], 1)
    history.record_action(report, "sw-s0 is away", recovered=False)
    assert noted == [("detected", "", 1)]
    history.record_action(report, "s0 sends by s0/e1")
    history.record_action(report, "circuits lit again")
    recovered, again = noted[1:]
    assert recovered == (
        "recovered", "sw-s0 is away; s0 sends by s0/e1", report.recovered_ns
    )  # fmt: skip
    assert again == ("recovered", "circuits lit again", 30)


def test_reader_is_woken_by_a_version_that_comes_before_it_waits() -> None:
    waits: list[bool] = []

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(self.is_set())
            return self.is_set()

    class LastSeen(int):
        """A version that a comparison finds to be the newest, just before the next one comes."""

        def __ge__(self, other: int) -> bool:
            is_newest = super().__ge__(other)
            history.publish()
            return is_newest

    history = FailureHistory(event=Event)
    assert history.to_json(after=LastSeen(history.version))["version"] == 1
    assert waits == [True]


def test_empty_relays_change_no_rules() -> None:
    assert server_rules(FOUR, FOUR.regions[0], {}) == server_rules(FOUR, FOUR.regions[0])


# --- relay trees ---------------------------------------------------------------------------------

FORWARDING = replace(fabric(3, 1), forwarding=True)


def tree_routes(bench: Bench) -> dict[tuple[str, str, str], tuple[Link, ...]]:
    servers = bench.fabric.servers
    pairs = [(a, b) for a, b in product(servers, servers) if a != b]
    return {
        (a, b, path): bench.route(a, b, path)
        for a, b in pairs
        for path in relay_paths(bench.fabric, a, b)
    }


@pytest.mark.parametrize("ocs_port", [False, True])
def test_relay_trees_are_rebuilt_from_the_circuits_that_are_left(ocs_port: bool) -> None:
    bench = lit(Bench(FORWARDING), *MESH)
    bench.deliver(["s0/o0"], up=False, ocs_port=ocs_port, relight=False)
    left = CircuitSet.of(MESH).without_nics(nics("s0/o0"))
    [report] = bench.recovery().history.standing()
    assert report.action == "its pair is on the EPS, relay trees avoid it"
    routes = tree_routes(bench)
    assert routes == {
        (a, b, path): tree_route(left, a, b, relay_root(FORWARDING, a, path) or "")
        for a, b, path in routes
    }
    assert all(links[0][1] == "ocs" for links in routes.values()), "no tree needs the EPS"


def test_tree_of_a_lost_relay_is_replaced_by_the_eps() -> None:
    bench = lit(Bench(FORWARDING), *MESH)
    bench.deliver(FORWARDING.nics("s3"), up=False, relight=False)
    assert bench.route("s0", "s1", "r3") == bench.route("s0", "s1", "e0")
    assert bench.route("s0", "s1", "r2") == tree_route(CircuitSet.of(MESH), "s0", "s1", "s2")


def test_tree_gets_no_new_rules_while_a_switch_has_its_old_ones() -> None:
    bench = lit(Bench(FORWARDING), *MESH)
    bench.switches.gone.add("s1")  # it joins s0 to the tree of s3, and s2 joins s3 to that of s0
    bench.deliver(["s0/o0"], up=False, relight=False)
    [report] = bench.recovery().history.standing()
    assert "s1: not connected" in report.action
    left = CircuitSet.of(MESH).without_nics(nics("s0/o0"))
    assert bench.route("s3", "s1", "r0") == tree_route(left, "s3", "s1", "s0")
    assert bench.route("s0", "s2", "r3") == bench.route("s0", "s2", "e0")
    assert all(tree_routes(bench).values()), "every packet arrives"


def test_lost_server_that_confirms_nothing_does_not_keep_trees_from_the_others() -> None:
    bench = lit(Bench(FORWARDING), *MESH)
    bench.switches.gone.add("s3")
    bench.deliver(FORWARDING.nics("s3"), up=False, relight=False)
    left = CircuitSet.of(MESH).without_nics(frozenset(FORWARDING.nics("s3")))
    assert bench.route("s0", "s1", "r2") == tree_route(left, "s0", "s1", "s2")
    assert bench.route("s0", "s1", "r3") == bench.route("s0", "s1", "e0")


def drops_during_failure(bench: Bench, nic: str) -> bool:
    """Whether a NIC fails and comes back, and switches drop packets of trees meanwhile."""
    applied, apply = list[RuleChange](), bench.switches.apply

    def record(change: RuleChange) -> None:
        applied.append(change)
        apply(change)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.switches, "apply", record)
        bench.deliver([nic], up=False)
        bench.deliver([nic], up=True)
    assert not [rule for rule in bench.switches.circuit_rules if rule.out == DROP]
    return any(rule.out == DROP for change in applied for rule in change.add)


def test_packets_of_trees_are_dropped_only_while_the_eps_needs_a_relay() -> None:
    bench = lit(Bench(FORWARDING), *MESH)
    assert not drops_during_failure(bench, "s0/o0")
    bench.deliver(["s1/e0"], up=False)
    assert bench.recovery().relays
    assert drops_during_failure(bench, "s0/o0")
    bench.deliver(["s1/e0"], up=True)
    assert not bench.recovery().relays
    assert not drops_during_failure(bench, "s0/o0")


# --- policies whose circuits stay ----------------------------------------------------------------


@pytest.mark.parametrize("policy", [name for name, p in POLICIES.items() if not p.reconfigures])
def test_policy_that_moves_no_circuit_keeps_those_that_a_failure_leaves(policy: str) -> None:
    bench = Bench(FORWARDING)
    bench.controllers["r0"].demand({"demand": MATRIX, "policy": policy}, 0.0)
    before = bench.lit()
    bench.deliver(["s0/o0"], up=False)
    assert bench.lit() == before.without_nics(nics("s0/o0"))
    bench.deliver(["s0/o0"], up=True)
    assert bench.lit() == before


def test_readers_of_failures_learn_which_circuits_are_left() -> None:
    bench = lit(Bench(FORWARDING), *MESH)
    controller, left = bench.controllers["r0"], CircuitSet.of(MESH).without_nics(nics("s0/o0"))
    bench.deliver(["s0/o0"], up=False)
    failed = controller.failures()
    assert CircuitSet.of(failed["circuits"]) == left
    bench.deliver(["s0/o0"], up=True, relight=False)
    cleared = controller.failures(failed["version"], 0.0)
    controller.relight()
    restored = controller.failures(cleared["version"], 0.0)
    assert cleared["version"] < restored["version"], "readers wait for the circuits"
    assert CircuitSet.of(restored["circuits"]) == CircuitSet.of(MESH)
