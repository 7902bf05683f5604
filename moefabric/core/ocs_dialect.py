"""Dialects of optical circuit switches (OCS) as plug-ins: of the emulated switch, and drivers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from moefabric.core.ocs import Ocs, UserAccount


@dataclass(frozen=True)
class NoOptions:
    """Options of a dialect that has none."""


@dataclass(frozen=True)
class OcsDialect:
    """Management protocol of the emulated switch, registered in `moefabric.ocs_dialects`.

    Attributes:
        port: TCP port that the switch listens on.
        front_end: `package.module:Name` of a class or function that makes the protocol's
            `moefabric.emulator.ocs.front_end.FrontEnd`, given the
            `moefabric.emulator.ocs.device.OcsDevice` and the options of its profile. The process
            of a switch imports it.
        options: Data class of the options. The section of the dialect's name in a profile sets
            them: a field `wait_ns` by the key `wait`, other fields by their names.
        accounts: Accounts of a new switch.

    Example:
        A package registers an object of its module `lab.dialect` by the line
        `telnet = "lab.dialect:TELNET"` below `[project.entry-points."moefabric.ocs_dialects"]`::

            TELNET = OcsDialect(port=4001, front_end="lab.telnet:TelnetFrontEnd")
    """

    port: int
    front_end: str
    options: type = NoOptions
    accounts: tuple[UserAccount, ...] = ()


@dataclass(frozen=True)
class DriverSettings:
    """Address, account and functions with which a driver reaches a switch.

    Attributes:
        ocs: The switch; its name is that of the device in errors.
        address: Host and TCP port.
        timeout_s: How long an answer that doesn't wait for light may take.
        user: Account name.
        password: Its password.
        dial: Opens a TCP connection, given address and timeout. Controllers run on green threads:
            a driver opens all its connections by this, or the whole controller waits.
        sleep: Waits for a number of seconds, and lets the controller work meanwhile.
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
