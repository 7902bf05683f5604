"""Contract of `OpticalSwitch`: in memory, and emulated devices behind each driver."""

import re
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from time import monotonic
from typing import Any, Literal

import pytest

from moefabric.controller.http_client import NoResponseError
from moefabric.controller.southbound.ocs.cross_connects import CrossConnectChange
from moefabric.controller.southbound.ocs.remote_ocs import RemoteOcs, device_address, make_driver
from moefabric.controller.southbound.ocs.scpi import Scpi, ScpiDriver
from moefabric.core.circuits import CircuitSet, Transition
from moefabric.core.errors import ControlError, MisconfiguredError, SpecError
from moefabric.core.ocs import CrossConnectMode, DeviceProfile, Ocs, OcsControl, SettleTime
from moefabric.core.ocs_dialect import DriverSettings
from moefabric.core.protocols import OpticalSwitch
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.ocs.device_failures import OcsFailure, OcsFailureKind
from tests.support.attempts import measurements
from tests.support.controller_lab import fabric
from tests.support.memory_ocs import MemoryOcs
from tests.support.ocs_device import EmulatedOcs, ocs_device

SETTLE_S = 0.05
SETTLE_NS = round(SETTLE_S * 1e9)
NOTHING = CircuitSet()
A = CircuitSet.of(["s0/o0~s3/o2", "s1/o0~s2/o1"])
B = CircuitSet.of(["s0/o0~s2/o0", "s1/o0~s2/o1"])
PORTS = 14
"""Two more than the region has NICs; other users have these."""


def wired(driver: str = "scpi") -> Fabric:
    wired_fabric = fabric(servers=4, optical=3, settle_ns=SETTLE_NS)
    region = wired_fabric.regions[0]
    assert region.ocs is not None
    ocs = replace(region.ocs, ports=PORTS, control=OcsControl(driver=driver))
    return replace(wired_fabric, regions=(replace(region, ocs=ocs),))


def parts(driver: str) -> tuple[Fabric, Region, Ocs]:
    wired_fabric = wired(driver)
    assert wired_fabric.regions[0].ocs is not None
    return wired_fabric, wired_fabric.regions[0], wired_fabric.regions[0].ocs


def profile(busy: Literal["move", "refuse"] = "move") -> DeviceProfile:
    return DeviceProfile(settle=SettleTime(fixed_ns=SETTLE_NS), busy=busy)


@pytest.fixture(
    params=[
        "memory",
        "scpi",
        "scpi that refuses busy ports",
        "scpi in a shared process",
        "tl1",
        "tl1 in a shared process",
        "restconf",
        "restconf in a shared process",
    ]
)
def ocs(request: pytest.FixtureRequest) -> Iterator[OpticalSwitch]:
    if request.param == "memory":
        yield MemoryOcs(wired(), wired().regions[0])
        return
    driver = request.param.split()[0]
    wired_fabric, region, spec = parts(driver)
    with ExitStack() as undo:
        busy: Literal["move", "refuse"] = "refuse" if "refuses" in request.param else "move"
        shared = "shared" in request.param
        served = undo.enter_context(ocs_device(driver, PORTS, profile(busy), shared=shared))
        yield undo.enter_context(RemoteOcs(wired_fabric, region, make_driver(spec, served.address)))


def test_a_new_device_is_dark(ocs: OpticalSwitch) -> None:
    assert ocs.circuits() == NOTHING
    ocs.wait_settled(0.01)


def test_commanded_circuits_show(ocs: OpticalSwitch) -> None:
    ocs.reconfigure(NOTHING.transition_to(A))
    assert ocs.circuits() == A


@pytest.mark.parametrize("mode", list(CrossConnectMode))
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
def test_reconfigure_reaches_another_matching(
    ocs: OpticalSwitch, before: CircuitSet, after: CircuitSet, mode: CrossConnectMode
) -> None:
    ocs.reconfigure(NOTHING.transition_to(before))
    ocs.reconfigure(before.transition_to(after), mode)
    ocs.wait_settled(2)
    assert ocs.circuits() == after


def test_settled_circuits_show_when_they_have_light(ocs: OpticalSwitch) -> None:
    started = _now(ocs)
    ocs.reconfigure(NOTHING.transition_to(A))
    assert ocs.settled_circuits(2) == A
    assert _now(ocs) - started >= SETTLE_S * 0.8
    ocs.reconfigure(A.transition_to(B))
    assert ocs.settled_circuits(2) == ocs.circuits() == B


def test_wait_settled_takes_the_settling_time_once(ocs: OpticalSwitch) -> None:
    """Some languages acknowledge a change when accepted, others when settled."""
    started = _now(ocs)
    ocs.reconfigure(NOTHING.transition_to(A))
    ocs.wait_settled(2)
    assert SETTLE_S * 0.8 <= _now(ocs) - started < 1

    def wait_again() -> float:
        settled = _now(ocs)
        ocs.wait_settled(2)
        return _now(ocs) - settled

    assert min(measurements(wait_again, lambda seconds: seconds < SETTLE_S / 2)) < SETTLE_S / 2


def _now(ocs: OpticalSwitch) -> float:
    return ocs.clock.now_s() if isinstance(ocs, MemoryOcs) else monotonic()


def test_wait_settled_raises_at_its_deadline(ocs: OpticalSwitch) -> None:
    def error_at_deadline() -> str | None:
        """Light A and return the error; None if the light had settled before the deadline."""
        ocs.reconfigure(ocs.circuits().transition_to(NOTHING))
        ocs.wait_settled(2)
        started = _now(ocs)
        ocs.reconfigure(NOTHING.transition_to(A))
        if _now(ocs) - started > SETTLE_S / 2:
            return "acknowledged when it has settled"
        try:
            ocs.wait_settled(0.01)
        except ControlError as error:
            return str(error)
        return None

    error = measurements(error_at_deadline, bool)[-1]
    assert error is not None
    assert re.search(r"ocs0.* within 0.01 s|acknowledged when it has settled", error)
    ocs.wait_settled(2)
    assert ocs.circuits() == A


@pytest.mark.parametrize(
    ("transition", "message"),
    [
        pytest.param(
            Transition(B, NOTHING, NOTHING),
            "1-21, 7-15 not connected",
            id="out-with-what-is-not-there",
        ),
        pytest.param(
            NOTHING.transition_to(B), "1-21, 4-22, 7-15, 8-18 busy", id="in-with-what-is-busy"
        ),
        pytest.param(
            Transition(CircuitSet.of(["s3/o0~s2/o2"]), NOTHING, CircuitSet.of(["s0/o1~s1/o1"])),
            "9-24, 10-23 not connected",
            id="one-part-good-and-one-part-not",
        ),
    ],
)
def test_refused_transition_changes_nothing(
    ocs: OpticalSwitch, transition: Transition, message: str
) -> None:
    ocs.reconfigure(NOTHING.transition_to(A))
    with pytest.raises(ControlError, match=f"ocs0.*{message}.*nothing has changed"):
        ocs.reconfigure(transition)
    assert ocs.circuits() == A
    ocs.wait_settled(2)


@pytest.mark.parametrize("mode", [CrossConnectMode.UPDATE, CrossConnectMode.OVERWRITE])
def test_repeated_transition_is_no_fault(ocs: OpticalSwitch, mode: CrossConnectMode) -> None:
    for _ in range(2):
        ocs.reconfigure(NOTHING.transition_to(A), mode)
        ocs.reconfigure(A.transition_to(B), mode)
    assert ocs.circuits() == B


@pytest.mark.parametrize(
    ("mode", "after"),
    [
        pytest.param(
            CrossConnectMode.UPDATE,
            ["s0/o0~s1/o1", "s1/o0~s2/o1"],
            id="update-takes-out-what-is-in-the-way",
        ),
        pytest.param(
            CrossConnectMode.OVERWRITE, ["s0/o0~s1/o1"], id="overwrite-takes-out-everything-else"
        ),
    ],
)
def test_mode_decides_about_busy_ports(
    ocs: OpticalSwitch, mode: CrossConnectMode, after: list[str]
) -> None:
    ocs.reconfigure(NOTHING.transition_to(A))
    ocs.reconfigure(NOTHING.transition_to(CircuitSet.of(["s0/o0~s1/o1"])), mode)
    assert ocs.circuits() == CircuitSet.of(after)


DRIVERS = ["scpi", "tl1", "restconf"]


@pytest.fixture(params=DRIVERS)
def bad(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[RemoteOcs, EmulatedOcs, list[OcsFailure]]]:
    """Yield an OCS with A lit, its device, and the faults that its next command triggers."""
    wired_fabric, region, spec = parts(request.param)
    faults: list[OcsFailure] = []
    with ExitStack() as undo:
        served = undo.enter_context(ocs_device(request.param, PORTS, profile()))

        driver = make_driver(spec, served.address, timeout_s=0.4)
        apply = driver.apply

        def meddle(change: CrossConnectChange) -> str | None:
            served.inject(*faults)  # just before a change, so that earlier queries succeed
            faults.clear()
            return apply(change)

        monkeypatch.setattr(driver, "apply", meddle)
        driven = undo.enter_context(RemoteOcs(wired_fabric, region, driver))
        driven.reconfigure(NOTHING.transition_to(A))
        driven.wait_settled(2)
        yield driven, served, faults


Bad = tuple[RemoteOcs, EmulatedOcs, list[OcsFailure]]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param(OcsFailure(OcsFailureKind.REJECT, times=2), "refuses", id="says-no"),
        pytest.param(
            OcsFailure(OcsFailureKind.PARTIAL_APPLY, value=1, times=1),
            "refuses",
            id="does-half-and-says-no",
        ),
        pytest.param(
            OcsFailure(OcsFailureKind.PORT, ports=(7,)), "refuses", id="a-port-has-failed"
        ),
    ],
)
def test_refusing_device_is_restored(bad: Bad, fault: OcsFailure, message: str) -> None:
    ocs, _, faults = bad
    faults.append(fault)
    with pytest.raises(ControlError, match=f"ocs0 {message}: .*; nothing has changed"):
        ocs.reconfigure(A.transition_to(B))
    assert ocs.circuits() == A


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(OcsFailure(OcsFailureKind.RESET, times=1), id="hangs-up-before-it-is-done"),
        pytest.param(
            OcsFailure(OcsFailureKind.RESET, value=1, times=1), id="hangs-up-when-it-is-done"
        ),
        pytest.param(OcsFailure(OcsFailureKind.DELAY, value=0.1), id="is-late"),
    ],
)
def test_interrupted_change_completes(bad: Bad, fault: OcsFailure) -> None:
    ocs, device_, faults = bad
    faults.append(fault)
    ocs.reconfigure(A.transition_to(B))
    ocs.wait_settled(2)
    assert ocs.circuits() == B
    assert len(device_.cross_connects()) == 4


def test_missing_completion_does_not_block_for_ever(bad: Bad) -> None:
    """Either waiting raises an error, or the device's state counts; it has executed the change."""
    ocs, _, faults = bad
    faults.append(OcsFailure(OcsFailureKind.DROP_COMPLETION))
    started = monotonic()
    with suppress(ControlError):
        ocs.reconfigure(A.transition_to(B))
        ocs.wait_settled(0.2)
    assert monotonic() - started < 5
    assert ocs.circuits() == B


@pytest.mark.parametrize("driver", DRIVERS)
def test_silent_and_absent_devices_are_named(driver: str) -> None:
    wired_fabric, region, spec = parts(driver)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address: Any = listener.getsockname()[:2]
        silent = f"ocs0 at 127.0.0.1:{address[1]}: no answer to .* within"
        with (
            RemoteOcs(wired_fabric, region, make_driver(spec, address, timeout_s=0.05)) as ocs,
            pytest.raises(ControlError, match=silent),
        ):
            ocs.circuits()
    with (
        RemoteOcs(wired_fabric, region, make_driver(spec, address)) as ocs,
        pytest.raises(ControlError, match=f"ocs0 at 127.0.0.1:{address[1]}: .*refused"),
    ):
        ocs.circuits()


@pytest.mark.parametrize("driver", DRIVERS)
def test_cross_connects_of_others_are_kept(driver: str) -> None:
    wired_fabric, region, spec = parts(driver)
    with ocs_device(driver, PORTS, profile()) as served:
        others = (13, 28), (14, 27)
        served.run(lambda: served.device.add(others))
        with RemoteOcs(wired_fabric, region, make_driver(spec, served.address)) as ocs:
            for mode in CrossConnectMode:
                ocs.reconfigure(ocs.circuits().transition_to(A), mode)
                ocs.reconfigure(A.transition_to(NOTHING), mode)
        assert served.cross_connects() == others


def slices(driver: str) -> tuple[Fabric, list[Region]]:
    """Return two regions that share a device: inputs 2 to 7, and 8 to 13."""
    regions = []
    for number in range(2):
        names = tuple(f"s{3 * number + n}" for n in range(3))
        control, first = OcsControl(driver=driver), 2 + 6 * number
        ocs = Ocs(f"ocs{number}", PORTS, SETTLE_NS, control=control, first_port=first)
        regions.append(Region(f"r{number}", number, names, ocs))
    return replace(wired(), regions=tuple(regions), optical=2), regions


@pytest.mark.parametrize("mode", list(CrossConnectMode))
@pytest.mark.parametrize("driver", DRIVERS)
def test_regions_command_only_their_slices_of_one_device(
    driver: str, mode: CrossConnectMode
) -> None:
    shared, regions = slices(driver)
    with ocs_device(driver, PORTS, profile()) as served, ExitStack() as undo:
        of_others = (1, 28), (14, 15)
        served.run(lambda: served.device.add(of_others))
        ocses = [
            undo.enter_context(RemoteOcs(shared, one, make_driver(one.ocs, served.address)))
            for one in regions
            if one.ocs
        ]
        lit = CircuitSet.of(["s0/o0~s1/o1"]), CircuitSet.of(["s3/o0~s5/o1", "s4/o0~s5/o0"])
        for ocs, circuits in zip(ocses, lit, strict=True):
            ocs.reconfigure(ocs.circuits().transition_to(circuits), mode)
        assert [ocs.circuits() for ocs in ocses] == [*lit]
        assert {(2, 19), (5, 16), (8, 27), (13, 22)} < {*served.cross_connects()}
        ocses[1].reconfigure(lit[1].transition_to(NOTHING), mode)
        assert served.cross_connects() == ((1, 28), (2, 19), (5, 16), (14, 15))
        assert not any(ocs.has_strays for ocs in ocses)


def test_lost_answer_undoes_nothing_of_another_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, (region, other) = slices("scpi")
    assert region.ocs is not None
    assert other.ocs is not None
    theirs, ours = CircuitSet.of(["s3/o0~s4/o0"]), CircuitSet.of(["s0/o0~s1/o0"])
    with (
        ocs_device("scpi", PORTS, profile()) as served,
        RemoteOcs(shared, other, make_driver(other.ocs, served.address)) as neighbour,
    ):
        driver = make_driver(region.ocs, served.address)
        apply = driver.apply

        def change_others_and_lose_the_answer(change: CrossConnectChange) -> str | None:
            monkeypatch.setattr(driver, "apply", apply)
            neighbour.reconfigure(NOTHING.transition_to(theirs))
            raise NoResponseError("lost")

        monkeypatch.setattr(driver, "apply", change_others_and_lose_the_answer)
        with RemoteOcs(shared, region, driver) as ocs:
            ocs.reconfigure(ocs.circuits().transition_to(ours), CrossConnectMode.OVERWRITE)
            assert (ocs.circuits(), neighbour.circuits()) == (ours, theirs)


def real(driver: str, address: tuple[str, int]) -> tuple[Fabric, Region, Ocs]:
    """Return the fabric with a switch at an address, which the fabric doesn't make."""
    wired_fabric, region, spec = parts(driver)
    spec = replace(spec, control=replace(spec.control, address=address[0], port=address[1]))
    region = replace(region, ocs=spec)
    return replace(wired_fabric, regions=(region,)), region, spec


@pytest.mark.parametrize("driver", DRIVERS)
def test_device_of_another_size_is_refused_before_any_command(driver: str) -> None:
    with ocs_device(driver, PORTS - 2, profile()) as served:
        wired_fabric, region, spec = real(driver, served.address)
        with RemoteOcs(wired_fabric, region, make_driver(spec, served.address)) as ocs:
            for command in (ocs.circuits, lambda: ocs.reconfigure(NOTHING.transition_to(A))):
                with pytest.raises(
                    MisconfiguredError,
                    match=r"^ocs0: the device has 12 inputs and 12 outputs, not 14: "
                    r"set ocs.ports: 12$",
                ):
                    command()
        assert served.cross_connects() == ()


@pytest.mark.parametrize("driver", DRIVERS)
def test_device_of_the_right_size_is_used(driver: str, caplog: pytest.LogCaptureFixture) -> None:
    with ocs_device(driver, PORTS, profile()) as served:
        wired_fabric, region, spec = real(driver, served.address)
        with RemoteOcs(wired_fabric, region, make_driver(spec, served.address)) as ocs:
            ocs.reconfigure(ocs.circuits().transition_to(A))
            assert ocs.circuits() == A
    assert "ocs.ports isn't checked" not in caplog.text


@pytest.mark.parametrize("driver", DRIVERS)
def test_device_that_answers_after_a_lost_connection_is_measured_again(driver: str) -> None:
    with ExitStack() as undo:
        with ocs_device(driver, PORTS, profile()) as served:
            address = served.address
            wired_fabric, region, spec = real(driver, address)
            ocs = undo.enter_context(
                RemoteOcs(wired_fabric, region, make_driver(spec, address, 5.0))
            )
            assert ocs.circuits() == NOTHING
        with ocs_device(driver, PORTS - 2, profile(), address=address) as other:
            with pytest.raises(MisconfiguredError, match="the device has 12 inputs"):
                ocs.reconfigure(ocs.circuits().transition_to(A), CrossConnectMode.OVERWRITE)
            assert other.cross_connects() == ()


@pytest.mark.parametrize("driver", DRIVERS)
def test_half_a_circuit_is_a_stray_that_a_command_removes(driver: str) -> None:
    wired_fabric, region, spec = parts(driver)
    with ocs_device(driver, PORTS, profile()) as served:
        of_others, half = (13, 28), (2, 19)  # s0/o1 to s1/o1
        served.run(lambda: served.device.add([of_others]))
        with RemoteOcs(wired_fabric, region, make_driver(spec, served.address)) as ocs:
            ocs.reconfigure(ocs.circuits().transition_to(B), CrossConnectMode.OVERWRITE)
            ocs.wait_settled(2)
            assert (ocs.circuits(), ocs.has_strays) == (B, False)
            lit = served.cross_connects()
            served.run(lambda: served.device.add([half]))
            assert (ocs.circuits(), ocs.has_strays) == (B, True)
            ocs.reconfigure(B.transition_to(B), CrossConnectMode.OVERWRITE)
            assert served.cross_connects() == lit


OPENED: list[DriverSettings] = []


class RecordingScpi(Scpi):
    """A driver of another package: SCPI with an account."""

    factory_account: tuple[str, str] = ("root", "factory")

    def open(self, settings: DriverSettings) -> ScpiDriver:
        OPENED.append(settings)
        return super().open(settings)


def test_driver_of_another_package_is_given_what_the_file_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "recording_driver", sys.modules[__name__])
    monkeypatch.setenv("OCS_SECRET", "swordfish")
    wired_fabric, region, spec = parts("scpi")
    control = OcsControl("recording_driver:RecordingScpi", password_env="OCS_SECRET")
    assert device_address(control, "198.18.0.9") == ("198.18.0.9", 5025)
    spec = replace(spec, control=control)
    with (
        ocs_device("scpi", PORTS, profile()) as served,
        RemoteOcs(wired_fabric, region, make_driver(spec, served.address)) as ocs,
    ):
        ocs.reconfigure(NOTHING.transition_to(A), CrossConnectMode.OVERWRITE)
        ocs.wait_settled(10)
        assert ocs.circuits() == A
    (settings,) = OPENED
    assert (settings.user, settings.password) == ("root", "swordfish")
    assert settings.address == served.address


def test_unknown_driver_is_refused_before_anything_is_connected() -> None:
    with pytest.raises(SpecError, match="OCS driver: 'telepathy' is not one of restconf"):
        make_driver(Ocs("ocs0", 4, control=OcsControl("telepathy")), ("192.0.2.1", 1))
