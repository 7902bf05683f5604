"""Port alarms of an OCS over TL1."""

import socket
import threading
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import cast

import pytest

from moefabric.controller.recovery.failure_events import NicEventDispatcher
from moefabric.controller.service import process
from moefabric.controller.southbound.ocs.connection import LoginRefusedError, RetryDelays
from moefabric.controller.southbound.ocs.port_alarms import (
    alarm_control,
    nic_states,
    parse_alarms,
    port_states,
)
from moefabric.core.errors import ControlError
from moefabric.core.nic import Nic
from moefabric.core.ocs import DeviceProfile, Ocs, OcsControl
from moefabric.emulator.ocs.device_failures import OcsFailure, OcsFailureKind
from moefabric.runtime.run_directory import FabricWiring, ManagementNetwork
from tests.support.fabrics import fabric
from tests.support.ocs_device import ocs_device

FABRIC = fabric(2, 1)
REGION = FABRIC.regions[0]  # eight ports: outputs are 9..16
RAISED = """
   POLATIS 26-01-01 00:00:00
*C 7 REPT ALM EQPT
   "3:CR,PORT-FAIL,SA,01-01,00-00-00,,:\\"Port 3 failed\\""
   "11:CR,PORT-FAIL,SA,01-01,00-00-00,,:\\"Port 11 failed\\""
;"""
DARK = '** 8 REPT ALM EQPT\n   "17:MJ,LOS,SA,01-01,00-00-00,,:\\"Port 17 has no light\\""\n;'


@pytest.mark.parametrize(
    ("message", "states"),
    [
        (RAISED, [(3, False), (11, False)]),
        (RAISED.replace(":CR,", ":CL,"), [(3, True), (11, True)]),
        (DARK, []),
        ("M  3 COMPLD\n;", []),
    ],
    ids=["raised", "cleared", "no-light-is-no-broken-port", "an-answer"],
)
def test_parse_alarms(message: str, states: list[tuple[int, bool]]) -> None:
    assert parse_alarms(message) == states


def test_nic_states_merges_input_and_output_ports() -> None:
    assert nic_states(FABRIC, REGION, [(3, False), (11, False), (8, True)]) == [
        (Nic.parse("s1/o0"), False),
        (Nic.parse("s3/o1"), True),
    ]
    region = replace(REGION, ocs=Ocs("ocs0", 10))  # outputs are 11..20
    roomy = replace(FABRIC, regions=(region,))
    assert nic_states(roomy, region, [(9, False), (19, False), (18, False)]) == [
        (Nic.parse("s3/o1"), False)
    ]


def _hang_up(listener: socket.socket) -> None:
    listener.accept()[0].close()


def test_session_yields_all_ports_first_and_then_changes() -> None:
    with ExitStack() as stack:
        device = stack.enter_context(ocs_device("tl1", 8, DeviceProfile()))
        device.inject(OcsFailure(OcsFailureKind.PORT, (1, 9)))
        alarms = port_states(FABRIC, REGION, device.address, socket.create_connection)
        states = stack.enter_context(closing(alarms))
        first = dict(next(states))
        assert [str(nic) for nic, works in first.items() if not works] == ["s0/o0"]
        assert len(first) == 8
        device.inject(OcsFailure(OcsFailureKind.PORT, (4, 12)))
        assert next(states) == [(Nic.parse("s1/o1"), False)]
        device.run(lambda: device.device.clear_failures(1))
        assert next(states) == [(Nic.parse("s0/o0"), True)]


def test_session_errors_name_the_cause() -> None:
    with ocs_device("tl1", 8, DeviceProfile()) as device:
        wrong = port_states(
            FABRIC, REGION, device.address, socket.create_connection, ("root", "guess")
        )
        with pytest.raises(LoginRefusedError, match="refuses the login as root"):
            next(wrong)
    with pytest.raises(ControlError, match=r"alarms at 127\.0\.0\.1:\d+: "):
        next(port_states(FABRIC, REGION, device.address, socket.create_connection))
    with socket.create_server(("127.0.0.1", 0)) as mute:
        threading.Thread(target=partial(_hang_up, mute)).start()
        alarms = port_states(FABRIC, REGION, mute.getsockname()[:2], socket.create_connection)
        with pytest.raises(ControlError, match=r"hung up|reset|Broken pipe"):
            next(alarms)


@pytest.mark.parametrize("password", ["pässword", "a;DLT-PATCH::1:9:", "a b"])
def test_password_that_tl1_cannot_carry_is_refused(password: str) -> None:
    with ocs_device("tl1", 8, DeviceProfile()) as device:
        alarms = port_states(
            FABRIC, REGION, device.address, socket.create_connection, ("root", password)
        )
        with pytest.raises(ControlError, match="TL1 login: user and password are printable ASCII"):
            next(alarms)


REAL = OcsControl("scpi", "192.0.2.10")


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        pytest.param(OcsControl("scpi"), OcsControl("tl1"), id="emulated"),
        pytest.param(
            OcsControl("restconf", user="admin", port=80), OcsControl("tl1"), id="emulated-restconf"
        ),
        pytest.param(REAL, None, id="real-without-account"),
        pytest.param(replace(REAL, driver="restconf"), None, id="real-restconf-without-account"),
        pytest.param(replace(REAL, driver="tl1"), None, id="real-tl1-without-account"),
        pytest.param(replace(REAL, user="root"), None, id="real-without-password"),
        pytest.param(
            replace(REAL, user="lab", password_env="P", port=5025),
            replace(REAL, driver="tl1", user="lab", password_env="P"),
            id="real-with-account",
        ),
        pytest.param(
            replace(REAL, driver="tl1", user="lab", password_env="P", port=3083),
            replace(REAL, driver="tl1", user="lab", password_env="P", port=3083),
            id="real-tl1-with-account",
        ),
    ],
)
def test_real_device_gets_alarm_logins_with_its_own_account_only(
    control: OcsControl, expected: OcsControl | None
) -> None:
    assert alarm_control(control) == expected


class AskedError(Exception):
    """A session for alarms begins."""


@pytest.mark.parametrize(
    ("control", "asks"),
    [
        pytest.param(OcsControl("scpi"), True, id="emulated"),
        pytest.param(REAL, False, id="real-without-account"),
    ],
)
def test_controller_reads_the_alarms_of_each_ocs_that_reports_them(
    control: OcsControl, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*_: object) -> None:
        raise AskedError

    monkeypatch.setattr(process, "port_states", begin)
    region = replace(REGION, ocs=Ocs("ocs0", 8, control=control))
    wired = replace(FABRIC, regions=(region,))
    wiring = FabricWiring(wired, ManagementNetwork("127.9.9.0/24"))
    with pytest.raises(AskedError) if asks else nullcontext():
        process._read_alarms(wiring, region, cast("NicEventDispatcher", None))


def test_refused_logins_are_rare() -> None:
    delays, waits, refused = RetryDelays(), [0.0], LoginRefusedError("no")
    while sum(waits) < 86_400:
        waits.append(delays.after(refused, waits[-1]))
    assert waits[1:4] == [300, 600, 1200]
    assert len(waits) - 1 == 27, "attempts in a day"
    assert delays.after(ControlError("lost"), 0.0) == 0.05
