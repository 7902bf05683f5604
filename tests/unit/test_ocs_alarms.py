"""What an optical switch tells of its ports without being asked reaches a controller, whoever it was that broke them."""

import socket
import threading
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

import pytest

from controller.southbound.ocs_alarms import Alarms, nics_told, port_alarms
from emulator.ocs.faults import Fault, Ill
from moefabric.errors import ControlError
from moefabric.ocs_profile import Profile
from moefabric.topology import Nic, Ocs
from tests.fabrics import fabric
from tests.ocs_device import ocs_device

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
    ("message", "told"),
    [
        (RAISED, [(3, False), (11, False)]),
        (RAISED.replace(":CR,", ":CL,"), [(3, True), (11, True)]),
        (DARK, []),
        ("M  3 COMPLD\n;", []),
    ],
    ids=["raised", "cleared", "no-light-is-no-broken-port", "an-answer"],
)
def test_a_message_is_read_for_ports_out_of_order(message: str, told: list[tuple[int, bool]]) -> None:
    assert port_alarms(message) == told


def test_both_fibres_of_a_nic_are_one_nic_and_ports_without_one_are_nobodys() -> None:
    assert nics_told(FABRIC, REGION, [(3, False), (11, False), (8, True)]) == [
        (Nic.parse("s1/o0"), False),
        (Nic.parse("s3/o1"), True),
    ]
    roomy = replace(REGION, ocs=Ocs("ocs0", 10))  # outputs are 11..20
    assert nics_told(FABRIC, roomy, [(9, False), (19, False), (18, False)]) == [(Nic.parse("s3/o1"), False)]


def _hang_up(listener: socket.socket) -> None:
    listener.accept()[0].close()


def test_a_session_hears_of_all_ports_first_and_then_of_each_that_changes() -> None:
    with ExitStack() as stack:
        device = stack.enter_context(ocs_device("tl1", 8, Profile()))
        device.suffer(Fault(Ill.PORT, (1, 9)))
        alarms = Alarms(FABRIC, REGION, device.address, socket.create_connection)
        told = stack.enter_context(closing(alarms.told()))
        first = dict(next(told))
        assert [str(nic) for nic, works in first.items() if not works] == ["s0/o0"]
        assert len(first) == 8
        device.suffer(Fault(Ill.PORT, (4, 12)))
        assert next(told) == [(Nic.parse("s1/o1"), False)]
        device.do(lambda: device.store.heal(1))
        assert next(told) == [(Nic.parse("s0/o0"), True)]


def test_a_switch_that_hangs_up_refuses_or_isnt_there_is_an_error_in_words() -> None:
    with ocs_device("tl1", 8, Profile()) as device:
        wrong = Alarms(FABRIC, REGION, device.address, socket.create_connection, "root", "guess")
        with pytest.raises(ControlError, match="DENY"):
            next(wrong.told())
    with pytest.raises(ControlError, match=r"alarms of 127\.0\.0\.1:\d+: "):
        next(Alarms(FABRIC, REGION, device.address, socket.create_connection).told())
    with socket.create_server(("127.0.0.1", 0)) as mute:
        threading.Thread(target=partial(_hang_up, mute)).start()
        alarms = Alarms(FABRIC, REGION, mute.getsockname()[:2], socket.create_connection)
        with pytest.raises(ControlError, match=r"hung up|reset|Broken pipe"):
            next(alarms.told())
