"""Port alarms of an OCS, read from a TL1 session even if another language commands the switch.

A device reports `REPT ALM EQPT` with a line for each port and condition (Telcordia GR-833):
`PORT-FAIL` is a failed port, severity `CL` its end. A session first retrieves standing alarms.
"""

import re
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from math import inf
from typing import Final

from moefabric.controller.http_client import Dial
from moefabric.controller.southbound.ocs.connection import DeviceConnection, LoginRefusedError
from moefabric.controller.southbound.ocs.tl1 import FACTORY_ACCOUNT, MESSAGE_END, check_account
from moefabric.core.errors import ControlError
from moefabric.core.nic import Nic
from moefabric.core.ocs import OcsControl
from moefabric.core.topology import Fabric, Region, nic_at
from moefabric.runtime.waiting import Deadline

PortStates = list[tuple[Nic, bool]]
"""NICs, and whether the OCS port of each works."""

_DRIVER: Final = "tl1"
_ALARM: Final = re.compile(r'"(\d+):(CR|MJ|MN|CL),PORT-FAIL,')
_DENIED: Final = re.compile(r"^M +\S+ +DENY", re.MULTILINE)
_LOGIN_DENIED: Final = re.compile(r"^M +login +DENY", re.MULTILINE)
_STANDING: Final = re.compile(r"^M +standing +COMPLD", re.MULTILINE)
_REPORT: Final = "REPT ALM EQPT"
_CONNECT_TIMEOUT_S: Final = 2.0
_KEEPALIVE: Final = 3
"""Idle seconds, interval in seconds and number of keep-alive probes."""


def alarm_control(control: OcsControl) -> OcsControl | None:
    """Return the access to a device's TL1 interface, which reports alarms; None if it has none.

    A device that isn't the emulated one gets the configured account only: attempts with the
    factory's would lock an account of the device.

    Returns:
        The user and password of `control` with TL1; None if a real device has none configured.
    """
    has_account = control.user is not None and control.password_env is not None
    if control.address is not None and not has_account:
        return None
    if control.driver == _DRIVER:
        return control
    tl1 = replace(control, driver=_DRIVER, port=None)
    return tl1 if control.address else replace(tl1, user=None, password_env=None)


def parse_alarms(message: str) -> list[tuple[int, bool]]:
    """Return, for each port alarm in a message, the port and whether it works."""
    return [(int(port), severity == "CL") for port, severity in _ALARM.findall(message)]


def nic_states(fabric: Fabric, region: Region, ports: Sequence[tuple[int, bool]]) -> PortStates:
    """Return the states of the NICs at input or output ports; ports without a NIC are left out."""
    nics = ((nic_at(fabric, region, port), works) for port, works in ports)
    return list(dict.fromkeys((nic, works) for nic, works in nics if nic is not None))


def port_states(
    fabric: Fabric,
    region: Region,
    address: tuple[str, int],
    dial: Dial,
    account: tuple[str, str] = FACTORY_ACCOUNT,
) -> Generator[PortStates, None, None]:
    """Listen in one TL1 session: yield the states of all ports, then those of ports that change.

    Raises:
        ControlError: if no session can be opened, or when it ends.
    """
    nics = [nic for server in region.servers for nic in fabric.optical_nics(server)]
    user, password = check_account(account)
    login = f"ACT-USER::{user}:login::{password};\r\n"
    with closing(DeviceConnection("alarms", address, _CONNECT_TIMEOUT_S, dial)) as session:
        session.send(f"{login}RTRV-ALM-EQPT::ALL:standing:;\r\n".encode("ascii"))
        session.keep_alive(_KEEPALIVE)
        while True:
            read = session.read_until(MESSAGE_END, "alarms", Deadline.after(inf))
            message = read.decode("ascii", "replace").replace("\r", "")
            if _LOGIN_DENIED.search(message):
                raise LoginRefusedError(f"alarms: the device refuses the login as {user}")
            if _DENIED.search(message):
                raise ControlError(f"alarms: {' '.join(message.split())}")
            states = nic_states(fabric, region, parse_alarms(message))
            if _STANDING.search(message):
                yield [(nic, (nic, False) not in states) for nic in nics]
            elif _REPORT in message:
                yield states
