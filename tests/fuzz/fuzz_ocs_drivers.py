"""What a controller reads from an optical switch, by each driver, and from its alarms."""

import io
import socket
from collections.abc import Callable
from functools import partial
from typing import cast

from moefabric.controller.southbound.ocs.cross_connects import CrossConnectChange
from moefabric.controller.southbound.ocs.port_alarms import port_states
from moefabric.controller.southbound.ocs.remote_ocs import DeviceDriver, PipeliningDriver
from moefabric.controller.southbound.ocs.restconf import Restconf
from moefabric.controller.southbound.ocs.scpi import Scpi
from moefabric.controller.southbound.ocs.tl1 import Tl1
from moefabric.core.errors import ControlError
from moefabric.core.ocs import Ocs
from moefabric.core.ocs_dialect import DriverSettings, OcsDriverFactory
from tests.support.fabrics import fabric
from tests.support.fuzzing import FuzzTarget

_FABRIC = fabric()
_ADDRESS = "192.0.2.1", 5025
_OCS = Ocs("ocs0", ports=4)
_CHANGE = CrossConnectChange(((1, 5),), ((2, 6),))
_MOST_DIALS = 4


class Device:
    """A device that sends the input on each connection, and hangs up."""

    def __init__(self, data: bytes) -> None:
        self._data, self._dials = data, 0

    def dial(self, _address: tuple[str, int], _timeout_s: float) -> socket.socket:
        """Return a connection to the device."""
        self._dials += 1
        if self._dials > _MOST_DIALS:
            raise ConnectionRefusedError
        return cast(socket.socket, Line(self._data))


class Line:
    """A TCP connection in memory."""

    def __init__(self, data: bytes) -> None:
        self._unread = data

    def recv(self, size: int) -> bytes:
        """Return what is left, up to a size."""
        part, self._unread = self._unread[:size], self._unread[size:]
        return part

    def makefile(self, _mode: str) -> io.BytesIO:
        """Return what is left as a file."""
        return io.BytesIO(self._unread)

    def sendall(self, data: bytes) -> None:
        """Drop a request."""

    def settimeout(self, seconds: float | None) -> None:
        """Do nothing: nothing here waits."""

    def setsockopt(self, *_option: int) -> None:
        """Do nothing: there is no socket."""

    def close(self) -> None:
        """Do nothing: there is no socket."""


def read_answers(factory: OcsDriverFactory, data: bytes) -> None:
    """Have a driver do all that a controller does, and read the input as the answers."""
    dial = Device(data).dial
    settings = DriverSettings(_OCS, _ADDRESS, 2.0, "root", "root", dial, lambda _seconds: None)
    driver: DeviceDriver = factory.open(settings)
    calls: list[Callable[[], object]] = [
        driver.cross_connects, partial(driver.apply, _CHANGE), partial(driver.wait_settled, 1)
    ]  # fmt: skip
    if isinstance(driver, PipeliningDriver):
        calls.append(partial(driver.settled_cross_connects, 1))
    for call in calls:
        try:
            call()
        except ControlError:
            continue
    driver.close()


def read_alarms(data: bytes) -> None:
    """Read the input as a session of alarms."""
    region = _FABRIC.regions[0]
    try:
        for states in port_states(_FABRIC, region, _ADDRESS, Device(data).dial):
            assert all(nic.server in _FABRIC.servers for nic, _ in states)
    except ControlError:
        pass


TARGETS = (
    *(
        FuzzTarget(f"driver-{name}", partial(read_answers, factory))
        for name, factory in (("scpi", Scpi()), ("tl1", Tl1()), ("restconf", Restconf()))
    ),
    FuzzTarget("driver-alarms", read_alarms),
)
