"""Selects the driver, address and account of a region's OCS."""

import os
import socket
import time
from collections.abc import Callable
from typing import Final

from moefabric.config.plugins import OCS_DRIVERS, load_plugin
from moefabric.controller.http_client import Dial
from moefabric.controller.southbound.ocs.remote_ocs import DeviceDriver
from moefabric.core.errors import ControlError
from moefabric.core.ocs import Ocs, OcsControl
from moefabric.core.ocs_dialect import DriverSettings, OcsDriverFactory

TIMEOUT_S: Final = 2.0
"""Timeout for an answer that doesn't wait for light."""


def _factory(control: OcsControl) -> OcsDriverFactory:
    factory: OcsDriverFactory = load_plugin(OCS_DRIVERS, control.driver, OcsDriverFactory)
    return factory


def device_address(control: OcsControl, emulated_host: str) -> tuple[str, int]:
    """Return host and port of the OCS: the configured ones, else those of the emulated OCS."""
    return control.address or emulated_host, control.port or _factory(control).default_port


def account(control: OcsControl, factory: tuple[str, str]) -> tuple[str, str]:
    """Return the configured user and password, else the factory's.

    The configuration names an environment variable that contains the password.

    Raises:
        ControlError: if that variable is not set.
    """
    user, password = control.user or factory[0], factory[1]
    if (name := control.password_env) is not None:
        if name not in os.environ:
            raise ControlError(f"ocs.password_env: {name} is not in the controller's environment")
        password = os.environ[name]
    return user, password


def make_driver(
    ocs: Ocs,
    address: tuple[str, int],
    timeout_s: float = TIMEOUT_S,
    dial: Dial = socket.create_connection,
    sleep: Callable[[float], object] = time.sleep,
) -> DeviceDriver:
    """Return the driver for an OCS at an address; nothing is connected yet.

    Args:
        ocs: The OCS and how it is controlled.
        address: Host and TCP port.
        timeout_s: How long an answer that doesn't wait for light may take.
        dial: Opens TCP connections; in a process that runs on Eventlet, one of Eventlet's.
        sleep: Waits for a number of seconds; in a process that runs on Eventlet, Eventlet's.
    """
    factory = _factory(ocs.control)
    user, password = account(ocs.control, factory.factory_account)
    settings = DriverSettings(ocs, address, timeout_s, user, password, dial, sleep)
    driver: DeviceDriver = factory.open(settings)
    return driver
