"""Port alarms of an OCS over TL1."""

import socket
import threading
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

import pytest

from moefabric.controller.southbound.ocs.port_alarms import AlarmSession, nic_states, parse_alarms
from moefabric.core.errors import ControlError
from moefabric.core.ocs import DeviceProfile, Ocs
from moefabric.core.topology import Nic
from moefabric.emulator.ocs.device_faults import OcsFault, OcsFaultKind
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
    roomy = replace(REGION, ocs=Ocs("ocs0", 10))  # outputs are 11..20
    assert nic_states(FABRIC, roomy, [(9, False), (19, False), (18, False)]) == [
        (Nic.parse("s3/o1"), False)
    ]


def _hang_up(listener: socket.socket) -> None:
    listener.accept()[0].close()


def test_session_yields_all_ports_first_and_then_changes() -> None:
    with ExitStack() as stack:
        device = stack.enter_context(ocs_device("tl1", 8, DeviceProfile()))
        device.inject(OcsFault(OcsFaultKind.PORT, (1, 9)))
        alarms = AlarmSession(FABRIC, REGION, device.address, socket.create_connection)
        states = stack.enter_context(closing(alarms.port_states()))
        first = dict(next(states))
        assert [str(nic) for nic, works in first.items() if not works] == ["s0/o0"]
        assert len(first) == 8
        device.inject(OcsFault(OcsFaultKind.PORT, (4, 12)))
        assert next(states) == [(Nic.parse("s1/o1"), False)]
        device.run(lambda: device.device.clear_fault(1))
        assert next(states) == [(Nic.parse("s0/o0"), True)]


def test_session_errors_name_the_cause() -> None:
    with ocs_device("tl1", 8, DeviceProfile()) as device:
        wrong = AlarmSession(
            FABRIC, REGION, device.address, socket.create_connection, ("root", "guess")
        )
        with pytest.raises(ControlError, match="DENY"):
            next(wrong.port_states())
    with pytest.raises(ControlError, match=r"alarms of 127\.0\.0\.1:\d+: "):
        next(AlarmSession(FABRIC, REGION, device.address, socket.create_connection).port_states())
    with socket.create_server(("127.0.0.1", 0)) as mute:
        threading.Thread(target=partial(_hang_up, mute)).start()
        alarms = AlarmSession(FABRIC, REGION, mute.getsockname()[:2], socket.create_connection)
        with pytest.raises(ControlError, match=r"hung up|reset|Broken pipe"):
            next(alarms.port_states())
