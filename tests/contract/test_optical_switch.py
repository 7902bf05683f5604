"""What any optical switch keeps: one suite for the one in memory and for the SCPI driver, with the emulator's own device behind it."""

from collections.abc import Iterator
from contextlib import ExitStack
from time import monotonic

import pytest

from controller.southbound.memory_ocs import MemoryOcs
from controller.southbound.scpi import Scpi, ScpiOcs
from emulator.ocs.store import Busy
from moefabric.circuits import CircuitSet, Transition
from moefabric.errors import ControlError
from moefabric.seams import OpticalSwitch
from moefabric.topology import Fabric
from tests.controller_lab import fabric, scpi_device

SETTLE_S = 0.05
NOTHING = CircuitSet()
A = CircuitSet.of(["s0/o0~s3/o2", "s1/o0~s2/o1"])
B = CircuitSet.of(["s0/o0~s2/o0", "s1/o0~s2/o1"])


def wired() -> Fabric:
    return fabric(servers=4, optical=3, settle_ns=round(SETTLE_S * 1e9))


@pytest.fixture(params=["memory", "scpi", "scpi that moves busy ports"])
def ocs(request: pytest.FixtureRequest) -> Iterator[OpticalSwitch]:
    with ExitStack() as undo:
        if request.param == "memory":
            yield MemoryOcs(wired(), wired().regions[0])
        else:
            busy = Busy.REFUSE if request.param == "scpi" else Busy.MOVE
            address = undo.enter_context(scpi_device(wired(), ("127.0.0.1", 0), busy))
            yield undo.enter_context(ScpiOcs(wired(), wired().regions[0], Scpi("ocs0", address)))


def test_a_new_device_is_dark(ocs: OpticalSwitch) -> None:
    assert ocs.lit() == NOTHING
    ocs.settled(0.01)


def test_what_is_commanded_shows(ocs: OpticalSwitch) -> None:
    ocs.reconfigure(NOTHING.towards(A))
    assert ocs.lit() == A


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
def test_one_matching_becomes_another(ocs: OpticalSwitch, before: CircuitSet, after: CircuitSet) -> None:
    ocs.reconfigure(NOTHING.towards(before))
    ocs.reconfigure(before.towards(after))
    ocs.settled(2)
    assert ocs.lit() == after


def test_settling_takes_the_device_its_time_and_no_more_than_once(ocs: OpticalSwitch) -> None:
    ocs.reconfigure(NOTHING.towards(A))
    started = _now(ocs)
    ocs.settled(2)
    assert SETTLE_S * 0.8 <= _now(ocs) - started < 1
    settled = _now(ocs)
    ocs.settled(2)
    assert _now(ocs) - settled < SETTLE_S / 2


def _now(ocs: OpticalSwitch) -> float:
    return ocs.clock.now_s() if isinstance(ocs, MemoryOcs) else monotonic()


def test_waiting_for_light_has_an_end(ocs: OpticalSwitch) -> None:
    ocs.reconfigure(NOTHING.towards(A))
    with pytest.raises(ControlError, match=r"ocs0.* within 0.01 s"):
        ocs.settled(0.01)
    ocs.settled(2)
    assert ocs.lit() == A


@pytest.mark.parametrize(
    ("transition", "said"),
    [
        pytest.param(
            Transition(B, NOTHING, NOTHING), "1-19, 7-13 not connected", id="out-with-what-is-not-there"
        ),
        pytest.param(NOTHING.towards(B), "1-19, 4-20, 7-13, 8-16 busy", id="in-with-what-is-busy"),
        pytest.param(
            Transition(CircuitSet.of(["s3/o0~s2/o2"]), NOTHING, CircuitSet.of(["s0/o1~s1/o1"])),
            "9-22, 10-21 not connected",
            id="one-part-good-and-one-part-not",
        ),
    ],
)
def test_a_refusal_changes_nothing(ocs: OpticalSwitch, transition: Transition, said: str) -> None:
    ocs.reconfigure(NOTHING.towards(A))
    with pytest.raises(ControlError, match=f"ocs0.*{said}"):
        ocs.reconfigure(transition)
    assert ocs.lit() == A
    ocs.settled(2)
