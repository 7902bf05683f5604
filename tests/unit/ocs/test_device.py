"""State of a device in virtual time: settle times, losses, faults, saved state."""

import json
from collections.abc import Callable
from dataclasses import asdict

import pytest

from moefabric.core.errors import FabricError
from moefabric.core.ocs import DeviceProfile, OpticalLoss, RandomTime, SettleTime
from moefabric.emulator.crossbar.crossbar import Lights, Ports
from moefabric.emulator.ocs.cross_connects import RefusedError
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.device_failures import OcsFailure, OcsFailureKind
from moefabric.emulator.ocs.device_spec import DeviceHost, DeviceSpec, LinkTimes
from moefabric.emulator.ocs.events import OcsEventKind
from moefabric.emulator.ocs.fabric_link import optical_state
from moefabric.emulator.ocs.physics import Settling, conflicting, loss_db
from moefabric.emulator.ocs.port_settings import Admin
from tests.support.memory_crossbar import MemoryCrossbar
from tests.support.virtual_timers import VirtualTimers

MS = 1_000_000
POLATIS = DeviceProfile()
PORTS = Ports(4)  # inputs 1..4, outputs 5..8


class RecordingHost(DeviceHost):
    """Host that records what a device reports."""

    def __init__(self) -> None:
        self.links: list[dict[int, int | None]] = []
        self.memory: dict[str, object] = {}

    def set_links(self, links: LinkTimes) -> None:
        self.links.append(dict(links))

    def save(self, memory: object) -> None:
        assert isinstance(memory, dict)
        self.memory = memory


class Switch:
    """A device of four ports, with its crossbar, timers and host."""

    def __init__(self, profile: DeviceProfile = POLATIS, **fields: object) -> None:
        self.timers, self.crossbar, self.host = (
            VirtualTimers(),
            MemoryCrossbar(PORTS),
            RecordingHost(),
        )
        self.spec = DeviceSpec.from_json({**DeviceSpec(profile).as_json(), **fields})
        self.device = OcsDevice(self.crossbar, self.timers, self.spec, self.host)

    def restarted(self) -> OcsDevice:
        """Return the device of the next process."""
        memory = json.loads(json.dumps(self.host.memory))
        document = {**self.spec.as_json(), "memory": memory}
        return OcsDevice(self.crossbar, self.timers, DeviceSpec.from_json(document), self.host)

    def lit_ms(self) -> dict[tuple[int, int], float]:
        """Return when each path is lit, in ms."""
        return {pair: at_ns / MS for pair, at_ns in self.crossbar.cross_connects().items()}


@pytest.mark.parametrize(
    ("settle", "commands", "lit_ms"),
    [
        pytest.param(SettleTime(25 * MS), [[(1, 5)]], {(1, 5): 25}, id="fixed"),
        pytest.param(
            SettleTime(10 * MS, per_connection_ns=2 * MS), [[(1, 5), (2, 6), (3, 7)]],
            {(1, 5): 10, (2, 6): 12, (3, 7): 14}, id="serial",
        ),
        pytest.param(
            SettleTime(10 * MS, per_connection_ns=2 * MS, lit="together"),
            [[(1, 5), (2, 6), (3, 7)]],
            {(1, 5): 14, (2, 6): 14, (3, 7): 14}, id="together",
        ),
        pytest.param(
            SettleTime(80 * MS, bulk_ns=100 * MS), [[(1, 5), (2, 6)]],
            {(1, 5): 180, (2, 6): 180}, id="bulk"
        ),
        pytest.param(
            SettleTime(80 * MS, conflict_ns=300 * MS), [[(1, 5)], [(1, 6)]],
            {(1, 6): 380}, id="conflict"
        ),
        pytest.param(
            SettleTime(80 * MS, conflict_ns=300 * MS), [[(1, 5)], [], [(1, 6)]], {(1, 6): 80},
            id="removed-by-an-earlier-command",
        ),
    ],
)  # fmt: skip
def test_settle_time_follows_profile(
    settle: SettleTime, commands: list[list[tuple[int, int]]], lit_ms: dict[tuple[int, int], float]
) -> None:
    switch = Switch(DeviceProfile(settle=settle))
    for pairs in commands:
        switch.device.only(pairs)
    assert switch.lit_ms() == lit_ms


@pytest.mark.parametrize("kind", ["uniform", "normal", "exponential"])
def test_jitter_depends_on_seed_and_is_never_negative(kind: str) -> None:
    settle = DeviceSpec.from_json(
        {
            "serial": "1",
            "profile": {"settle": {"fixed_ns": 5, "jitter_ns": 9, "distribution": kind}},
        }
    )
    pairs = [(p, q) for p in range(1, 40) for q in (p + 100,)]
    times = Settling(settle.profile.settle, "a").times_ns(pairs, conflicts=False)
    assert times == Settling(settle.profile.settle, "a").times_ns(pairs, conflicts=False)
    assert times != Settling(settle.profile.settle, "b").times_ns(pairs, conflicts=False)
    assert min(times) >= 0
    assert len(set(times)) > 3


def test_cross_connects_of_a_command_share_its_jitter() -> None:
    settle = SettleTime(fixed_ns=5, jitter_ns=90, per_connection_ns=2, jitter_per="command")
    settling = Settling(settle, "a")
    first, second = (settling.times_ns([(1, 9), (2, 8), (3, 7)], conflicts=False) for _ in "ab")
    assert [time - first[0] for time in first] == [0, 2, 4]
    assert first != second


def test_path_loss_depends_on_seed_and_stays_within_spread() -> None:
    loss = OpticalLoss(typical_db=1.0, spread_db=0.5)
    losses = {(p, q): loss_db(loss, "a", (p, q)) for p in range(1, 9) for q in range(9, 17)}
    assert losses == {pair: loss_db(loss, "a", pair) for pair in losses}
    assert all(0.5 <= db <= 1.5 for db in losses.values())
    assert len(set(losses.values())) == 64


def test_port_state_goes_from_blocked_over_tuning_to_tuned() -> None:
    switch = Switch()
    states = [optical_state(switch.device, 5)]
    switch.device.add([(1, 5)])
    states.append(optical_state(switch.device, 5))
    switch.timers.advance_ns(25 * MS)
    states.append(optical_state(switch.device, 5))
    switch.device.disable([1])
    states.append(optical_state(switch.device, 1))
    switch.device.inject(OcsFailure(OcsFailureKind.PORT, (5,)))
    states.append(optical_state(switch.device, 5))
    assert states == ["blocked", "tuning", "tuned", "blocked", "failed"]
    assert switch.device.ports.admin(5) is Admin.FAILED


def test_link_up_time_delays_light_unless_links_go_down() -> None:
    switch = Switch(link_up={"fixed_ns": 50 * MS})
    switch.device.add([(1, 5)])
    assert switch.lit_ms() == {(1, 5): 75}
    assert switch.host.links == []


def test_each_nic_draws_its_time_until_its_link_is_up() -> None:
    link_up = {"fixed_ns": 50 * MS, "jitter_ns": 20 * MS}
    switch, delayed = Switch(link_up=link_up, link_down=True), Switch(link_up=link_up)
    for each in (switch, delayed):
        each.device.add([(1, 5), (2, 6)])
    links = {port + 4: (at_ns or 0) / MS for port, at_ns in switch.host.links[-1].items()}
    assert links[5] != links[6]
    assert all(55 <= at_ms <= 95 for at_ms in links.values())
    assert set(switch.lit_ms().values()) == {25}
    assert {port: at_ms for (_, port), at_ms in delayed.lit_ms().items()} == links
    switch.device.add([(3, 7)])
    assert switch.host.links[-1].keys() == {3}  # the other NICs keep their times


def test_links_follow_received_light() -> None:
    switch = Switch(link_up={"fixed_ns": 50 * MS}, link_down=True)
    switch.device.add([(1, 6), (2, 5)])
    switch.timers.advance_ns(100 * MS)
    switch.device.add([(1, 6), (3, 8)])
    switch.device.sub([(1, 6)])
    assert switch.lit_ms() == {(2, 5): 25, (3, 8): 125}
    assert switch.host.links == [
        {1: None, 2: None, 3: None, 4: None},
        {2: 75 * MS, 1: 75 * MS},
        {4: 175 * MS},
        {2: None},
    ]


def test_stuck_mirror_keeps_its_output() -> None:
    switch = Switch()
    switch.device.add([(1, 5)])
    switch.device.inject(OcsFailure(OcsFailureKind.STUCK, (1,)))
    switch.device.only([(1, 6), (2, 5), (3, 7)])
    assert dict(switch.device.connects) == {1: 6, 2: 5, 3: 7}
    assert dict(switch.crossbar.cross_connects().keys()) == {1: 5, 3: 7}
    switch.device.clear_failures()
    assert dict(switch.crossbar.cross_connects().keys()) == {1: 6, 2: 5, 3: 7}


def test_path_below_sensitivity_carries_nothing() -> None:
    switch = Switch(
        DeviceProfile(loss=OpticalLoss(typical_db=1.0, spread_db=0.0, sensitivity_dbm=-14.0))
    )
    switch.device.add([(1, 5), (2, 6)])
    switch.timers.advance_all()
    switch.device.inject(OcsFailure(OcsFailureKind.LOSS, (1, 5), 12.9))
    assert (
        switch.device.light.read_dbm([5])[5],
        switch.crossbar.forward(1, switch.timers.now_ns()),
    ) == (-13.9, 5)
    switch.device.inject(OcsFailure(OcsFailureKind.LOSS, (1, 5), 0.2))
    assert switch.device.light.read_dbm([5])[5] == pytest.approx(-14.1)
    assert switch.crossbar.forward(1, switch.timers.now_ns()) is None
    assert switch.crossbar.forward(2, switch.timers.now_ns()) == 6


def test_failed_port_is_dark_refuses_commands_and_raises_alarms() -> None:
    switch = Switch()
    kinds: list[OcsEventKind] = []
    switch.device.events.subscribe(lambda event: kinds.append(event.kind))
    switch.device.add([(1, 5)])
    switch.timers.advance_all()
    switch.device.inject(OcsFailure(OcsFailureKind.PORT, (5,)))
    assert switch.crossbar.cross_connects() == {}
    with pytest.raises(RefusedError, match="out of order: port 5"):
        switch.device.add([(2, 5)])
    switch.device.clear_failures()
    assert switch.crossbar.cross_connects() == {(1, 5): 50 * MS}
    assert kinds == [
        *(
            OcsEventKind.CHANGED,
            OcsEventKind.SETTLED,
            OcsEventKind.FAILURE,
            OcsEventKind.PORT_FAILED,
            OcsEventKind.POWER_LOW,
            OcsEventKind.REFUSED,
        ),
        *(OcsEventKind.FAILURE_CLEARED, OcsEventKind.PORT_RECOVERED, OcsEventKind.POWER_CLEAR),
    ]


def test_circuit_over_a_path_with_too_much_loss_raises_an_alarm() -> None:
    switch, dark = Switch(), list[tuple[int, ...]]()
    switch.device.events.subscribe(
        lambda event: dark.append(event.ports) if event.kind is OcsEventKind.POWER_LOW else None
    )
    switch.device.inject(OcsFailure(OcsFailureKind.LOSS, (1, 5), 60.0))
    assert dark == []
    switch.device.add([(1, 5), (2, 6)])
    assert dark == [(5,)]


def test_completion_waits_for_earlier_commands_only() -> None:
    switch = Switch()
    completions: list[tuple[str, float]] = []

    def note(label: str) -> None:
        switch.device.when_settled(lambda: completions.append((label, switch.timers.now_ns() / MS)))

    note("nothing to wait for")
    switch.device.add([(1, 5)])
    note("the first")
    switch.timers.advance_ns(10 * MS)
    switch.device.add([(2, 6)])
    switch.timers.advance_all()
    note("all is lit")
    assert completions == [("nothing to wait for", 0), ("the first", 25), ("all is lit", 35)]


def test_shutter_keeps_cross_connects_and_light_settles_after_opening() -> None:
    switch = Switch(DeviceProfile(settle=SettleTime(25 * MS, conflict_ns=10 * MS)))
    switch.device.add([(1, 5)])
    switch.timers.advance_ns(100 * MS)
    switch.device.disable([5])
    assert (dict(switch.device.connects), switch.crossbar.cross_connects()) == ({1: 5}, {})
    switch.device.enable([5])
    assert switch.lit_ms() == {(1, 5): 125}


def test_next_process_restores_saved_state() -> None:
    switch = Switch()
    switch.device.add([(1, 5), (2, 6)])
    switch.device.ports.configure([1], label="s0/o0")
    switch.device.disable([2])
    switch.device.inject(OcsFailure(OcsFailureKind.REJECT))
    switch.timers.advance_all()
    after = switch.restarted()
    assert dict(after.connects) == {1: 5, 2: 6}
    assert after.ports.settings(1).label == "s0/o0"
    assert after.ports.admin(2) is Admin.DISABLED
    assert [fault.kind for fault in after.failures] == [OcsFailureKind.REJECT]
    assert after.version > switch.device.version
    assert dict(switch.crossbar.cross_connects().keys()) == {1: 5}


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"kind": "stuck", "ports": [6]}, r"stuck: 6 is not an input \(1\.\.4\)"),
        ({"kind": "loss", "ports": [1, 2], "value": 3}, r"loss: 2 is not an output \(5\.\.8\)"),
        ({"kind": "loss", "ports": [5, 1], "value": 3}, r"loss: 5 is not an input"),
        ({"kind": "port", "ports": [1], "value": 3}, "port: takes no value; loss, delay"),
        ({"kind": "reject", "value": 5}, "reject: takes no value"),
        ({"kind": "port", "ports": [1], "times": 2}, "port: lasts until it is cleared"),
        ({"kind": "reject", "ports": [1]}, "reject: takes no ports"),
    ],
)
def test_fault_that_could_do_nothing_is_refused(fault: dict[str, object], expected: str) -> None:
    switch = Switch()
    with pytest.raises(FabricError, match=expected):
        switch.device.inject(OcsFailure.from_json(fault))
    assert not list(switch.device.failures)


def test_reboot_forgets_who_waits_for_light() -> None:
    switch = Switch()
    switch.device.add([(1, 5)])
    completions: list[str] = []
    switch.device.when_settled(lambda: completions.append("before"))
    switch.device.reboot()
    switch.device.when_settled(lambda: completions.append("after"))
    switch.timers.advance_all()
    assert completions == ["after"]


@pytest.mark.parametrize(("startup", "joined"), [("preserve", {1: 5}), ("volatile", {})])
def test_cross_connects_survive_restart_in_preserve_mode_only(
    startup: str, joined: dict[int, int]
) -> None:
    switch = Switch(DeviceSpec.from_json({"serial": "1", "profile": {"startup": startup}}).profile)
    switch.device.add([(1, 5)])
    switch.timers.advance_all()
    assert dict(switch.restarted().connects) == joined
    assert dict(switch.crossbar.cross_connects().keys()) == joined


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"kind": "plague"}, id="unknown"),
        pytest.param({"kind": "port"}, id="no-port"),
        pytest.param({"kind": "loss", "ports": [1], "value": 3}, id="half-a-path"),
        pytest.param({"kind": "delay", "value": -1}, id="negative"),
        pytest.param({"kind": "reject", "times": 0}, id="no-times"),
        pytest.param({"kind": "port", "ports": ["x"]}, id="no-number"),
    ],
)
def test_invalid_fault_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(FabricError, match="fault"):
        OcsFailure.from_json(document)


def test_device_spec_survives_json() -> None:
    spec = DeviceSpec(
        DeviceProfile(name="x", settle=SettleTime(1, 2, "normal", "command", 3, 4, "together", 5)),
        "7",
        RandomTime(8, 9, "normal"),
        True,
        "10.0.0.1",
    )
    assert DeviceSpec.from_json(json.loads(json.dumps(spec.as_json()))) == spec
    assert asdict(spec.profile)["settle"]["distribution"] == "normal"


class SlowCrossbar(MemoryCrossbar):
    """Crossbar of a busy machine: each change takes a millisecond."""

    def __init__(self, ports: Ports, timers: VirtualTimers) -> None:
        super().__init__(ports)
        self._timers = timers

    def load(self, lights: Lights) -> None:
        super().load(lights)
        self._timers.advance_ns(MS)


@pytest.mark.parametrize(
    ("settle_ms", "lit_ms"),
    [
        pytest.param(25, 26, id="late-mirrors"),
        pytest.param(2, 2, id="light-would-come-during-a-second-change"),
    ],
)
def test_late_mirrors_postpone_light_while_it_can_be_postponed(settle_ms: int, lit_ms: int) -> None:
    timers = VirtualTimers()
    crossbar, settle = SlowCrossbar(PORTS, timers), SettleTime(settle_ms * MS)
    device = OcsDevice(crossbar, timers, DeviceSpec(DeviceProfile(settle=settle)))
    device.add([(1, 5)])
    assert crossbar.cross_connects() == {(1, 5): lit_ms * MS}
    assert device.light.settled_at_ns == lit_ms * MS


@pytest.mark.parametrize(
    ("before", "after", "conflict"),
    [
        pytest.param([(1, 5)], [(1, 6)], True, id="busy-input"),
        pytest.param([(1, 5)], [(2, 5)], True, id="busy-output"),
        pytest.param([(1, 5)], [(1, 5), (2, 6)], False, id="others-stay"),
        pytest.param([(1, 5)], [(2, 6)], False, id="others-go"),
    ],
)
def test_command_conflicts_if_it_reuses_a_port(
    before: list[tuple[int, int]], after: list[tuple[int, int]], conflict: bool
) -> None:
    added, removed = set(after) - set(before), set(before) - set(after)
    assert conflicting(added, removed) is conflict


def test_version_increases_with_each_change_only() -> None:
    device = Switch().device
    versions = [device.version]
    commands: list[Callable[[], None]] = [
        lambda: device.add([(1, 5)]),
        lambda: device.add([(1, 5)]),
        lambda: device.disable([3]),
        lambda: device.sub([(1, 5)]),
    ]
    for command in commands:
        command()
        versions.append(device.version)
    first = versions[0]
    assert versions == [first, first + 1, first + 1, first + 1, first + 2]


def test_virtual_timers_fire_in_order_and_skip_cancelled() -> None:
    timers = VirtualTimers()
    fired: list[str] = []
    timers.call_at(2, lambda: fired.append("second"))
    timers.call_at(1, lambda: fired.append("first"))
    cancelled = timers.call_at(1, lambda: fired.append("cancelled"))
    cancelled.cancel()
    timers.advance_ns(1)
    assert (fired, timers.now_ns()) == (["first"], 1)
    timers.advance_all()
    assert (fired, timers.now_ns()) == (["first", "second"], 2)
