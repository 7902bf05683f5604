"""Alarms of an optical switch: what a TL1 session hears of ports without asking, whatever language the switch is commanded in.

A device says `REPT ALM EQPT` with a line for each port and condition (GR-833); `PORT-FAIL` is a port that is out of order, `CL` that it works again.
Those that stand already are asked for once.
"""

import logging
import re
import socket
from collections.abc import Generator, Iterator
from typing import Final

from controller.southbound.line import Dial
from controller.southbound.tl1 import FACTORY
from moefabric.errors import ControlError
from moefabric.topology import Fabric, Nic, Region

log = logging.getLogger(__name__)

_END: Final = re.compile(rb"(?:^|\n)[;<>]")
_ALARM: Final = re.compile(r'"(\d+):(CR|MJ|MN|CL),PORT-FAIL,')
_DENIED: Final = re.compile(r"^M +\S+ +DENY", re.MULTILINE)
_STANDING: Final = re.compile(r"^M +standing +COMPLD", re.MULTILINE)
_REPORT: Final = "REPT ALM EQPT"
_PATIENCE_S: Final = 2.0
_SILENCE_S: Final = 3
"""A device that is gone is missed after so many seconds, thrice (tcp(7))."""


def port_alarms(message: str) -> list[tuple[int, bool]]:
    """(port, whether it works) of each line of a message that is about a port's being out of order."""
    return [(int(port), severity == "CL") for port, severity in _ALARM.findall(message)]


def nics_told(fabric: Fabric, region: Region, told: list[tuple[int, bool]]) -> list[tuple[Nic, bool]]:
    """The same by the NIC that is plugged into the port, as input or output; ports without one are left out."""
    assert region.ocs is not None
    n, wired = region.ocs.ports, sum(len(fabric.optical_nics(server)) for server in region.servers)
    numbered = [(port if port <= n else port - n, works) for port, works in told]
    return list(dict.fromkeys((fabric.nic_at(region, p), works) for p, works in numbered if p <= wired))


class Alarms:
    """One session with one switch, for as long as it lasts."""

    def __init__(
        self,
        fabric: Fabric,
        region: Region,
        address: tuple[str, int],
        dial: Dial,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        """Without user and password, those of the factory."""
        self._fabric, self._region, self._address, self._dial = fabric, region, address, dial
        self._user, self._password = user or FACTORY[0], FACTORY[1] if password is None else password

    def told(self) -> Generator[list[tuple[Nic, bool]], None, None]:
        """What is told of NICs' ports: first of all ports, then of each that changes. ControlError when the session ends, or where there is none."""
        try:
            with self._dial(self._address, _PATIENCE_S) as session:
                yield from self._heard(session)
        except OSError as lost:
            raise ControlError(f"alarms of {self._address[0]}:{self._address[1]}: {lost}") from lost

    def _all(self) -> Iterator[Nic]:
        return (nic for server in self._region.servers for nic in self._fabric.optical_nics(server))

    def _heard(self, session: socket.socket) -> Generator[list[tuple[Nic, bool]], None, None]:
        session.settimeout(None)
        session.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
            session.setsockopt(socket.IPPROTO_TCP, option, _SILENCE_S)
        said = f"ACT-USER::{self._user}:login::{self._password};\r\nRTRV-ALM-EQPT::ALL:standing:;\r\n"
        session.sendall(said.encode("ascii"))
        heard = b""
        while part := session.recv(65536):
            heard += part
            while found := _END.search(heard):
                message, heard = heard[: found.end()].decode("ascii", "replace"), heard[found.end() :]
                message = message.replace("\r", "")
                if _DENIED.search(message):
                    raise ControlError(f"alarms: {' '.join(message.split())}")
                told = nics_told(self._fabric, self._region, port_alarms(message))
                if _STANDING.search(message):
                    yield [(nic, (nic, False) not in told) for nic in self._all()]
                elif _REPORT in message:
                    yield told
        raise ControlError("alarms: the device hung up")
