"""Drivers of optical circuit switches as plug-ins: what they are given, and what they provide."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from moefabric.core.ocs import Ocs


@dataclass(frozen=True)
class DriverSettings:
    """What a driver needs in order to reach a switch.

    Attributes:
        ocs: The switch; its name is that of the device in errors.
        address: Host and TCP port.
        timeout_s: How long an answer that doesn't wait for light may take.
        user: Account name.
        password: Its password.
        dial: Opens a TCP connection, given address and timeout. Controllers run on green threads:
            a driver opens all its connections by this, or the whole controller waits.
        sleep: Waits for so many seconds, and lets the controller work meanwhile.
    """

    ocs: Ocs
    address: tuple[str, int]
    timeout_s: float
    user: str
    password: str
    dial: Callable[[tuple[str, int], float], Any]
    sleep: Callable[[float], object]


class OcsDriverFactory(Protocol):
    """Makes drivers of one management interface."""

    @property
    def default_port(self) -> int:
        """The TCP port of the interface."""

    @property
    def factory_account(self) -> tuple[str, str]:
        """User and password of a new switch."""

    def open(self, settings: DriverSettings) -> Any:
        """Return a driver; nothing is connected yet.

        It has the methods of `moefabric.controller.southbound.ocs.remote_ocs.DeviceDriver`.
        """
