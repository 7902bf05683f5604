"""Drivers: which language a region's optical switch is spoken to in, and where."""

import os
import socket
import time
from collections.abc import Callable
from typing import Final

from controller.southbound.driven_ocs import Device, DrivenOcs
from controller.southbound.line import Dial, Line
from controller.southbound.restconf import DialledConnection, RestconfDevice
from controller.southbound.scpi import ScpiDevice
from controller.southbound.tl1 import Tl1Device
from moefabric.errors import ControlError
from moefabric.management import OCS_PORTS
from moefabric.ocs_control import Driver, OcsControl
from moefabric.topology import Fabric, Ocs, Region

PATIENCE_S: Final = 2.0
"""For an answer that has not to wait for light."""


def place(control: OcsControl, emulated: str) -> tuple[str, int]:
    """Where the switch is controlled: at `emulated`, unless it is said where."""
    return control.address or emulated, control.port or OCS_PORTS[control.driver]


def password(control: OcsControl) -> str | None:
    """What the environment holds; None where no variable is named. ControlError where a named one isn't there."""
    if control.password_env is None:
        return None
    if (known := os.environ.get(control.password_env)) is None:
        raise ControlError(f"ocs.password_env: {control.password_env} is not in the controller's environment")
    return known


def device(
    ocs: Ocs,
    address: tuple[str, int],
    patience_s: float = PATIENCE_S,
    dial: Dial = socket.create_connection,
    sleep: Callable[[float], object] = time.sleep,
) -> Device:
    """The device at an address, in its language. `dial` and `sleep` are those of a program with another idea of waiting."""
    control = ocs.control
    if control.driver is Driver.SCPI:
        return ScpiDevice(Line(ocs.name, address, patience_s, dial))
    if control.driver is Driver.TL1:
        return Tl1Device(Line(ocs.name, address, patience_s, dial), control.user, password(control))
    # Some answer only when light has settled.
    http = DialledConnection(address, patience_s + ocs.settle_ns / 1e9, dial)
    return RestconfDevice(ocs.name, http, ocs.settle_ns / 1e9, control.user, password(control), sleep)


def driven(
    fabric: Fabric,
    region: Region,
    emulated: str,
    patience_s: float = PATIENCE_S,
    dial: Dial = socket.create_connection,
    sleep: Callable[[float], object] = time.sleep,
) -> DrivenOcs | None:
    """A region's switch, `emulated` being the address of the emulated one; None where the region has none."""
    if region.ocs is None or not fabric.optical:
        return None
    where = place(region.ocs.control, emulated)
    return DrivenOcs(fabric, region, device(region.ocs, where, patience_s, dial, sleep))
