"""A device's physics: how long light takes, what is lost on the way, what faults do to it; with time that passes when told to."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict

import pytest

from emulator.light import Light, MemoryCrossbar, Ports
from emulator.loop import VirtualTimers
from emulator.ocs.build import Build, Links, Outside, built, facts_of
from emulator.ocs.events import Kind
from emulator.ocs.faults import Fault, Ill
from emulator.ocs.matching import RefusedError
from emulator.ocs.physics import Settling, conflicting, loss_db
from emulator.ocs.port import Admin, Tuning
from emulator.ocs.store import Store
from moefabric.errors import FabricError
from moefabric.ocs_profile import Loss, Profile, Settle

MS = 1_000_000
POLATIS = Profile()
PORTS = Ports(4, 4)  # inputs 1..4, outputs 5..8


class Noted(Outside):
    """Surroundings that note what they are told."""

    def __init__(self) -> None:
        self.said: list[dict[int, int | None]] = []
        self.memory: dict[str, object] = {}

    def links(self, links: Links) -> None:
        self.said.append(dict(links))

    def keep(self, memory: object) -> None:
        assert isinstance(memory, dict)
        self.memory = memory


class Switch:
    """A switch of four ports, its mirrors, its time and its surroundings."""

    def __init__(self, profile: Profile = POLATIS, **build: object) -> None:
        self.timers, self.crossbar, self.outside = VirtualTimers(), MemoryCrossbar(PORTS), Noted()
        self.build = built({**facts_of(Build(profile)), **build})
        self.store = Store(self.crossbar, self.timers, self.build, self.outside)

    def again(self) -> Store:
        """The store of the process that comes after this one."""
        told = json.loads(json.dumps(self.outside.memory))
        facts = {**facts_of(self.build), "memory": told}
        return Store(self.crossbar, self.timers, built(facts), self.outside)

    def lit_ms(self) -> dict[tuple[int, int], float]:
        return {(p, light.out_port): light.lit_at_ns / MS for p, light in self.crossbar.show().items()}


@pytest.mark.parametrize(
    ("settle", "commands", "lit_ms"),
    [
        pytest.param(Settle(25 * MS), [[(1, 5)]], {(1, 5): 25}, id="fixed"),
        pytest.param(
            Settle(10 * MS, serial_ns=2 * MS), [[(1, 5), (2, 6), (3, 7)]],
            {(1, 5): 10, (2, 6): 12, (3, 7): 14}, id="one-after-the-other",
        ),
        pytest.param(
            Settle(10 * MS, serial_ns=2 * MS, bulk="together"), [[(1, 5), (2, 6), (3, 7)]],
            {(1, 5): 14, (2, 6): 14, (3, 7): 14}, id="all-with-the-last",
        ),
        pytest.param(
            Settle(80 * MS, bulk_ns=100 * MS), [[(1, 5), (2, 6)]], {(1, 5): 180, (2, 6): 180}, id="bulk"
        ),
        pytest.param(
            Settle(80 * MS, conflict_ns=300 * MS), [[(1, 5)], [(1, 6)]], {(1, 6): 380}, id="a-conflict-costs"
        ),
        pytest.param(
            Settle(80 * MS, conflict_ns=300 * MS), [[(1, 5)], [], [(1, 6)]], {(1, 6): 80},
            id="whoever-parts-first-pays-nothing",
        ),
    ],
)  # fmt: skip
def test_light_takes_its_time(
    settle: Settle, commands: list[list[tuple[int, int]]], lit_ms: dict[tuple[int, int], float]
) -> None:
    switch = Switch(Profile(settle=settle))
    for pairs in commands:
        switch.store.only(pairs)
    assert switch.lit_ms() == lit_ms


@pytest.mark.parametrize("kind", ["uniform", "normal", "exponential"])
def test_jitter_is_the_same_for_the_same_seed_and_never_less_than_no_time(kind: str) -> None:
    settle = built({"serial": "1", "profile": {"settle": {"fixed_ns": 5, "jitter_ns": 9, "jitter": kind}}})
    pairs = [(p, q) for p in range(1, 40) for q in (p + 100,)]
    times = Settling(settle.profile.settle, "a").times_ns(pairs, conflicts=False)
    assert times == Settling(settle.profile.settle, "a").times_ns(pairs, conflicts=False)
    assert times != Settling(settle.profile.settle, "b").times_ns(pairs, conflicts=False)
    assert min(times) >= 0
    assert len(set(times)) > 3


def test_a_path_loses_the_same_for_the_same_seed_and_within_its_spread() -> None:
    loss = Loss(typical_db=1.0, spread_db=0.5)
    lost = {(p, q): loss_db(loss, "a", (p, q)) for p in range(1, 9) for q in range(9, 17)}
    assert lost == {pair: loss_db(loss, "a", pair) for pair in lost}
    assert all(0.5 <= db <= 1.5 for db in lost.values())
    assert len(set(lost.values())) == 64


def test_a_port_is_blocked_then_tuning_then_tuned() -> None:
    switch = Switch()
    seen = [switch.store.tuning(5)]
    switch.store.add([(1, 5)])
    seen.append(switch.store.tuning(5))
    switch.timers.pass_ns(25 * MS)
    seen.append(switch.store.tuning(5))
    switch.store.disable([1])
    seen.append(switch.store.tuning(1))
    switch.store.inject(Fault(Ill.PORT, (5,)))
    seen.append(switch.store.tuning(5))
    assert seen == [Tuning.BLOCKED, Tuning.TUNING, Tuning.TUNED, Tuning.BLOCKED, Tuning.FAILED]
    assert switch.store.admin(5) is Admin.FAILED


def test_light_comes_later_by_the_links_time_where_the_link_is_not_taken_down() -> None:
    switch = Switch(link_up_ns=50 * MS)
    switch.store.add([(1, 5)])
    assert switch.lit_ms() == {(1, 5): 75}
    assert switch.outside.said == []


def test_links_hang_on_the_light_that_a_port_receives() -> None:
    switch = Switch(link_up_ns=50 * MS, link_down=True)
    switch.store.add([(1, 6), (2, 5)])
    switch.timers.pass_ns(100 * MS)
    switch.store.add([(1, 6), (3, 8)])
    switch.store.sub([(1, 6)])
    assert switch.lit_ms() == {(2, 5): 25, (3, 8): 125}
    assert switch.outside.said == [
        {1: None, 2: None, 3: None, 4: None},
        {2: 75 * MS, 1: 75 * MS},
        {4: 175 * MS},
        {2: None},
    ]


def test_a_stuck_mirror_stays_and_what_shines_into_its_output_is_lost() -> None:
    switch = Switch()
    switch.store.add([(1, 5)])
    switch.store.inject(Fault(Ill.STUCK, (1,)))
    switch.store.only([(1, 6), (2, 5), (3, 7)])
    assert dict(switch.store.connects) == {1: 6, 2: 5, 3: 7}
    assert {p: light.out_port for p, light in switch.crossbar.show().items()} == {1: 5, 3: 7}
    switch.store.heal()
    assert {p: light.out_port for p, light in switch.crossbar.show().items()} == {1: 6, 2: 5, 3: 7}


def test_a_path_that_loses_too_much_carries_nothing() -> None:
    switch = Switch(Profile(loss=Loss(typical_db=1.0, spread_db=0.0, sensitivity_dbm=-14.0)))
    switch.store.add([(1, 5), (2, 6)])
    switch.timers.pass_all()
    switch.store.inject(Fault(Ill.LOSS, (1, 5), 12.9))
    assert (switch.store.power_dbm(5), switch.crossbar.forward(1, 60, switch.timers.now_ns())) == (-13.9, 5)
    switch.store.inject(Fault(Ill.LOSS, (1, 5), 0.2))
    assert switch.store.power_dbm(5) == pytest.approx(-14.1)
    assert switch.crossbar.forward(1, 60, switch.timers.now_ns()) is None
    assert switch.crossbar.forward(2, 60, switch.timers.now_ns()) == 6


def test_a_failed_port_is_dark_refused_and_told_as_an_alarm() -> None:
    switch = Switch()
    heard: list[Kind] = []
    switch.store.subscribe(lambda event: heard.append(event.kind))
    switch.store.add([(1, 5)])
    switch.timers.pass_all()
    switch.store.inject(Fault(Ill.PORT, (5,)))
    assert switch.crossbar.show() == {}
    with pytest.raises(RefusedError, match="out of order: port 5"):
        switch.store.add([(2, 5)])
    switch.store.heal()
    assert switch.crossbar.show() == {1: Light(5, 50 * MS)}
    assert heard == [
        *(Kind.CHANGED, Kind.SETTLED, Kind.FAULT, Kind.PORT_FAILED, Kind.POWER_LOW, Kind.REFUSED),
        *(Kind.FAULT_CLEARED, Kind.PORT_RECOVERED, Kind.POWER_CLEAR),
    ]


def test_completion_waits_for_what_was_commanded_before_and_for_nothing_else() -> None:
    switch = Switch()
    done: list[tuple[str, float]] = []

    def note(who: str) -> None:
        switch.store.when_settled(lambda: done.append((who, switch.timers.now_ns() / MS)))

    note("nothing to wait for")
    switch.store.add([(1, 5)])
    note("the first")
    switch.timers.pass_ns(10 * MS)
    switch.store.add([(2, 6)])
    switch.timers.pass_all()
    note("all is lit")
    assert done == [("nothing to wait for", 0), ("the first", 25), ("all is lit", 35)]


def test_a_shutter_keeps_what_is_joined_and_light_settles_when_it_opens() -> None:
    switch = Switch()
    switch.store.add([(1, 5)])
    switch.timers.pass_ns(100 * MS)
    switch.store.disable([5])
    assert (dict(switch.store.connects), switch.crossbar.show()) == ({1: 5}, {})
    switch.store.enable([5])
    assert switch.lit_ms() == {(1, 5): 125}


def test_the_next_process_knows_what_the_one_before_it_wrote_down() -> None:
    switch = Switch()
    switch.store.add([(1, 5), (2, 6)])
    switch.store.call((1, 5), "uplink")
    switch.store.configure(1, label="s0/o0")
    switch.store.disable([2])
    switch.store.inject(Fault(Ill.DENY))
    switch.timers.pass_all()
    after = switch.again()
    assert dict(after.connects) == {1: 5, 2: 6}
    assert (after.name_of((1, 5)), after.settings(1).label) == ("uplink", "s0/o0")
    assert after.admin(2) is Admin.DISABLED
    assert [fault.ill for fault in after.faults] == [Ill.DENY]
    assert after.version > switch.store.version
    assert {p: light.out_port for p, light in switch.crossbar.show().items()} == {1: 5}


@pytest.mark.parametrize(("startup", "joined"), [("preserve", {1: 5}), ("volatile", {})])
def test_what_is_joined_outlives_a_start_if_the_switch_preserves_it(
    startup: str, joined: dict[int, int]
) -> None:
    switch = Switch(built({"serial": "1", "profile": {"startup": startup}}).profile)
    switch.store.add([(1, 5)])
    switch.timers.pass_all()
    assert dict(switch.again().connects) == joined
    assert {p: light.out_port for p, light in switch.crossbar.show().items()} == joined


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({"ill": "plague"}, id="unheard-of"),
        pytest.param({"ill": "port"}, id="which-port"),
        pytest.param({"ill": "loss", "ports": [1], "value": 3}, id="half-a-path"),
        pytest.param({"ill": "delay", "value": -1}, id="before-it-was-asked"),
        pytest.param({"ill": "deny", "times": 0}, id="no-times"),
        pytest.param({"ill": "port", "ports": ["x"]}, id="no-number"),
    ],
)
def test_what_is_no_fault_is_refused(told: dict[str, object]) -> None:
    with pytest.raises(FabricError, match="fault"):
        Fault.from_json(told)


def test_what_a_switch_is_made_of_goes_over_a_wire_and_back() -> None:
    made = Build(
        Profile(name="x", settle=Settle(1, 2, "normal", 3, 4, "together", 5)), "7", 8, True, "10.0.0.1"
    )
    assert built(json.loads(json.dumps(facts_of(made)))) == made
    assert asdict(made.profile)["settle"]["jitter"] == "normal"


class SlowCrossbar(MemoryCrossbar):
    """Mirrors on a busy machine: each move takes a millisecond."""

    def __init__(self, ports: Ports, timers: VirtualTimers) -> None:
        super().__init__(ports)
        self._timers = timers

    def load(self, lights: Mapping[int, Light]) -> None:
        super().load(lights)
        self._timers.pass_ns(MS)


def test_light_comes_as_much_later_as_the_mirrors_moved_late() -> None:
    timers = VirtualTimers()
    crossbar = SlowCrossbar(PORTS, timers)
    store = Store(crossbar, timers, Build(Profile(settle=Settle(25 * MS))))
    store.add([(1, 5)])
    assert crossbar.show() == {1: Light(5, 26 * MS)}
    assert store.settled_at_ns == 26 * MS


@pytest.mark.parametrize(
    ("before", "after", "conflict"),
    [
        pytest.param([(1, 5)], [(1, 6)], True, id="the-input-was-joined"),
        pytest.param([(1, 5)], [(2, 5)], True, id="the-output-was-joined"),
        pytest.param([(1, 5)], [(1, 5), (2, 6)], False, id="others-stay"),
        pytest.param([(1, 5)], [(2, 6)], False, id="others-go"),
    ],
)
def test_a_command_conflicts_if_it_takes_a_port_from_another_cross_connect(
    before: list[tuple[int, int]], after: list[tuple[int, int]], conflict: bool
) -> None:
    assert conflicting(before, after) is conflict


def test_the_version_grows_with_each_change_and_stays_without_one() -> None:
    store = Switch().store
    versions = [store.version]
    commands: list[Callable[[], None]] = [
        lambda: store.add([(1, 5)]),
        lambda: store.add([(1, 5)]),
        lambda: store.disable([3]),
        lambda: store.sub([(1, 5)]),
    ]
    for command in commands:
        command()
        versions.append(store.version)
    first = versions[0]
    assert versions == [first, first + 1, first + 1, first + 1, first + 2]


def test_a_cross_connect_loses_its_name_with_its_light() -> None:
    store = Switch().store
    store.add([(1, 5)])
    store.call((1, 5), "uplink")
    store.only([(1, 6)])
    store.only([(1, 5)])
    assert store.name_of((1, 5)) == ""
    with pytest.raises(RefusedError, match="1 is not joined to 7"):
        store.call((1, 7), "nowhere")


def test_a_timer_that_was_cancelled_never_rings_and_the_others_ring_in_their_order() -> None:
    timers = VirtualTimers()
    rung: list[str] = []
    timers.at(2, lambda: rung.append("second"))
    timers.at(1, lambda: rung.append("first"))
    cancelled = timers.at(1, lambda: rung.append("cancelled"))
    cancelled.cancel()
    cancelled.ring()
    timers.pass_ns(1)
    assert (rung, timers.now_ns()) == (["first"], 1)
    timers.pass_all()
    assert (rung, timers.now_ns()) == (["first", "second"], 2)
