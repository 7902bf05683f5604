"""The reconciler: order and phases of a reconfiguration, and traffic after faults in the middle."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.controller.reconfiguration import (
    DeviceBehaviour,
    Reconciler,
    Reconfiguration,
    apply_changes,
)
from moefabric.core.circuits import Circuit, CircuitSet, Transition
from moefabric.core.eps import Eps
from moefabric.core.errors import ControlError
from moefabric.core.nic import Nic
from moefabric.core.ocs import CrossConnectMode, Ocs
from moefabric.core.rules import Rule, RuleChange, direct_rules
from moefabric.core.topology import Fabric, Region, ocs_port
from moefabric.core.transition import ReconfigurationPhases
from tests.support.background import call_at_once
from tests.support.memory_ocs import MemoryOcs, VirtualClock
from tests.support.memory_switches import MemorySwitches

SETTLE_S = 0.025
NAMES = ("s0", "s1", "s2", "s3")


def fabric(settle_s: float) -> Fabric:
    return Fabric(
        "f", (Region("r0", 0, NAMES, Ocs("ocs0", 8, round(settle_s * 1e9))),), 2, 2, 1, 1e9, Eps(4)
    )


FABRIC = fabric(SETTLE_S)
NOTHING = CircuitSet()
A = CircuitSet.of(["s0/o0~s1/o0", "s2/o0~s3/o0"])
B = CircuitSet.of(["s0/o0~s2/o1", "s2/o0~s3/o0"])


class Bench:
    """A region in memory on one clock, with a journal of all commands to its devices."""

    def __init__(self, settle_s: float = SETTLE_S) -> None:
        self.clock = VirtualClock()
        self.fabric = fabric(settle_s)
        self.journal: list[str] = []
        self.ocs = JournalledOcs(self)
        self.switches = JournalledSwitches(self)
        self.reconciler = Reconciler(self.ocs, self.switches, call_at_once, self.clock.now_s)


class JournalledOcs(MemoryOcs):
    """The OCS in memory; each command takes a millisecond."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.fabric, bench.fabric.regions[0], bench.clock)
        self.bench, self.queries = bench, 0
        self.meanwhile: Callable[[], None] = lambda: None
        """Happens while light settles."""

    def settled_circuits(self, deadline_s: float) -> CircuitSet:
        self.meanwhile()
        return super().settled_circuits(deadline_s)

    def circuits(self) -> CircuitSet:
        self.queries += 1
        return super().circuits()

    def reconfigure(
        self, transition: Transition, mode: CrossConnectMode = CrossConnectMode.SAFE
    ) -> None:
        self.bench.journal.append(f"out {transition.teardown}, in {transition.setup}")
        self.bench.clock.seconds += 0.001
        super().reconfigure(transition, mode)


class JournalledSwitches(MemorySwitches):
    """The switches in memory; each change takes two milliseconds."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(FABRIC)
        self.bench = bench
        self.prepared: list[RuleChange] = []
        self.applied: list[RuleChange] = []

    def prepare(self, change: RuleChange) -> None:
        self.prepared.append(change)

    def apply(self, change: RuleChange) -> None:
        line = " ".join(
            [
                *sorted({rule.switch for rule in change.delete}),
                "|",
                *sorted({rule.switch for rule in change.add}),
            ]
        )
        self.bench.journal.append(line)
        self.bench.clock.seconds += 0.002
        self.applied.append(change)
        super().apply(change)


@pytest.fixture
def bench() -> Bench:
    new_bench = Bench()
    new_bench.reconciler.reconcile(A)
    new_bench.journal.clear()
    return new_bench


def test_reconciler_diverts_then_commands_then_admits(bench: Bench) -> None:
    bench.reconciler.reconcile(B)
    assert bench.journal == ["s0 s1 |", "out s0/o0~s1/o0, in s0/o0~s2/o1", "| s0 s2"]
    assert bench.reconciler.lit == bench.ocs.circuits() == B
    assert bench.switches.circuit_rules == direct_rules(B)


@pytest.mark.parametrize(
    "connects", [((2, 14),), ((2, 14), (6, 10))], ids=["half-a-circuit", "a-circuit"]
)
def test_strays_go_although_the_target_is_lit(
    bench: Bench, connects: tuple[tuple[int, int], ...]
) -> None:
    bench.ocs.connect(*connects)  # s0/o1 to s2/o1, and back
    assert bench.ocs.has_strays == (len(connects) == 1)
    bench.reconciler.reconcile(A)
    assert not bench.ocs.has_strays
    assert bench.ocs.circuits() == A
    assert bench.reconciler.reconcile(A).phases.settle_s == 0, "nothing is left to command"


def test_admission_is_prepared_while_light_settles(bench: Bench) -> None:
    bench.reconciler.reconcile(B)
    assert bench.switches.prepared[-1] is bench.switches.applied[-1]


def test_prepared_admission_is_dropped_for_circuits_without_light(bench: Bench) -> None:
    bench.reconciler = Reconciler(
        bench.ocs, bench.switches, call_at_once, bench.clock.now_s, probe=bench.ocs
    )
    bench.reconciler.adopt()
    new = next(iter(B.circuits - A.circuits))
    bench.ocs.opaque = frozenset({ocs_port(bench.fabric, new.a)})
    bench.reconciler.reconcile(B)
    assert bench.switches.prepared[-1] not in bench.switches.applied
    assert bench.switches.circuit_rules == direct_rules(CircuitSet(A.circuits & B.circuits))


def test_rules_meet_no_work_in_the_background(bench: Bench) -> None:
    """What is begun in the background has ended when rules or circuits need its outcome."""
    begun: list[str] = []

    def later(function: Callable[[], Any], *, now: bool = False) -> Callable[[], Any]:
        begun.append("begun")

        def result() -> Any:
            begun.append("ended")
            return function()

        return result

    bench.reconciler = Reconciler(bench.ocs, bench.switches, later, bench.clock.now_s)
    bench.reconciler.adopt()
    bench.journal.clear()
    bench.reconciler.reconcile(B)
    assert begun == ["begun", "ended"] * 2
    assert bench.journal == ["s0 s1 |", "out s0/o0~s1/o0, in s0/o0~s2/o1", "| s0 s2"]


def test_admission_is_computed_again_if_a_nic_fails_while_light_settles(bench: Bench) -> None:
    def marked_rules(circuits: CircuitSet) -> frozenset[Rule]:
        return frozenset(rule for rule in direct_rules(circuits) if rule.path)

    reconciler = Reconciler(
        bench.ocs,
        bench.switches,
        call_at_once,
        bench.clock.now_s,
        rules_without=lambda nics: marked_rules if nics else direct_rules,
    )
    reconciler.adopt()

    def fail_meanwhile() -> None:
        changes = reconciler.exclude_nics(frozenset({Nic.parse("s3/e0")}))
        apply_changes(bench.switches, changes)

    bench.ocs.meanwhile = fail_meanwhile
    reconciler.reconcile(B)
    assert bench.switches.circuit_rules == marked_rules(B)


def test_circuits_read_ahead_are_those_of_the_next_reconfiguration(bench: Bench) -> None:
    asked = bench.ocs.queries
    with bench.reconciler.reading_ahead():
        assert bench.ocs.queries == asked + 1
        bench.reconciler.reconcile(B)
    assert bench.ocs.queries == asked + 2, "asked before and when light had settled"
    assert bench.reconciler.lit == B


def test_absent_device_is_reported_by_the_reconfiguration_that_reads_ahead(bench: Bench) -> None:
    bench.ocs.gone = True
    with (
        bench.reconciler.reading_ahead(),
        pytest.raises(ControlError, match="ocs0: no answer; traffic is on no light"),
    ):
        bench.reconciler.reconcile(B)


@pytest.fixture
def ended(bench: Bench) -> list[bool]:
    """Queries in the background that were waited for; the bench's reconciler runs them so."""
    waited: list[bool] = []

    def later(function: Callable[[], Any], *, now: bool = False) -> Callable[[], Any]:
        def result() -> Any:
            waited.append(True)
            return function()

        return result

    bench.reconciler = Reconciler(bench.ocs, bench.switches, later, bench.clock.now_s)
    bench.reconciler.adopt()
    return waited


def test_failed_divert_leaves_no_query_behind(bench: Bench, ended: list[bool]) -> None:
    bench.switches.gone = {"s1"}
    with pytest.raises(ControlError, match="s1: not connected"):
        bench.reconciler.reconcile(B)
    assert ended == [True]


def test_failed_plan_leaves_no_query_behind(bench: Bench, ended: list[bool]) -> None:
    with pytest.raises(ValueError, match="no plan"), bench.reconciler.reading_ahead():
        raise ValueError("no plan")
    assert ended == [True]


def test_phases_are_timed_separately(bench: Bench) -> None:
    phases = bench.reconciler.reconcile(B).phases
    assert asdict(phases) == pytest.approx(
        {
            "demand_s": 0.0,
            "plan_s": 0.0,
            "divert_s": 0.002,
            "command_s": 0.001,
            "settle_s": SETTLE_S,
            "verify_s": 0.0,
            "admit_s": 0.002,
            "total_s": 0.005 + SETTLE_S,
        }
    )


def test_reconciler_changes_nothing_for_lit_circuits(bench: Bench) -> None:
    assert bench.reconciler.reconcile(A) == Reconfiguration(
        before=A, after=A, dark=NOTHING, phases=ReconfigurationPhases()
    )
    assert bench.journal == []


def test_adopt_uses_lit_circuits() -> None:
    bench = Bench()
    bench.ocs.reconfigure(NOTHING.transition_to(A))
    assert bench.reconciler.adopt() == A
    assert bench.switches.circuit_rules == direct_rules(A)
    assert bench.clock.seconds >= SETTLE_S, "traffic was put on light that had not settled"


def restarted() -> Bench:
    """Return a bench whose controller starts anew while circuits are lit."""
    bench = Bench()
    bench.ocs.reconfigure(NOTHING.transition_to(A))
    bench.switches.apply(RuleChange(frozenset(), direct_rules(A)))
    bench.reconciler = Reconciler(
        bench.ocs, bench.switches, call_at_once, bench.clock.now_s, probe=bench.ocs, lit=A
    )
    return bench


def test_first_rules_of_an_excluded_nic_go() -> None:
    bench, left = restarted(), CircuitSet.of(["s2/o0~s3/o0"])
    changes = bench.reconciler.exclude_nics(frozenset({Nic.parse("s0/o0")}))
    apply_changes(bench.switches, changes)
    assert bench.switches.circuit_rules == direct_rules(left)
    assert bench.reconciler.adopt() == left
    assert bench.switches.circuit_rules == direct_rules(left)


def test_first_rules_of_dark_circuits_go() -> None:
    bench, left = restarted(), CircuitSet.of(["s2/o0~s3/o0"])
    bench.ocs.opaque = frozenset({ocs_port(FABRIC, Nic.parse("s0/o0"))})
    assert bench.reconciler.adopt() == left
    assert bench.switches.circuit_rules == direct_rules(left)


def test_refusal_leaves_traffic_on_earlier_circuits(bench: Bench) -> None:
    bench.ocs.refusal = '-200,"Execution error"'
    with pytest.raises(
        ControlError,
        match=r"ocs0 refuses: -200.*; traffic is on s0/o0~s1/o0 s2/o0~s3/o0, all else on the EPS",
    ):
        bench.reconciler.reconcile(B)
    assert bench.switches.circuit_rules == direct_rules(A)
    assert bench.reconciler.lit == A


def test_stuck_mirror_leaves_its_pair_on_the_eps(bench: Bench) -> None:
    bench.ocs.stuck = frozenset({ocs_port(FABRIC, Circuit.parse("s0/o0~s2/o1").b)})
    with pytest.raises(
        ControlError,
        match="the OCS lacks s0/o0~s2/o1; traffic is on s2/o0~s3/o0, all else on the EPS",
    ):
        bench.reconciler.reconcile(B)
    assert bench.switches.circuit_rules == direct_rules(CircuitSet.of(["s2/o0~s3/o0"]))
    assert bench.switches.route("s0", "s2", None, bench.ocs.circuits()) == (
        ("s0/e0", "leaf0"),
        ("leaf0", "s2/e0"),
    )


def test_circuit_that_stays_lit_is_an_error(bench: Bench) -> None:
    bench.ocs.stuck = frozenset(
        {
            ocs_port(FABRIC, Circuit.parse("s0/o0~s1/o0").a),
            ocs_port(FABRIC, Circuit.parse("s0/o0~s1/o0").b),
        }
    )
    with pytest.raises(
        ControlError,
        match="the OCS shows besides s0/o0~s1/o0; traffic is on s0/o0~s1/o0 s2/o0~s3/o0",
    ):
        bench.reconciler.reconcile(CircuitSet.of(["s2/o0~s3/o0"]))
    assert bench.switches.circuit_rules == direct_rules(A)


@pytest.mark.parametrize(
    ("settle_s", "relied_on"),
    [
        pytest.param(0.5, B, id="late-but-there-within-the-grace"),
        pytest.param(20.0, CircuitSet.of(["s2/o0~s3/o0"]), id="not-there-at-all"),
    ],
)
def test_unsettled_circuits_carry_no_traffic(settle_s: float, relied_on: CircuitSet) -> None:
    bench = Bench(settle_s)
    bench.ocs.reconfigure(NOTHING.transition_to(A))
    bench.clock.wait_until(100)
    reconciler = Reconciler(
        bench.ocs, bench.switches, call_at_once, bench.clock.now_s, device=DeviceBehaviour(0.1)
    )
    reconciler.adopt()
    with pytest.raises(
        ControlError,
        match=f"not settled within 0.1 s; traffic is on {relied_on}, all else on the EPS",
    ):
        reconciler.reconcile(B)
    assert bench.switches.circuit_rules == direct_rules(relied_on)


def test_absent_ocs_moves_all_traffic_to_the_eps(bench: Bench) -> None:
    bench.ocs.gone = True
    with pytest.raises(
        ControlError,
        match="ocs0: no answer; traffic is on no light, all else on the EPS, "
        "for the OCS doesn't say",
    ):
        bench.reconciler.reconcile(B)
    assert bench.switches.circuit_rules == frozenset()


def test_circuits_stay_until_every_switch_has_diverted(bench: Bench) -> None:
    bench.switches.gone = {"s1"}
    with pytest.raises(ControlError, match="s1: not connected"):
        bench.reconciler.reconcile(B)
    assert bench.ocs.circuits() == A
    assert not [entry for entry in bench.journal if entry.startswith("out")]


class LosingOcs(JournalledOcs):
    """An OCS during whose commands a NIC fails."""

    def reconfigure(
        self, transition: Transition, mode: CrossConnectMode = CrossConnectMode.SAFE
    ) -> None:
        super().reconfigure(transition, mode)
        self.bench.reconciler.exclude_nics(frozenset([Nic.parse("s0/o0")]))


def test_nic_that_fails_during_reconfiguration_gets_no_traffic() -> None:
    bench = Bench()
    bench.ocs = LosingOcs(bench)
    bench.reconciler = Reconciler(bench.ocs, bench.switches, call_at_once, bench.clock.now_s)
    change = bench.reconciler.reconcile(A)
    assert change.after == bench.reconciler.lit == CircuitSet.of(["s2/o0~s3/o0"])
    assert bench.switches.route("s0", "s1", "o0", A) == (("s0/e0", "leaf0"), ("leaf0", "s1/e0"))
    assert bench.switches.route("s2", "s3", "o0", A) == (("s2/o0", "ocs"), ("ocs", "s3/o0"))


def test_reconciler_works_after_a_fault(bench: Bench) -> None:
    bench.ocs.refusal = "no"
    with pytest.raises(ControlError):
        bench.reconciler.reconcile(B)
    bench.reconciler.reconcile(B)
    assert bench.ocs.circuits() == B
    assert bench.switches.circuit_rules == direct_rules(B)


matchings = st.permutations([nic for name in NAMES for nic in FABRIC.optical_nics(name)]).flatmap(
    lambda nics: st.integers(0, 4).map(
        lambda count: CircuitSet.of(
            Circuit(a, b)
            for a, b in list(zip(nics[::2], nics[1::2], strict=True))[:count]
            if a.server != b.server
        )
    )
)


@given(st.lists(matchings, max_size=4), st.sets(st.integers(1, 8), max_size=2))
def test_every_pair_has_a_path_at_every_instant(targets: list[CircuitSet], stuck: set[int]) -> None:
    """At every command to a device, unmarked packets of each pair have a route."""
    bench = Bench()
    bench.ocs.stuck = frozenset(stuck)
    reached: list[bool] = []

    class Watching(list[str]):
        def append(self, entry: str) -> None:
            dark = bench.ocs.dark()
            light = CircuitSet(bench.ocs.circuits().circuits - dark)
            reached.append(
                all(bench.switches.route(a, b, None, light) for a in NAMES for b in NAMES if a != b)
            )

    bench.journal = Watching()
    for target in targets:
        try:
            bench.reconciler.reconcile(target)
        except ControlError:
            assert stuck
        bench.journal.append("after")
    assert all(reached)
    assert bench.switches.circuit_rules == direct_rules(bench.reconciler.lit)


# --- light probes


def proving(bench: Bench, **settings: Any) -> Reconciler:
    """Return a reconciler that probes circuits."""
    reconciler = Reconciler(
        bench.ocs, bench.switches, call_at_once, bench.clock.now_s, probe=bench.ocs, **settings
    )
    reconciler.adopt()
    return reconciler


NEW = Circuit.parse("s0/o0~s2/o1")


def test_dark_circuit_is_torn_down_and_its_pair_stays_on_the_eps(bench: Bench) -> None:
    reconciler = proving(bench)
    bench.ocs.opaque = frozenset({ocs_port(FABRIC, NEW.b)})
    change = reconciler.reconcile(B)
    kept = CircuitSet.of(["s2/o0~s3/o0"])
    assert (change.before, change.after, change.dark) == (A, kept, CircuitSet.of([NEW]))
    assert bench.ocs.circuits() == reconciler.lit == kept
    assert bench.switches.circuit_rules == direct_rules(kept)
    assert reconciler.dark == CircuitSet.of([NEW])
    assert bench.switches.route("s0", "s2", "o0", kept) == (("s0/e0", "leaf0"), ("leaf0", "s2/e0"))


def test_circuit_that_was_dark_is_probed_briefly_and_used_once_lit(bench: Bench) -> None:
    reconciler = proving(bench)
    bench.ocs.opaque = frozenset({ocs_port(FABRIC, NEW.b)})
    first = reconciler.reconcile(B).phases.verify_s
    again = reconciler.reconcile(B).phases.verify_s
    assert first > 1
    assert again < 0.2
    bench.ocs.opaque = frozenset()
    assert reconciler.reconcile(B).after == B
    assert reconciler.dark == NOTHING


def test_successive_dark_circuits_may_share_a_nic(bench: Bench) -> None:
    reconciler = proving(bench)
    bench.ocs.opaque = frozenset({ocs_port(FABRIC, NEW.b)})
    assert reconciler.reconcile(B).dark == CircuitSet.of([NEW])
    other = CircuitSet.of(["s1/o0~s2/o1"])
    assert reconciler.reconcile(other).dark == reconciler.dark == other


def test_adopt_ignores_dark_circuits() -> None:
    bench = Bench()
    bench.ocs.reconfigure(NOTHING.transition_to(A))
    bench.ocs.opaque = frozenset({ocs_port(FABRIC, Circuit.parse("s0/o0~s1/o0").a)})
    assert proving(bench).lit == CircuitSet.of(["s2/o0~s3/o0"])
    assert bench.switches.circuit_rules == direct_rules(CircuitSet.of(["s2/o0~s3/o0"]))


def test_dark_circuits_carry_no_traffic_after_a_fault(bench: Bench) -> None:
    reconciler = proving(bench)
    dim = Circuit.parse("s0/o1~s1/o1")
    bench.ocs.opaque = frozenset({ocs_port(FABRIC, dim.a)})
    bench.ocs.stuck = frozenset({ocs_port(FABRIC, NEW.a), ocs_port(FABRIC, NEW.b)})
    with pytest.raises(
        ControlError, match=r"lacks .*traffic is on s2/o0~s3/o0, all else on the EPS"
    ):
        reconciler.reconcile(CircuitSet.of([NEW, dim, "s2/o0~s3/o0"]))
    assert bench.switches.circuit_rules == direct_rules(CircuitSet.of(["s2/o0~s3/o0"]))


def test_reconciler_restores_circuits_that_the_device_lost(bench: Bench) -> None:
    reconciler = proving(bench)
    bench.ocs.reconfigure(A.transition_to(NOTHING))
    bench.journal.clear()
    change = reconciler.reconcile(A)
    assert change.after == bench.ocs.circuits() == A
    assert bench.journal[0] == "s0 s1 s2 s3 |", "traffic stayed on circuits that were dark"


@pytest.mark.parametrize(
    ("mode", "lit"),
    [
        pytest.param(
            CrossConnectMode.UPDATE,
            ["s0/o0~s1/o0", "s0/o1~s1/o1", "s2/o0~s3/o0"],
            id="update-leaves-it",
        ),
        pytest.param(
            CrossConnectMode.OVERWRITE, ["s0/o0~s1/o0", "s2/o0~s3/o0"], id="overwrite-takes-it-out"
        ),
    ],
)
def test_mode_decides_about_circuits_of_others(
    bench: Bench, mode: CrossConnectMode, lit: list[str]
) -> None:
    reconciler = proving(bench, device=DeviceBehaviour(mode=mode))
    bench.ocs.reconfigure(NOTHING.transition_to(CircuitSet.of(["s0/o1~s1/o1"])))
    assert reconciler.reconcile(A).after == A
    assert bench.ocs.circuits() == CircuitSet.of(lit)
    assert bench.switches.circuit_rules == direct_rules(A)


def test_safe_mode_refuses_ports_in_use(bench: Bench) -> None:
    reconciler = proving(bench, device=DeviceBehaviour(mode=CrossConnectMode.SAFE))
    bench.ocs.reconfigure(NOTHING.transition_to(CircuitSet.of(["s0/o1~s1/o1"])))
    target = CircuitSet.of(["s2/o0~s3/o0", "s0/o1~s3/o1"])
    with pytest.raises(ControlError, match=r"2-16, 8-10 busy.*nothing has changed; traffic is on"):
        reconciler.reconcile(target)
    assert bench.ocs.circuits() == CircuitSet.of([*A, "s0/o1~s1/o1"])
