"""What any optical switch keeps: one suite for the one in memory and for the driver of each language, the emulator's own device behind it."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from time import monotonic
from typing import Any, Literal

import pytest

from controller.southbound.driven_ocs import DrivenOcs
from controller.southbound.drivers import device
from controller.southbound.memory_ocs import MemoryOcs
from emulator.ocs.faults import Fault, Ill
from moefabric.circuits import CircuitSet, Transition
from moefabric.errors import ControlError
from moefabric.ocs_control import Driver, Mode, OcsControl
from moefabric.ocs_profile import Profile, Settle
from moefabric.seams import OpticalSwitch
from moefabric.topology import Fabric, Ocs, Region
from tests.controller_lab import fabric
from tests.ocs_device import Meddled, OcsDevice, ocs_device

SETTLE_S = 0.05
NOTHING = CircuitSet()
A = CircuitSet.of(["s0/o0~s3/o2", "s1/o0~s2/o1"])
B = CircuitSet.of(["s0/o0~s2/o0", "s1/o0~s2/o1"])
PORTS = 14
"""Two more than the region has NICs: those are others'."""


def wired(driver: Driver = Driver.SCPI) -> Fabric:
    made = fabric(servers=4, optical=3, settle_ns=round(SETTLE_S * 1e9))
    region = made.regions[0]
    assert region.ocs is not None
    ocs = replace(region.ocs, ports=PORTS, control=OcsControl(driver=driver))
    return replace(made, regions=(replace(region, ocs=ocs),))


def parts(driver: Driver) -> tuple[Fabric, Region, Ocs]:
    made = wired(driver)
    assert made.regions[0].ocs is not None
    return made, made.regions[0], made.regions[0].ocs


def profile(busy: Literal["move", "refuse"] = "move") -> Profile:
    return Profile(settle=Settle(fixed_ns=round(SETTLE_S * 1e9)), busy=busy)


@pytest.fixture(params=["memory", "scpi", "scpi that refuses busy ports", "tl1", "restconf"])
def ocs(request: pytest.FixtureRequest) -> Iterator[OpticalSwitch]:
    if request.param == "memory":
        yield MemoryOcs(wired(), wired().regions[0])
        return
    driver = Driver(request.param.split()[0])
    made, region, described = parts(driver)
    with ExitStack() as undo:
        busy: Literal["move", "refuse"] = "refuse" if "refuses" in request.param else "move"
        served = undo.enter_context(ocs_device(driver, PORTS, profile(busy)))
        yield undo.enter_context(DrivenOcs(made, region, device(described, served.address)))


def test_a_new_device_is_dark(ocs: OpticalSwitch) -> None:
    assert ocs.lit() == NOTHING
    ocs.settled(0.01)


def test_what_is_commanded_shows(ocs: OpticalSwitch) -> None:
    ocs.reconfigure(NOTHING.towards(A))
    assert ocs.lit() == A


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(A, B, id="a-nic-changes-its-partner"),
        pytest.param(A, NOTHING, id="all-goes-dark"),
        pytest.param(A, A, id="nothing-moves"),
        pytest.param(
            CircuitSet.of(["s0/o0~s1/o0", "s2/o0~s3/o0"]),
            CircuitSet.of(["s0/o0~s2/o0", "s1/o0~s3/o0"]),
            id="all-swap",
        ),
        pytest.param(
            CircuitSet.of(["s0/o0~s1/o0"]),
            CircuitSet.of(["s0/o0~s1/o1", "s0/o1~s1/o0"]),
            id="a-pair-moves-its-nics",
        ),
    ],
)
def test_one_matching_becomes_another(
    ocs: OpticalSwitch, before: CircuitSet, after: CircuitSet, mode: Mode
) -> None:
    ocs.reconfigure(NOTHING.towards(before))
    ocs.reconfigure(before.towards(after), mode)
    ocs.settled(2)
    assert ocs.lit() == after


def test_settling_takes_the_device_its_time_and_no_more_than_once(ocs: OpticalSwitch) -> None:
    """Some languages tell that a change is accepted, others only when all is done."""
    started = _now(ocs)
    ocs.reconfigure(NOTHING.towards(A))
    ocs.settled(2)
    assert SETTLE_S * 0.8 <= _now(ocs) - started < 1
    settled = _now(ocs)
    ocs.settled(2)
    assert _now(ocs) - settled < SETTLE_S / 2


def _now(ocs: OpticalSwitch) -> float:
    return ocs.clock.now_s() if isinstance(ocs, MemoryOcs) else monotonic()


def test_waiting_for_light_has_an_end(ocs: OpticalSwitch) -> None:
    started = _now(ocs)
    ocs.reconfigure(NOTHING.towards(A))
    if _now(ocs) - started < SETTLE_S / 2:
        with pytest.raises(ControlError, match=r"ocs0.* within 0.01 s"):
            ocs.settled(0.01)
    ocs.settled(2)
    assert ocs.lit() == A


@pytest.mark.parametrize(
    ("transition", "said"),
    [
        pytest.param(
            Transition(B, NOTHING, NOTHING), "1-21, 7-15 not connected", id="out-with-what-is-not-there"
        ),
        pytest.param(NOTHING.towards(B), "1-21, 4-22, 7-15, 8-18 busy", id="in-with-what-is-busy"),
        pytest.param(
            Transition(CircuitSet.of(["s3/o0~s2/o2"]), NOTHING, CircuitSet.of(["s0/o1~s1/o1"])),
            "9-24, 10-23 not connected",
            id="one-part-good-and-one-part-not",
        ),
    ],
)
def test_a_refusal_changes_nothing(ocs: OpticalSwitch, transition: Transition, said: str) -> None:
    ocs.reconfigure(NOTHING.towards(A))
    with pytest.raises(ControlError, match=f"ocs0.*{said}.*nothing has changed"):
        ocs.reconfigure(transition)
    assert ocs.lit() == A
    ocs.settled(2)


@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.OVERWRITE])
def test_the_same_twice_is_no_fault(ocs: OpticalSwitch, mode: Mode) -> None:
    for _ in range(2):
        ocs.reconfigure(NOTHING.towards(A), mode)
        ocs.reconfigure(A.towards(B), mode)
    assert ocs.lit() == B


@pytest.mark.parametrize(
    ("mode", "after"),
    [
        pytest.param(Mode.UPDATE, ["s0/o0~s1/o1", "s1/o0~s2/o1"], id="update-takes-out-what-is-in-the-way"),
        pytest.param(Mode.OVERWRITE, ["s0/o0~s1/o1"], id="overwrite-takes-out-everything-else"),
    ],
)
def test_a_change_that_finds_ports_busy(ocs: OpticalSwitch, mode: Mode, after: list[str]) -> None:
    ocs.reconfigure(NOTHING.towards(A))
    ocs.reconfigure(NOTHING.towards(CircuitSet.of(["s0/o0~s1/o1"])), mode)
    assert ocs.lit() == CircuitSet.of(after)


DRIVERS = [Driver.SCPI, Driver.TL1, Driver.RESTCONF]


@pytest.fixture(params=DRIVERS)
def bad(request: pytest.FixtureRequest) -> Iterator[tuple[DrivenOcs, OcsDevice, list[Fault]]]:
    """A driver with A lit, its device, and the faults that this suffers as soon as it is told to move."""
    made, region, described = parts(request.param)
    faults: list[Fault] = []
    with ExitStack() as undo:
        served = undo.enter_context(ocs_device(request.param, PORTS, profile()))

        def meddle() -> None:
            served.suffer(*faults)
            faults.clear()

        meddled = Meddled(device(described, served.address, patience_s=0.4), meddle)
        driven = undo.enter_context(DrivenOcs(made, region, meddled))
        driven.reconfigure(NOTHING.towards(A))
        driven.settled(2)
        yield driven, served, faults


Bad = tuple[DrivenOcs, OcsDevice, list[Fault]]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        pytest.param(Fault(Ill.DENY, times=2), "refuses", id="says-no"),
        pytest.param(Fault(Ill.PARTIAL, value=1, times=1), "refuses", id="does-half-and-says-no"),
        pytest.param(Fault(Ill.PORT, ports=(7,)), "refuses", id="a-port-has-failed"),
    ],
)
def test_a_device_that_says_no_is_left_as_it_was(bad: Bad, fault: Fault, said: str) -> None:
    ocs, _, faults = bad
    faults.append(fault)
    with pytest.raises(ControlError, match=f"ocs0 {said}: .*; nothing has changed"):
        ocs.reconfigure(A.towards(B))
    assert ocs.lit() == A


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(Ill.RESET, times=1), id="hangs-up-before-it-is-done"),
        pytest.param(Fault(Ill.RESET, value=1, times=1), id="hangs-up-when-it-is-done"),
        pytest.param(Fault(Ill.DELAY, value=0.1), id="is-late"),
    ],
)
def test_a_device_that_stumbles_gets_there(bad: Bad, fault: Fault) -> None:
    ocs, device_, faults = bad
    faults.append(fault)
    ocs.reconfigure(A.towards(B))
    ocs.settled(2)
    assert ocs.lit() == B
    assert len(device_.joined()) == 4


def test_a_device_that_never_says_that_it_is_done_is_not_waited_for_for_ever(bad: Bad) -> None:
    """Either the end of waiting is told as a fault, or what the device shows is believed; it has done it."""
    ocs, _, faults = bad
    faults.append(Fault(Ill.NEVER))
    started = monotonic()
    with suppress(ControlError):
        ocs.reconfigure(A.towards(B))
        ocs.settled(0.2)
    assert monotonic() - started < 5
    assert ocs.lit() == B


@pytest.mark.parametrize("driver", DRIVERS)
def test_silence_and_absence_are_told_with_the_place(driver: Driver) -> None:
    made, region, described = parts(driver)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address: Any = listener.getsockname()[:2]
        silent = f"ocs0 at 127.0.0.1:{address[1]}: no answer to .* within"
        with (
            DrivenOcs(made, region, device(described, address, patience_s=0.05)) as ocs,
            pytest.raises(ControlError, match=silent),
        ):
            ocs.lit()
    with (
        DrivenOcs(made, region, device(described, address)) as ocs,
        pytest.raises(ControlError, match=f"ocs0 at 127.0.0.1:{address[1]}: .*refused"),
    ):
        ocs.lit()


@pytest.mark.parametrize("driver", DRIVERS)
def test_cross_connects_of_others_are_left_alone(driver: Driver) -> None:
    made, region, described = parts(driver)
    with ocs_device(driver, PORTS, profile()) as served:
        others = (13, 28), (14, 27)
        served.do(lambda: served.store.add(others))
        with DrivenOcs(made, region, device(described, served.address)) as ocs:
            for mode in Mode:
                ocs.reconfigure(ocs.lit().towards(A), mode)
                ocs.reconfigure(A.towards(NOTHING), mode)
        assert served.joined() == others
