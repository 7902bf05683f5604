"""A change of light carried out: its order, its phases, and where traffic is when something goes wrong in the middle."""

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.clock import VirtualClock
from controller.reconcile import Change, Reconciler
from controller.southbound.memory_ocs import MemoryOcs
from controller.southbound.openflow.memory import MemorySwitches
from moefabric.circuits import Circuit, CircuitSet, Transition
from moefabric.errors import ControlError
from moefabric.ocs_control import Mode
from moefabric.records import Phases
from moefabric.rules import RuleChange, light_rules
from moefabric.topology import Eps, Fabric, Nic, Ocs, Region

SETTLE_S = 0.025
NAMES = ("s0", "s1", "s2", "s3")


def fabric(settle_s: float) -> Fabric:
    return Fabric("f", (Region("r0", 0, NAMES, Ocs("ocs0", 8, round(settle_s * 1e9))),), 2, 2, 1, 1e9, Eps(4))


FABRIC = fabric(SETTLE_S)
NOTHING = CircuitSet()
A = CircuitSet.of(["s0/o0~s1/o0", "s2/o0~s3/o0"])
B = CircuitSet.of(["s0/o0~s2/o1", "s2/o0~s3/o0"])


class Bench:
    """A region in memory, on one clock, with a journal of what was asked of its devices in order."""

    def __init__(self, settle_s: float = SETTLE_S) -> None:
        self.clock = VirtualClock()
        self.fabric = fabric(settle_s)
        self.journal: list[str] = []
        self.ocs = JournalledOcs(self)
        self.switches = JournalledSwitches(self)
        self.reconciler = Reconciler(self.ocs, self.switches, self.clock.now_s)


class JournalledOcs(MemoryOcs):
    """The OCS in memory; each command takes a millisecond."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.fabric, bench.fabric.regions[0], bench.clock)
        self.bench = bench

    def reconfigure(self, transition: Transition, mode: Mode = Mode.SAFE) -> None:
        self.bench.journal.append(f"out {transition.teardown}, in {transition.setup}")
        self.bench.clock.seconds += 0.001
        super().reconfigure(transition, mode)


class JournalledSwitches(MemorySwitches):
    """The switches in memory; each change takes two milliseconds."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(FABRIC)
        self.bench = bench

    def change(self, change: RuleChange) -> None:
        said = " ".join(
            [
                *sorted({rule.switch for rule in change.delete}),
                "|",
                *sorted({rule.switch for rule in change.add}),
            ]
        )
        self.bench.journal.append(said)
        self.bench.clock.seconds += 0.002
        super().change(change)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.reconciler.reconcile(A)
    made.journal.clear()
    return made


def test_traffic_is_diverted_then_light_moves_then_traffic_is_admitted(bench: Bench) -> None:
    bench.reconciler.reconcile(B)
    assert bench.journal == ["s0 s1 |", "out s0/o0~s1/o0, in s0/o0~s2/o1", "| s0 s2"]
    assert bench.reconciler.lit == bench.ocs.lit() == B
    assert bench.switches.light == light_rules(B)


def test_each_phase_has_its_time(bench: Bench) -> None:
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


def test_what_is_lit_already_is_no_change(bench: Bench) -> None:
    assert bench.reconciler.reconcile(A) == Change(before=A, after=A, dark=NOTHING, phases=Phases())
    assert bench.journal == []


def test_light_that_is_there_at_the_start_is_taken_over() -> None:
    bench = Bench()
    bench.ocs.reconfigure(NOTHING.towards(A))
    assert bench.reconciler.adopt() == A
    assert bench.switches.light == light_rules(A)
    assert bench.clock.seconds >= SETTLE_S, "traffic was put on light that had not settled"


def test_a_refusal_leaves_traffic_on_the_light_that_was_there(bench: Bench) -> None:
    bench.ocs.refusal = '-200,"Execution error"'
    with pytest.raises(
        ControlError,
        match=r"ocs0 refuses: -200.*; traffic is on s0/o0~s1/o0 s2/o0~s3/o0, all else on the EPS",
    ):
        bench.reconciler.reconcile(B)
    assert bench.switches.light == light_rules(A)
    assert bench.reconciler.lit == A


def test_a_mirror_that_sticks_leaves_its_pair_on_the_eps(bench: Bench) -> None:
    bench.ocs.stuck = frozenset({FABRIC.ocs_port(Circuit.parse("s0/o0~s2/o1").b)})
    with pytest.raises(
        ControlError, match="the OCS lacks s0/o0~s2/o1; traffic is on s2/o0~s3/o0, all else on the EPS"
    ):
        bench.reconciler.reconcile(B)
    assert bench.switches.light == light_rules(CircuitSet.of(["s2/o0~s3/o0"]))
    assert bench.switches.way("s0", "s2", None, bench.ocs.lit()) == (("s0/e0", "leaf0"), ("leaf0", "s2/e0"))


def test_a_mirror_that_will_not_let_go_is_told_of(bench: Bench) -> None:
    bench.ocs.stuck = frozenset(
        {FABRIC.ocs_port(Circuit.parse("s0/o0~s1/o0").a), FABRIC.ocs_port(Circuit.parse("s0/o0~s1/o0").b)}
    )
    with pytest.raises(
        ControlError, match="the OCS shows besides s0/o0~s1/o0; traffic is on s0/o0~s1/o0 s2/o0~s3/o0"
    ):
        bench.reconciler.reconcile(CircuitSet.of(["s2/o0~s3/o0"]))
    assert bench.switches.light == light_rules(A)


@pytest.mark.parametrize(
    ("settle_s", "relied_on"),
    [
        pytest.param(0.5, B, id="late-but-there-within-the-grace"),
        pytest.param(20.0, CircuitSet.of(["s2/o0~s3/o0"]), id="not-there-at-all"),
    ],
)
def test_light_that_does_not_settle_is_not_relied_on(settle_s: float, relied_on: CircuitSet) -> None:
    bench = Bench(settle_s)
    bench.ocs.reconfigure(NOTHING.towards(A))
    bench.clock.wait_until(100)
    reconciler = Reconciler(bench.ocs, bench.switches, bench.clock.now_s, settle_deadline_s=0.1)
    reconciler.adopt()
    with pytest.raises(
        ControlError, match=f"not settled within 0.1 s; traffic is on {relied_on}, all else on the EPS"
    ):
        reconciler.reconcile(B)
    assert bench.switches.light == light_rules(relied_on)


def test_an_ocs_that_is_gone_moves_all_traffic_to_the_eps(bench: Bench) -> None:
    bench.ocs.gone = True
    with pytest.raises(
        ControlError,
        match="ocs0: no answer; traffic is on no light, all else on the EPS, for the OCS doesn't say",
    ):
        bench.reconciler.reconcile(B)
    assert bench.switches.light == frozenset()


def test_light_does_not_move_before_every_switch_has_let_go_of_it(bench: Bench) -> None:
    bench.switches.gone = {"s1"}
    with pytest.raises(ControlError, match="s1: not connected"):
        bench.reconciler.reconcile(B)
    assert bench.ocs.lit() == A
    assert not [entry for entry in bench.journal if entry.startswith("out")]


class LosingOcs(JournalledOcs):
    """The same, while whose mirrors move a NIC fails."""

    def reconfigure(self, transition: Transition, mode: Mode = Mode.SAFE) -> None:
        super().reconfigure(transition, mode)
        self.bench.reconciler.shun(frozenset([Nic.parse("s0/o0")]))


def test_no_traffic_is_admitted_to_a_nic_that_fails_while_light_moves() -> None:
    bench = Bench()
    bench.ocs = LosingOcs(bench)
    bench.reconciler = Reconciler(bench.ocs, bench.switches, bench.clock.now_s)
    change = bench.reconciler.reconcile(A)
    assert change.after == bench.reconciler.lit == CircuitSet.of(["s2/o0~s3/o0"])
    assert bench.switches.way("s0", "s1", "o0", A) == (("s0/e0", "leaf0"), ("leaf0", "s1/e0"))
    assert bench.switches.way("s2", "s3", "o0", A) == (("s2/o0", "ocs"), ("ocs", "s3/o0"))


def test_after_a_fault_the_next_change_works(bench: Bench) -> None:
    bench.ocs.refusal = "no"
    with pytest.raises(ControlError):
        bench.reconciler.reconcile(B)
    bench.reconciler.reconcile(B)
    assert bench.ocs.lit() == B
    assert bench.switches.light == light_rules(B)


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
@settings(max_examples=60, deadline=None)
def test_no_packet_is_ever_sent_into_the_dark(targets: list[CircuitSet], stuck: set[int]) -> None:
    """At every instant when anything is asked of a device, each unmarked packet of each pair still has a way."""
    bench = Bench()
    bench.ocs.stuck = frozenset(stuck)
    reached: list[bool] = []

    class Watching(list[str]):
        def append(self, entry: str) -> None:
            dark = bench.ocs.dark()
            light = CircuitSet(bench.ocs.lit().circuits - dark)
            reached.append(all(bench.switches.way(a, b, None, light) for a in NAMES for b in NAMES if a != b))

    bench.journal = Watching()
    for target in targets:
        try:
            bench.reconciler.reconcile(target)
        except ControlError:
            assert stuck
        bench.journal.append("after")
    assert all(reached)
    assert bench.switches.light == light_rules(bench.reconciler.lit)


# ---- proof of light


def proving(bench: Bench, **settings: Any) -> Reconciler:
    """A reconciler that sends frames through circuits before it believes in them."""
    made = Reconciler(bench.ocs, bench.switches, bench.clock.now_s, probe=bench.ocs, **settings)
    made.adopt()
    return made


NEW = Circuit.parse("s0/o0~s2/o1")


def test_a_circuit_that_carries_nothing_is_taken_out_and_its_pair_stays_on_the_eps(bench: Bench) -> None:
    reconciler = proving(bench)
    bench.ocs.opaque = frozenset({FABRIC.ocs_port(NEW.b)})
    change = reconciler.reconcile(B)
    kept = CircuitSet.of(["s2/o0~s3/o0"])
    assert (change.before, change.after, change.dark) == (A, kept, CircuitSet.of([NEW]))
    assert bench.ocs.lit() == reconciler.lit == kept
    assert bench.switches.light == light_rules(kept)
    assert reconciler.dark == CircuitSet.of([NEW])
    assert bench.switches.way("s0", "s2", "o0", kept) == (("s0/e0", "leaf0"), ("leaf0", "s2/e0"))


def test_what_was_dark_is_not_waited_for_long_again_and_is_found_when_it_is_light(bench: Bench) -> None:
    reconciler = proving(bench)
    bench.ocs.opaque = frozenset({FABRIC.ocs_port(NEW.b)})
    first = reconciler.reconcile(B).phases.verify_s
    again = reconciler.reconcile(B).phases.verify_s
    assert first > 1
    assert again < 0.2
    bench.ocs.opaque = frozenset()
    assert reconciler.reconcile(B).after == B
    assert reconciler.dark == NOTHING


def test_light_that_is_there_at_the_start_and_carries_nothing_is_not_relied_on() -> None:
    bench = Bench()
    bench.ocs.reconfigure(NOTHING.towards(A))
    bench.ocs.opaque = frozenset({FABRIC.ocs_port(Circuit.parse("s0/o0~s1/o0").a)})
    assert proving(bench).lit == CircuitSet.of(["s2/o0~s3/o0"])
    assert bench.switches.light == light_rules(CircuitSet.of(["s2/o0~s3/o0"]))


def test_after_a_fault_light_that_carries_nothing_is_not_relied_on_either(bench: Bench) -> None:
    reconciler = proving(bench)
    dim = Circuit.parse("s0/o1~s1/o1")
    bench.ocs.opaque = frozenset({FABRIC.ocs_port(dim.a)})
    bench.ocs.stuck = frozenset({FABRIC.ocs_port(NEW.a), FABRIC.ocs_port(NEW.b)})
    with pytest.raises(ControlError, match=r"lacks .*traffic is on s2/o0~s3/o0, all else on the EPS"):
        reconciler.reconcile(CircuitSet.of([NEW, dim, "s2/o0~s3/o0"]))
    assert bench.switches.light == light_rules(CircuitSet.of(["s2/o0~s3/o0"]))


def test_light_that_the_device_lost_is_made_again_though_nothing_else_is_asked_for(bench: Bench) -> None:
    reconciler = proving(bench)
    bench.ocs.reconfigure(A.towards(NOTHING))
    bench.journal.clear()
    change = reconciler.reconcile(A)
    assert change.after == bench.ocs.lit() == A
    assert bench.journal[0] == "s0 s1 s2 s3 |", "traffic stayed on circuits that were dark"


@pytest.mark.parametrize(
    ("mode", "lit"),
    [
        pytest.param(Mode.UPDATE, ["s0/o0~s1/o0", "s0/o1~s1/o1", "s2/o0~s3/o0"], id="update-leaves-it"),
        pytest.param(Mode.OVERWRITE, ["s0/o0~s1/o0", "s2/o0~s3/o0"], id="overwrite-takes-it-out"),
    ],
)
def test_light_that_somebody_else_made(bench: Bench, mode: Mode, lit: list[str]) -> None:
    reconciler = proving(bench, mode=mode)
    bench.ocs.reconfigure(NOTHING.towards(CircuitSet.of(["s0/o1~s1/o1"])))
    assert reconciler.reconcile(A).after == A
    assert bench.ocs.lit() == CircuitSet.of(lit)
    assert bench.switches.light == light_rules(A)


def test_to_be_safe_is_to_refuse_ports_that_somebody_else_uses(bench: Bench) -> None:
    reconciler = proving(bench, mode=Mode.SAFE)
    bench.ocs.reconfigure(NOTHING.towards(CircuitSet.of(["s0/o1~s1/o1"])))
    wanted = CircuitSet.of(["s2/o0~s3/o0", "s0/o1~s3/o1"])
    with pytest.raises(ControlError, match=r"2-16, 8-10 busy.*nothing has changed; traffic is on"):
        reconciler.reconcile(wanted)
    assert bench.ocs.lit() == CircuitSet.of([*A, "s0/o1~s1/o1"])
